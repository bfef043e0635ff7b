"""Classes of sides that are equal bit for bit: against each other, and against the value that was swept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ...numerics.divergence import compare
from ...numerics.metrics import Summary
from ...numerics.totals import PairTotal
from ...text import plural
from ..reader import RunReader

_CHUNK_BYTES = 64 << 20  # of all classes together


@dataclass(frozen=True)
class BitClass:
    """Sides of equal bits. index: the first of them, which stands for all; members: names, in the run's order."""

    index: int
    members: tuple[str, ...]


def classes_of(run: RunReader) -> list[BitClass]:
    """Classes in order of first appearance; the reference's is the first."""
    found: dict[int, list[tuple[int, str]]] = {}
    for side in run.sides:
        found.setdefault(side.bit_class, []).append((side.index, side.name))
    return [BitClass(members[0][0], tuple(name for _, name in members)) for members in found.values()]


def sentence(groups: Sequence[BitClass]) -> str:
    """A sentence on how many classes of equal bits there are, and how many sides stand alone, in markdown."""
    sides = sum(len(group.members) for group in groups)
    if len(groups) == 1:
        return f"**All {sides} sides are equal bit for bit.**"
    alone = sum(len(group.members) == 1 for group in groups)
    said = f"**{sides} sides in {len(groups)} classes of equal bits**"
    if alone in (0, len(groups)):
        return f"{said}{', each side alone in its class' if alone else ''}."
    return f"{said}, {plural(alone, 'side')} alone in {'its' if alone == 1 else 'their'} class."


def bytes_to_compare(run: RunReader) -> int:
    """Bytes read to compare every two classes: what is stored as pairs of the reference is not read again."""
    others = len(classes_of(run)) - 1
    return (others if others > 1 else 0) * run.header.rows * run.header.vocab * run.header.format.itemsize


def comparisons(run: RunReader) -> int:
    """Number of pairs of classes that are not stored as pairs of the reference."""
    others = len(classes_of(run)) - 1
    return others * (others - 1) // 2


def pairwise(run: RunReader, on_progress: Callable[[int, int], None] | None = None) -> dict[tuple[int, int], Summary]:
    """Summary of every two classes (i, j), i < j, places in `classes_of`; class i is the reference. Those of the run's
    reference are stored. Every class is read once, some rows at a time.

    `on_progress(done, in all)`, in rows of a pair; what it raises ends the comparison.
    """
    groups, header = classes_of(run), run.header
    stored = {pair.index + 1: pair.summary for pair in run.pairs}
    found = {(0, place): stored[group.index] for place, group in enumerate(groups) if place}
    sums = {pair: PairTotal(keeps_histogram=False) for pair in combinations(range(1, len(groups)), 2)}
    done, total = 0, len(sums) * header.rows
    at_once = max(1, _CHUNK_BYTES // (header.vocab * header.format.itemsize * len(groups[1:] or groups)))
    for start in range(0, header.rows if sums else 0, at_once):
        stop = min(start + at_once, header.rows)
        bits = [run.read_rows(group.index, start, stop) for group in groups[1:]]
        for (i, j), pair in sums.items():
            pair.add(compare(bits[i - 1], bits[j - 1], header.format))
            done += stop - start
            if on_progress is not None:
                on_progress(done, total)
    return found | {places: pair.summary() for places, pair in sums.items()}


def matrix(pairs: dict[tuple[int, int], Summary], count: int, measure: str) -> NDArray[np.float64]:
    """One figure of every two classes, the same both ways, 0 on the diagonal, NaN where undefined; `measure`: of a
    Summary. [count, count]
    """
    values = np.zeros((count, count))
    for (i, j), summary in pairs.items():
        values[i, j] = values[j, i] = np.nan if (value := getattr(summary, measure)) is None else value
    return values


@dataclass(frozen=True)
class Sweep:
    """Sides whose paths differ in one value. name: the step (`batch`); values: of each side, None where it has no such
    step.
    """

    name: str
    sides: tuple[int, ...]
    values: tuple[int, ...]


# What a path without the step has: `prefill` is `prefill+batch:1`. Other steps have no value that stands for their
# absence.
_ABSENT = {"batch": 1}


def sweep_of(run: RunReader) -> Sweep | None:
    """The one step in which the paths of the sides differ, where it is a number of at least three values; else None.

    The reference may be of another path altogether (`decode : decode+batch:2, :4, ...` or `prefill : reuse:1,
    reuse:2`): what counts are the variants, and the reference joins where it fits.
    """
    steps = [_steps(side.path) for side in run.sides]
    if any(not found for found in steps):
        return None
    variants = steps[1:]
    names = {name for found in variants for name in found}
    varying = [name for name in names if len({found.get(name) for found in variants}) > 1]
    if len(varying) != 1:
        return None
    name = varying[0]
    sides, values = [], []
    for index, found in enumerate(steps):
        text = found.get(name, (str(_ABSENT[name]),) if name in _ABSENT else ())
        rest = {key: value for key, value in found.items() if key != name}
        fits = rest == {key: value for key, value in variants[0].items() if key != name}
        if len(text) == 1 and text[0].isdigit() and fits:
            sides.append(index)
            values.append(int(text[0]))
        elif index:
            return None
    return Sweep(name, tuple(sides), tuple(values)) if len(set(values)) >= 3 else None


def _steps(path: str) -> dict[str, tuple[str, ...]]:
    """`decode+batch:8` -> {'decode': (), 'batch': ('8',)}; {} of what is no path."""
    found = {}
    for part in path.split("+") if path else []:
        name, *values = part.split(":")
        found[name] = tuple(values)
    return found
