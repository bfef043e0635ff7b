"""Lists of top tokens judged: of a probe, of uploaded responses, and with a model's noise floor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..cause import Cause
from ..checks.arrays_alone import ARRAYS_ALONE, MOST_KL, kl_in_words
from ..checks.rerun import Rerun, rerun_row
from ..checks.responses import SENT, SentFigures, response_rows
from ..evidence import FAILED, NOTED, PASSED, RERUN, STATE, Evidence, Unmeasured
from ..numerics.arrays import Floats
from ..numerics.top_tokens import least_kl
from ..responses.pairing import Meeting, ResponsePair, compare_sides
from ..responses.records import ResponseSide
from ..rl.causes import NO_TEMPERATURE, explain_tokens
from ..rl.figures import bar_of
from ..rl.writing import TokenPair
from ..text import number, opening
from ..verdict import BUG_SUSPECTED, IDENTICAL, INVALID_DUMP, UNDECIDED, Verdict
from .conclude import conclude
from .explain.causes import explain
from .explain.rows import rows_of_lists


@dataclass(frozen=True)
class _Lists:
    """One pair of lists. is_repeated: of a probe, whose sides were asked again."""

    pair: ResponsePair
    sides: Sequence[ResponseSide]
    is_repeated: bool = False

    @property
    def parting(self) -> Meeting | None:
        """The first prompt in which the inputs differ."""
        return next((each for each in self.pair.meetings if each.is_parting_in_prompt), None)

    @property
    def is_certain(self) -> bool:
        """True if both sides send probability 1 at most positions."""
        return not self.pair.differs and 2 * self.pair.certain > len(self.pair.positions)

    @property
    def is_text_alone(self) -> bool:
        return self.is_repeated and not self.pair.differs and self.pair.has_other_text

    @property
    def is_identical(self) -> bool:
        pair = self.pair
        doubts = pair.differs, pair.placeholders, self.parting, self.is_certain, self.is_text_alone
        return pair.common_values > 0 and pair.is_most_compared and not any(doubts)

    @cached_property
    def simple_causes(self) -> Sequence[Cause]:
        if self.is_identical:
            return []
        return explain(rows_of_lists(self.pair, self.sides[0], self.sides[1])).causes

    @property
    def cause(self) -> Cause | None:
        """The most telling simple one."""
        return next(iter(self.simple_causes), None)

    @property
    def least_kl(self) -> float:
        """Mean of the compared rows, nats."""
        figures = self.pair.figures
        return _mean(figures.least_kl[figures.common > 0])

    @property
    def fault(self) -> str:
        """What proves one, '' if nothing does."""
        if self.cause and self.cause.is_fault:
            return self.cause.says
        return _least_kl_in_words(self.least_kl) if self.least_kl > MOST_KL else ""

    @property
    def says(self) -> str:
        """The most telling clause about the pair."""
        pair = self.pair
        words = f"{pair.left_out}; {pair.in_words}" if pair.left_out else pair.in_words
        placeholders = next((one.clause for one in pair.placeholders), "")
        for cause in self.simple_causes:
            # of which what else is named is a part
            if cause.name == "renormalized" and placeholders:
                return f"{cause.says.removesuffix('.')}; {placeholders}"
        if pair.is_void and placeholders:
            return placeholders
        if self.cause and self.parting:
            return self.cause.says
        if self.fault and not self.parting:
            return self.fault
        if self.cause and not placeholders:
            return f"{self.cause.says} {opening(words)}" if pair.differing else self.cause.says
        if self.parting:
            place = f"position {self.parting.parting:,} of prompt {self.parting.prompt}"
            return f"the inputs differ from {place} on"
        if placeholders:
            return placeholders
        if not pair.is_most_compared:
            return f"only {words}"
        if self.is_certain:
            return (
                f"both sides send probability 1 for a token at {pair.certain:,} positions:"
                " placeholders, or a mask"
            )
        if self.is_text_alone:
            return f"the texts differ, although {words}"
        has_ids = pair.keys == "token_id" and all(each.is_prompt_checked for each in pair.meetings)
        if pair.differing and has_ids:
            return f"{words}. To decide, bring the model's weights"
        return words


def _mean(values: Floats) -> float:
    """Return the mean, 0 of no values."""
    return float(values.sum() / max(1, len(values)))


def _least_kl_in_words(kl: float) -> str:
    return kl_in_words(f"at least {number(kl, 3)}")


def _judge(lists: _Lists, others: Sequence[Evidence], floor: Evidence | None = None) -> Verdict:
    """Judge one pair. others: evidence of its reruns; floor: of a model's noise floor."""
    rows = [
        *filter(None, [floor]),
        *response_rows(lists.pair, has_other_inputs=bool(lists.parting)),
        *others,
    ]
    if lists.fault:
        rows.append(Evidence(ARRAYS_ALONE, "the lists alone", Unmeasured(), FAILED, lists.fault))
    says = f"{opening(lists.says).removesuffix('.')}."
    if floor:
        says = floor.says if lists.pair.is_most_compared else f"{says} {floor.says}"
    return conclude(
        rows,
        is_bit_identical=lists.is_identical,
        causes=[Cause("", says)],
    )


def judge_probe(sides: Sequence[ResponseSide], pairs: Sequence[ResponsePair]) -> list[Verdict]:
    """Judge each pair of a probe, whose side 'warm again' is the rerun of 'warm'.

    What a request under load shares a batch with depends on the moment: it may differ from its
    rerun without a fault.
    """
    by_name = {side.name: side for side in sides}
    repeats = {}
    for name, side in by_name.items():
        again = by_name.get(f"{name} again")
        if again:
            pair = compare_sides(side, again)
            is_same = not (pair.differs or pair.has_other_text)
            if is_same or "load:" not in name:
                repeats[name] = repeats[again.name] = is_same
    return judge_responses(sides, pairs, repeats)


def judge_responses(
    sides: Sequence[ResponseSide],
    pairs: Sequence[ResponsePair],
    repeats: Mapping[str, bool] | None = None,
) -> list[Verdict]:
    """Judge each pair of responses, the first side with each other. repeats: of a probe, whether a
    side gives the same answer again.
    """
    repeats = repeats or {}
    verdicts = []
    for index, (pair, side) in enumerate(zip(pairs, sides[1:], strict=True)):
        names = pair.reference, pair.variant
        repeated = tuple(name for name in names if name in repeats)
        unstable = tuple(name for name in repeated if not repeats[name])
        rerun = Rerun("the same request sent again", repeated, unstable)
        rows = [rerun_row(rerun, names)] if repeated else []
        verdict = _judge(_Lists(pair, (sides[0], side), bool(repeats)), rows)
        verdicts.append(replace(verdict, pair=index))
    return verdicts


def judge_with_floor(
    earlier: Verdict,
    pair: ResponsePair,
    sides: Sequence[ResponseSide],
    floor: Evidence,
) -> Verdict:
    """Judge a stored, undecided pair again with a model's noise floor."""
    reruns = [
        row
        for row in earlier.evidence
        # what had failed had not decided
        if row.group in (RERUN, STATE) and row.outcome != FAILED
    ]
    if not pair.is_most_compared and floor.outcome == PASSED:
        floor = replace(floor, outcome=NOTED)
    return replace(
        _judge(_Lists(pair, sides), reruns, floor),
        noise_ratio=getattr(floor.figures, "noise_ratio", None),
        pair=earlier.pair,
    )


def judge_tokens(tokens: TokenPair) -> Verdict:
    """Judge two files of chosen tokens by the causes that one value per token can show."""
    figures = tokens.summary
    outcome = NOTED
    name = UNDECIDED
    constants = zip(tokens.sample.names, tokens.constants, strict=True)
    constant = next((each for each in constants if each[1] is not None), None)
    if constant:
        outcome = FAILED
        name = INVALID_DUMP
        says = f"Every value of '{constant[0]}' is {constant[1]}: placeholders."
    elif not figures.finite:
        says = "No token has a log-probability on both sides."
    elif not figures.neq:
        count = f"{figures.finite:,} of {figures.finite:,} log-probabilities of chosen tokens"
        outcome = PASSED
        name = IDENTICAL
        says = f"{count} are equal; other tokens are not compared."
    else:
        # a fault first
        sample = tokens.sample
        causes = sorted(explain_tokens(sample), key=lambda cause: not cause.is_fault)
        kls = least_kl(sample.rollout, sample.trainer)
        kl = _mean(kls[np.isfinite(kls)])
        is_far = kl > MOST_KL
        says = "No simple cause, and one value per token cannot tell rounding from a fault."
        if is_far:
            says = "No simple cause."
        if causes:
            says = causes[0].says
        is_fault = bool(causes) and causes[0].is_fault
        if is_fault or is_far:
            outcome = FAILED
            name = BUG_SUSPECTED
        if not is_fault:
            # what is no fault by itself does not excuse the size
            bar = bar_of("k3")
            usual = f", {bar.state(tokens.k3)} ({bar.span})" if bar else ""
            largest = number(figures.max_abs)
            size = f"KL (k3) {number(tokens.k3)} nats{usual}; largest difference {largest} nats."
            says = f"{size} {says}"
            if is_far:
                says = f"{_least_kl_in_words(kl)} {says}"
            if sample.entropy is None:
                says = f"{says} {NO_TEMPERATURE}"
    row = Evidence(
        SENT,
        "both sides, token by token",
        SentFigures(
            positions=tokens.positions,
            values=figures.finite,
            neq=figures.neq,
            flips=None,
        ),
        outcome,
        says,
    )
    return Verdict(name, says, (row,))
