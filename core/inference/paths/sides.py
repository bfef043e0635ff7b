"""The sides of a capture: paths side by side, a path called several times, or a path swept over a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...capture_request import CaptureRequest
from ...errors import CaptureError, UsageError
from . import engine_side
from .bases import BASES
from .grammar import Step
from .modifiers import MODIFIERS
from .paths import Path, parse_path


@dataclass(frozen=True)
class NamedPath:
    """One side of a capture: its name, and the path that computes it."""

    name: str
    path: Path


def sides_of(reference: str, variants: Sequence[str], repeat: int = 1) -> tuple[NamedPath, ...]:
    """The reference first; `repeat` calls each path so many times, as a server would get them.

    With block or prefix reuse call 1 of `blocks:16` finds no cache and is a prefill; the later ones are `blocks:16`.
    """
    if repeat < 1:
        raise UsageError(f"--repeat {repeat}: a path is called at least once.")
    if not variants and repeat == 1:
        raise UsageError("a capture needs at least one variant beside the reference; name a path such as decode.")
    paths = [parse_path(text) for text in (reference, *variants)]
    for number, path in enumerate(paths):
        if path in paths[:number]:
            raise UsageError(f"path '{path}' is given twice; every side of a run needs a path of its own.")
    if repeat == 1:
        return tuple(NamedPath(str(path), path) for path in paths)
    return tuple(
        NamedPath(f"{path} call {call}", _path_of_call(path, call)) for path in paths for call in range(1, repeat + 1)
    )


def check_sides(request: CaptureRequest) -> None:
    """Refuse sides that cannot be run before weights are read: wrong paths, engines that are not here."""
    for side in sides_of(request.reference, variants_of(request), request.repeat):
        if side.path.engine is not None and not side.path.engine.is_here:
            raise CaptureError(f"path '{side.path}': {engine_side.not_here(side.path.engine)}.")


def _path_of_call(path: Path, call: int) -> Path:
    is_filling = call == 1 and path.base.name in ("blocks", "reuse")  # which read what an earlier call left
    return replace(path, base=Step("prefill")) if is_filling else path


def variants_of(request: CaptureRequest, default: str = "decode") -> list[str]:
    """Variants of a request, those of every sweep included; `default` if there are none and no path repeats."""
    own = str(parse_path(request.reference))
    swept = [path for text in request.sweeps for path in sweep(request.reference, text)]
    found = [*request.variants, *(path for path in swept if path != own)]
    if not found and request.repeat == 1:
        found = ["prefill" if own == default else default]
    return found


def sweep(reference: str, text: str) -> list[str]:
    """`batch=1,2,4` -> the reference with each value of a modifier, or of another base; paths as text."""
    name, equals, values = text.partition("=")
    name = name.strip().lower()
    if not equals or not values.strip() or (name not in MODIFIERS and name not in BASES):
        raise UsageError(
            f"--sweep '{text}' is not known; expected NAME=VALUE,VALUE,... with one of"
            f" {', '.join([*MODIFIERS, *BASES])}."
        )
    path = parse_path(reference)
    if name in MODIFIERS:
        kept = "+".join(map(str, (path.base, *(step for step in path.modifiers if step.name != name))))
        return [str(parse_path(f"{kept}+{name}:{value.strip()}")) for value in values.split(",")]
    behind = "".join(f"+{step}" for step in path.modifiers)
    return [str(parse_path(f"{name}:{value.strip()}{behind}")) for value in values.split(",")]
