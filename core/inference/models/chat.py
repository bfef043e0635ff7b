"""Chats as tokens: messages through the tokenizer's own template, as an engine's chat endpoint does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from ...capture_request import CaptureRequest
from ...errors import CaptureError, UsageError
from ...prompt_files import Message, prompts_of
from .model import LoadedModel
from .torch_errors import first_line, quiet


def plan_inputs(loaded: LoadedModel, request: CaptureRequest) -> list[str | Sequence[int]]:
    """Prompts of a request as a plan takes them: chats as token ids, texts and token ids as they are."""
    is_chat, system = request.is_chat, request.system
    found: list[str | Sequence[int]] = []
    for prompt in prompts_of(request):
        messages = prompt.messages
        if messages is None and is_chat and prompt.text is not None:
            if not prompt.text:
                raise UsageError(f"{prompt.source}: is empty; expected at least one character.")
            messages = (Message("user", prompt.text),)
        if messages is not None:
            opening = (Message("system", system),) if system is not None else ()
            found.append(chat_tokens(loaded, [asdict(message) for message in (*opening, *messages)], prompt.source))
        elif prompt.token_ids is not None:
            found.append(prompt.token_ids)
        else:
            found.append(prompt.text or "")
    return found


def chat_tokens(loaded: LoadedModel, messages: Sequence[Mapping[str, str]], where: str) -> tuple[int, ...]:
    """Token ids of a chat, up to where the model is to answer. The template writes every special token itself."""
    template = template_of(loaded, where)
    is_answered = messages[-1]["role"] == "assistant"
    try:
        with quiet():
            rendered = loaded.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                chat_template=template,
                tokenize=False,
                add_generation_prompt=not is_answered,
            )
    except Exception as error:  # templates are programs: jinja's errors, and whatever they raise on purpose
        roles = ", ".join(message["role"] for message in messages)
        raise CaptureError(
            f"{where}: the chat template of '{loaded.name}' refuses messages of {roles} ({first_line(error)}); "
            "give them in the order it takes."
        ) from error
    return loaded.encode(str(rendered), where, add_special_tokens=False)


def template_of(loaded: LoadedModel, where: str) -> str:
    """The tokenizer's chat template; the default one where it has several."""
    try:
        with quiet():
            return str(loaded.tokenizer.get_chat_template())
    except Exception as error:  # ValueError where there is none, others where a tokenizer cannot have one
        raise CaptureError(
            f"{where}: the tokenizer of '{loaded.name}' has no chat template; give the prompt as text, or choose a chat"
            " model."
        ) from error
