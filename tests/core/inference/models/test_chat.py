"""Chats through a tokenizer's own template: the tokens that an engine's chat endpoint would
feed.
"""

from dataclasses import replace

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from core.errors import CaptureError
from core.inference.models.chat import chat_tokens

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools"
    " here') }}{% endif %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt"
    " %}[assistant]{% endif %}"
)
USER = {"role": "user", "content": "walk the path"}


@pytest.fixture
def chatty(llama, model_folders):
    """A Llama whose tokenizer adds a beginning-of-text token to every text, and whose template
    writes one too, as Llama 3's do.
    """
    tokenizer = AutoTokenizer.from_pretrained(model_folders["llama"])
    tokenizer._tokenizer.post_processor = TemplateProcessing(
        single="<|start|> $A",
        special_tokens=[("<|start|>", 0)],
    )
    tokenizer.chat_template = TEMPLATE
    return replace(llama, tokenizer=tokenizer)


def test_the_tokens_are_those_transformers_makes_of_the_chat_itself(chatty):
    wanted = chatty.tokenizer.apply_chat_template(
        [USER],
        tokenize=True,
        add_generation_prompt=True,
        return_dict=False,
    )
    assert list(chat_tokens(chatty, [USER], "here")) == list(wanted)


def test_a_chat_that_ends_with_the_answer_is_taken_as_it_is(chatty):
    ids = chat_tokens(chatty, [USER, {"role": "assistant", "content": "done"}], "here")
    assert "<|start|>[user] walk the path" in chatty.tokenizer.decode(ids)


def test_a_tokenizer_without_a_template_and_a_template_that_refuses_get_a_sentence(llama, chatty):
    with pytest.raises(CaptureError, match="has no chat template"):
        chat_tokens(llama, [USER], "file:3")
    with pytest.raises(CaptureError, match="refuses messages of user, tool"):
        chat_tokens(chatty, [USER, {"role": "tool", "content": "x"}], "here")
