"""Conditions of a gate: on the figures of a pair, of whole rows of logits or of lists of some
tokens, and the position that is worst under each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...checks.state import SERVER_STATE, axes_of
from ...command_name import COMMAND
from ...errors import UsageError
from ...evidence import FAILED, MISSING, NOTED, PASSED
from ...numerics.arrays import Record
from ...rl.figures import FIGURE_NAMES, FRAMEWORKS
from ...text import clean, number, percent, plural
from ...verdict import NOT_JUDGED, UNDECIDED, exit_code
from .report_json import PairReport

# rank of a row, highest for the worst; all 0 if nothing is wrong
Key = Callable[[Record], tuple[float, ...]]
_CONDITION = re.compile(
    r"(flips:margin|[a-z0-9_./-]+)"
    r"(?:\s*([<>:])\s*((?:\d{1,18}(?:\.\d{0,30})?|\.\d{1,30})(?:e[+-]?\d{1,4})?)\s*(ulps)?)?",
    re.ASCII | re.IGNORECASE,
)


def is_kl_lost(row: Record) -> bool:
    """Return whether KL is undefined or infinite at a position of whole rows that differ: no limit
    holds there.
    """
    return row["kl"] is None and bool(row["neq"])


def _by(*columns: str) -> Key:
    return lambda row: tuple(max(row.get(column) or 0, 0) for column in columns)


by_difference = _by("nonfinite_mismatch", "max_abs", "neq")


def by_flip(row: Record) -> tuple[float, ...]:
    """Rank a row as a flip, highest if both sides are sure of their own token."""
    if not row["is_flip"]:
        return (0,)
    margins = row["reference_margin"], row["variant_margin"]
    smaller = math.inf if None in margins else min(margins)
    return 1, smaller, *by_difference(row)


@dataclass(frozen=True)
class Measure:
    """What a condition compares with its limit: a column of the summary, its unit ('of': a share;
    'logits': the pair's own), how a sentence says it, the rank of a position under it.

    sign: before the limit, '' if it takes none, one of two if a figure may be too small or too
    large. refused: why lists of some tokens cannot answer it.
    """

    column: str = ""
    unit: str = ""
    words: str = ""
    key: Key = by_difference
    sign: str = ""
    refused: str = ""


MEASURES = {
    "bits": Measure(
        "neq",
        "values",
        "differs in {} values",
        lambda row: (*by_difference(row), not row.get("bit_identical", True)),
    ),
    "flips": Measure("flips", "positions", "has a different argmax at {} of {of}", by_flip),
    "flips:margin": Measure("flips", "positions", "", by_flip, ">"),
    "ulps": Measure(
        "max_ulps",
        "ULPs",
        "differs by up to {} ULPs",
        _by("nonfinite_mismatch", "max_ulps"),
        ":",
        "ULPs of elements need both sides' complete logits",
    ),
    "kl": Measure(
        "max_kl",
        "nats",
        "has a KL of up to {} nats",
        lambda row: (is_kl_lost(row), *_by("kl")(row)),
        ">",
        "KL needs both sides' complete rows",
    ),
    "rms": Measure(
        "rms",
        "logits",
        "differs by {} {unit} (rms over all elements)",
        _by("nonfinite_mismatch", "rms"),
        ">",
    ),
    "max-abs": Measure("max_abs", "logits", "differs by up to {} {unit}", sign=">"),
    "share": Measure("neq_share", "of all elements", "differs in {} of elements", _by("neq"), ">"),
    "same-top1": Measure(
        "same_top1",
        "of all positions",
        "has the same argmax at {} of {of}",
        by_flip,
        "<",
    ),
    "verdict": Measure(),
    # of a probe with --tests state
    "state": Measure(),
    # of trainer vs. rollout
    **dict.fromkeys(FIGURE_NAMES, Measure(sign="<>")),
}
ALLOWED = (
    "bits, flips, flips:margin>X, ulps:N, kl>X, rms>X, max-abs>X, share>X, same-top1<X, verdict,"
    " state or, for trainer vs. rollout, a figure like k3>X or ess<X"
)


@dataclass(frozen=True)
class Outcome:
    """Outcome of one pair under one condition.

    outcome: 'passed', 'failed', or 'undecided'; figure: the measured value, in `unit`; says: one
    sentence; worst: the row that is worst under this condition, None if no position differs.
    """

    reference: str
    variant: str
    condition: str
    outcome: str
    figure: float | str | None
    unit: str
    says: str
    worst: Record | None = None


@dataclass(frozen=True)
class Condition:
    """Condition that fails a build: a kind of `MEASURES` and its limit."""

    kind: str
    sign: str = ""
    limit: float = 0
    is_in_ulps: bool = False

    def __str__(self) -> str:
        if not self.sign:
            return self.kind
        limit = str(self.limit) if isinstance(self.limit, int) else f"{self.limit:.15g}"
        return f"{self.kind}{self.sign}{limit}{'ulps' * self.is_in_ulps}"

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Read a condition as a user writes it; UsageError says what is allowed."""
        match = _CONDITION.fullmatch(text.strip())
        kind, sign, digits, ulps = match.groups("") if match else ("",) * 4
        measure = MEASURES.get(kind)
        is_signed = measure and (sign in measure.sign if sign else not measure.sign)
        is_number = kind != "ulps" or digits.isdecimal()
        if is_signed and is_number and (not ulps or kind == "flips:margin"):
            limit = int(digits) if kind == "ulps" else float(digits or 0)
            if limit <= (1 if kind in ("share", "same-top1") else 1e300):
                return cls(kind, sign, limit, bool(ulps))
        raise UsageError(
            f"condition '{clean(text, 60)}' is not known; expected {ALLOWED}. X is a number from 0,"
            " a share at most 1; in a shell, quote what has < or >.",
        )

    def judge(self, pair: PairReport) -> Outcome:
        """Judge a pair by the condition: its outcome, with the position at which it is worst."""
        measure = MEASURES[self.kind]
        unit = pair.unit if measure.unit == "logits" else measure.unit
        figure: Any
        if row := _figure_of(pair, self.kind):
            outcome, figure, says = self._compare_mismatch(row)
            unit = row["unit"]
        elif self.kind == "verdict":
            answer = pair.answer
            figure = answer.name
            outcome = UNDECIDED if figure in (UNDECIDED, NOT_JUDGED) else PASSED
            if exit_code([figure]):
                outcome = FAILED
            says = f"is {figure}: {answer.sentence.rstrip('. ')}"
            if answer.next_command:
                says += f"; next `{answer.next_command}`"
            # a dump that is only compared is not stored, and has no id yet
            if f"{COMMAND} verdict RUN " in answer.next_command:
                says += f", where RUN is the id that `{COMMAND} ingest` prints"
        elif self.kind == "state":
            checks = [check for check in pair.answer.checks if check.check == SERVER_STATE]
            # one pair has those of axes without a comparable side too, which may not pass
            noted = [check for check in checks if check.outcome == NOTED]
            state = checks[0]
            if state.outcome == PASSED and noted:
                state = noted[0]
            # an axis that no server can be asked along is none
            outcome = UNDECIDED if state.outcome in (NOTED, MISSING) else state.outcome
            figure = axes_of([state])[0].result
            says = f"is {figure}: {state.says.rstrip('.')}"
        elif self.kind == "flips:margin":
            outcome, figure, says = self._judge_sure_flips(pair)
        else:
            outcome, figure, says = self._compare(pair)
        # max takes the first of equal rows, so a tie is decided by position
        worst = max(pair.rows, key=measure.key, default=None)
        if worst and not any(measure.key(worst)):
            worst = None
        about = pair.reference, pair.variant, str(self)
        return Outcome(*about, outcome, figure, unit, f"{pair.sides} {says}.", worst)

    def _compare(self, pair: PairReport) -> tuple[str, float | None, str]:
        """Compare the figure with the limit. What a list leaves open is undecided; whole rows fail
        on what is undefined.
        """
        measure, figures, rows = MEASURES[self.kind], pair.figures, pair.rows
        figure = figures[measure.column]
        outcome = UNDECIDED if pair.is_list else FAILED
        value = "unknown"
        if figure is not None:
            outcome = self._outcome_of(figure)
            value = percent(figure) if measure.unit.startswith("of ") else number(figure)
        says = measure.words.format(value, of=plural(pair.positions, "position"), unit=pair.unit)
        # equal values may still have other bits, which a count of differing values does not show
        if self.kind == "bits" and figures["bit_identical"] is False:
            outcome = FAILED
            says += " (zeros differ in sign, or NaNs in their bits)" * (figure == 0)
        # not by bits of whole rows, or top tokens that were not sent
        if pair.is_list and outcome == PASSED:
            is_token_unknown = self.kind in _BY_TOP[:2] and any(
                row["is_flip"] is None for row in rows
            )
            if self.kind == "bits" or not figures["finite"] or is_token_unknown:
                outcome = UNDECIDED
        if self.kind == "kl" and not pair.is_list:
            if figure is None:
                outcome = PASSED
            lost = sum(map(is_kl_lost, rows))
            if lost:
                outcome = FAILED
                says += f"; at {of_positions(lost, rows)} it is undefined or infinite"
            if equal := sum(row["kl"] is None for row in rows) - lost:
                says += (
                    f"; {of_positions(equal, rows)} with equal sides and undefined KL are left out"
                )
        # over elements that are finite on both sides
        mismatch = figures["nonfinite_mismatch"]
        if mismatch and self.kind in ("ulps", "rms", "max-abs"):
            outcome = FAILED
            values = plural(mismatch, "value is", "values are")
            says += f", and {values} NaN or infinite on one side only"
        return outcome, figure, says

    def _compare_mismatch(self, figure: Record) -> tuple[str, float | None, str]:
        """Compare a figure of trainer against rollout, which is exact for these tokens; the
        interval is only said.
        """
        value, low = figure["value"], figure["low"]
        if value is None:
            return UNDECIDED, None, f"has no {self.kind}: it is undefined for these tokens"
        says = f"has {self.kind} = {number(value)} {figure['unit']}".rstrip()
        if low is not None:
            says += f" (95% interval {number(low)} to {number(figure['high'])})"
        return self._outcome_of(value), value, says

    def _outcome_of(self, figure: float) -> str:
        is_beyond = figure < self.limit if self.sign == "<" else figure > self.limit
        return FAILED if is_beyond else PASSED

    def _judge_sure_flips(self, pair: PairReport) -> tuple[str, float | None, str]:
        """Count flips at which both sides prefer their own token by more than the limit. An
        undefined margin counts, a margin that a list does not have leaves it open.
        """
        ending = "_ulps" if self.is_in_ulps else ""
        sure = unknown = flips = 0
        largest = 0.0
        for row in pair.rows:
            if row["is_flip"] is False:
                continue
            flips += 1
            margins = [row[f"{side}_margin{ending}"] for side in ("reference", "variant")]
            finite = [margin for margin in margins if margin is not None]
            largest = max([largest, *finite])
            is_known = len(finite) == 2
            if (pair.is_list or is_known) and min(finite, default=math.inf) <= self.limit:
                continue
            is_open = pair.is_list and (row["is_flip"] is None or not is_known)
            unknown += is_open
            sure += not is_open
        unit = "ULPs" if self.is_in_ulps else pair.unit
        says = (
            f"has a different argmax at {of_positions(sure, pair.rows)} with both margins over"
            f" {self.limit:.15g} {unit}, of {plural(flips, 'flip')} in all"
        )
        if sure:
            return FAILED, sure, says
        if unknown:
            says += f"; margins at {of_positions(unknown, pair.rows)} are unknown"
            return UNDECIDED, sure, says
        if flips:
            says += f"; a side prefers its token by up to {number(largest)} {unit}"
        return PASSED, sure, says


_BY_TOP = ("flips", "same-top1", "flips:margin")  # conditions on top tokens


def _figure_of(pair: PairReport, name: str) -> Record | None:
    figures = (pair.mismatch or {}).get("figures", ())
    return next((figure for figure in figures if figure["name"] == name), None)


def parse_conditions(texts: str | Sequence[str]) -> list[Condition]:
    """Conditions of one text or several, each with commas between its conditions; each once."""
    texts = [texts] if isinstance(texts, str) else texts
    # a gate of no condition would pass whatever it compares
    if not texts:
        raise UsageError(f"no condition; expected {ALLOWED}.")
    return list(dict.fromkeys(Condition.parse(one) for text in texts for one in text.split(",")))


def check_decidable(conditions: Sequence[Condition], pairs: Sequence[PairReport]) -> None:
    """UsageError for a condition that no list of some tokens could decide, or on a figure that was
    not computed.
    """
    for condition in conditions:
        if condition.kind in FIGURE_NAMES and any(
            _figure_of(pair, condition.kind) is None for pair in pairs
        ):
            reason = "is for a rollout's and a trainer's log-probabilities of the sampled tokens"
            if any(pair.mismatch for pair in pairs):
                owner = "ulpscope"  # percentiles
                for name, framework in reversed(FRAMEWORKS.items()):
                    if condition.kind in {each.name for each in framework.figures}:
                        owner = name
                reason = f"is a figure of {owner}; add --as {owner}"
            raise UsageError(f"condition {condition}: {reason}.")
        checks = [row.check for pair in pairs for row in pair.answer.checks]
        if condition.kind == "state" and SERVER_STATE not in checks:
            raise UsageError("condition state: is for a run of `probe --tests state`.")
        if condition.kind in (*_BY_TOP, "kl") and not all(pair.has_tokens for pair in pairs):
            raise UsageError(
                f"condition {condition}: values have no tokens; use bits, ulps, rms, max-abs, share"
                " or verdict.",
            )
        if condition.kind in _BY_TOP and any(
            pair.is_list and pair.positions > len(pair.rows) for pair in pairs
        ):
            raise UsageError(
                f"condition {condition}: reads every position, and a run this long is only"
                " summed up.",
            )
        measure = MEASURES[condition.kind]
        if measure.refused and all(
            pair.is_list and pair.figures[measure.column] is None for pair in pairs
        ):
            raise UsageError(
                f"condition {condition}: {measure.refused}; leave it out for responses of servers.",
            )


def of_positions(count: int, rows: Sequence[Record]) -> str:
    return f"{count:,} of {plural(len(rows), 'position')}"
