"""Module outputs of a capture: recorded by hooks on every side, sent on in parts, and the noise
floor of every module.

Only incomplete parts are buffered: a side's outputs go to the sink (core.runs.tables.layers) as
they come.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ...capture_request import CaptureRequest
from ...errors import CaptureError, UsageError
from ...runs.tables.layers import FLOOR, PLAIN_PREFILL, LayerModule, LayerPart, LayerRows
from ..controls.reordering import reorder, reordering_refusal
from ..models.devices import bits_of
from ..models.model import LoadedModel
from ..paths.engines import PLAIN, Prompts
from ..paths.hooks import ModuleTrace, module_of_call
from ..paths.paths import Path
from .modules import LOGITS, watched_modules

SPOOL_BYTES = 2 << 30  # of the reference's outputs that wait on disk
# modules x positions: rows of layer_position per pair, 72 bytes of memory each when written
MOST_CELLS = 1 << 20
_PART_BYTES = 64 << 10  # least of one module at a time if forwards compute a few positions each
_LARGER_PART_BYTES = 1 << 20  # and most; between them, so that all modules together stay within
_PARTS_TOGETHER_BYTES = 64 << 20
_LARGEST_PART_BYTES = 8 << 20
_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


@dataclass(frozen=True)
class LayerPlan:
    """Plan of recording module outputs. positions: of each prompt, ascending; seeds: reorderings of
    the noise floor, 0 for none; modules: their number; spool_bytes: estimate of the reference's
    outputs on disk.
    """

    positions: tuple[tuple[int, ...], ...]
    seeds: int
    modules: int
    spool_bytes: int


def plan_layers(
    loaded: LoadedModel,
    paths: Sequence[Path],
    lengths: Sequence[int],
    request: CaptureRequest,
) -> LayerPlan:
    """Choose the positions to record: all within SPOOL_BYTES and MOST_CELLS, else each prompt's
    last one, those of the request and others evenly spread. CaptureError if modules cannot be
    recorded.
    """
    if request.tokens:
        raise UsageError("module outputs cannot be compared in generated text; leave --layers out.")
    for path in paths:
        if path.engine is not None and not path.engine.shows_modules:
            raise UsageError(f"'{path}' does not send module outputs; leave --layers out.")
    reference = paths[0]
    seeds = request.layer_floor
    if seeds < 0:
        raise UsageError(f"--layer-floor {seeds}: expected a number of reorderings, 0 for none.")
    modules = watched_modules(loaded.model)
    if reference.is_one_piece:
        raise CaptureError(
            f"path '{reference}' is compiled, so its modules cannot be recorded; leave --layers"
            " out.",
        )
    # a dry run has shapes only
    has_weights = not any(parameter.is_meta for parameter in loaded.model.parameters())
    if seeds and has_weights and (refusal := reordering_refusal(loaded.model)):
        raise CaptureError(
            f"the noise floor of the modules: {refusal}; capture with --layer-floor 0.",
        )
    width = sum(each.width for each in modules) + loaded.vocab_size
    row_bytes = width * loaded.torch_dtype.itemsize
    room = max(1, min(SPOOL_BYTES // row_bytes, MOST_CELLS // (len(modules) + 1)))
    begins = np.cumsum([0, *lengths])
    total = int(begins[-1])
    wanted: list[int] = []
    for begin, length in zip(begins[:-1], lengths, strict=True):
        wanted += [begin + place for place in request.layer_positions if place < length]
    # the last ones, and others evenly spread
    wanted += [*(begins[1:] - 1), *np.linspace(0, total - 1, min(total, room)).astype(int)]
    rows = np.sort(list(dict.fromkeys(wanted))[:room])
    places = tuple(
        tuple((rows[(rows >= a) & (rows < b)] - a).tolist()) for a, b in pairwise(begins)
    )
    copies = 1 if str(reference) == PLAIN.name or not seeds else 2
    return LayerPlan(places, seeds, len(modules) + 1, copies * len(rows) * row_bytes)


def has_a_core_to_spare(loaded: LoadedModel) -> bool:
    """Return whether forwards leave a CPU core free for comparing their outputs."""
    return loaded.device != "cpu" or torch.get_num_threads() < len(os.sched_getaffinity(0))


class SpooledOutputs(ModuleTrace):
    """Sends module outputs of one side's forwards on in parts; outputs with ambiguous axes are
    dropped.
    """

    def __init__(self, of: LayerCapture, side: int) -> None:
        """side: as of `LayerRows.write`."""
        super().__init__()
        self.modules = of.modules
        self._of, self._side = of, side
        self._number = 0
        self._waiting: dict[str, _RowBuffer] = {}
        self._spoiled: set[str] = set()

    def watching(self) -> AbstractContextManager[None]:
        """Follow the forwards inside."""
        modules = {name: each.module for name, each in self._of.modules.items()}
        return self.following(self._of.loaded.model, modules)

    @contextmanager
    def of_prompt(self, number: int) -> Iterator[None]:
        """Assign the forwards inside to this prompt; at the end, send the buffered rows on."""
        self._number = number
        self.prompt = self._of.token_ids[number]
        self.positions = self._of.plan.positions[number]
        self._waiting = {}
        self._spoiled = set()
        yield
        for waiting in self._waiting.values():
            self._hand_on(waiting)
        self._of.sink.end(self._side, number)

    def not_understood(self, name: str, output: Tensor) -> None:
        """Drop the module, with its outputs of earlier forwards."""
        if output.dtype not in _DTYPES:
            return
        self._waiting.pop(name, None)
        module = self._of.order.get(name)
        if module is not None and name not in self._spoiled:
            self._emit(module, 0, output.new_empty((1, 0)))
        self._spoiled.add(name)

    def see_logits(self, position: int, logits: Tensor) -> None:
        """Take the logits [positions, vocab] of the prompt from `position` on, as the last
        output.
        """
        self.hand_in(LOGITS, logits, position)

    def take(
        self,
        name: str,
        first: int,
        output: Tensor,
    ) -> None:
        if name in self._spoiled or output.dtype not in _DTYPES:
            return
        module = self._of.order.get(name)
        if module is None:
            if self._side != 0:
                return
            watched = self._of.modules.get(module_of_call(name))
            # the logits belong to no module
            kind, block = (watched.kind, watched.block) if watched else ("head", None)
            module = LayerModule(len(self._of.order), name, kind, block)
            self._of.order[name] = module
        waiting = self._waiting.get(name)
        if waiting is not None and not waiting.takes(output, first):
            self._hand_on(self._waiting.pop(name))
            waiting = None
        row_bytes = max(1, output.shape[1] * output.dtype.itemsize)
        room = max(1, self._of.part_bytes // row_bytes)
        if waiting is None and len(output) >= room:
            at_once = max(1, _LARGEST_PART_BYTES // row_bytes)
            for piece in output.split(at_once):
                self._emit(module, first, piece.clone() if self._of.is_kept else piece)
                first += len(piece)
            return
        if waiting is None:
            space = output.new_empty((room, output.shape[1]))
            waiting = self._waiting[name] = _RowBuffer(module, first, space)
        waiting.add(output)

    def _hand_on(self, waiting: _RowBuffer) -> None:
        self._emit(waiting.module, waiting.first, waiting.space[: waiting.filled])

    def _emit(
        self,
        module: LayerModule,
        first: int,
        output: Tensor,
    ) -> None:
        dtype = _DTYPES[output.dtype]
        part = LayerPart(self._number, module, first, bits_of(output), dtype)
        self._of.sink.write(self._side, part)


@dataclass
class _RowBuffer:
    """Rows of one module that do not fill a part yet. space: [rows, width]"""

    module: LayerModule
    first: int
    space: Tensor
    filled: int = 0

    def takes(self, output: Tensor, first: int) -> bool:
        return (
            first == self.first + self.filled
            and self.filled + len(output) <= len(self.space)
            and output.shape[1:] == self.space.shape[1:]
            and output.dtype == self.space.dtype
        )

    def add(self, output: Tensor) -> None:
        self.space[self.filled : self.filled + len(output)] = output
        self.filled += len(output)


class LayerCapture:
    """The traces of one capture's sides and of its noise floor. order: modules by their first
    output on the reference; part_bytes: of one module's part; is_kept: the sink still uses parts
    after it returns.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        plan: LayerPlan,
        token_ids: Prompts,
        sink: LayerRows,
    ) -> None:
        self.loaded, self.plan, self.token_ids, self.sink = loaded, plan, token_ids, sink
        self.order: dict[str, LayerModule] = {}
        self.modules = {each.name: each for each in watched_modules(loaded.model)}
        of_each = _PARTS_TOGETHER_BYTES // plan.modules
        self.part_bytes = min(_LARGER_PART_BYTES, max(_PART_BYTES, of_each))
        self.is_kept = has_a_core_to_spare(loaded)

    def trace(self, side: int, path: Path) -> SpooledOutputs | None:
        """Return the trace for the forwards of a side; None if it is compiled."""
        return None if path.is_one_piece else SpooledOutputs(self, side)

    def floor(self, reference: Path, on_step: Callable[[str], None]) -> None:
        """Run reordered prefills, all prompts per seed.

        CaptureError if there can be no noise floor.
        """
        try:
            if self.plan.seeds and str(reference) != PLAIN.name:
                on_step("plain prefill for the floor of the modules")
                self._prefill(PLAIN_PREFILL)
            for seed in range(self.plan.seeds):
                on_step(f"floor of the modules, reordering {seed + 1} of {self.plan.seeds}")
                with reorder(self.loaded.model, seed):
                    self._prefill(FLOOR)
        except CaptureError:
            self.sink.forget_floor()
            raise

    def _prefill(self, side: int) -> None:
        """Follow a prefill of every prompt."""
        trace = SpooledOutputs(self, side)
        with PLAIN.open(self.loaded, trace) as run, trace.watching():
            for number, ids in enumerate(self.token_ids):
                with trace.of_prompt(number):
                    run(ids, trace.see_logits)
