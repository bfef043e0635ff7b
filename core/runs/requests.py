"""Request of a stored capture: the commands that repeat it with more options, and the request by
which a program judges it from the file alone.

A run file is untrusted. A command that a person is shown is made of the request's typed options and
never of the command that the file states, and lets no model run code of its own; a program takes
from it only paths, dtype, device and seed, and the token ids that the run itself holds, so it reads
no file that a stranger's request names and runs no code of a model.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ..capture_request import CaptureRequest
from ..numerics.arrays import Record
from .file.records import Provenance

if TYPE_CHECKING:
    from .reader import RunReader

_TAKEN = (
    *("reference", "variants", "sweeps", "repeat", "kv", "keep", "dtype", "device", "seed"),
    *("layers", "layer_floor", "layer_positions", "kernels", "mitigations"),
)


def request_of(about: Provenance) -> CaptureRequest | None:
    """Return the request of a run that was captured by one; else None."""
    return CaptureRequest.from_json(about.request) if about.kind == "capture" else None


def repeat_command(about: Provenance) -> str:
    """Return the command that captures the same again; '' if the run has no request."""
    request = request_of(about)
    return "" if request is None else replace(request, trust_remote_code=False).typed()


def command_elsewhere(run: RunReader, model: str) -> tuple[str, str] | None:
    """Return the command that captures the same on another machine, and its `prompts.jsonl` of
    token ids, so that no file of this machine is named. None if the run has no request or no token
    ids. model: its name there.
    """
    request = request_of(run.header.provenance)
    prompts = _token_prompts(run, _new_tokens(run))
    if request is None or prompts is None:
        return None
    elsewhere = replace(
        request,
        model=model,
        prompts=(),
        prompt_files=(),
        prompt_lists=("prompts.jsonl",),
        is_chat=False,
        system=None,
        trust_remote_code=False,
        name=None,
        build="",
    )
    return elsewhere.typed(), prompts.decode()


def command_with(about: Provenance, *extras: str) -> str | None:
    """Return the command that captures the same with `layers`, `kernels`, `mitigations` or `judge`
    added; None if the run has no request, has one of them already, or continues its prompts, which
    allows `judge` only.
    """
    request = request_of(about)
    if request is None or (request.tokens and extras != ("judge",)):
        return None
    if any(getattr(request, extra) for extra in extras):
        return None
    options: Record = dict.fromkeys(extras, True)
    return replace(request, trust_remote_code=False, **options).typed()


def caveat(about: Provenance, command: str | None) -> str:
    """Sentence on what `command`, from this run's request, leaves out, or on why no run like it has
    one; else ''.
    """
    request = request_of(about)
    if request is None:
        none = "This run did not record its options, so no command can be offered."
        return none if about.kind == "capture" else ""
    if command and request.trust_remote_code:
        return (
            "It was captured with `--trust-remote-code`, which runs code of the model's author:"
            " read that code before you add the option."
        )
    return ""


def asks_for(about: Provenance, extra: str) -> bool:
    """Return whether the capture's request has `layers`, `kernels` or `mitigations`."""
    return bool(getattr(request_of(about), extra, False))


def has_engine(about: Provenance) -> bool:
    """Return whether a side of the run's request is of another engine, `vllm:prefill`; `blocks:16`
    is not.
    """
    request = request_of(about)
    return request is not None and any(
        re.match(r"\w+:[a-z]", path) for path in (request.reference, *request.variants)
    )


def how_to_have(extra: str, about: Provenance) -> str:
    """Return `capture it with --layers: COMMAND`, the command of the run's own request if it has
    one.
    """
    command = command_with(about, extra)
    how = " from its model" if command is None else f": {command}"
    return f"capture it with --{extra}{how}"


def rejudge_request(run: RunReader, name: str) -> tuple[CaptureRequest, bytes] | None:
    """Return the request that judges a stored capture's tokens, without its prompts, and these as a
    file of prompts (.jsonl); None if the run lacks its model or token ids.
    """
    about = run.header.provenance
    tokens = _new_tokens(run)
    prompts = _token_prompts(run, tokens)
    if about.kind != "capture" or not about.model or about.model.startswith("-") or prompts is None:
        return None
    original = request_of(about)
    if original:
        settings = {name: getattr(original, name) for name in _TAKEN}
    else:
        reference, *variants = (side.path for side in run.sides)
        settings = {
            "reference": reference,
            "variants": tuple(variants),
            "dtype": run.header.compute_dtype,
        }
    is_commit = about.revision and not about.revision.startswith("sha256:")
    request = CaptureRequest(
        model=about.model,
        revision=about.revision if is_commit else None,
        tokens=tokens,
        judge=True,
        name=name,
        **settings,
    )
    return request, prompts


def _token_prompts(run: RunReader, new_tokens: int) -> bytes | None:
    """Return the token ids of every prompt, a line of JSON each; without continuations if there are
    `new_tokens`.
    """
    rows = []
    for index, prompt in enumerate(run.header.prompts):
        if not prompt.token_ids:
            return None
        length = run.generations[index].given_positions if new_tokens else prompt.positions
        rows.append(json.dumps({"token_ids": list(prompt.token_ids[:length])}) + "\n")
    return "".join(rows).encode()


def _new_tokens(run: RunReader) -> int:
    """Return the number of tokens by which every prompt was continued; 0 if they were scored."""
    generations = run.generations
    counts = {one.asked for one in generations.values()}
    return counts.pop() if len(generations) == len(run.header.prompts) and len(counts) == 1 else 0
