"""Observations, which say what is seen and explain no share: a sampler, jumps at a few positions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...text import number, plural
from .rows import PairRows
from .scoring import Cause, centred

FEWEST_ROWS = 20  # among which jumps are looked for
_JUMP_SHARE, _JUMP_ROWS = 0.9, 0.1
_JUMP_FACTOR, _JUMP_FACTOR_OF_LISTS = 10.0, 20.0  # times the middle position


def sampler(pair: PairRows) -> Iterator[Cause]:
    """Observation: tokens that were emitted are not the best ones, which greedy decoding would have emitted."""
    for side in (0, 1):
        seen = [one for one in pair.emitted if one[0] == side]
        other = [one for one in seen if one[3] != one[4]]
        if len(other) >= 2 or (other and len(seen) < 8):
            _, prompt, position, best, chosen = other[0]
            yield Cause(
                "sampler",
                f"'{pair.names[side]}' emitted another token than its best at {len(other):,} of"
                f" {plural(len(seen), 'position')}, first at position {position} of prompt {prompt} ({chosen} in place"
                f" of {best}): it sampled, or a penalty or mask stood between.",
                {"positions": len(other), "position": position, "prompt": prompt},
            )


def jumps(pair: PairRows) -> Iterator[Cause]:
    """Observation: nearly all of the difference lies at a few positions, and the others are close."""
    rows = [row for row in pair.rows if len(row.x)]
    sizes = np.array([float(np.sqrt((centred(row.y - row.x, pair.has_constants) ** 2).mean())) for row in rows])
    places = [(row.prompt, row.position) for row in rows]
    if len(sizes) < FEWEST_ROWS:
        return
    order = np.argsort(-sizes)
    squares = sizes[order] ** 2
    few = int(np.searchsorted(np.cumsum(squares), _JUMP_SHARE * squares.sum()) + 1)
    middle = float(np.median(sizes))
    factor = _JUMP_FACTOR if pair.is_full else _JUMP_FACTOR_OF_LISTS
    if few > _JUMP_ROWS * len(sizes) or middle <= 0 or sizes[order[few - 1]] < factor * middle:
        return
    listed = ", ".join(f"{places[i][1]}" for i in sorted(order[: min(few, 5)])) + (", ..." if few > 5 else "")
    looked_at = plural(len(sizes), "row") + (f" sampled of {pair.compared:,}" if len(sizes) < pair.compared else "")
    yield Cause(
        "jumps",
        f"{few} of {looked_at} ({'position' if few == 1 else 'positions'} {listed}) hold {_JUMP_SHARE:.0%} of the"
        f" squared difference, up to {number(float(sizes[order[0]]) / middle, 2)}x the median. Typical of a different"
        " MoE route or a bug at single positions.",
        {"positions": [int(places[i][1]) for i in order[:few]]},
    )
