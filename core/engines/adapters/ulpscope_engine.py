"""The engine's end of the protocol between ULPscope and an engine, version 2
(docs/contributing/engine.md). It needs Python 3.8 and numpy only: copy it, or import it from an
adapter that ULPscope starts, which finds it on its path.

A frame is a JSON object on one line, then `bytes` bytes of payload if the object says so. Frames of
the hub come on stdin, frames of the engine leave on stdout.
"""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import Any

import numpy as np

PROTOCOL = 2
# of logits in a frame, or one row: the hub holds a frame or two, not a prompt
PIECE_BYTES = 32 << 20
CARRIERS = {"float32": "<u4", "float16": "<u2", "bfloat16": "<u2", "float64": "<u8"}


class Refused(Exception):  # noqa: N818 - an answer to the user, not a fault of the program
    """Something this engine cannot do, in one sentence with the alternative."""


class Rows:
    """Sends the logits of a prompt: `rows(start, logits)`, each piece once, in any order.

    logits: [positions, vocab], float16, float32 or float64; bfloat16 as unsigned 16-bit carriers
    with dtype="bfloat16".
    """

    def __init__(self, send: Callable[..., None]) -> None:
        self._send = send

    def __call__(self, start: int, logits: Any, dtype: str | None = None) -> None:
        """Send the logits of consecutive positions, the first at `start`."""
        logits = np.atleast_1d(logits)
        at_once = max(1, PIECE_BYTES // max(1, logits[:1].nbytes))
        for first in range(0, max(1, len(logits)), at_once):
            self._send_rows({"type": "rows"}, start + first, logits[first : first + at_once], dtype)

    def module(self, name: str, start: int, values: Any, dtype: str | None = None) -> None:
        """Send the output of a module, [positions, features], under a name that `modules` of the
        request lists.
        """
        self._send_rows({"type": "module", "name": name}, start, values, dtype)

    def _send_rows(self, head: dict[str, Any], start: int, values: Any, dtype: str | None) -> None:
        array = np.asarray(values)
        dtype = dtype or str(array.dtype)
        if dtype not in CARRIERS or array.ndim != 2:
            what = f"'{head['name']}' as" if "name" in head else "logits"
            raise Refused(
                f"the adapter sent {what} {list(array.shape)} of {dtype}; expected [positions,"
                " features].",
            )
        data = np.ascontiguousarray(array).view(CARRIERS[dtype])
        self._send(dict(head, start=int(start), dtype=dtype, shape=list(array.shape)), data)

    def working(self, says: str) -> None:
        """Report that a long step is in progress, so that the hub does not take it for a hang."""
        self._send({"type": "working", "says": says})


def serve(
    hello: dict[str, Any],
    load: Callable[[dict[str, Any]], tuple[dict[str, Any], Callable[..., None]]],
) -> None:
    """Answer the hub until it closes stdin.

    hello: {"engine": name, "version": text, "bases": {...}, "modifiers": {...}, "dtypes": [...]},
    what the engine can do, sent before it is imported. load(request): {"model": folder or file,
    "dtype": "float32", "base": [name, values...], "modifiers": {name: value}, "modules": names of
    the modules to send} -> ({"vocab": V, "parts": {...}}, run), where run(ids, rows) computes one
    prompt.
    """
    frames = os.fdopen(os.dup(1), "wb")
    # what the engine prints goes to stderr, never between frames
    os.dup2(2, 1)
    lock = threading.Lock()

    def send(head: dict[str, Any], payload: Any = None) -> None:
        if payload is not None:
            head = dict(head, bytes=payload.nbytes)
        with lock:
            frames.write(json.dumps(head).encode() + b"\n")
            if payload is not None:
                frames.write(payload.data)
            frames.flush()

    def say(kind: str, says: str) -> None:
        send({"type": kind, "says": says})

    requests: queue.Queue[dict[str, Any]] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin.buffer:
            requests.put(json.loads(line))
        # the hub has gone
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    send(dict(hello, type="hello", protocol=PROTOCOL))
    run: Callable[..., None] | None = None
    rows = Rows(send)
    every = hello.get("modifiers", {}).items()
    defaults = {name: about["default"] for name, about in every if "default" in about}
    while True:
        head = requests.get()
        try:
            if head["type"] == "load":
                # frees the old model before the new one is loaded
                run = None
                about, run = load(dict(head, modifiers={**defaults, **head.get("modifiers", {})}))
                send(dict(about, type="loaded"))
            elif head["type"] == "run" and run is not None:
                run([int(token) for token in head["ids"]], rows)
                send({"type": "done"})
            else:
                say("error", f"the adapter does not know the request '{head['type']}'.")
        except Refused as error:
            say("refused", str(error))
        except MemoryError:
            say("error", "out of memory.")
        except Exception as error:
            import traceback

            traceback.print_exc()
            reason = " ".join(str(error).split())[:500]
            say("error", f"{type(error).__name__}: {reason}")


# the bases that `chunks` computes
BASES: dict[str, dict[str, int]] = {
    "prefill": {},
    "decode": {},
    "chunked": {"least": 1},
    # the first N tokens' keys and values from an earlier call
    "reuse": {"least": 1},
}


def chunks(request: dict[str, Any], ids: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """Yield (first position, tokens) of each call of prefill, decode and chunked; of reuse, the
    call after N tokens.
    """
    name, *values = request["base"]
    value = int(values[0]) if values else 0
    step = {"decode": 1, "chunked": value}.get(name, len(ids))
    for start in range(min(value, len(ids) - 1) if name == "reuse" else 0, len(ids), step):
        yield start, list(ids[start : start + step])


def is_installed(module: str) -> bool:
    """Return whether a module can be imported, without importing it."""
    return importlib.util.find_spec(module) is not None


def version_of(*packages: str) -> str:
    """Return the version of the first installed package, after its name if there are several; "" if
    none.
    """
    for package in packages:
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
        return version if len(packages) == 1 else f"{package} {version}"
    return ""


def bits_of(tensor: Any) -> tuple[Any, str | None]:
    """Return a CPU tensor as an array, and its dtype if numpy has none: the array holds its bits
    then.
    """
    import torch

    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy(), "bfloat16"
    return tensor.contiguous().numpy(), None


def with_neighbors(ids: list[int], count: int) -> list[list[int]]:
    """Return a batch of a prompt and its tokens in `count` - 1 other orders."""
    return [ids[row % len(ids) :] + ids[: row % len(ids)] for row in range(count)]


def parts_in(dtype: str, **others: str) -> dict[str, str]:
    """Return the parts of a model that computes in one dtype; others: more of them, exceptions."""
    return {"weights": dtype, "kv": dtype, "activations": dtype, **others}


def modifier(says: str, values: Sequence[Any] = (), **more: Any) -> dict[str, Any]:
    """Return a modifier of the hello: one of some words, or a whole number of at least `least`."""
    if values:
        more["values"] = list(values)
    return dict(more, says=says)


THREADS = modifier("threads of the CPU", least=1, default=0)
BATCH = modifier("this prompt with N - 1 others in one batch", least=1, default=1)
