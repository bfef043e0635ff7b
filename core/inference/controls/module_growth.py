"""Growth of a divergence through the model: the output of every module of every block on two paths, at the same
positions, beside the rounding floor there.

Of the reference only chosen positions are kept; the other side, and each reordering, is compared with them as it runs,
so no second trace is ever in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import CaptureError
from ..models.bits import row_sums
from ..models.model import LoadedModel
from ..paths.batch import Emit, ignore
from ..paths.engines import RunnableSide, side_of
from ..paths.hooks import ModuleTrace
from ..watching.modules import traced_modules
from .reordering import reordered

KEPT_BYTES = 256 << 20  # of the reference's outputs at once
PLAIN = side_of("prefill")
Key = tuple[object, ...]
Squares = dict[str, list[NDArray[np.float64]]]  # mean squares of differences, by module [positions of a prompt]


class KeptOutputs(ModuleTrace):
    """Module outputs of a prompt at chosen positions: kept, or compared with those that another trace kept.

    against: the trace to compare with, None to keep. kept: by module, [chosen, width]; squares: by module, mean squares
    of the difference [chosen]; seen: by module, positions that a forward has computed [chosen]; modules in the order in
    which they ran. is_ambiguous: also where a forward that nobody announced computes positions once more; has_run: the
    side ran to its end.
    """

    def __init__(self, prompt: Sequence[int], positions: Sequence[int], against: KeptOutputs | None = None) -> None:
        super().__init__(prompt, positions)
        self.against = against
        self.kept: dict[str, torch.Tensor] = {}
        self.squares: dict[str, NDArray[np.float64]] = {}
        self.seen: dict[str, NDArray[np.bool_]] = {}
        self.has_run = False

    def take(self, name: str, first: int, found: torch.Tensor) -> None:
        places = slice(first, first + len(found))
        seen = self.seen.setdefault(name, np.zeros(len(self.positions), bool))
        self.is_ambiguous = self.is_ambiguous or (not self.is_told and bool(seen[places].any()))
        seen[places] = True
        if self.against is None:
            if name not in self.kept:
                self.kept[name] = found.new_full((len(self.positions), found.shape[1]), float("nan"))
            self.kept[name][places] = found
        elif self.width_of(name) == found.shape[1]:
            apart = found.double() - self.against.kept[name][places].to(found.device, torch.float64)
            squares = row_sums(apart.square()) / found.shape[1]
            self.squares.setdefault(name, np.full(len(self.positions), np.nan))[places] = squares

    def width_of(self, name: str) -> int | None:
        kept = self.against.kept.get(name) if self.against is not None else None
        return None if kept is None else int(kept.shape[1])

    def _own_row(self, output: torch.Tensor) -> torch.Tensor | None:
        """Row of the prompt, of [rows, columns, width] alone, so that both sides compare the same modules whatever
        their batches.
        """
        assert self._computed is not None
        is_of_rows = output.ndim == 3 and output.shape[0] > self._computed[0]
        return super()._own_row(output) if is_of_rows else None


def run_traced(
    loaded: LoadedModel,
    side: RunnableSide,
    trace: KeptOutputs,
    modules: Mapping[str, torch.nn.Module] | None = None,
    emit: Emit = ignore,
) -> None:
    """Run a side on the trace's prompt, its modules followed or handed in; None: those that growth is measured over."""
    modules = traced_modules(loaded.model) if modules is None else modules
    trace.modules = modules.keys()
    with nullcontext() if side.hands_in else trace.following(loaded.model, modules):
        side.run_on(loaded, trace)(trace.prompt, emit)
    trace.has_run = True


@dataclass(frozen=True)
class Growth:
    """The distance of a pair and of its floor at each module. names: in the order in which they run; rms: [modules], in
    units of the module's output, the floor's at least one unit in the last place where no reordering reaches;
    positions: how many were looked at.
    """

    names: tuple[str, ...]
    pair_rms: NDArray[np.float64]
    floor_rms: NDArray[np.float64]
    positions: int


def growth_over_modules(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    sides: tuple[RunnableSide, RunnableSide],
    seeds: Sequence[int],
    wanted: Sequence[int] = (),
    floor_of: Callable[[Key, Callable[[], Squares]], Squares] = lambda _, measured: measured(),
    traces_of: Callable[[Sequence[int]], tuple[KeptOutputs, KeptOutputs] | None] = lambda _: None,
) -> Growth:
    """Both sides and the reorderings of prefill, module by module, in the dtype that `loaded` is in.

    wanted: rows (positions of all prompts, one after another) that must be looked at; of the others as many as fit,
    evenly spread. floor_of: measures a floor, or knows what it was under that key; traces_of: a prompt's on both sides,
    at every position, where they were followed before (both of JudgingSession). CaptureError where the model has no
    blocks, or where a side computes positions in forwards that cannot be followed.
    """
    chosen = _chosen(loaded, [len(ids) for ids in prompts], wanted)
    seen: dict[str, bool] = {}
    pair: dict[str, list[NDArray[np.float64]]] = {}
    floor: dict[str, list[NDArray[np.float64]]] = {}
    values: dict[str, list[NDArray[np.float64]]] = {}
    for ids, positions in zip(prompts, chosen, strict=True):
        if not positions:
            continue
        kept, compared = traces_of(ids) or _traced(loaded, sides, ids, positions)
        if kept.is_ambiguous or compared.is_ambiguous:
            raise CaptureError(
                "a side computes or hands in positions twice, or in several rows alike, so its forwards could not be"
                " followed."
            )
        for name in compared.squares:
            seen[name] = seen.get(name, True) and bool(kept.seen[name].all() and compared.seen[name].all())
        for name, squares in compared.squares.items():
            pair.setdefault(name, []).append(squares)
            values.setdefault(name, []).append(row_sums(kept.kept[name].double().square()) / kept.kept[name].shape[1])
        key = (loaded.dtype, tuple(seeds), tuple(ids), tuple(positions))
        is_plain = sides[0].name == PLAIN.name
        measured = partial(_floor, loaded, seeds, ids, positions, kept if is_plain else None)
        found = floor_of(key, measured)
        for name, of_seeds in found.items():
            floor.setdefault(name, []).extend(of_seeds)
    names = tuple(name for name in pair if name in floor and seen[name])
    if not names:
        raise CaptureError(
            f"'{sides[1].name}' computes positions in forwards that could not be followed; an engine may hand in what"
            " its modules put out (docs/extend.md, `watch`)."
        )
    pair_rms, floor_rms, value_rms = (np.array([_rms(of[name]) for name in names]) for of in (pair, floor, values))
    unreached = floor_rms == 0  # the first norm, where no reordering comes before it: it may still round otherwise
    floor_rms[unreached] = torch.finfo(loaded.torch_dtype).eps * value_rms[unreached]
    return Growth(names, pair_rms, floor_rms, sum(map(len, chosen)))


def _traced(
    loaded: LoadedModel, sides: tuple[RunnableSide, RunnableSide], ids: Sequence[int], positions: Sequence[int]
) -> tuple[KeptOutputs, KeptOutputs]:
    """Both sides run on a prompt, the second compared with the first."""
    kept = KeptOutputs(ids, positions)
    run_traced(loaded, sides[0], kept)
    compared = KeptOutputs(ids, positions, kept)
    run_traced(loaded, sides[1], compared)
    return kept, compared


def _floor(
    loaded: LoadedModel, seeds: Sequence[int], ids: Sequence[int], positions: Sequence[int], kept: KeptOutputs | None
) -> Squares:
    """Mean squares of the reorderings of a prompt at every module; kept: of the plain forward, None to run it."""
    if kept is None:
        kept = KeptOutputs(ids, positions)
        run_traced(loaded, PLAIN, kept)
    floor: Squares = {}
    for seed in seeds:
        moved = KeptOutputs(ids, positions, kept)
        with reordered(loaded.model, seed):
            run_traced(loaded, PLAIN, moved)
        for name, squares in moved.squares.items():
            floor.setdefault(name, []).append(squares)
    return floor


def _rms(squares: Sequence[NDArray[np.float64]]) -> float:
    return float(np.sqrt(np.concatenate(squares).mean()))


def is_roomy(loaded: LoadedModel, positions: int, itemsize: int) -> bool:
    """True where outputs at so many positions, of so many bytes an element, can be kept."""
    return positions <= _rows_with_room(loaded, itemsize)


def _rows_with_room(loaded: LoadedModel, itemsize: int) -> int:
    text = loaded.model.config.get_text_config(decoder=True)
    bytes_a_row = len(traced_modules(loaded.model)) * int(getattr(text, "hidden_size", 0) or 1) * itemsize
    return KEPT_BYTES // bytes_a_row


def _chosen(loaded: LoadedModel, lengths: Sequence[int], wanted: Sequence[int]) -> list[list[int]]:
    """Positions of each prompt that KEPT_BYTES have room for: the wanted ones first, then others evenly spread."""
    room, total = max(1, _rows_with_room(loaded, loaded.torch_dtype.itemsize)), sum(lengths)
    first = list(wanted)[:room]
    spread = np.linspace(0, total - 1, min(total, max(0, room - len(first)))).astype(int).tolist()
    rows = sorted({*first, *spread})
    begins = np.cumsum([0, *lengths])
    return [[row - int(start) for row in rows if start <= row < stop] for start, stop in pairwise(begins)]
