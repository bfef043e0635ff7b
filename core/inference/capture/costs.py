"""Costs of a planned capture, in computing and in disk, before it runs: counted by walking each path without computing
anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import Cache, DynamicCache

from ...errors import CaptureError
from ...numerics.formats import format_named
from ...runs.file.kept import expected_bytes
from ...text import size
from ..models import memory
from ..models.model import LoadedModel
from ..models.torch_errors import quiet
from ..paths.batch import Emit, PromptBatch, ignore
from ..paths.paths import BASES, MODIFIERS, Path
from .capture import CapturePlan


@dataclass(frozen=True)
class SideCost:
    """Costs of one side, over all prompts. forwards: calls of the model; positions: rows of logits kept; tokens: what
    its forwards compute, every row of the batch with its padding (where texts are generated, at most: none parts and
    none ends early); kv_bytes: estimate of its largest key/value cache, 0 without one, None if unknown.
    """

    name: str
    path: str
    forwards: int
    positions: int
    tokens: int
    kv_bytes: int | None


@dataclass(frozen=True)
class Costs:
    """A planned capture in figures; bytes throughout. logits_bytes: of all logits that it computes; file_bytes: of its
    run file, to within a few percent; kept: of core.runs.file.kept.
    """

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
    """Count a plan whose model may have no weights; CaptureError where its logits do not fit beside the weights it will
    have.
    """
    loaded, header = plan.loaded, plan.header
    free = memory.free_bytes(torch.device(loaded.device))
    if free is not None and next(loaded.model.parameters()).is_meta:
        free -= loaded.weight_bytes
    _refuse_too_large(plan, free)
    row_bytes = _CacheBytes(loaded)
    longest = max(map(len, plan.token_ids))
    sides = []
    for side, path in zip(header.sides, plan.paths, strict=True):
        walks = [_walk_of_prompt(plan, path, number) for number in range(len(plan.token_ids))]
        kept = row_bytes.of(longest + sum(_padding(path))) if path.reads_cache or plan.has_kv else 0
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
        file_bytes=expected_bytes(header.kept, len(sides), header.rows, side_bytes),
        kept=header.kept,
        weight_bytes=loaded.weight_bytes,
        kv_bytes=max(known) if len(known) == len(sides) else None,
        free_bytes=free,
        has_kv=plan.has_kv,
    )


@dataclass(frozen=True)
class _Counting(PromptBatch):
    """Stands in for a batch: every forward that a base asks for is noted, and none is made."""

    columns_of_forwards: list[int] = field(default_factory=list)

    def forward(self, start: int, stop: int, emit: Emit, cache: Cache | None = None) -> None:  # noqa: ARG002
        self.columns_of_forwards.append(self.column_after(stop) - self.column(start))


def _walk_of_prompt(plan: CapturePlan, path: Path, number: int) -> list[int]:
    """Columns of each forward that a side makes for one prompt; a continuation is computed twice: to find it, and to
    keep it.
    """
    positions = len(plan.token_ids[number])
    if not plan.generations:
        return walk(path, plan.loaded, positions)
    given = plan.generations[number].given_positions
    return (walk(path, plan.loaded, given) + [1] * (positions - given)) * 2


def walk(path: Path, loaded: LoadedModel, positions: int) -> list[int]:
    """Columns of each forward that the path makes for a prompt of so many tokens, padding included; of another engine
    as its base says, `walk` being a forward of every prefix.
    """
    if path.engine is not None and path.base.name not in BASES:
        return list(range(1, positions + 1))
    left, right = _padding(path)
    counting = _Counting(loaded, prompt=(0,) * positions, left=left, right=right)
    BASES[path.base.name].compute(counting, ignore, *path.base.values)
    return counting.columns_of_forwards


def _padding(path: Path) -> tuple[int, int]:
    """Tokens before and after every row."""
    left = right = 0
    for step in path.modifiers if path.engine is None else ():
        modifier = MODIFIERS[step.name]
        columns = modifier.columns(*step.values)
        left, right = (left, right + columns) if modifier.ends_prompt(*step.values) else (left + columns, right)
    return left, right


class _CacheBytes:
    """Bytes of one row's keys and values after so many columns, as the model's own code lays them out."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._known: dict[int, int | None] = {}

    def of(self, columns: int) -> int | None:
        """Bytes of the cache after `columns`; None where the model cannot be walked through without numbers, or keeps
        no such cache.
        """
        if columns not in self._known:
            self._known[columns] = self._measured(columns)
        return self._known[columns]

    def _measured(self, columns: int) -> int | None:
        """A forward on the meta device has shapes and no numbers, so it costs milliseconds and no memory."""
        model: Any = self._loaded.model
        if not next(model.parameters()).is_meta:
            return None
        try:
            with quiet(), torch.inference_mode(), _experts_without_numbers(model):
                cache = DynamicCache(config=model.config)
                model(
                    input_ids=torch.zeros((1, columns), dtype=torch.long, device="meta"),
                    past_key_values=cache,
                    use_cache=True,
                )
                held = [getattr(layer, kind, None) for layer in cache.layers for kind in ("keys", "values")]
                return sum(tensor.nbytes for tensor in held if isinstance(tensor, torch.Tensor))
        except Exception:  # code that branches on numbers: an estimate is a courtesy, and no reason to refuse a capture
            return None


@contextmanager
def _experts_without_numbers(model: Any) -> Iterator[None]:
    """Mixtures of experts count the tokens of each expert, unless they multiply in one batch; shapes are the same."""
    before = getattr(model.config, "_experts_implementation", None)
    if before is None:
        yield
        return
    model.set_experts_implementation("batched_mm")
    try:
        yield
    finally:
        model.set_experts_implementation(before)


def _refuse_too_large(plan: CapturePlan, free: int | None) -> None:
    longest = max(len(ids) for ids in plan.token_ids)
    for path in plan.paths:
        needed = path.working_bytes(plan.loaded, longest)
        if free is not None and needed > free:
            raise CaptureError(
                f"path '{path}': a batch of {path.rows} x {longest} positions takes at least {size(needed)},"
                f" {plan.loaded.device} has {size(max(0, free))} free beside the weights; lower batch:N,"
                " shorten the prompts or choose a narrower dtype."
            )
