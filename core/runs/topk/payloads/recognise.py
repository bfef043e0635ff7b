"""Recognise a payload by its content: the format of a response decides its reader, never a file's name."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ....errors import DumpError
from ....text import clean
from ..alignment import warn
from ..records import Response
from . import bounded_json, formats
from .formats import Payload
from .streams import whole_answers

_MOST_RESPONSES = 1 << 16
_MOST_NAMED = 5  # of failed requests


class FailedRequestError(DumpError):
    """A request of a batch that has no answer."""


def read_responses(path: Path) -> list[Response]:
    """Read every response of a file: JSON, lists or lines of it, streams, or the output of a batch."""
    responses: list[Response] = []
    failures: list[str] = []
    for source, document in whole_answers(bounded_json.documents(path)):
        try:
            responses.extend(read_payload(document, source))
        except FailedRequestError as failure:
            failures.append(str(failure))
        if len(responses) > _MOST_RESPONSES:
            raise DumpError(f"{clean(path.name)}: holds more than {_MOST_RESPONSES:,} responses.")
    if not responses:
        raise DumpError(failures[0] if failures else f"{clean(path.name)}: holds no response.")
    if failures:
        more = f" and {len(failures) - _MOST_NAMED} more" if len(failures) > _MOST_NAMED else ""
        warning = f"Failed requests are left out: {'; '.join(failures[:_MOST_NAMED])}{more}."
        responses[0] = warn(responses[0], warning)
    return responses


def read_payload(payload: object, source: str, request: Payload | None = None) -> list[Response]:
    """Return the responses of a parsed document. request: the body that was sent for it, with tokens and settings; a
    document `{"request": ..., "response": ...}` has both, one of a batch `{"custom_id": ..., "response": ...}`.
    """
    if isinstance(payload, str):  # a stream that was logged as a text
        documents = bounded_json.documents_of(io.BytesIO(payload.encode()), source)
        return [one for at, each in whole_answers(documents) for one in read_payload(each, at, request)]
    if isinstance(payload, list):
        answers = list(whole_answers((f"{source}, response {number}", one) for number, one in enumerate(payload)))
        requests = [formats.request_of_choice(request or {}, at, len(answers)) for at in range(len(answers))]
        return [
            response
            for (at, one), own in zip(answers, requests, strict=True)
            for response in read_payload(one, at, own)
        ]
    if not isinstance(payload, dict):
        raise DumpError(f"{source}: no response of an engine; expected a JSON object.")
    answer = payload.get("response")
    if isinstance(payload.get("custom_id"), str | int) or (isinstance(answer, dict) and "status_code" in answer):
        return _of_batch(payload, source)
    if isinstance(payload.get("request"), dict) and "response" in payload:
        return read_payload(payload["response"], source, payload["request"])
    if "choices" in payload and "completion_probabilities" not in payload:
        return list(formats.read_choices(payload, source, request or {}))
    for is_of_format, read in _READERS:
        if is_of_format(payload):
            return [read(payload, source, request or {})]
    if error := payload.get("error") or (payload.get("object") == "error" and payload.get("message")):
        raise DumpError(f"{source}: the server answered with an error: {clean(error, 200)}")
    keys = ", ".join(f"'{clean(key, 30)}'" for key in list(payload)[:5])
    raise DumpError(f"{source}: no response that is known here; its keys are {keys or 'none'}.")


def _of_batch(payload: Payload, source: str) -> list[Response]:
    """Return the responses to one request of a batch, as OpenAI's batch API and `vllm run-batch` write them."""
    name, answer, error = payload.get("custom_id", payload.get("id", "")), payload.get("response"), payload.get("error")
    if "url" in payload and answer is None and not error:
        raise DumpError(f"{source}: is a request of a batch, and no answer; expected the batch's output file.")
    answer = answer if isinstance(answer, dict) else {}
    status, body = answer.get("status_code"), answer.get("body", answer or None)
    if error or not isinstance(body, dict) or (isinstance(status, int) and status >= 400):
        reason = error or (body if body is not None else f"status {status}")
        for _ in range(3):
            reason = reason.get("error") or reason.get("message") or reason if isinstance(reason, dict) else reason
        raise FailedRequestError(f"{source}: request '{clean(name)}' failed: {clean(reason, 120)}")
    return [replace(response, prompt_key=f"custom_id {name}") for response in read_payload(body, source)]


_READERS: tuple[tuple[Callable[[Payload], bool], Callable[[Payload, str, Payload], Response]], ...] = (
    (lambda payload: "completion_probabilities" in payload, formats.read_completion),
    (lambda payload: "meta_info" in payload, formats.read_generate),
    (lambda payload: isinstance(payload.get("details"), dict), formats.read_details),
    (lambda payload: payload.get("object") == "response", formats.read_responses_api),
    (lambda payload: isinstance(payload.get("logprobs"), list), formats.read_ollama),
    (lambda payload: isinstance(payload.get("done"), bool), formats.read_ollama),
)
