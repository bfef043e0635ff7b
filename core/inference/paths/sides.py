"""The sides of a capture: several paths, repeated calls of a path, or a sweep over a value."""

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
    """One side of a capture: its name and its path."""

    name: str
    path: Path


def sides_of(reference: str, variants: Sequence[str], repeat: int = 1) -> tuple[NamedPath, ...]:
    """Return the sides, the reference first. repeat: calls of each path in sequence, as requests to a server.

    With block or prefix reuse call 1 of `blocks:16` finds no cache and is a prefill; the later ones are `blocks:16`.
    """
    if repeat < 1:
        raise UsageError(f"--repeat {repeat}: expected at least 1.")
    if not variants and repeat == 1:
        raise UsageError("a capture needs at least one variant; give a path such as decode.")
    paths = [parse_path(text) for text in (reference, *variants)]
    for number, path in enumerate(paths):
        if path in paths[:number]:
            raise UsageError(f"path '{path}' is given twice; the sides of a run need different paths.")
    if repeat == 1:
        return tuple(NamedPath(str(path), path) for path in paths)
    sides = []
    for path in paths:  # the first call fills the cache that the later ones read
        filling = replace(path, base=Step("prefill")) if path.base.name in ("blocks", "reuse") else path
        sides += [NamedPath(f"{path} call {call}", filling if call == 1 else path) for call in range(1, repeat + 1)]
    return tuple(sides)


def check_sides(request: CaptureRequest) -> None:
    """Refuse unusable sides before weights are read: invalid paths, engines that are not installed."""
    for side in sides_of(request.reference, variants_of(request), request.repeat):
        if side.path.engine is not None and not side.path.engine.is_here:
            raise CaptureError(f"path '{side.path}': {engine_side.not_here(side.path.engine)}.")


def variants_of(request: CaptureRequest, default: str = "decode") -> list[str]:
    """Return the variants of a request, with those of sweeps; `default` if there are none and no repeats."""
    own = str(parse_path(request.reference))
    swept = [path for text in request.sweeps for path in sweep(request.reference, text)]
    variants = [*request.variants, *(path for path in swept if path != own)]
    if not variants and request.repeat == 1:
        variants = ["prefill" if own == default else default]
    return variants


def sweep(reference: str, text: str) -> list[str]:
    """Expand `batch=1,2,4` to the reference with each value of a modifier or another base, as texts."""
    name, equals, values = text.partition("=")
    name = name.strip().lower()
    if not equals or not values.strip() or (name not in MODIFIERS and name not in BASES):
        raise UsageError(
            f"--sweep '{text}': expected NAME=VALUE,VALUE,... with one of {', '.join([*MODIFIERS, *BASES])}."
        )
    path = parse_path(reference)
    if name in MODIFIERS:
        stem = "+".join(map(str, (path.base, *(step for step in path.modifiers if step.name != name))))
        return [str(parse_path(f"{stem}+{name}:{value.strip()}")) for value in values.split(",")]
    behind = "".join(f"+{step}" for step in path.modifiers)
    return [str(parse_path(f"{name}:{value.strip()}{behind}")) for value in values.split(",")]
