"""Module outputs of a capture: watched by hooks on every side, handed on part by part, and the rounding floor of every
module.

Nothing is kept here but what fills a part: a side's outputs leave for the sink (core.runs.tables.layers) as they come.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch

from ...errors import CaptureError, UsageError
from ...runs.tables.layer_spool import LayerModule, LayerPart
from ..controls.reordering import reordered, reordering_refusal
from ..models.bits import bits_of
from ..models.model import LoadedModel
from ..paths.hooks import Forwards
from ..paths.modifiers import MODIFIERS
from ..paths.paths import Path, open_path, parse_path
from .modules import LOGITS, Watched, watched_modules

FLOOR_SEEDS = (
    2  # a module's floor is a mean over all of its elements at many positions: two seeds agree to a few per cent
)
SPOOL_BYTES = 2 << 30  # of the reference's outputs that wait on disk
MOST_CELLS = (
    1 << 20
)  # modules x positions: rows of layer_position a pair, and 72 bytes of memory each while it is written
_PART_BYTES = 64 << 10  # of one module at a time where forwards compute a few positions each, at least
_LARGER_PART_BYTES = 1 << 20  # and at most; between them what keeps all modules together within
_PARTS_TOGETHER_BYTES = 64 << 20
_LARGEST_PART_BYTES = 8 << 20
_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
_PLAIN = parse_path("prefill")


class LayerSink(Protocol):
    """Takes module outputs: the reference's, then those of the floor, then each variant's; see
    core.runs.tables.layers.LayerRows.

    Where it was asked for not to work beside the forwards it is through with a part when it returns; else the part's
    array is its own.
    """

    def write(self, side: int, part: LayerPart) -> None: ...
    def end(self, side: int, prompt: int) -> None: ...
    def write_plain(self, part: LayerPart) -> None: ...
    def write_floor(self, part: LayerPart) -> None: ...
    def end_floor(self) -> None: ...
    def forget_floor(self) -> None: ...


@dataclass(frozen=True)
class LayerPlan:
    """positions: of each prompt, those that are looked at, ascending; seeds: reorderings of the floor, 0 for none;
    modules: how many are watched; spool_bytes: what the reference's outputs take on disk, about.
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
    """What is watched, and where: every position while the reference's outputs take at most SPOOL_BYTES and the rows
    MOST_CELLS, else as many as that. The last position of each prompt and the `wanted` ones (of each prompt that has
    them) come first, the others are evenly spread over all prompts. CaptureError where the modules cannot be watched.
    """
    if seeds < 0:
        raise UsageError(f"--layer-floor {seeds}: expected a number of reorderings, 0 for none.")
    modules = watched_modules(loaded.model)
    if is_one_piece(reference):
        raise CaptureError(
            f"path '{reference}': a compiler makes its kernels, its modules cannot be watched; leave --layers out."
        )
    has_weights = not any(parameter.is_meta for parameter in loaded.model.parameters())  # a dry run has shapes only
    refusal = reordering_refusal(loaded.model) if seeds and has_weights else None
    if refusal:
        raise CaptureError(f"the rounding floor of the modules: {refusal}; capture with --layer-floor 0.")
    row_bytes = (sum(each.width for each in modules) + loaded.vocab_size) * loaded.torch_dtype.itemsize
    room = max(1, min(SPOOL_BYTES // row_bytes, MOST_CELLS // (len(modules) + 1)))
    begins = np.cumsum([0, *lengths])
    asked = [
        begin + place for begin, length in zip(begins[:-1], lengths, strict=True) for place in wanted if place < length
    ]
    first = list(dict.fromkeys([*asked, *(begins[1:] - 1)]))[:room]
    spread = np.linspace(0, begins[-1] - 1, min(int(begins[-1]), room)).astype(int)
    others = (
        [row for row in spread.tolist() if row not in set(first)][: room - len(first)]
        if room < begins[-1]
        else spread.tolist()
    )
    rows = np.array(sorted({int(row) for row in (*first, *others)}))
    chosen = tuple(tuple((rows[(rows >= a) & (rows < b)] - a).tolist()) for a, b in pairwise(begins))
    copies = 1 if reference == _PLAIN or not seeds else 2
    return LayerPlan(chosen, seeds, len(modules) + 1, copies * len(rows) * row_bytes)


def has_a_core_to_spare(loaded: LoadedModel) -> bool:
    """Whether forwards leave a core to whoever compares what they put out."""
    return loaded.device != "cpu" or torch.get_num_threads() < len(os.sched_getaffinity(0))


def is_one_piece(path: Path) -> bool:
    """Does a compiler make its kernels, out of reach of whoever looks on?"""
    return any(MODIFIERS[step.name].is_one_piece for step in path.modifiers)


class ModuleTrace(Forwards):
    """Watches the modules during one side's forwards and hands on what they put out at the chosen positions of the
    prompt begun last.

    order: the modules in the order in which they first put something out, which the reference's trace fills and the
    others read. What is not clearly [positions of this forward, width] in some layout is left out of the whole prompt.
    Of a module that stands in several places of the model the first counts, which is where it has its name from.
    """

    def __init__(
        self,
        order: dict[str, LayerModule],
        emit: Callable[[LayerPart], None],
        *,
        is_reference: bool,
        part_bytes: int,
        is_kept: bool,
    ) -> None:
        """part_bytes: of one module that wait between two forwards; is_kept: parts are not done with when `emit`
        returns.
        """
        super().__init__((), ())
        self._order, self._emit, self._is_reference, self._part_bytes, self._is_kept = (
            order,
            emit,
            is_reference,
            part_bytes,
            is_kept,
        )
        self._prompt = 0
        self._waiting: dict[str, _Waiting] = {}
        self._spoiled: set[str] = set()
        self._seen_in_forward: set[str] = set()
        self._shape = (0, 0)  # rows and columns of the batch of this forward
        self._columns: slice | torch.Tensor | None = None
        self._first = 0

    def turn_to(self, prompt: int, ids: Sequence[int], positions: Sequence[int]) -> None:
        """The next forwards are of this prompt."""
        self._prompt, self.prompt, self.positions = prompt, ids, positions
        self._waiting, self._spoiled = {}, set()

    def begin(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """A forward of the model begins. Only one whose positions were told is followed."""
        self._columns = None
        self._seen_in_forward = set()
        ids = named.get("input_ids", arguments[0] if arguments else None)
        if self._expected is None or not isinstance(ids, torch.Tensor) or ids.ndim != 2:
            return
        _, skipped, start, stop = self._expected
        first, last = (int(np.searchsorted(self.positions, end)) for end in (start, stop))
        if first == last:
            return
        self._first = first
        self._shape = (int(ids.shape[0]), int(ids.shape[1]))
        columns = [skipped + position - start for position in self.positions[first:last]]
        is_run = columns[-1] - columns[0] == len(columns) - 1
        self._columns = slice(columns[0], columns[-1] + 1) if is_run else torch.tensor(columns, device=ids.device)

    def see(self, watched: Watched, output: Any) -> None:
        """What a module put out."""
        if self._columns is None:
            return
        first = output[0] if isinstance(output, tuple) and output else output
        if not isinstance(first, torch.Tensor) or first.dtype not in _DTYPES:
            return
        if watched.name in self._seen_in_forward:
            return
        self._seen_in_forward.add(watched.name)
        own = self._own_row(first)
        if own is None:
            self._spoil(watched.name, first.dtype)
            return
        self._take(watched.name, watched.kind, watched.block, own[self._columns], self._first)

    def _spoil(self, name: str, dtype: torch.dtype) -> None:
        """A forward's output of the module is not understood: nothing of it counts, not even what an earlier forward
        gave.
        """
        self._waiting.pop(name, None)
        module = self._order.get(name)
        if module is not None and name not in self._spoiled:
            self._emit(LayerPart(self._prompt, module, 0, bits_of(torch.empty((1, 0), dtype=dtype)), _DTYPES[dtype]))
        self._spoiled.add(name)

    def see_logits(self, position: int, logits: torch.Tensor) -> None:
        """Logits [positions, vocab] of the prompt from `position` on: what the model gives in the end."""
        first, last = (int(np.searchsorted(self.positions, end)) for end in (position, position + len(logits)))
        if first < last and logits.dtype in _DTYPES:
            wanted = torch.tensor([self.positions[i] - position for i in range(first, last)], device=logits.device)
            self._take(LOGITS, "head", None, logits if len(wanted) == len(logits) else logits[wanted], first)

    def _own_row(self, first: torch.Tensor) -> torch.Tensor | None:
        """The prompt's row of an output, [columns, width]; None where its axes do not clearly say which they are."""
        assert self._expected is not None
        rows, columns = self._shape
        row, shape = self._expected[0], first.shape
        if first.ndim == 2:
            return first[row * columns : (row + 1) * columns] if shape[0] == rows * columns else None
        if first.ndim not in (3, 4) or shape[0] not in (1, rows):
            return None
        own = first[row if shape[0] == rows else 0]  # position embeddings are one row for all
        if first.ndim == 3:
            return own if shape[1] == columns else None
        if shape[1] == columns and (
            shape[2] != columns or columns == 1
        ):  # a norm of each head: [rows, columns, heads, width]
            return own.reshape(columns, -1)
        if shape[2] == columns and shape[1] != columns:  # or [rows, heads, columns, width]
            return own.transpose(0, 1).reshape(columns, -1)
        return None

    def _take(self, name: str, kind: str, block: int | None, found: torch.Tensor, first: int) -> None:
        """found: [positions, width]; copied or done with before this returns, for models add to their outputs in
        place.
        """
        if name in self._spoiled:
            return
        module = self._order.get(name)
        if module is None:
            if not self._is_reference:
                return
            module = self._order[name] = LayerModule(len(self._order), name, kind, block)
        waiting = self._waiting.get(name)
        if waiting is not None and not waiting.takes(found, first):
            self._hand_on(self._waiting.pop(name))
            waiting = None
        row_bytes = max(1, found.shape[1] * found.dtype.itemsize)
        room = max(1, self._part_bytes // row_bytes)
        if waiting is None and len(found) >= room:
            for start in range(0, len(found), at_once := max(1, _LARGEST_PART_BYTES // row_bytes)):
                piece = found[start : start + at_once].detach()
                self._emit_part(module, first + start, piece.clone() if self._is_kept else piece)
            return
        if waiting is None:
            space = torch.empty((room, found.shape[1]), dtype=found.dtype, device=found.device)
            waiting = self._waiting[name] = _Waiting(module, first, space)
        waiting.add(found)

    def _hand_on(self, waiting: _Waiting) -> None:
        self._emit_part(waiting.module, waiting.first, waiting.space[: waiting.filled])

    def _emit_part(self, module: LayerModule, first: int, found: torch.Tensor) -> None:
        if found.numel():
            self._emit(LayerPart(self._prompt, module, first, bits_of(found), _DTYPES[found.dtype]))

    def finish(self) -> None:
        """The prompt is over: hand on what is waiting."""
        for waiting in self._waiting.values():
            self._hand_on(waiting)
        self._waiting = {}


@dataclass
class _Waiting:
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


@contextmanager
def watching(model: Any, trace: ModuleTrace | None) -> Iterator[None]:
    """The trace sees what the modules put out meanwhile; hooks read and change nothing."""
    handles = []
    try:
        if trace is not None:
            handles.append(
                model.register_forward_pre_hook(lambda _, given, named: trace.begin(given, named), with_kwargs=True)
            )
            for each in watched_modules(model):
                handles.append(
                    each.module.register_forward_hook(lambda _, __, output, each=each: trace.see(each, output))
                )
        yield
    finally:
        for handle in handles:
            handle.remove()


class LayerCapture:
    """The traces of one capture's sides and of its floor, into a sink."""

    def __init__(
        self, loaded: LoadedModel, plan: LayerPlan, token_ids: Sequence[Sequence[int]], sink: LayerSink
    ) -> None:
        self._loaded, self._plan, self._token_ids, self._sink = loaded, plan, token_ids, sink
        self._order: dict[str, LayerModule] = {}
        part_bytes = min(_LARGER_PART_BYTES, max(_PART_BYTES, _PARTS_TOGETHER_BYTES // max(1, plan.modules)))
        self._how: dict[str, Any] = {"part_bytes": part_bytes, "is_kept": has_a_core_to_spare(loaded)}

    def trace(self, side: int, path: Path) -> ModuleTrace | None:
        """For the forwards of a side; None where a compiler makes its kernels."""
        if is_one_piece(path):
            return None
        return ModuleTrace(self._order, lambda part: self._sink.write(side, part), is_reference=side == 0, **self._how)

    def begin(self, trace: ModuleTrace, prompt: int) -> None:
        trace.turn_to(prompt, self._token_ids[prompt], self._plan.positions[prompt])

    def end(self, trace: ModuleTrace, side: int, prompt: int) -> None:
        trace.finish()
        self._sink.end(side, prompt)

    def floor(self, reference: Path, on_step: Callable[[str], None]) -> None:
        """Reorderings of prefill against prefill, all prompts a seed. CaptureError where that cannot be had: there is
        no floor then.
        """
        try:
            if self._plan.seeds and reference != _PLAIN:
                on_step("plain prefill for the floor of the modules")
                self._prefill(self._sink.write_plain, lambda: None)
            for seed in range(self._plan.seeds):
                on_step(f"floor of the modules, reordering {seed + 1} of {self._plan.seeds}")
                with reordered(self._loaded.model, seed):
                    self._prefill(self._sink.write_floor, self._sink.end_floor)
        except CaptureError:
            self._sink.forget_floor()
            raise

    def _prefill(self, emit: Callable[[LayerPart], None], end: Callable[[], None]) -> None:
        trace = ModuleTrace(self._order, emit, is_reference=False, **self._how)
        with open_path(_PLAIN, self._loaded, trace=trace) as opened, watching(self._loaded.model, trace):
            for prompt, ids in enumerate(self._token_ids):
                self.begin(trace, prompt)
                for position, logits in opened(ids):
                    trace.see_logits(position, logits)
                    del logits
                trace.finish()
                end()
