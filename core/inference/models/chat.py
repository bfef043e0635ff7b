"""Chats as tokens: messages through the tokenizer's chat template, like an engine's chat
endpoint.
"""

from collections.abc import Sequence
from dataclasses import asdict

from ...capture_request import CaptureRequest
from ...errors import CaptureError, UsageError
from ...prompt_files import Message, prompts_of
from .model import Ids, LoadedModel
from .torch_errors import first_line, quiet


def plan_inputs(loaded: LoadedModel, request: CaptureRequest) -> list[str | Sequence[int]]:
    """Return the prompts of a request for a plan: chats as token ids, texts and token ids
    unchanged.
    """
    opening = []
    if request.system is not None:
        opening = [Message("system", request.system)]
    inputs: list[str | Sequence[int]] = []
    for prompt in prompts_of(request):
        messages = prompt.messages
        if prompt.text_pair is not None:
            if loaded.encoder is None or prompt.text is None:
                raise UsageError(
                    f"{prompt.source}: text_pair is for a text on paths of encode; leave it out.",
                )
            inputs.append(loaded.encode_pair(prompt.text, prompt.text_pair, prompt.source))
            continue
        if messages is None and request.is_chat and prompt.text is not None:
            if not prompt.text:
                raise UsageError(f"{prompt.source}: is empty; expected at least one character.")
            messages = (Message("user", prompt.text),)
        if messages is not None:
            chat = [asdict(message) for message in (*opening, *messages)]
            inputs.append(chat_tokens(loaded, chat, prompt.source))
        elif prompt.token_ids is not None:
            inputs.append(prompt.token_ids)
        else:
            inputs.append(prompt.text or "")
    return inputs


def chat_tokens(
    loaded: LoadedModel,
    messages: list[dict[str, str]],
    label: str,
) -> Ids:
    """Return the token ids of a chat, up to the model's turn.

    The template writes all special tokens.
    """
    try:
        with quiet():
            # the default one of several
            template = str(loaded.tokenizer.get_chat_template())
    except Exception as error:
        # ValueError if there is none, others if a tokenizer cannot have one
        reason = f"the tokenizer of '{loaded.name}' has no chat template"
        raise CaptureError(
            f"{label}: {reason}; give the prompt as text, or choose a chat model.",
        ) from error
    is_answered = messages[-1]["role"] == "assistant"
    try:
        with quiet():
            rendered = loaded.tokenizer.apply_chat_template(
                messages,
                chat_template=template,
                tokenize=False,
                add_generation_prompt=not is_answered,
            )
    # templates are programs: jinja's errors, and those they raise on purpose
    except Exception as error:
        roles = ", ".join(message["role"] for message in messages)
        reason = (
            f"the chat template of '{loaded.name}' refuses messages of {roles}"
            f" ({first_line(error)})"
        )
        raise CaptureError(f"{label}: {reason}; change their order.") from error
    return loaded.encode(str(rendered), label, add_special_tokens=False)
