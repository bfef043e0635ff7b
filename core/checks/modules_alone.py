"""The row of evidence on each module alone: which differ, which first, and whether they compute in
fewer bits.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ..evidence import FLOAT32, MODULES, NOTED, Check, CheckFigures, Evidence
from ..numerics.arrays import Floats
from ..text import multiple, plural, series
from .pair import PairFigures

# times a module's own rounding; docs/explanation/calibration.md has what was measured
LARGEST_ALONE = 10.0
# of float32, over the value: of one huge feature of a position a single rounding may be all there
# is
_ULP = 2.0**-23
_TINY = np.finfo(np.float64).tiny
_BLOCK = re.compile(r".*\.\d+(?=\.|$)")
_NAMED = 2  # modules or kinds of them by name
# A lower precision errs alike in nearly all blocks and at all positions. Of 20 in six models:
# levels of the blocks 2.9 apart, positions 6.5 (ninth decile over first), the largest 5.4 times the
# median, 0.19 of the error across the output (of a wrong scale 0.03). Faults on top reach 7 to 180
# times the median, at once; a wrong rotary base slowly. A fault of one size at all positions
# (scores or one head 1 % too large) looks the same, so this never decides.
_BLOCKS, _LEVELS, _POSITIONS, _ACROSS, _STANDS_OUT, _AT_ONCE = 0.9, 4.0, 8.0, 0.1, 6.0, 2.0
# later: behind a cache's first chunk, if it is no fault from a position on
_BITS, _BITS_LATER = (2.5, 16.0), 4.0
_OF_A_PRODUCT = 0.8  # two factors rounded to b bits err by 2^-(b + 0.8) of their product, rms
_PREFIX = 8  # positions that show a level


class AloneFigures(CheckFigures):
    """The modules of a side, each given what ran before it on that side."""

    largest_ratio_allowed: Annotated[float, "limit of the ratio, x the module's own rounding"]
    modules_beyond: Annotated[tuple[str, ...], "modules that differ by more given identical inputs"]
    largest_ratio_of_others: Annotated[float, "largest ratio of the others"]
    modules: Annotated[tuple[str, ...], "modules in execution order"]
    alone_rms: Annotated[
        tuple[float | None, ...],
        "RMS of the side to float64, in units of each module's output",
    ]
    own_rounding_rms: Annotated[
        tuple[float | None, ...],
        "RMS of the model's own float32 to float64, likewise",
    ]
    first_module: Annotated[str | None, "first of those that differ"] = None
    first: Annotated[tuple[int, int] | None, "first (prompt, position) at which one does"] = None
    kind: Annotated[str | None, "part of the blocks that errs like a lower precision"] = None
    blocks: Annotated[int | None, "blocks in which it does"] = None
    bits: Annotated[float | None, "approximate bits that it computes to"] = None

    @property
    def is_of_few_bits(self) -> bool:
        """Whether modules show fewer bits and nothing else."""
        return self.bits is not None and self.first is None

    @property
    def part(self) -> str:
        """The part of the blocks that errs like a lower precision."""
        return f"{self.kind} of {self.blocks} layers"


ALONE = Check("each module alone", MODULES, AloneFigures)


@dataclass(frozen=True)
class ModulesAlone:
    """Mean squares of each module alone. All [modules, positions], in units of the module's output.

    names: as they run; side: of the side's output to float64 on the same input, along: the part of
    it along that output; own: of the model's own output in float32; outputs: of the side's output
    itself.
    """

    names: tuple[str, ...]
    side: Floats
    along: Floats
    own: Floats
    outputs: Floats

    @property
    def ratios(self) -> Floats:
        """rms of the side over the module's own rounding. [modules, positions]"""
        own = np.maximum(
            np.maximum(self.own, self.own.mean(axis=1, keepdims=True)),
            self.outputs * _ULP**2,
        )
        return np.sqrt(self.side / np.maximum(own, _TINY))


def alone_evidence(
    control: str,
    alone: ModulesAlone,
    side: str,
    prompt: int = 0,
    *,
    is_row: bool = False,
) -> Evidence:
    """Return the row on what each module of a side does with its inputs on that side.

    It never decides. is_row: the prompt is a text, and a row of its run.
    """
    names, ratios = alone.names, alone.ratios
    is_beyond = ~(ratios <= LARGEST_ALONE)  # so is NaN
    modules_beyond = np.flatnonzero(is_beyond.any(axis=1)).tolist()
    starts = {module: int(is_beyond[module].argmax()) for module in modules_beyond}
    levels, on_top = _noise(alone, starts)
    faults = on_top or starts
    faulty = [names[module] for module in sorted(faults)]
    place = prompt, min(faults.values(), default=0)
    if is_row:
        place = 0, prompt
    largest = float(np.delete(ratios, list(starts), axis=0).max(initial=0.0))
    figures = AloneFigures(
        largest_ratio_allowed=LARGEST_ALONE,
        modules_beyond=tuple(faulty),
        largest_ratio_of_others=largest,
        modules=names,
        alone_rms=_rms(alone.side),
        own_rounding_rms=_rms(alone.own),
        first_module=next(iter(faulty), None),
        first=place if on_top or (starts and not levels) else None,
    )
    of_prompt = f" of prompt {place[0]}" if place[0] else ""
    position = f", first at position {figures.first[1]:,}{of_prompt}" if figures.first else ""
    modules = in_words(faulty, names)
    differ = f"Given identical inputs, {modules} differ{'s' * (' and ' not in modules)}{position}"
    if not faulty:
        every = f"Given identical inputs, all {plural(len(names), 'module')}"
        says = (
            f"{every} agree within {largest:.1f}x the rounding error: the fault is smaller, or in"
            " the head."
        )
    elif not levels:
        most = multiple(ratios[list(faults)].max())
        says = f"{differ} (up to {most} the rounding error); other modules within {largest:.1f}x."
    else:
        figures.kind = series(
            list(dict.fromkeys(_kind_of(names[module]).partition(".")[0] for module in levels)),
        )
        figures.blocks = len({_block_of(names[module]) for module in levels})
        figures.bits = round(-float(np.log2(np.median(list(levels.values())))) - _OF_A_PRODUCT, 1)
        says = f"{differ}, beyond {figures.bits:.0f}-bit noise of {figures.kind}."
    if levels and not on_top:
        says = f"{figures.part}: {figures.bits:.0f} bits. Lower precision? --declare it."
    return Evidence(ALONE, control, figures, NOTED, says, side)


def _noise(alone: ModulesAlone, starts: dict[int, int]) -> tuple[dict[int, float], dict[int, int]]:
    """Return (error over output, rms, of modules that err as in a lower precision; first positions
    of faults on top).

    starts: first position of every module beyond its rounding. Nothing is returned if something
    else explains it.
    """
    kinds: dict[str, list[int]] = {}
    for module, name in enumerate(alone.names):
        kinds.setdefault(_kind_of(name), []).append(module)
    levels: dict[int, float] = {}
    on_top: dict[int, int] = {}
    start = min(starts.values(), default=0)
    for kind, modules in kinds.items():
        noisy = [module for module in modules if module in starts]
        begins = {module: starts[module] for module in noisy}
        if kind == alone.names[modules[0]]:  # outside the blocks
            if any(begins.values()):
                return {}, {}
        elif len(noisy) < max(2, _BLOCKS * len(modules)) or min(begins.values()) > start:
            on_top |= begins
        elif not (noise := _kind_noise(alone, noisy, start)):
            return {}, {}
        else:
            levels |= noise[0]
            on_top |= noise[1]
    return (levels, on_top) if levels else ({}, {})


def _kind_noise(
    alone: ModulesAlone,
    modules: list[int],
    start: int,
) -> tuple[dict[int, float], dict[int, int]] | None:
    """`_noise` of the modules of one kind, from a position on; None if they err otherwise."""
    side = alone.side[modules, start:]
    error = np.sqrt(side / np.maximum(alone.outputs[modules, start:], _TINY))
    # share of the squared error
    across_share = np.median(1 - alone.along[modules, start:] / np.maximum(side, _TINY))
    level = np.repeat(np.median(error, axis=1, keepdims=True), error.shape[1], axis=1)
    for length in (_PREFIX << n for n in range(32) if _PREFIX << n < error.shape[1]):
        level[:, length:] = np.minimum(
            level[:, length:],
            np.median(error[:, :length], axis=1, keepdims=True),
        )
    stands_out = error > _STANDS_OUT * level
    stands_out[:, : start == 0] = False  # position 0 sees itself alone
    low, high = np.nanquantile(np.where(stands_out, np.nan, error), (0.1, 0.9), axis=1)
    typical = np.median(level[:, -1])
    on_top = dict.fromkeys(np.flatnonzero(level[:, -1] > _LEVELS * typical).tolist(), start)
    other_levels = np.delete(level[:, -1], list(on_top))
    bits = -np.log2(max(typical, _TINY)) - _OF_A_PRODUCT
    if (
        error.shape[1] < _PREFIX
        or len(on_top) > max(1, (1 - _BLOCKS) * len(modules))
        or other_levels.max() > _LEVELS * other_levels.min()
        or np.median(high / np.maximum(low, _TINY)) > _POSITIONS
        or across_share < _ACROSS**2
        or not (_BITS_LATER if start else _BITS[0]) <= bits <= _BITS[1]
    ):
        return None
    for row in np.flatnonzero(stands_out.any(axis=1)).tolist():
        first = int(stands_out[row].argmax())
        if error[row, first] < _AT_ONCE * error[row, :first].max(
            initial=np.inf if first == 0 else 0.0,
        ):
            return None
        on_top.setdefault(row, start + first)
    levels = {module: level[row, -1] for row, module in enumerate(modules)}
    return levels, {modules[row]: first for row, first in on_top.items()}


def in_words(faulty: Sequence[str], names: Sequence[str]) -> str:
    """Return few modules by name, more as `self_attn of all 30 layers`, many by the first."""
    if len(faulty) <= _NAMED:
        return series(faulty)
    kinds, of_all = [_kind_of(name) for name in faulty], [_kind_of(name) for name in names]
    if len(set(kinds)) > _NAMED:
        return f"{faulty[0]} and {len(faulty) - 1} more modules"
    words = []
    for kind in dict.fromkeys(kinds):
        count, total = kinds.count(kind), of_all.count(kind)
        some = "all" if count == total else f"{count} of"
        words.append(kind if total == 1 else f"{kind} of {some} {total} layers")
    return series(words)


def _kind_of(name: str) -> str:
    """`self_attn` of `model.layers.3.self_attn`: which part of a block it is; elsewhere its own
    name.
    """
    return name.removeprefix(_block_of(name)).lstrip(".") or "the block itself"


def _block_of(name: str) -> str:
    """`model.layers.3` of `model.layers.3.self_attn`; '' elsewhere."""
    block = _BLOCK.match(name)
    return block[0] if block else ""


def _rms(squares: Floats) -> tuple[float | None, ...]:
    return tuple(float(rms) if np.isfinite(rms) else None for rms in np.sqrt(squares.mean(axis=1)))


def undeclared_precision(row: Evidence, rows: Sequence[Evidence]) -> str:
    """Return a sentence if modules alone, in float32, show fewer bits and nothing else.

    row: of the pair in float32 that decides, or of another check.
    """
    pair = row.figures
    if row.group != FLOAT32 or not isinstance(pair, PairFigures):
        return ""
    for each in reversed(rows):
        alone = each.figures
        if isinstance(alone, AloneFigures) and alone.is_of_few_bits:
            size = f"{multiple(pair.ratio)} the noise floor in {pair.compute_dtype}"
            part = f"{alone.part} computes to {alone.bits:.0f} bits"
            return f"{size}: a bug, or an undeclared lower precision ({part})."
    return ""
