"""Evidence from 16 bits alone about an engine: its error against the model's float32 forward, beside that of roundings
drawn anew. Pure.

Figures come from core.inference.controls.drawn_roundings. Every question is asked in the same way: the engine's figure
over the draws' mean, beside what each draw has over the mean of the others. So the tails are those that rounding really
has, and nothing is taken as normal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from ..runs.file.evidence import FAILED, MISSING, PASSED, Check, DrawnFigures, Evidence
from ..text import three_digits
from .ladder.noise_ratio import FALSE_ALARM
from .ladder.places import place_in_words
from .ladder.structure import BLOCKS

# Of the rounding drawn anew; benchmarks/verdicts/sixteen.py has the trial. An engine may round more often than the
# model does (partial sums of ranks, unfused kernels), and less.
LARGEST_ERROR = 2.0
LEAST_AT_A_PLACE = 2.0  # a place must stand out by so much whatever the draws say
SIGNED_TIMES = 3.0  # how much larger than any draw's a signed mean may be
# How far what an engine holds of a precision may be from what the draws hold. On four models an fp8 cache held 0.92 to
# 1.10 of it, weights of 4 bits 1.00 to 1.01; faults and other precisions that passed otherwise 0.20 at most.
HELD = 0.5
_LEAST_MADE = 0.1  # of the rounding at a position: a cache that is rounded later has made nothing yet
_FEWEST_PROMPTS = (
    4  # from which on tokens and signs are asked for: in one prompt tokens move together, in few directions
)
_FEWEST_OF_A_GROUP = 4
_LIMITS = {
    "at_one_position": "position",
    "at_a_place_in_all_prompts": "place in the prompt",
    "of_one_prompt": "prompt",
    "of_one_token": "token",
}
_REST = " outside rounding's directions"
_TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True)
class Errors:
    """One way to compute in 16 bits against the float32 forward, over all prompts one after another; in logits.

    squares: mean square over the vocabulary [positions]; by_token: mean square over the positions [vocab]; means: sum
    over the prompts of each prompt's mean error [vocab]; mean_squares: sum of its squares [vocab]; gains: error in the
    direction of the logits themselves, as a share of them [prompts]; nonfinite: logits that are NaN or infinite here or
    there and not equal; rest: mean square outside the few directions over tokens in which most rounding lies
    [positions], None where they are not known; made: mean square of what each lower precision that
    the forward is in makes there [precisions, positions]; held: how much of it this one makes too, 1 all of it.
    """

    squares: NDArray[np.float64]
    by_token: NDArray[np.float64]
    means: NDArray[np.float64]
    mean_squares: NDArray[np.float64]
    gains: NDArray[np.float64]
    nonfinite: int = 0
    rest: NDArray[np.float64] | None = None
    made: NDArray[np.float64] | None = None
    held: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Places:
    """One kind of place (`what`, in words: 'position') beside the draws. worst: largest ratio over the median one;
    threshold: what a pair of pure rounding stays below; outliers: places beyond it.
    """

    what: str
    worst: float
    worst_place: int
    threshold: float
    outliers: NDArray[np.int64] = field(repr=False)


@dataclass(frozen=True)
class SixteenTest:
    """Test of an engine's error beside the draws. ratio: rms of the error over the draws'; places: by kind; bias: mean
    error of all tokens, in rms of the draws; gain: mean error in the direction of the logits, as a share of them, and
    what the draws allow of each, None with few prompts; token_bias_allowed: of one token's mean error, in rms of the
    draws; held: of each lower precision that the draws are in, what the engine holds of it over what they do, None
    where they do not agree on it.
    """

    ratio: float
    places: tuple[Places, ...]
    nonfinite: int
    prompts: int
    bias: float | None = None
    bias_allowed: float = 0.0
    gain: float | None = None
    gain_allowed: float = 0.0
    token_bias_allowed: float | None = None
    rest_ratio: float | None = None
    rest_share: float = 1.0
    held: tuple[float | None, ...] = ()

    @property
    def holds_its_precisions(self) -> bool:
        """True where the engine makes of each lower precision what the draws make of it: a fault that is as large and
        as even as one does not point where it points.
        """
        return all(share is not None and abs(share - 1) <= HELD for share in self.held)

    @property
    def is_passed(self) -> bool:
        signs = (self.bias or 0.0) <= self.bias_allowed and abs(self.gain or 0.0) <= self.gain_allowed
        return (
            max(self.ratio, self.rest_ratio or 0.0) <= LARGEST_ERROR
            and signs
            and not self.nonfinite
            and not any(len(one.outliers) for one in self.places)
        )

    @property
    def _positions(self) -> list[Places]:
        return [one for one in self.places if one.what.removesuffix(_REST) == "position"]

    @property
    def outliers(self) -> NDArray[np.int64]:
        """Positions that stand out, all prompts one after another."""
        return np.unique(np.concatenate([one.outliers for one in self._positions]))

    @property
    def position(self) -> Places:
        """Single positions, by whichever of the two says more."""
        return max(self._positions, key=lambda one: one.worst / one.threshold)

    def limits(self) -> dict[str, float]:
        """The smallest faults that would be seen, in rms of the rounding; all but the signed ones add to it in
        squares.
        """
        by_kind = {one.what: one.threshold for one in self.places}
        limits = {
            f"fault_seen_{key}": min(
                _fault_of(by_kind[what]), self.rest_share * _fault_of(by_kind.get(what + _REST, float("inf")))
            )
            for key, what in _LIMITS.items()
            if what in by_kind
        }
        limits["fault_seen_over_all"] = self.rest_share * _fault_of(LARGEST_ERROR)
        if self.token_bias_allowed is not None:
            limits["fault_seen_of_one_sign"] = self.bias_allowed
            limits["fault_seen_of_one_token_and_sign"] = self.token_bias_allowed
        return limits


def sixteen_test(
    engine: Errors, draws: Sequence[Errors], lengths: Sequence[int], *, blocks: Sequence[int] = BLOCKS
) -> SixteenTest:
    """Is the engine's error one more draw of rounding: as large over all, at every position, row, place in a block and
    token, and as unsigned?

    Fewer roundings (a fused kernel, a float64 one) pass; a place is held against the engine's own median then, so that
    more roundings everywhere are no place.
    """
    squares = np.stack([one.squares for one in draws])
    floor = squares.mean()
    groups = _groups_of(lengths, blocks)
    share = FALSE_ALARM / (2 * len(groups) + 4)
    ratio = float(np.sqrt(engine.squares.mean() / max(floor, _TINY)))
    kinds = [("", engine.squares, squares)]
    rest_ratio, rest_share = None, 1.0
    known = [one.rest for one in draws if one.rest is not None]
    if engine.rest is not None and len(known) == len(draws):
        rest = np.stack(known)
        kinds.append((_REST, engine.rest, rest))
        rest_ratio = float(np.sqrt(engine.rest.mean() / max(rest.mean(), _TINY)))
        rest_share = float(np.sqrt(rest.mean() / max(floor, _TINY)))
    is_fault = max(ratio, rest_ratio or 0.0) > LARGEST_ERROR  # then its median is one of the fault
    places = []
    for where, one, others in kinds:
        mine, theirs = _over_draws(one, others)
        places.append(_places("position" + where, mine, theirs, share, is_fault=is_fault))
        for what, labels in groups.items():
            numbers = np.unique(labels[labels >= 0])
            grouped = _grouped(mine[None], labels)[0], _grouped(theirs, labels)
            places.append(_places(what + where, *grouped, share, numbers, is_fault))
    signed: dict[str, float] = {}
    if len(lengths) >= _FEWEST_PROMPTS:
        mine, theirs = _over_draws(engine.by_token, np.stack([one.by_token for one in draws]))
        places.append(_places("token", mine, theirs, share, is_fault=is_fault))
        signs, signed["token_bias_allowed"] = _signs(engine, draws, len(lengths), floor, share, is_fault)
        places.append(signs)
        biases = [_bias(one, len(lengths)) / floor for one in draws]
        signed["bias"] = float(np.sqrt(max(_bias(engine, len(lengths)) / floor, 0.0)))
        signed["bias_allowed"] = SIGNED_TIMES * float(np.sqrt(np.abs(biases).max()))
        drawn = [abs(one.gains.mean()) + one.gains.std(ddof=1) / np.sqrt(len(lengths)) for one in draws]
        signed["gain"], signed["gain_allowed"] = float(engine.gains.mean()), SIGNED_TIMES * float(max(drawn))
    return SixteenTest(
        ratio,
        tuple(places),
        engine.nonfinite,
        len(lengths),
        rest_ratio=rest_ratio,
        rest_share=rest_share,
        held=_held(engine, draws),
        **signed,
    )


def _over_draws(
    engine: NDArray[np.float64], draws: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(an engine's mean squares over the draws' mean [places], each draw's over that of the others [draws, places])"""
    others = (draws.sum(axis=0) - draws) / (len(draws) - 1)
    return engine / np.maximum(draws.mean(axis=0), _TINY), draws / np.maximum(others, _TINY)


def _held(engine: Errors, draws: Sequence[Errors]) -> tuple[float | None, ...]:
    """Medians over positions, for another expert at a few of them moves more than any precision."""
    known = [one.held for one in draws if one.held is not None]
    if engine.held is None or engine.made is None or len(known) < len(draws):
        return ()
    rounding = np.stack([one.squares for one in draws]).mean(axis=0)
    found: list[float | None] = []
    for number, made in enumerate(engine.made):
        chosen = made > _LEAST_MADE**2 * rounding
        if not chosen.any():
            found.append(None)
            continue
        theirs = np.array([np.median(each[number][chosen]) for each in known])
        mean = float(theirs.mean())
        agree = mean > 0 and float(np.abs(theirs - mean).max()) <= HELD * mean
        found.append(float(np.median(engine.held[number][chosen])) / mean if agree else None)
    return tuple(found)


def _fault_of(threshold: float) -> float:
    """rms of a fault that makes rounding of rms 1 so many times as large."""
    return float(np.sqrt(threshold**2 - 1))


def _bias(errors: Errors, prompts: int) -> float:
    """Square of the mean error, logits^2: the mean product of two different prompts' mean errors, so that rounding adds
    nothing to it.
    """
    return float((errors.means**2 - errors.mean_squares).mean()) / (prompts * (prompts - 1))


def _places(
    what: str,
    engine: NDArray[np.float64],
    draws: NDArray[np.float64],
    false_alarm: float,
    numbers: NDArray[np.int64] | None = None,
    is_fault: bool = False,
) -> Places:
    """engine [places]; draws [draws, places], each over the mean of the others; mean squares both. numbers: of the
    places, their index if None.
    """
    numbers = np.arange(len(engine)) if numbers is None else numbers
    logs, drawn = 0.5 * np.log(np.maximum(engine, _TINY)), 0.5 * np.log(np.maximum(draws, _TINY))
    logs = logs - (0.0 if is_fault else max(0.0, float(np.median(logs))))
    drawn = drawn - np.median(drawn, axis=1, keepdims=True)
    threshold = max(math.log(LEAST_AT_A_PLACE), _threshold(drawn, false_alarm))
    worst = int(np.argmax(logs))
    return Places(what, math.exp(logs[worst]), int(numbers[worst]), math.exp(threshold), numbers[logs > threshold])


def _signs(
    engine: Errors, draws: Sequence[Errors], prompts: int, floor: float, false_alarm: float, is_fault: bool
) -> tuple[Places, float]:
    """The mean error of each token over the prompts, in standard errors of rounding, which averages out where a fault
    does not; and how large it may be, in rms of the draws.
    """

    squares = np.stack([one.mean_squares - one.means**2 / prompts for one in draws]).mean(axis=0)
    error = np.maximum(np.sqrt(np.maximum(squares, 0) / (prompts - 1) / prompts), 1e-6 * np.sqrt(floor) + _TINY)
    mine, theirs = (
        np.abs(engine.means / prompts) / error,
        np.abs(np.stack([one.means for one in draws]) / prompts) / error,
    )
    larger = 1.0 if is_fault else max(1.0, float(np.median(mine) / max(np.median(theirs), _TINY)))
    threshold = larger * _threshold(theirs, false_alarm)
    worst = int(np.argmax(mine))
    allowed = float(threshold * np.median(error) / np.sqrt(max(floor, _TINY)))
    return (
        Places("token, signed", float(mine[worst]), worst, float(threshold), np.flatnonzero(mine > threshold)),
        allowed,
    )


def _threshold(drawn: NDArray[np.float64], false_alarm: float) -> float:
    """Threshold that the largest of a draw's places exceeds with a chance of `false_alarm`: by the tail of all of them,
    and, since places of one draw move together (tokens do, by a few directions), by the largest place of each draw,
    which are taken as Gumbel's. [draws, places]
    """
    largest = drawn.max(axis=1)
    scale = float(largest.std(ddof=1)) * np.sqrt(6) / np.pi
    gumbel = float(largest.mean()) + scale * (-math.log(false_alarm) - np.euler_gamma)
    return max(tail_threshold(drawn.ravel(), false_alarm / drawn.shape[1]), float(gumbel))


def tail_threshold(values: NDArray[np.float64], chance: float) -> float:
    """Threshold that one value of this distribution exceeds with `chance` at most, by the narrowest normal that no
    value of its upper quarter lies outside of.

    Heavier tails widen that normal by what they show; of few values it is widened by what a standard deviation of so
    many may be off.
    """
    ordered = np.sort(values)[::-1]
    count = max(1, len(ordered) // 4)
    expected = np.array([NormalDist().inv_cdf(1 - (k + 0.5) / len(ordered)) for k in range(count)])
    middle = float(np.median(ordered))
    spread = float(((ordered[:count] - middle) / expected).max()) * (1 + 1 / np.sqrt(count))
    return middle + spread * NormalDist().inv_cdf(1 - min(chance, 0.5))


def _groups_of(lengths: Sequence[int], blocks: Sequence[int]) -> dict[str, NDArray[np.int64]]:
    """Kinds of groups and the group of each row, -1 where its group is too small: prompts, places in a prompt, and
    places in a block.
    """
    places = np.concatenate([np.arange(length) for length in lengths])
    prompts = np.repeat(np.arange(len(lengths)), lengths)
    kinds = {"prompt": prompts, "place in the prompt": places}
    kinds |= {f"place in a block of {size}": places % size for size in blocks if size < max(lengths)}
    found = {}
    for what, labels in kinds.items():
        kept = np.where(np.bincount(labels)[labels] >= _FEWEST_OF_A_GROUP, labels, -1)
        if len(np.unique(kept[kept >= 0])) >= 2:
            found[what] = kept
    return found


def _grouped(values: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Means over groups, those of label -1 left out. [n, rows] -> [n, groups], by number"""
    kept = labels >= 0
    counts = np.bincount(labels[kept])
    sums = np.stack([np.bincount(labels[kept], weights=row[kept]) for row in values])
    means: NDArray[np.float64] = sums[:, counts > 0] / counts[counts > 0]
    return means


def sixteen_evidence(
    test: SixteenTest, name: str, dtype: str, draws: int, lengths: Sequence[int], model_ratios: Sequence[float]
) -> Evidence:
    """The row of one side; model_ratios: of the model's own ways, which pass the same test."""
    position = test.position
    control = (
        f"'{name}' in {dtype} against the model's float32 forward, beside {draws} forwards of the model whose roundings"
        f" to {dtype} are drawn anew, over {sum(lengths):,} positions of {len(lengths):,}"
        f" {'prompt' if len(lengths) == 1 else 'prompts'}"
    )
    figures = DrawnFigures(
        compute_dtype=dtype,
        noise_ratio=test.ratio,
        largest_ratio_allowed=LARGEST_ERROR,
        draws=draws,
        model_ways_ratios=tuple(model_ratios),
        worst_position_ratio=position.worst,
        position_ratio_allowed=position.threshold,
        positions=sum(lengths),
        positions_beyond=len(test.outliers),
        ratio_outside_roundings_directions=test.rest_ratio,
        nonfinite_mismatch=test.nonfinite,
        **test.limits(),
        beyond={one.what: tuple(map(int, one.outliers[:8])) for one in test.places if len(one.outliers)},
        signed_mean=test.bias,
        signed_mean_allowed=test.bias_allowed,
        share_of_logits=test.gain,
        share_of_logits_allowed=test.gain_allowed,
    )
    says = _passed(test, name, dtype) if test.is_passed else _failed(test, name, dtype, lengths)
    return Evidence(Check.DRAWN, control, figures, PASSED if test.is_passed else FAILED, says, name)


def fault_of_16_bits_alone(row: Evidence, dtype: str) -> Evidence:
    """`row` of a side whose float32 is sound, with what that means if it failed."""
    if row.outcome != FAILED:
        return row
    return replace(row, says=f"{row.says} In float32 the pair is rounding: only the {dtype} kernels have this fault.")


def first_beyond(row: Evidence) -> NDArray[np.int64]:
    """Positions of all prompts that stood out in `row`, the first few of them."""
    beyond = row.figures.beyond if isinstance(row.figures, DrawnFigures) else {}
    of_kind = [places for what, places in beyond.items() if what.removesuffix(_REST) == "position"]
    return np.unique(np.concatenate([np.array(places, np.int64) for places in of_kind] or [np.zeros(0, np.int64)]))


def limits_in_words(rows: Sequence[Evidence]) -> list[str]:
    """Say, in one sentence if any, how small a fault that only 16-bit kernels have would show. rows: of the sides."""
    measured = [row.figures for row in rows if isinstance(row.figures, DrawnFigures) and row.outcome == PASSED]
    missing = next((row for row in rows if row.outcome == MISSING), None)
    if missing is not None or not measured:
        return [] if missing is None else [f"Faults that only 16-bit kernels have were not ruled out: {missing.says}"]
    dtype = measured[0].compute_dtype
    at_one = max(each.fault_seen_at_one_position or 0.0 for each in measured)
    over_all = max(each.fault_seen_over_all or 0.0 for each in measured)
    return [
        f"A fault of the {dtype} kernels alone would show from {at_one:.2g} times the rounding at one position,"
        f" {over_all:.2g} times over all."
    ]


def of_neither_side(row: Evidence, model: str, dtype: str) -> Evidence:
    """`row` of a side where the other one fails as well: it says nothing of either."""
    why = (
        f"Neither side is what {model} computes for these tokens in {dtype}: another checkpoint, other weights, or a"
        " function of its own that both share; its rounding says nothing of them."
    )
    return replace(row, outcome=MISSING, says=why)


def _passed(test: SixteenTest, name: str, dtype: str) -> str:
    limits = test.limits()
    many = (
        f", or {limits['fault_seen_of_one_sign']:.2g} times with one sign over the {test.prompts} prompts"
        if test.bias is not None
        else ""
    )
    return (
        f"In {dtype} '{name}' is {test.ratio:.2f} times as far from the model's float32 forward as rounding drawn anew"
        " is, and no position, prompt, place in a block or token stands out. Faults below"
        f" {limits['fault_seen_at_one_position']:.2g} times the rounding at one position,"
        f" {limits['fault_seen_over_all']:.2g} times over all{many} are not seen in {dtype}."
    )


def _failed(test: SixteenTest, name: str, dtype: str, lengths: Sequence[int]) -> str:
    if test.nonfinite:
        return (
            f"In {dtype}, {test.nonfinite:,} logits of '{name}' are NaN or infinite where those of the model's float32"
            " forward are not, or the other way round."
        )
    far = (
        f"In {dtype} '{name}' is {three_digits(test.ratio)} times as far from the model's float32 forward as rounding"
        " drawn anew is"
    )
    beyond = {one.what: one for one in test.places if len(one.outliers)}
    first = f"{place_in_words(int(test.outliers[0]), lengths)} first" if len(test.outliers) else ""
    if max(test.ratio, test.rest_ratio or 0.0) > LARGEST_ERROR:
        if test.ratio <= LARGEST_ERROR:
            far += (
                f", and {three_digits(test.rest_ratio or 0.0)} times outside the directions in which rounding mostly"
                " lies"
            )
        return f"{far}; rounding stays below {LARGEST_ERROR:g}." + (f" It shows at {first}." if first else "")
    if first:
        one = test.position
        count = "one position stands" if len(test.outliers) == 1 else f"{len(test.outliers):,} positions stand"
        return (
            f"{far}, but {count} out, {first}: up to {three_digits(one.worst)} times it there, where rounding stays"
            f" below {one.threshold:.3g}."
        )
    if beyond:
        one = max(beyond.values(), key=lambda each: each.worst / each.threshold)
        unit = "standard errors from 0" if one.what == "token, signed" else "times it"
        return (
            f"{far}, but {one.what} {one.worst_place} stands out over all positions that share it:"
            f" {three_digits(one.worst)} {unit}, where rounding stays below {one.threshold:.3g}."
        )
    if (test.bias or 0.0) > test.bias_allowed:
        return (
            f"{far}, but its error does not average out over {test.prompts} prompts: {test.bias:.2g} times the rounding"
            f" is left, where at most {test.bias_allowed:.2g} is of rounding."
        )
    return (
        f"{far}, but over {test.prompts} prompts its logits are {test.gain:+.2%} too large, all alike, where rounding"
        f" stays within {test.gain_allowed:.2%}: a scale or a temperature."
    )
