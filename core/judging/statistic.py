"""Compare a difference with draws of rounding: its ratio over all positions, at each place, and the smallest fault.

A draw is the same function computed with other roundings: sums in another order, or roundings to 16 bits drawn
anew. All figures are ratios of rms to the rms of the draws: noise ratios.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from .places import NotFinite

FALSE_ALARM = 1e-3  # chance that any place of a pair of pure rounding is an outlier
BLOCKS = (8, 16, 32, 64, 128, 256)  # block sizes that engines use
_FEWEST_DRAWS = 7  # from which on groups of positions are tested: their bound follows from the draws alone
_FEWEST_OF_A_GROUP = 4
_NO_SCALE = 1e-4  # of the median mean square: a position whose floor is next to 0 has no scale of its own
_TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True)
class Limits:
    """Largest noise ratios of rounding, over all positions and at one place; uses_own_spread: a pair varies more from
    position to position than draws do, so its own spread widens the bound.
    """

    over_all: float
    at_a_place: float
    uses_own_spread: bool = False


@dataclass(frozen=True)
class Errors:
    """Mean squares of one path's errors over all prompts, one after another [positions], in logits^2.

    nonfinite: logits that are NaN or infinite on one side only.
    """

    squares: NDArray[np.float64]
    nonfinite: int = 0


@dataclass(frozen=True)
class Places:
    """Places of one kind ('position', 'prompt'). worst: the largest noise ratio; allowed: largest ratio of rounding;
    outliers: places beyond it, in order.
    """

    kind: str
    worst: float
    worst_place: int
    allowed: float
    outliers: NDArray[np.int64] = field(repr=False)


@dataclass(frozen=True)
class FloorTest:
    """A difference compared with draws. ratio: over all positions, infinite if logits are not finite on one side only;
    by_position: noise ratios [positions]; places: single positions first, then groups of them; seed_ratios: each draw
    over the others; spread: standard deviation of log ratios of the draws.
    """

    ratio: float
    limits: Limits
    by_position: NDArray[np.float64]
    places: tuple[Places, ...]
    seed_ratios: tuple[float, ...]
    spread: float
    nonfinite: int = 0
    not_finite: NotFinite | None = None

    @property
    def is_passed(self) -> bool:
        return not self.is_larger and not self.nonfinite and not any(len(each.outliers) for each in self.places)

    @property
    def is_larger(self) -> bool:
        """True if the difference as a whole is larger than rounding."""
        return self.ratio > self.limits.over_all

    @property
    def position(self) -> Places:
        """Single positions."""
        return self.places[0]

    @property
    def outliers(self) -> NDArray[np.int64]:
        """Positions beyond what rounding reaches, all prompts one after another."""
        return self.position.outliers

    @property
    def worst_row(self) -> int:
        return int(np.argmax(self.by_position))

    @property
    def noise_ratio(self) -> float | None:
        """Noise ratio of all positions; None if it has no size."""
        return self.ratio if np.isfinite(self.ratio) else None

    @property
    def worst(self) -> float | None:
        """Largest noise ratio at one position; None if it has no size."""
        worst = float(self.by_position.max())
        return worst if np.isfinite(worst) else None

    @property
    def is_larger_everywhere(self) -> bool:
        """True if nine of ten positions are beyond the limit: a lower precision, not a few jumps."""
        return float(np.quantile(self.by_position, 0.1)) > self.limits.over_all

    def smallest_fault(self, kind: str = "") -> float | None:
        """rms of the smallest fault that shows at one place of a kind, or over all; in rms of the rounding there."""
        allowed = [each.allowed for each in self.places if each.kind == kind] if kind else [self.limits.over_all]
        return min((math.sqrt(max(most, 1.0) ** 2 - 1) for most in allowed), default=None)


def floor_test(
    difference: Errors | NDArray[np.float64],
    draws: Sequence[Errors] | NDArray[np.float64],
    limits: Limits,
    *,
    lengths: Sequence[int] = (),
    blocks: Sequence[int] = BLOCKS,
    not_finite: NotFinite | None = None,
) -> FloorTest:
    """Is the difference one more draw of rounding: as large over all, and at every position and group of positions?

    difference: mean squares of all positions, prompts one after another; draws: the same of each draw [draws,
    positions]; lengths: of the prompts, to test groups too. The bound at a place is what the largest of all places
    exceeds with a chance of FALSE_ALARM, by the tail of the draws. Fewer roundings pass; more of them everywhere move
    the bound along, within the limit. A difference beyond the limit is no measure of rounding: then the draws alone
    tell which places stand out.
    """
    mine = difference if isinstance(difference, Errors) else Errors(difference)
    squares = np.stack([draw.squares if isinstance(draw, Errors) else draw for draw in draws])
    ratio, nonfinite = _rms_ratio(mine.squares, squares), mine.nonfinite
    has_groups = len(squares) >= _FEWEST_DRAWS and len(lengths) > 0
    groups = dict(_groups_of(lengths, blocks)) if has_groups else {}
    chance, is_fault = FALSE_ALARM / (1 + len(groups)), ratio > limits.over_all
    over, drawn = _over_draws(mine.squares, squares)
    places = [_places("position", over, drawn, np.arange(len(over)), limits, chance, is_fault=is_fault)]
    for kind, labels in groups.items():
        numbers, grouped = np.unique(labels[labels >= 0]), _grouped(np.stack([over, *drawn]), labels)
        places.append(_places(kind, grouped[0], grouped[1:], numbers, limits, chance, is_fault=is_fault))
    by_position = np.sqrt(over)
    if not_finite is not None:  # over the finite logits alone it would look small
        ratio, nonfinite = float("inf"), not_finite.logits
        by_position[not_finite.rows] = np.inf
        first = places[0]
        outliers = np.union1d(first.outliers, not_finite.rows)
        places[0] = Places(first.kind, float("inf"), int(not_finite.rows[0]), first.allowed, outliers)
    return FloorTest(
        ratio=ratio,
        limits=limits,
        by_position=by_position,
        places=tuple(places),
        seed_ratios=tuple(float(x) for x in _seed_ratios(squares)),
        spread=_robust_spread(_logs(drawn)),
        nonfinite=nonfinite,
        not_finite=not_finite,
    )


def _rms_ratio(mine: NDArray[np.float64], draws: NDArray[np.float64]) -> float:
    total = float(draws.mean())
    if not total:
        return float("inf") if mine.any() else 0.0
    return float(np.sqrt(mine.mean() / total))


def _over_draws(
    mine: NDArray[np.float64], draws: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(mean squares over the draws' mean [places], each draw's over that of the others [draws, places], NaN if 0)."""
    mean, others = draws.mean(axis=0), (draws.sum(axis=0) - draws) / (len(draws) - 1)
    ratios = np.divide(draws, others, out=np.full_like(draws, np.nan), where=(draws > 0) & (others > 0))
    return mine / np.maximum(mean, max(float(np.median(mean)) * _NO_SCALE, _TINY)), ratios


def _seed_ratios(draws: NDArray[np.float64]) -> NDArray[np.float64]:
    """Noise ratio of each draw to the others, over all positions. [draws]"""
    means = draws.mean(axis=1)
    others = (means.sum() - means) / (len(means) - 1)
    return np.sqrt(np.divide(means, others, out=np.ones(len(means)), where=others > 0))


def _logs(squares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logs of ratios of rms; NaN stays."""
    return 0.5 * np.log(np.maximum(squares, _TINY))


def _places(
    kind: str,
    mine: NDArray[np.float64],
    drawn: NDArray[np.float64],
    numbers: NDArray[np.int64],
    limits: Limits,
    chance: float,
    *,
    is_fault: bool,
) -> Places:
    """mine [places], drawn [draws, places]: ratios of mean squares; numbers: of the places."""
    logs, differs = _logs(mine), mine > 0
    bound = max(math.log(limits.at_a_place), _bound(drawn, chance))
    center = 0.0
    if not is_fault and differs.any():
        center = max(0.0, float(np.median(logs)))
        if limits.uses_own_spread and 2 * differs.sum() > len(mine):  # else the others are no measure of themselves
            bound = max(bound, _quantile(chance / len(mine)) * _robust_spread(logs[differs]))
    allowed, worst = center + bound, int(np.argmax(logs))
    return Places(kind, math.exp(logs[worst]), int(numbers[worst]), math.exp(allowed), numbers[logs > allowed])


def _bound(drawn: NDArray[np.float64], chance: float) -> float:
    """Log ratio that the largest place of a draw exceeds with this chance.

    Of few draws by their robust spread, which single jumps of one draw do not widen. Of many by the tail of all places,
    and, since places of one draw move together, by the largest place of each draw, taken as Gumbel's.
    """
    each = chance / drawn.shape[1]
    if len(drawn) < _FEWEST_DRAWS:
        return _quantile(each) * _robust_spread(_logs(drawn))
    logs = _logs(drawn)
    logs = logs - np.median(logs, axis=1, keepdims=True)
    largest = logs.max(axis=1)
    scale = float(largest.std(ddof=1)) * math.sqrt(6) / math.pi
    gumbel = float(largest.mean()) + scale * (-math.log(chance) - np.euler_gamma)
    return max(tail_bound(logs.ravel(), each), gumbel)


def tail_bound(values: NDArray[np.float64], chance: float) -> float:
    """Value that one sample of this distribution exceeds with `chance` at most, by the narrowest normal that no value
    of its upper quarter lies outside of. Few values widen it by what a standard deviation of so many may be off.
    """
    ordered = np.sort(values)[::-1]
    count = max(1, len(ordered) // 4)
    expected = np.array([_quantile((k + 0.5) / len(ordered)) for k in range(count)])
    middle = float(np.median(ordered))
    spread = float(((ordered[:count] - middle) / expected).max()) * (1 + 1 / math.sqrt(count))
    return middle + spread * _quantile(min(chance, 0.5))


def _quantile(chance: float) -> float:
    """Value that a standard normal exceeds with this chance."""
    return NormalDist().inv_cdf(1 - chance)


def _robust_spread(logs: NDArray[np.float64]) -> float:
    """Standard deviation of a normal with this median absolute deviation. Rousseeuw and Croux (1993)."""
    known = logs[np.isfinite(logs)]
    return float(1.4826 * np.median(np.abs(known - np.median(known)))) if len(known) else 0.0


def _groups_of(lengths: Sequence[int], blocks: Sequence[int]) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Kinds of groups and the group of each row, -1 if its group is too small."""
    places = np.concatenate([np.arange(length) for length in lengths])
    kinds = {"prompt": np.repeat(np.arange(len(lengths)), lengths), "place in the prompt": places}
    kinds |= {f"place in a block of {size}": places % size for size in blocks if size < max(lengths)}
    for kind, labels in kinds.items():
        members = np.where(np.bincount(labels)[labels] >= _FEWEST_OF_A_GROUP, labels, -1)
        if len(np.unique(members[members >= 0])) >= 2:
            yield kind, members


def _grouped(values: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Means over groups, those of label -1 left out. [n, rows] -> [n, groups], by number"""
    is_member = labels >= 0
    counts = np.bincount(labels[is_member])
    sums = np.stack([np.bincount(labels[is_member], weights=np.nan_to_num(row[is_member])) for row in values])
    means: NDArray[np.float64] = sums[:, counts > 0] / counts[counts > 0]
    return means
