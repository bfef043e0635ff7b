"""Costs of a planned capture, in computing and in disk, before it runs: counted by walking each path without computing
anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import Cache, DynamicCache

from ...numerics.formats import format_named
from ...runs.file.keep import expected_bytes
from ..models.model import LoadedModel
from ..models.torch_errors import quiet
from ..paths.bases import BASES
from ..paths.batch import Emit, PromptBatch, ignore
from ..paths.paths import Path
from .capture import CapturePlan, free_beside_weights


@dataclass(frozen=True)
class SideCost:
    """Costs of one side. tokens: computed, rows and padding included; kv_bytes: 0 without one, None if unknown."""

    name: str
    path: str
    forwards: int
    positions: int
    tokens: int
    kv_bytes: int | None


@dataclass(frozen=True)
class Costs:
    """A planned capture in figures, in bytes. logits_bytes: of all that it computes; file_bytes: about."""

    prompts: int
    positions: int
    vocab: int
    sides: tuple[SideCost, ...]
    logits_bytes: int
    file_bytes: int
    kept: str
    weight_bytes: int
    kv_bytes: int | None
    free_bytes: int | None
    has_kv: bool

    @property
    def forwards(self) -> int:
        return sum(side.forwards for side in self.sides)

    @property
    def tokens(self) -> int:
        return sum(side.tokens for side in self.sides)


def costs_of(plan: CapturePlan) -> Costs:
    """Count a plan whose model may have no weights."""
    loaded, header = plan.loaded, plan.header
    longest = max(map(len, plan.token_ids))
    sides = []
    for side, path in zip(header.sides, plan.paths, strict=True):
        walks = [_walk_of_prompt(plan, path, number) for number in range(len(plan.token_ids))]
        has_cache = path.reads_cache or plan.has_kv
        kept = _cache_bytes(loaded, longest + sum(path.padding)) if has_cache else 0
        ratio = format_named(path.compute_dtype(loaded)).itemsize / loaded.torch_dtype.itemsize
        sides.append(
            SideCost(
                name=side.name,
                path=side.path,
                forwards=sum(map(len, walks)),
                positions=header.rows,
                tokens=path.rows * sum(map(sum, walks)),
                kv_bytes=None if kept is None else int(kept * path.rows * ratio),
            )
        )
    side_bytes = header.rows * header.vocab * header.format.itemsize
    known = [side.kv_bytes for side in sides if side.kv_bytes is not None]
    return Costs(
        prompts=len(header.prompts),
        positions=header.rows,
        vocab=header.vocab,
        sides=tuple(sides),
        logits_bytes=len(sides) * side_bytes,
        file_bytes=expected_bytes(header.keep, len(sides), header.rows, side_bytes),
        kept=header.keep,
        weight_bytes=loaded.weight_bytes,
        kv_bytes=max(known) if len(known) == len(sides) else None,
        free_bytes=free_beside_weights(loaded),
        has_kv=plan.has_kv,
    )


@dataclass(frozen=True)
class _Counting(PromptBatch):
    """Stands in for a batch: every forward that a base asks for is noted, and none is made."""

    columns_of_forwards: list[int] = field(default_factory=list)

    def forward(self, start: int, stop: int, emit: Emit, cache: Cache | None = None) -> None:  # noqa: ARG002
        self.columns_of_forwards.append(self.column_after(stop) - self.column(start))


def _walk_of_prompt(plan: CapturePlan, path: Path, number: int) -> list[int]:
    """Columns of each forward for one prompt; a continuation is computed twice: to find it, and to keep it."""
    positions = len(plan.token_ids[number])
    if not plan.generations:
        return _walk(path, plan.loaded, positions)
    given = plan.generations[number].given_positions
    return (_walk(path, plan.loaded, given) + [1] * (positions - given)) * 2


def _walk(path: Path, loaded: LoadedModel, positions: int) -> list[int]:
    """Columns of each forward for a prompt of so many tokens; an engine's `walk` is a forward of every prefix."""
    if path.engine is not None and path.base.name not in BASES:
        return list(range(1, positions + 1))
    left, right = path.padding
    counting = _Counting(loaded, prompt=(0,) * positions, left=left, right=right)
    BASES[path.base.name].compute(counting, ignore, *path.base.values)
    return counting.columns_of_forwards


def _cache_bytes(loaded: LoadedModel, columns: int) -> int | None:
    """Bytes of a row's keys and values, by a forward on the meta device; None if it cannot run without numbers."""
    model: Any = loaded.model
    if not next(model.parameters()).is_meta:
        return None
    cache = DynamicCache(config=model.config)
    ids = torch.zeros((1, columns), dtype=torch.long, device="meta")
    before = getattr(model.config, "_experts_implementation", None)
    try:
        if before is not None:  # experts count their tokens, unless they multiply in one batch; shapes are the same
            model.set_experts_implementation("batched_mm")
        with quiet(), torch.inference_mode():
            model(input_ids=ids, past_key_values=cache, use_cache=True)
    except Exception:  # code that branches on numbers: an estimate is a courtesy, and no reason to refuse a capture
        return None
    finally:
        if before is not None:
            model.set_experts_implementation(before)
    held = [getattr(layer, kind, None) for layer in cache.layers for kind in ("keys", "values")]
    return sum(tensor.nbytes for tensor in held if isinstance(tensor, torch.Tensor))
