"""Check an uploaded noise floor: do its paths differ from one another by rounding in float32 alone?"""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ..numerics.formats import FLOAT32
from ..runs.file.records import RunHeader
from ..text import three_digits
from .places import place_in_words
from .uploaded_controls import FloorSamples, UploadedControls

FLOOR_START = 10.0  # the floor's first side may be so many floors away from the pair's reference in float32
# An uploaded floor that holds the fault itself would make rounding of it: a path with a fault is as far from the sound
# ones as the fault is large, and rounding shrinks with the precision.
WIDEST_FLOOR = 8.0  # the two paths furthest apart over the two nearest; real ones reach 5.5
UNEVEN_FLOOR = 50.0  # the same at one position; real ones reach 21
OTHER_PATH = 0.75  # of positions at which two paths must differ to be two
MOVING_FLOOR = 0.9  # of positions that two paths must move
FLOOR_OF_SPREAD = 1e-4  # of what logits vary by over the vocabulary; rounding in float32 reaches 4e-6 in 30 layers
# Of what the precisions differ by, from rounding in 16 bits to the floor; real ones shrink by 0.19 and more.
FLOOR_SHRINKS = 0.02


def ways_in_words(samples: FloorSamples) -> str:
    """`the uploaded floor: 'a', 'b', 'c'`."""
    return f"the uploaded floor: {', '.join(map(repr, samples.names))}"


@np.errstate(divide="ignore", invalid="ignore")
def usable_floor(
    header: RunHeader, samples: FloorSamples, controls: UploadedControls
) -> tuple[NDArray[np.float64] | None, str]:
    """Return the floor, with positions that its paths leave alone as high as the median one, and ''; or None and the
    reason why it decides nothing.
    """
    floor = samples.squares
    rms = np.sqrt(floor.mean())
    start = np.sqrt(samples.start.mean())
    moves = (floor > 0).sum(axis=0) >= 2
    apart = {two: np.sqrt(squares.mean()) for two, squares in samples.between.items()}
    far = max(apart, key=apart.__getitem__)
    others = {two for two, squares in samples.between.items() if (squares > 0).mean() >= OTHER_PATH}
    has_three = any({(a, b), (a, c), (b, c)} <= others for a, b, c in combinations(samples.names, 3))
    near = min(others, key=apart.__getitem__, default=far)
    widest = np.max(list(samples.between.values()), axis=0)
    moving = np.stack([samples.between[two] for two in others or {far}])
    narrowest = np.where(moving > 0, moving, np.inf).min(axis=0)
    uneven = np.sqrt(widest / narrowest)
    row = int(np.argmax(uneven))
    narrowing = controls.narrowing.get(header.sides[0].name)
    if narrowing is None:
        size, most = rms / samples.spread, FLOOR_OF_SPREAD
        width = f"{size:.2g} of the spread of logits (rounding: up to {most:g})"
    else:
        finer = 2.0 ** (FLOAT32.mantissa_bits - header.format.mantissa_bits)
        size, most = rms / np.sqrt(narrowing.mean()), 1 / (FLOOR_SHRINKS * finer)
        width = f"{size:.2g} of rounding to {header.compute_dtype} (float32: {1 / finer:.2g})"
    place = place_in_words(row, [prompt.positions for prompt in header.prompts])
    reasons = (
        (
            start > FLOOR_START * rms,
            f"is of another pair: its first path differs {three_digits(start / rms)}x as much from the float32"
            " reference as from its others",
        ),
        (
            moves.mean() < MOVING_FLOOR,
            f"is too narrow: two of its paths differ at only {moves.mean():.0%} of positions. Reorder every sum",
        ),
        (not has_three, f"has no three paths that differ from one another at {OTHER_PATH:.0%} of positions"),
        (
            apart[far] > WIDEST_FLOOR * apart[near],
            f"has paths of two kinds: '{far[0]}' and '{far[1]}' differ {three_digits(apart[far] / apart[near])}x as"
            f" much as '{near[0]}' and '{near[1]}' (rounding: up to {WIDEST_FLOOR:g}x)",
        ),
        (
            uneven[row] > UNEVEN_FLOOR,
            f"is uneven at {place}: two paths differ {three_digits(uneven[row])}x as much as two others (rounding: up"
            f" to {UNEVEN_FLOOR:g}x)",
        ),
        (size > most, f"is wider than float32 rounds: its paths differ by {width}"),
    )
    if doubts := [says for is_wrong, says in reasons if is_wrong]:
        return None, f"The uploaded floor {doubts[0]}."
    filled = floor.copy()
    filled[:, ~moves] = np.median(floor[:, moves], axis=1, keepdims=True)
    return filled, ""
