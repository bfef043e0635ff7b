"""Compare a difference with draws of rounding: its ratio over all positions, at each place, and the
smallest fault.

A draw is the same function computed with other roundings: sums in another order, or roundings to 16
bits drawn anew. All figures are ratios of rms to the rms of the draws: noise ratios.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from .arrays import Floats, Ints

FALSE_ALARM = 1e-3  # chance that any place of a pair of pure rounding is an outlier
BLOCKS = (8, 16, 32, 64, 128, 256)  # block sizes that engines use
# from which on groups of positions are tested: their bound follows from the draws alone
_FEWEST_DRAWS = 7
_FEWEST_OF_A_GROUP = 4
# of the median mean square: a position whose floor is next to 0 has no scale of its own
_NO_SCALE = 1e-4
TINY = float(np.finfo(np.float64).tiny)  # a divisor of what may be 0
SYSTEMATIC = "systematic error"  # a kind of place: the part that goes with the logits


@dataclass(frozen=True)
class Limits:
    """Largest noise ratios of rounding, over all positions and at one place; uses_own_spread: a
    pair varies more from position to position than draws do, so its own spread widens the bound.
    """

    over_all: float
    at_a_place: float
    uses_own_spread: bool = False


@dataclass(frozen=True)
class Places:
    """Places of one kind ('position', 'prompt'). worst: the largest noise ratio; limit: largest
    ratio of rounding; outliers: places beyond it, in order.
    """

    kind: str
    worst: float
    worst_place: int
    limit: float
    outliers: Ints


@dataclass(frozen=True)
class FloorTest:
    """A difference compared with draws. ratio: over all positions, infinite if logits are not
    finite on one side only; by_position: noise ratios [positions]; position, groups: outliers among
    single positions, and groups of them; seed_ratios: each draw over the others; spread: standard
    deviation of log ratios of the draws.
    """

    ratio: float
    limits: Limits
    by_position: Floats
    position: Places
    groups: tuple[Places, ...]
    seed_ratios: tuple[float, ...]
    spread: float
    is_finite: bool

    @property
    def places(self) -> tuple[Places, ...]:
        return self.position, *self.groups

    @property
    def is_passed(self) -> bool:
        return self.ratio <= self.limits.over_all and not any(
            len(each.outliers) for each in self.places
        )

    @property
    def outliers(self) -> Ints:
        """Positions beyond what rounding reaches, all prompts one after another."""
        return self.position.outliers

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
        """True if nine of ten positions are beyond the limit: a lower precision, not a few
        jumps.
        """
        return float(np.quantile(self.by_position, 0.1)) > self.limits.over_all


def smallest_fault(ratio: float) -> float:
    """Return the rms of the smallest fault that shows beyond this ratio, in rms of the rounding
    there.
    """
    return math.sqrt(max(ratio, 1.0) ** 2 - 1)


def floor_test(
    difference: Floats,
    draws: Floats,
    limits: Limits,
    *,
    lengths: Sequence[int] = (),
    blocks: Sequence[int] = BLOCKS,
    shares_scale: bool = False,
) -> FloorTest:
    """Is the difference one more draw of rounding: as large over all, and at every position and
    group of positions?

    difference: mean squares of all positions, prompts one after another, infinite if a logit is not
    finite on one side only; draws: the same of each draw [draws, positions]; lengths: of the
    prompts, to test groups too. The bound at a place is what the largest of all places exceeds with
    a chance of FALSE_ALARM, by the tail of the draws. Fewer roundings pass; more of them everywhere
    move the bound along, within the limit. A difference beyond the limit is no measure of rounding:
    then the draws alone tell which places stand out. shares_scale: every position is compared with
    the draws at all of them, as of a few values, whose draws may all be 0.
    """
    total = draws.mean()
    count = len(draws)
    ratio = math.inf if difference.any() else 0.0
    if total:
        ratio = float(np.sqrt(difference.mean() / total))
    groups = dict(_groups_of(lengths, blocks)) if count >= _FEWEST_DRAWS and len(lengths) else {}
    chance = FALSE_ALARM / (1 + len(groups))
    is_fault = ratio > limits.over_all
    mean = draws.mean(axis=0)
    # one draw alone is compared with the difference
    others = (draws.sum(axis=0) - draws) / (count - 1) if count > 1 else difference[None]
    if shares_scale:
        mean = np.full_like(mean, total)
        others = np.broadcast_to(others.mean(axis=1, keepdims=True), draws.shape)
    # infinite over a floor of 0
    with np.errstate(over="ignore"):
        mine = difference / scale_of(mean)
    ratios = np.divide(
        draws,
        others,
        out=np.full_like(draws, np.nan),
        where=(draws > 0) & (others > 0),
    )

    def places_of(kind: str, mine: Floats, draws: Floats, numbers: Ints) -> Places:
        """mine [places], draws [draws, places]: ratios of mean squares; numbers: of the places."""
        logs = _logs(mine)
        differs = mine > 0
        center = 0.0
        bound = max(math.log(limits.at_a_place), _bound(draws, chance))
        if not is_fault and differs.any():
            center = max(0.0, np.median(logs))
            # else the others are no measure of themselves
            if limits.uses_own_spread and 2 * differs.sum() > len(mine):
                bound = max(bound, _quantile(chance / len(mine)) * _robust_spread(logs[differs]))
        limit = center + bound
        worst = int(np.argmax(logs))
        outliers = numbers[(logs > limit) | np.isinf(logs)]
        return Places(
            kind,
            math.exp(logs[worst]),
            int(numbers[worst]),
            math.exp(limit),
            outliers,
        )

    places = []
    for kind, labels in groups.items():
        is_member = labels >= 0
        numbers, members, counts = np.unique(
            labels[is_member],
            return_inverse=True,
            return_counts=True,
        )
        values = np.nan_to_num(np.stack([mine, *ratios])[:, is_member], posinf=np.inf)
        means = np.stack([np.bincount(members, each) for each in values]) / counts
        places.append(places_of(kind, means[0], means[1:], numbers))
    sizes = draws.mean(axis=1)
    rest = (sizes.sum() - sizes) / max(count - 1, 1)
    return FloorTest(
        ratio=ratio,
        limits=limits,
        by_position=np.sqrt(mine),
        position=places_of("position", mine, ratios, np.arange(len(mine))),
        groups=tuple(places),
        seed_ratios=tuple(
            np.sqrt(np.divide(sizes, rest, out=np.ones(count), where=rest > 0)).tolist(),
        ),
        spread=_robust_spread(_logs(ratios)),
        is_finite=bool(np.isfinite(difference).all()),
    )


def rms_of(squares: Floats) -> float:
    """Return the rms over all positions, each as much as any other. squares: mean squares."""
    return float(np.sqrt(squares.mean()))


def rms_ratio(squares: Floats, measure: Floats | float) -> float:
    """Return the ratio of rms of two arrays of mean squares."""
    return float(np.sqrt(squares.mean() / max(np.mean(measure), TINY)))


def scale_of(floor: Floats) -> Floats:
    """Return what the mean square at a position is compared with: a floor next to 0 is no scale, so
    a hundredth of the median floor is. [positions]
    """
    return np.maximum(floor, max(np.median(floor) * _NO_SCALE, TINY))


def _logs(squares: Floats) -> Floats:
    """Return logs of ratios of rms; NaN stays."""
    return 0.5 * np.log(np.maximum(squares, TINY))


def _bound(draws: Floats, chance: float) -> float:
    """Log ratio that the largest place of a draw exceeds with this chance.

    Of few draws by their robust spread, which single jumps of one draw do not widen. Of many by the
    tail of all places, and, since places of one draw move together, by the largest place of each
    draw, taken as Gumbel's.
    """
    each = chance / draws.shape[1]
    logs = _logs(draws)
    if len(draws) < _FEWEST_DRAWS:
        return _quantile(each) * _robust_spread(logs)
    logs -= np.median(logs, axis=1, keepdims=True)
    largest = logs.max(axis=1)
    scale = largest.std(ddof=1) * math.sqrt(6) / math.pi
    gumbel = largest.mean() - scale * (math.log(chance) + np.euler_gamma)
    # The narrowest normal that no value of the upper quarter lies outside of. Few values widen it
    # by what a standard deviation of so many may be off.
    descending = np.sort(logs, axis=None)[::-1]
    count = max(1, len(descending) // 4)
    middle = np.median(descending)
    quantiles = np.array([_quantile((k + 0.5) / len(descending)) for k in range(count)])
    spread = ((descending[:count] - middle) / quantiles).max() * (1 + 1 / math.sqrt(count))
    return max(middle + spread * _quantile(min(each, 0.5)), gumbel)


def _quantile(chance: float) -> float:
    """Value that a standard normal exceeds with this chance."""
    return NormalDist().inv_cdf(1 - chance)


def _robust_spread(logs: Floats) -> float:
    """Return the standard deviation of a normal of this median absolute deviation.

    Rousseeuw and Croux (1993).
    """
    finite = logs[np.isfinite(logs)]
    return float(1.4826 * np.median(np.abs(finite - np.median(finite)))) if len(finite) else 0.0


def _groups_of(
    lengths: Sequence[int],
    blocks: Sequence[int],
) -> Iterator[tuple[str, Ints]]:
    """Kinds of groups and the group of each row, -1 if its group is too small."""
    places = np.concatenate([np.arange(length) for length in lengths])
    kinds = {"prompt": np.repeat(np.arange(len(lengths)), lengths), "place in the prompt": places}
    kinds |= {
        f"place in a block of {size}": places % size for size in blocks if size < max(lengths)
    }
    for kind, labels in kinds.items():
        members = np.where(np.bincount(labels)[labels] >= _FEWEST_OF_A_GROUP, labels, -1)
        if len(np.unique(members[members >= 0])) >= 2:
            yield kind, members
