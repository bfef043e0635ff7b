"""The gate of `compare` on sparse pairs: a condition fails or passes where what was sent decides it, else it is
undecided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import UsageError
from ...numerics.sparse import Interval
from ...text import number, percent, plural, shown
from ..file.evidence import FAILED, PASSED
from ..file.records import FAILING, NOT_JUDGED, UNDECIDED
from ..sparse.pairing import SparsePair, SparsePosition
from ..sparse_run import SparseVerdict
from .gate import UNITS, Condition, GateReport, Outcome, Row, limit_text
from .sparse_json import Bounded, counted, position_json, summary_json
from .sparse_wording import low_of, not_compared, opening, placeholder_words, token_words, told

SPARSE_ALLOWED = "bits, flips, flips:margin>X, kl>X, max-abs>X, share>X, same-top1<X or verdict"
_NEEDS_ROWS = {
    "ulps": "ULPs of elements need both sides' complete logits",
    "rms": "an rms over all elements needs complete rows",
}


@dataclass(frozen=True)
class SparseGateReport(GateReport):
    """A gate on sparse pairs; rows are those of sparse_json.position_json, with the prompt in each."""

    def place(self, row: Row) -> Row:
        return row

    @property
    def worst(self) -> Outcome | None:
        placed = [outcome for outcome in self.failed or self.outcomes if outcome.worst is not None]
        return max(placed, key=lambda outcome: low_of((outcome.worst or {})["max_abs"]), default=None)

    def in_words(self, row: Row) -> str:
        tokens = [token_words(row, side) for side in ("reference", "variant")]
        chosen = f"{tokens[0]} became {tokens[1]}" if row["is_flip"] else f"best {tokens[0]}"
        margins = " and ".join(number(row[f"{side}_margin"]) for side in ("reference", "variant"))
        return (
            f"prompt {row['prompt']}, position {row['position']}: {chosen}, margins {margins}, values up to"
            f" {told(row['max_abs'])} apart, KL {told(row['kl'])} nats"
        )


def check_conditions(conditions: Sequence[Condition]) -> None:
    """UsageError for a condition that no list of some tokens could decide."""
    for condition in conditions:
        if condition.kind in _NEEDS_ROWS:
            raise UsageError(
                f"--fail-on {condition}: {_NEEDS_ROWS[condition.kind]}; on responses of engines expected"
                f" {SPARSE_ALLOWED}."
            )


def judge_sparse(condition: Condition, pair: SparsePair, verdict: SparseVerdict | None = None) -> Outcome:
    """The outcome of a sparse pair under a condition, 'undecided' if what was sent leaves it open."""
    figure: float | str | None
    if condition.kind == "verdict":
        outcome, figure, says, worst = _verdict(verdict, pair)
    else:
        outcome, figure, says, worst = _JUDGES[condition.kind](condition, pair)
        says += f". {opening(placeholder_words(pair))}".rstrip(". ")
    sides = f"'{shown(pair.variant, 200)}' against '{shown(pair.reference, 200)}'"
    row = None if worst is None else {"prompt": worst.prompt, **position_json(worst, pair)}
    return Outcome(
        pair.reference, pair.variant, str(condition), outcome, figure, UNITS[condition.kind], f"{sides} {says}.", row
    )


_Judged = tuple[str, float | None, str, SparsePosition | None]


def _most(pair: SparsePair, key: Callable[[SparsePosition], float]) -> SparsePosition | None:
    worst = max(pair.positions, key=key)
    return worst if key(worst) > 0 else None


def _change(place: SparsePosition) -> float:
    return place.figures.max_abs.low


def _verdict(verdict: SparseVerdict | None, pair: SparsePair) -> tuple[str, str, str, SparsePosition | None]:
    if verdict is None:
        return UNDECIDED, NOT_JUDGED, f"is {NOT_JUDGED}", None
    outcome = FAILED if verdict.name in FAILING else UNDECIDED if verdict.name == UNDECIDED else PASSED
    return outcome, verdict.name, f"is {verdict.name}: {verdict.because.rstrip('. ')}", _most(pair, _change)


def _bits(_: Condition, pair: SparsePair) -> _Judged:
    listed = pair.listed
    if pair.differing:
        says = f"differs in {pair.differing:,} of {plural(listed, 'value')} that both sides sent"
        return FAILED, pair.differing, says, _most(pair, _change)
    if not listed:
        return UNDECIDED, 0, f"cannot be compared: {not_compared(pair)}", None
    if all(place.reference.is_full and place.variant.is_full for place in pair.positions):
        return PASSED, 0, "is equal in every value of every row", None
    return UNDECIDED, 0, f"is equal in {listed:,} values, all that both sides sent; what was not sent is open", None


def _flips(_: Condition, pair: SparsePair) -> _Judged:
    found = counted([place.figures.is_flip for place in pair.positions])
    low, high = (found[0], found[1]) if isinstance(found, list) else (found, found)
    of = f"of {plural(len(pair.positions), 'position')}"
    if low:
        return FAILED, low, f"has another best token at {low:,} {of}", _most(pair, _flip_size)
    if high:
        return UNDECIDED, 0, f"has no known flip; at {high:,} {of} a best token was not sent", None
    return PASSED, 0, "has the same best token at every position", None


def _flip_size(place: SparsePosition) -> float:
    """Flips by the smaller margin, the least explained by a tie first; 0 for no flip."""
    margins = [top.margin or 0.0 for top in (place.figures.reference, place.figures.variant)]
    return 1e-300 + min(margins) if place.figures.is_flip else 0.0


def _sure_flips(condition: Condition, pair: SparsePair) -> _Judged:
    """Flips at which both sides prefer their own token by more than the limit; a margin that was not sent leaves it
    open.
    """
    flips = [place for place in pair.positions if place.figures.is_flip is not False]
    answers = [_is_sure(condition, pair, place) for place in flips]
    words = f"{limit_text(condition.limit)} {'ULPs' if condition.is_in_ulps else 'logits'}"
    of = f"of {plural(len(pair.positions), 'position')}"
    if sure := answers.count(True):
        says = f"has another best token at {sure:,} {of} with both margins over {words}"
        worst = max((p for p, answer in zip(flips, answers, strict=True) if answer), key=_flip_size)
        return FAILED, sure, says, worst
    if unknown := answers.count(None):
        says = f"has no flip that is known to be over {words}; at {unknown:,} {of} what was sent does not say"
        return UNDECIDED, 0, says, None
    return PASSED, 0, f"has {plural(len(flips), 'flip')}, none with both margins over {words}", None


def _is_sure(condition: Condition, pair: SparsePair, place: SparsePosition) -> bool | None:
    if condition.is_in_ulps:
        bounds = [
            None if ulps is None else (float(ulps.low), float(ulps.high))
            for ulps in (place.reference_ulps, place.variant_ulps)
        ]
    else:
        margins = [logit_margin(row.values, row.best, pair.values) for row in (place.reference, place.variant)]
        bounds = [None if margin is None else (margin, margin) for margin in margins]
    if any(one is not None and one[1] <= condition.limit for one in bounds):
        return False
    if place.figures.is_flip is None or any(one is None or one[0] <= condition.limit for one in bounds):
        return None
    return True


def logit_margin(values: Sequence[float] | Any, best: int, holds: str) -> float | None:
    """The margin of a row in logits: a gap of logits or log-probabilities, or the logarithm of a ratio of
    probabilities; None where the runner-up was not sent or has no probability.
    """
    if best < 2:
        return None
    if holds != "prob":
        return float(values[0] - values[1])
    return math.log(values[0] / values[1]) if values[1] > 0 else None


def _of_limit(
    condition: Condition, bounds: Interval | None, says: str, worst: SparsePosition | None, figure: float | None = None
) -> _Judged:
    """A figure that has to be within the limit: known to be over, known to be within, or open."""
    found = None if bounds is None else bounds.low if figure is None else figure
    if bounds is not None and bounds.low > condition.limit:
        return FAILED, found, says, worst
    if bounds is not None and bounds.high is not None and bounds.high <= condition.limit:
        return PASSED, found, says, worst
    return UNDECIDED, found, says, worst


def _kl(condition: Condition, pair: SparsePair) -> _Judged:
    figure = summary_json(pair)["max_kl"]
    says = "has no KL" if figure is None else f"has a KL of {told(figure)} nats at its worst position"
    return _of_limit(
        condition, _interval(figure), says, _most(pair, lambda p: 0.0 if p.figures.kl is None else p.figures.kl.low)
    )


def _max_abs(condition: Condition, pair: SparsePair) -> _Judged:
    figure = summary_json(pair)["max_abs"]
    return _of_limit(condition, _interval(figure), f"has values {told(figure)} apart", _most(pair, _change))


def _share(condition: Condition, pair: SparsePair) -> _Judged:
    figure = summary_json(pair)["neq_share"]
    if figure is None:
        says = f"differs in {pair.differing:,} values that were sent, of a vocabulary whose size no payload says"
        return UNDECIDED, None, says, None
    shares = [percent(end) for end in (figure if isinstance(figure, list) else [figure]) if end is not None]
    return _of_limit(
        condition, _interval(figure), f"differs in {' to '.join(shares)} of all elements", _most(pair, _change)
    )


def _same_top1(condition: Condition, pair: SparsePair) -> _Judged:
    figure = summary_json(pair)["same_top1"]
    low, high = (figure[0], figure[1]) if isinstance(figure, list) else (figure, figure)
    outcome = FAILED if high < condition.limit else PASSED if low >= condition.limit else UNDECIDED
    shares = " to ".join(dict.fromkeys((percent(low), percent(high))))
    return outcome, low, f"has the same best token at {shares} of positions", _most(pair, _flip_size)


def _interval(figure: Bounded) -> Interval | None:
    if figure is None:
        return None
    return Interval(figure[0] or 0.0, figure[1]) if isinstance(figure, list) else Interval(figure, figure)


_JUDGES: dict[str, Callable[[Condition, SparsePair], _Judged]] = {
    "bits": _bits,
    "flips": _flips,
    "flips:margin": _sure_flips,
    "kl": _kl,
    "max-abs": _max_abs,
    "share": _share,
    "same-top1": _same_top1,
}
