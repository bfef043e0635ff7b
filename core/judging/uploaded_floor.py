"""A floor that was uploaded: can it be one? Its ways are held against one another, against what float32 rounds, and
against the model's own floor where that is known.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ..numerics.formats import FLOAT32 as FLOAT32_FORMAT
from ..runs.file.records import RunHeader
from ..text import three_digits
from .places import place_in_words
from .uploaded_controls import UploadedControls, Ways

FLOOR_START = 10.0  # the floor's first side may be so many floors away from the pair's reference in float32
# An uploaded floor that holds the fault itself would make rounding of it.
WIDEST_FLOOR = 8.0  # the two ways furthest apart over the two nearest; real ones reach 5.5
UNEVEN_FLOOR = 50.0  # the same at one position; real ones reach 21
OTHER_WAY = 0.75  # of positions at which two ways must differ to be two
MOVING_FLOOR = 0.9  # of positions that two ways must move
FLOOR_OF_SPREAD = 1e-4  # of what logits vary by over the vocabulary; rounding in float32 reaches 4e-6 in 30 layers
# Of what the precisions differ by, from rounding in 16 bits to the floor; real ones shrink by 0.19 and more.
FLOOR_SHRINKS = 0.02


def ways_in_words(ways: Ways) -> str:
    """`the uploaded floor: 'a', 'b', 'c' ('d' is 'a' bit for bit and does not count)`."""
    same = ", ".join(f"'{name}' is '{first}'" for name, first in ways.same)
    left_out = f" ({same} bit for bit and {'does' if len(ways.same) == 1 else 'do'} not count)" if same else ""
    names = ", ".join(f"'{way}'" for way in ways.names)
    return f"the uploaded floor: {names}{left_out}"


def usable_floor(header: RunHeader, ways: Ways, controls: UploadedControls) -> tuple[NDArray[np.float64] | None, str]:
    """(the floor, with positions that its ways leave alone at the height of the median one; None and why it decides
    nothing)

    A floor in which the fault is itself would make rounding of it, so its ways are held against one another, against
    what float32 can round, and against the model's own floor where that is known.
    """
    floor = ways.squares
    moves = (floor > 0).sum(axis=0) >= 2
    if ways.start.mean() > FLOOR_START**2 * floor.mean():
        far = three_digits(float(np.sqrt(ways.start.mean() / floor.mean())))
        return None, (
            f"The uploaded floor is not of this pair: its first side is {far} times as far from the reference in"
            " float32 as its ways are from each other."
        )
    if moves.mean() < MOVING_FLOOR:
        return None, (
            f"The uploaded floor is too narrow: two of its ways differ at only {moves.mean():.0%} of the positions;"
            " bring ways that reorder every sum, such as other batch sizes of decoding or another attention kernel."
        )
    if doubt := _of_two_kinds(header, ways) or _beyond_float32(header, ways, controls):
        return None, doubt
    filled = floor.copy()
    filled[:, ~moves] = np.median(floor[:, moves], axis=1, keepdims=True)
    return filled, ""


def _of_two_kinds(header: RunHeader, ways: Ways) -> str:
    """Reason why the ways are not of one spread; '' where they are. Where a way holds a fault, it is as far from the
    sound ones as the fault is large.
    """
    apart = {two: float(np.sqrt(squares.mean())) for two, squares in ways.between.items()}
    other = {two for two, squares in ways.between.items() if (squares > 0).mean() >= OTHER_WAY}
    if not any({(a, b), (a, c), (b, c)} <= other for a, b, c in combinations(ways.names, 3)):
        return (
            f"No three ways of the uploaded floor differ from one another at {OTHER_WAY:.0%} of the positions: they are"
            " nearly the same way."
        )
    near = min(other, key=apart.__getitem__)
    far = max(apart, key=apart.__getitem__)
    if apart[far] > WIDEST_FLOOR * apart[near]:
        return (
            f"The ways of the uploaded floor are of two kinds: '{far[0]}' and '{far[1]}' are"
            f" {three_digits(apart[far] / apart[near])} times as far apart as '{near[0]}' and '{near[1]}', where orders"
            f" of summation agree to {WIDEST_FLOOR:g}. One of them is no mere reordering, or one hardly reorders."
        )
    widest = np.max(list(ways.between.values()), axis=0)
    moving = np.stack([np.where(ways.between[two] > 0, ways.between[two], np.inf) for two in other])
    narrowest = moving.min(axis=0)
    uneven = np.sqrt(np.divide(widest, narrowest, out=np.zeros_like(widest), where=np.isfinite(narrowest)))
    row = int(np.argmax(uneven))
    if uneven[row] <= UNEVEN_FLOOR:
        return ""
    where = place_in_words(row, [prompt.positions for prompt in header.prompts])
    return (
        f"The ways of the uploaded floor disagree at {where}: two of them are"
        f" {three_digits(uneven[row])} times as far apart there as two others, where orders of summation agree to"
        f" {UNEVEN_FLOOR:g}. One of them does something else there."
    )


def _beyond_float32(header: RunHeader, ways: Ways, controls: UploadedControls) -> str:
    """Reason why this is wider than rounding in float32; '' if it is not. Rounding shrinks with the precision, and ways
    with a fault each do not.
    """
    name = header.sides[0].name
    narrow = controls.narrowing.get(name)
    rms = float(np.sqrt(ways.squares.mean()))
    if narrow is None:
        is_wide = rms > FLOOR_OF_SPREAD * ways.spread
        how = (
            f"{rms / ways.spread:.2g} of what logits vary by over the vocabulary, where rounding stays below"
            f" {FLOOR_OF_SPREAD:g}"
        )
    else:
        full = 2.0 ** (FLOAT32_FORMAT.mantissa_bits - header.format.mantissa_bits)
        times = float(np.sqrt(narrow.mean())) / rms
        is_wide = times < FLOOR_SHRINKS * full
        how = (
            f"{three_digits(times)} times less than what rounding to {header.compute_dtype} does to '{name}', where"
            f" float32 is {full:,.0f} times finer"
        )
    return is_wide * (
        f"The uploaded floor is wider than float32 rounds: its ways are {rms:.3g} logits (rms) apart, {how}. They do"
        " not differ by rounding alone."
    )
