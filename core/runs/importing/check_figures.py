"""Check of a run file's figures, whether they say of its logits what the logits say: the stored ones beside those
computed anew from its bits.

Counts, tokens and ULPs have to agree exactly. Numbers in float64 (rms, mean, KL, logsumexp) have to agree to a
millionth: they are the same bits on every machine, but some files are older than that, and in those the processor's
vector width shows in the last digits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import StoreError
from ...numerics.divergence import DENSE_DISTANCES
from ...numerics.totals import PairTotal
from ..figures import STORED_CELLS, Figures
from ..reader import RunReader, StoredPair
from ..writer import RunWriter

if TYPE_CHECKING:
    import pandas as pd

_RELATIVE, _ABSOLUTE = 1e-6, 1e-8
_TILE_ROWS = 256
_TOP = 20


def check_figures(run: RunReader, writer: RunWriter) -> None:
    """StoreError, naming the first place, where a figure of `run` is not that of `writer`, to which all of its logits
    were written.
    """
    for side, (digest, stored) in enumerate(zip(writer.digests(), run.sides, strict=True)):
        if digest != stored.stored_sha256:
            raise StoreError(
                f"{run.path.name}: side {side}'s logits have the SHA-256 {digest[:16]}…, the file says"
                f" {str(stored.stored_sha256)[:16]!a}…: they are not those that were stored."
            )
    figures = writer.figures()
    for side in range(len(run.sides)):
        _check_side(run, figures, side)
    for pair in run.pairs:
        _check_table(run, run.positions(pair.index), figures.positions(pair.index), f"of pair {pair.index}")
        _check_summary(run, pair, writer.totals(pair.index))
        _check_tiles(run, figures, pair.index)


def _check_side(run: RunReader, figures: Figures, side: int) -> None:
    import pandas as pd

    with run.decoding("table of sides by position"):
        ours, theirs = (
            pd.DataFrame({"logsumexp": values}) for values in (figures.logsumexp(side), run.logsumexp(side))
        )
        places = np.array(run.header.places(), np.int64)
        for table in (ours, theirs):
            table.insert(0, "prompt", places[: len(table), 0])
            table.insert(1, "position", places[: len(table), 1])
    _check_table(run, theirs, ours, f"of side {side}")
    _check_table(run, run.best_tokens(side, _TOP), figures.best_tokens(side, _TOP), f"of side {side}")


def _check_table(run: RunReader, theirs: pd.DataFrame, ours: pd.DataFrame, whose: str) -> None:
    """Both by prompt and position, in that order."""
    if len(theirs) != len(ours):
        raise StoreError(f"{run.path.name}: {len(theirs):,} rows of figures {whose}; its logits make {len(ours):,}.")
    for name in ours.columns:
        if name not in theirs:
            raise StoreError(f"{run.path.name}: there is no {name} {whose}; the file is damaged.")
        wrong = np.flatnonzero(~_agree(theirs[name], ours[name]))
        if len(wrong):
            row = wrong[0]
            where = f"prompt {ours['prompt'][row]}, position {ours['position'][row]}"
            raise _lie(run, f"{name} at {where} {whose}", theirs[name][row], ours[name][row])


def _check_summary(run: RunReader, pair: StoredPair, total: PairTotal) -> None:
    import pandas as pd

    stored, computed = asdict(pair.summary), asdict(total.summary())
    for name, value in computed.items():
        if not _agree(pd.Series([stored[name]], dtype=object), pd.Series([value], dtype=object)).all():
            raise _lie(run, f"{name} of pair {pair.index}", stored[name], value)
    theirs, ours = _coarse(run.histogram(pair.index)), _coarse(total.histogram)
    for distance in sorted(theirs.keys() | ours.keys()):
        if theirs.get(distance, 0) != ours.get(distance, 0):
            raise _lie(
                run,
                f"number of elements {distance} ULPs apart of pair {pair.index}",
                theirs.get(distance, 0),
                ours.get(distance, 0),
            )


def _coarse(histogram: Mapping[int, int]) -> dict[int, int]:
    """Far distances by powers of two: which of them were told apart hangs on how the rows came."""
    found: dict[int, int] = {}
    for distance, elements in histogram.items():
        place = distance if distance < DENSE_DISTANCES else 1 << (int(distance).bit_length() - 1)
        found[place] = found.get(place, 0) + elements
    return found


def _check_tiles(run: RunReader, figures: Figures, pair: int) -> None:
    """The finest level of the heatmap; the others are its maxima, and are made anew."""
    starts = range(0, run.header.rows, _TILE_ROWS)
    for start, measure in product(starts, STORED_CELLS):
        stop = min(start + _TILE_ROWS, run.header.rows)
        theirs, ours = (each.stored_cells(measure, pair, 0, (start, stop)) for each in (run, figures))
        if not np.array_equal(theirs, ours):
            row, cell = np.argwhere(theirs != ours)[0]
            prompt, position = run.header.places()[start + row]
            raise _lie(
                run,
                f"heatmap cell {cell} at prompt {prompt}, position {position} of pair {pair}",
                theirs[row, cell],
                ours[row, cell],
            )


def _agree(theirs: pd.Series, ours: pd.Series) -> np.ndarray:
    """[rows]: whether each value is the same; null and NaN are the same as themselves."""
    is_null = [column.isna().to_numpy() for column in (theirs, ours)]
    same = is_null[0] & is_null[1]
    both = ~is_null[0] & ~is_null[1]
    a, b = (column.to_numpy()[both] for column in (theirs, ours))
    try:
        if all(isinstance(value, bool | np.bool_ | int | np.integer) for value in (*a[:1], *b[:1])):
            same[both] = a == b
        else:
            same[both] = np.isclose(a.astype(float), b.astype(float), rtol=_RELATIVE, atol=_ABSOLUTE)
    except (TypeError, ValueError):  # a text where a number belongs
        same[both] = False
    return same


def _lie(run: RunReader, what: str, said: Any, computed: Any) -> StoreError:
    return StoreError(f"{run.path.name}: its {what} is {said}, its logits give {computed}; nothing was taken in.")
