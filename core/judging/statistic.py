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
# How far what a path holds of a precision may be from what the draws hold. On four models an fp8 cache held 0.92 to
# 1.10 of it, weights of 4 bits 1.00 to 1.01; faults and other precisions that passed otherwise 0.20 at most.
HELD = 0.5
_LEAST_MADE = 0.1  # of the rounding at a position: a cache that is rounded later contributes nothing yet
_FEWEST_DRAWS = 8  # from which on groups of positions are tested: their bound follows from the draws alone
_FEWEST_PROMPTS = 4  # from which on tokens are tested: in one prompt they move together, in few directions
_FEWEST_OF_A_GROUP = 4
_NO_SCALE = 1e-4  # of the median mean square: a position whose floor is next to 0 has no scale of its own
_ELSEWHERE = " outside the directions of rounding"
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
    """Squared differences of one path, over all prompts one after another; in logits.

    squares: mean over the vocabulary [positions]; by_token: mean over the positions [vocab], None if not measured;
    rest: mean outside the few directions over tokens in which most rounding lies [positions], None if not measured;
    nonfinite: logits that are NaN or infinite on one side only; made: mean square of what each lower precision of the
    forward contributes [precisions, positions]; held: share of that which this path contributes too.
    """

    squares: NDArray[np.float64]
    by_token: NDArray[np.float64] | None = None
    rest: NDArray[np.float64] | None = None
    nonfinite: int = 0
    made: NDArray[np.float64] | None = None
    held: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Places:
    """Places of one kind ('position', 'prompt', 'token'). worst: the largest noise ratio; allowed: largest ratio of
    rounding; outliers: places beyond it, in order.
    """

    kind: str
    worst: float
    worst_place: int
    allowed: float
    outliers: NDArray[np.int64] = field(repr=False)

    @property
    def is_elsewhere(self) -> bool:
        return self.kind.endswith(_ELSEWHERE)

    @property
    def excess(self) -> float:
        return self.worst / self.allowed


@dataclass(frozen=True)
class FloorTest:
    """A difference compared with draws. ratio: over all positions, infinite if logits are not finite on one side only;
    by_position: noise ratios [positions]; places: single positions first, then groups of them and tokens;
    ratio_elsewhere: outside the directions of rounding, which hold all but `share_elsewhere` of it; seed_ratios: each
    draw over the others; spread: standard deviation of log ratios of the draws.
    """

    ratio: float
    limits: Limits
    by_position: NDArray[np.float64]
    places: tuple[Places, ...]
    seed_ratios: tuple[float, ...]
    spread: float
    nonfinite: int = 0
    not_finite: NotFinite | None = None
    ratio_elsewhere: float | None = None
    share_elsewhere: float = 1.0
    held: tuple[float | None, ...] = ()

    @property
    def holds_its_precisions(self) -> bool:
        """True if the path contributes of each lower precision what the draws contribute: a fault that is as large and
        as even as one does not point where it points.
        """
        return all(share is not None and abs(share - 1) <= HELD for share in self.held)

    @property
    def is_passed(self) -> bool:
        return not self.is_larger and not self.nonfinite and not any(len(each.outliers) for each in self.places)

    @property
    def is_larger(self) -> bool:
        """True if the difference as a whole is larger than rounding."""
        return max(self.ratio, self.ratio_elsewhere or 0.0) > self.limits.over_all

    @property
    def outliers(self) -> NDArray[np.int64]:
        """Positions beyond what rounding reaches, all prompts one after another."""
        return np.unique(np.concatenate([each.outliers for each in self._positions]))

    @property
    def position(self) -> Places:
        """Single positions, inside or outside the directions of rounding, whichever stands out more."""
        return max(self._positions, key=lambda each: each.excess)

    @property
    def _positions(self) -> list[Places]:
        return [each for each in self.places if each.kind.removesuffix(_ELSEWHERE) == "position"]

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
        allowed = [
            (each.allowed, each.is_elsewhere) for each in self.places if each.kind.removesuffix(_ELSEWHERE) == kind
        ]
        if not kind:
            allowed = [(self.limits.over_all, self.ratio_elsewhere is not None)]
        sizes = [math.sqrt(max(most, 1.0) ** 2 - 1) * (self.share_elsewhere if part else 1.0) for most, part in allowed]
        return min(sizes, default=None)


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
    theirs = [draw if isinstance(draw, Errors) else Errors(draw) for draw in draws]
    squares = np.stack([draw.squares for draw in theirs])
    ratio = _rms_ratio(mine.squares, squares)
    has_rest = mine.rest is not None and all(draw.rest is not None for draw in theirs)
    channels = [("", mine.squares, squares)]
    elsewhere, share = None, 1.0
    if has_rest:
        rest = np.stack([draw.rest for draw in theirs])  # type: ignore[misc]
        channels.append((_ELSEWHERE, mine.rest, rest))  # type: ignore[arg-type]
        elsewhere, share = _rms_ratio(mine.rest, rest), _rms_ratio(rest, squares)  # type: ignore[arg-type]
    is_fault = max(ratio, elsewhere or 0.0) > limits.over_all
    has_groups = len(theirs) >= _FEWEST_DRAWS
    groups = dict(_groups_of(lengths, blocks)) if has_groups and len(lengths) else {}
    chance = FALSE_ALARM / (2 * len(groups) + 4 if has_groups else 1)
    places, by_position, spread = [], np.zeros(0), 0.0
    for where, one, others in channels:
        over, drawn = _over_draws(one, others)
        places.append(_places(f"position{where}", over, drawn, limits, chance, is_fault=is_fault))
        if not where:
            by_position, spread = np.sqrt(over), _robust_spread(_logs(drawn))
        for kind, labels in groups.items():
            numbers = np.unique(labels[labels >= 0])
            grouped = _grouped(over[None], labels)[0], _grouped(drawn, labels)
            places.append(_places(kind + where, *grouped, limits, chance, numbers, is_fault=is_fault))
    if has_groups and len(lengths) >= _FEWEST_PROMPTS and mine.by_token is not None:
        tokens = _over_draws(mine.by_token, np.stack([draw.by_token for draw in theirs]))  # type: ignore[misc]
        places.append(_places("token", *tokens, limits, chance, is_fault=is_fault))
    nonfinite = mine.nonfinite
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
        spread=spread,
        nonfinite=nonfinite,
        not_finite=not_finite,
        ratio_elsewhere=elsewhere,
        share_elsewhere=share,
        held=_held(mine, theirs),
    )


def _held(mine: Errors, draws: Sequence[Errors]) -> tuple[float | None, ...]:
    """What a path contributes of each lower precision over what the draws do, None if they do not agree on it.

    Medians over positions, because another expert at a few of them moves more than any precision.
    """
    known = [draw.held for draw in draws if draw.held is not None]
    if mine.held is None or mine.made is None or len(known) < len(draws):
        return ()
    rounding = np.stack([draw.squares for draw in draws]).mean(axis=0)
    shares: list[float | None] = []
    for number, made in enumerate(mine.made):
        chosen = made > _LEAST_MADE**2 * rounding
        theirs = np.array([np.median(each[number][chosen]) for each in known]) if chosen.any() else np.zeros(1)
        mean = float(theirs.mean())
        agree = mean > 0 and float(np.abs(theirs - mean).max()) <= HELD * mean
        shares.append(float(np.median(mine.held[number][chosen])) / mean if agree else None)
    return tuple(shares)


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
    limits: Limits,
    chance: float,
    numbers: NDArray[np.int64] | None = None,
    *,
    is_fault: bool,
) -> Places:
    """mine [places], drawn [draws, places]: ratios of mean squares. numbers: of the places, their index if None."""
    numbers = np.arange(len(mine)) if numbers is None else numbers
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
