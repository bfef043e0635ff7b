"""Module outputs of a capture: watched by hooks on every side, handed on part by part, and the noise floor of every
module.

Nothing is kept here but what fills a part: a side's outputs leave for the sink (core.runs.tables.layers) as they come.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch

from ...errors import CaptureError, UsageError
from ...runs.tables.layers import LayerModule, LayerPart, LayerRows
from ..controls.reordering import reordered, reordering_refusal
from ..models.bits import bits_of
from ..models.model import LoadedModel
from ..paths.engines import PLAIN
from ..paths.hooks import ModuleTrace
from ..paths.paths import Path
from .modules import LOGITS, watched_modules

FLOOR_SEEDS = 2  # a module's floor is a mean over many elements and positions: two seeds agree to a few per cent
SPOOL_BYTES = 2 << 30  # of the reference's outputs that wait on disk
MOST_CELLS = 1 << 20  # modules x positions: rows of layer_position a pair, and 72 bytes of memory each when written
_PART_BYTES = 64 << 10  # of one module at a time where forwards compute a few positions each, at least
_LARGER_PART_BYTES = 1 << 20  # and at most; between them what keeps all modules together within
_PARTS_TOGETHER_BYTES = 64 << 20
_LARGEST_PART_BYTES = 8 << 20
_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


@dataclass(frozen=True)
class LayerPlan:
    """Plan of watching module outputs. positions: of each prompt, those that are looked at, ascending; seeds:
    reorderings of the floor, 0 for none; modules: how many are watched; spool_bytes: what the reference's outputs take
    on disk, about.
    """

    positions: tuple[tuple[int, ...], ...]
    seeds: int
    modules: int
    spool_bytes: int

    @property
    def looked_at(self) -> int:
        """Positions of all prompts together."""
        return sum(map(len, self.positions))


def plan_layers(
    loaded: LoadedModel, lengths: Sequence[int], reference: Path, seeds: int, wanted: Sequence[int] = ()
) -> LayerPlan:
    """Choose where modules are watched: everywhere within SPOOL_BYTES and MOST_CELLS, else at each prompt's last
    position, the `wanted` ones and others evenly spread. CaptureError if modules cannot be watched.
    """
    if seeds < 0:
        raise UsageError(f"--layer-floor {seeds}: expected a number of reorderings, 0 for none.")
    modules = watched_modules(loaded.model)
    if reference.is_one_piece:
        raise CaptureError(
            f"path '{reference}': a compiler makes its kernels, its modules cannot be watched; leave --layers out."
        )
    has_weights = not any(parameter.is_meta for parameter in loaded.model.parameters())  # a dry run has shapes only
    refusal = reordering_refusal(loaded.model) if seeds and has_weights else None
    if refusal:
        raise CaptureError(f"the noise floor of the modules: {refusal}; capture with --layer-floor 0.")
    row_bytes = (sum(each.width for each in modules) + loaded.vocab_size) * loaded.torch_dtype.itemsize
    room = max(1, min(SPOOL_BYTES // row_bytes, MOST_CELLS // (len(modules) + 1)))
    begins = np.cumsum([0, *lengths])
    asked = [
        begin + place for begin, length in zip(begins[:-1], lengths, strict=True) for place in wanted if place < length
    ]
    first = list(dict.fromkeys([*asked, *(begins[1:] - 1)]))[:room]
    spread = np.linspace(0, begins[-1] - 1, min(int(begins[-1]), room)).astype(int)
    others = [row for row in spread.tolist() if row not in set(first)][: max(0, room - len(first))]
    rows = np.array(sorted({int(row) for row in (*first, *others)}))
    chosen = tuple(tuple((rows[(rows >= a) & (rows < b)] - a).tolist()) for a, b in pairwise(begins))
    copies = 1 if str(reference) == PLAIN.name or not seeds else 2
    return LayerPlan(chosen, seeds, len(modules) + 1, copies * len(rows) * row_bytes)


def has_a_core_to_spare(loaded: LoadedModel) -> bool:
    """Return whether forwards leave a core to whoever compares what they put out."""
    return loaded.device != "cpu" or torch.get_num_threads() < len(os.sched_getaffinity(0))


class SpooledOutputs(ModuleTrace):
    """Hands on what modules put out in one side's forwards, in parts; what is not clearly [positions, width] is not."""

    def __init__(
        self, of: LayerCapture, emit: Callable[[LayerPart], None], end: Callable[[int], None], *, is_reference: bool
    ) -> None:
        """end: is told the number of each prompt that is over."""
        super().__init__()
        self.modules = of.modules
        self._of, self._emit, self._end, self._is_reference = of, emit, end, is_reference
        self._number = 0
        self._waiting: dict[str, _RowBuffer] = {}
        self._spoiled: set[str] = set()

    def watching(self) -> AbstractContextManager[None]:
        """The forwards inside are followed."""
        return self.following(self._of.loaded.model, {name: each.module for name, each in self._of.modules.items()})

    @contextmanager
    def of_prompt(self, number: int) -> Iterator[None]:
        """The forwards inside are of this prompt; in the end what is waiting is handed on."""
        self._number, self.prompt, self.positions = number, self._of.token_ids[number], self._of.plan.positions[number]
        self._waiting, self._spoiled = {}, set()
        yield
        for waiting in self._waiting.values():
            self._hand_on(waiting)
        self._waiting = {}
        self._end(number)

    def not_understood(self, name: str, output: torch.Tensor) -> None:
        """Drop the module: nothing of it counts, not even what an earlier forward gave."""
        if output.dtype not in _DTYPES:
            return
        self._waiting.pop(name, None)
        module = self._of.order.get(name)
        if module is not None and name not in self._spoiled:
            nothing = bits_of(torch.empty((1, 0), dtype=output.dtype))
            self._emit(LayerPart(self._number, module, 0, nothing, _DTYPES[output.dtype]))
        self._spoiled.add(name)

    def see_logits(self, position: int, logits: torch.Tensor) -> None:
        """Logits [positions, vocab] of the prompt from `position` on: what the model gives in the end."""
        self.hand_in(LOGITS, logits, position)

    def take(self, name: str, first: int, found: torch.Tensor) -> None:
        if name in self._spoiled or found.dtype not in _DTYPES:
            return
        module = self._of.order.get(name)
        if module is None:
            if not self._is_reference:
                return
            watched = self._of.modules.get(name)  # None of the logits
            kind, block = (watched.kind, watched.block) if watched is not None else ("head", None)
            module = self._of.order[name] = LayerModule(len(self._of.order), name, kind, block)
        waiting = self._waiting.get(name)
        if waiting is not None and not waiting.takes(found, first):
            self._hand_on(self._waiting.pop(name))
            waiting = None
        row_bytes = max(1, found.shape[1] * found.dtype.itemsize)
        room = max(1, self._of.part_bytes // row_bytes)
        if waiting is None and len(found) >= room:
            for start in range(0, len(found), at_once := max(1, _LARGEST_PART_BYTES // row_bytes)):
                piece = found[start : start + at_once]
                self._emit_part(module, first + start, piece.clone() if self._of.is_kept else piece)
            return
        if waiting is None:
            space = torch.empty((room, found.shape[1]), dtype=found.dtype, device=found.device)
            waiting = self._waiting[name] = _RowBuffer(module, first, space)
        waiting.add(found)

    def _hand_on(self, waiting: _RowBuffer) -> None:
        self._emit_part(waiting.module, waiting.first, waiting.space[: waiting.filled])

    def _emit_part(self, module: LayerModule, first: int, found: torch.Tensor) -> None:
        if found.numel():
            self._emit(LayerPart(self._number, module, first, bits_of(found), _DTYPES[found.dtype]))


@dataclass
class _RowBuffer:
    """Rows of one module that do not yet fill a part. space: [rows, width]"""

    module: LayerModule
    first: int
    space: torch.Tensor
    filled: int = 0

    def takes(self, found: torch.Tensor, first: int) -> bool:
        return (
            first == self.first + self.filled
            and self.filled + len(found) <= len(self.space)
            and found.shape[1] == self.space.shape[1]
            and found.dtype == self.space.dtype
        )

    def add(self, found: torch.Tensor) -> None:
        self.space[self.filled : self.filled + len(found)] = found
        self.filled += len(found)


class LayerCapture:
    """The traces of one capture's sides and of its floor, into a sink. order: modules as they first put something out
    on the reference; part_bytes: of one module that wait; is_kept: parts are not done with when the sink has them.
    """

    def __init__(
        self, loaded: LoadedModel, plan: LayerPlan, token_ids: Sequence[Sequence[int]], sink: LayerRows
    ) -> None:
        self.loaded, self.plan, self.token_ids, self._sink = loaded, plan, token_ids, sink
        self.order: dict[str, LayerModule] = {}
        self.modules = {each.name: each for each in watched_modules(loaded.model)}
        self.part_bytes = min(_LARGER_PART_BYTES, max(_PART_BYTES, _PARTS_TOGETHER_BYTES // max(1, plan.modules)))
        self.is_kept = has_a_core_to_spare(loaded)

    def trace(self, side: int, path: Path) -> SpooledOutputs | None:
        """Trace for the forwards of a side; None where a compiler makes its kernels."""
        if path.is_one_piece:
            return None
        emit, end = partial(self._sink.write, side), partial(self._sink.end, side)
        return SpooledOutputs(self, emit, end, is_reference=side == 0)

    def floor(self, reference: Path, on_step: Callable[[str], None]) -> None:
        """Reorder prefill and compare it with prefill, all prompts a seed. CaptureError if there can be no floor."""
        try:
            if self.plan.seeds and str(reference) != PLAIN.name:
                on_step("plain prefill for the floor of the modules")
                self._prefill(self._sink.write_plain, lambda: None)
            for seed in range(self.plan.seeds):
                on_step(f"floor of the modules, reordering {seed + 1} of {self.plan.seeds}")
                with reordered(self.loaded.model, seed):
                    self._prefill(self._sink.write_floor, self._sink.end_floor)
        except CaptureError:
            self._sink.forget_floor()
            raise

    def _prefill(self, emit: Callable[[LayerPart], None], end: Callable[[], None]) -> None:
        """Follow a prefill of every prompt."""
        trace = SpooledOutputs(self, emit, lambda _: end(), is_reference=False)
        with PLAIN.open(self.loaded, trace) as run, trace.watching():
            for number, ids in enumerate(self.token_ids):
                with trace.of_prompt(number):
                    run(ids, trace.see_logits)
