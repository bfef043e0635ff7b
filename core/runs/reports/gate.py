"""The gate of `compare`: conditions on the figures of a pair, of whole rows of logits or of lists of some tokens, and
the position that is worst under each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ...command_name import COMMAND
from ...errors import StoreError, UsageError
from ...numerics.metrics import NULLABLE
from ...text import number, percent, plural, shown
from ..file.evidence import FAILED, PASSED
from ..file.records import FAILING, NOT_JUDGED, UNDECIDED, Prompt
from ..sparse_run import SparseVerdict
from ..topk.pairing import ListPair, ListPosition
from .report_json import PairReport, plain_number
from .sparse_json import Bounded, position_json, summary_json
from .sparse_wording import UNITS, not_compared, opening, placeholder_words, told

Row = dict[str, Any]
Key = Callable[[Row], tuple[float, ...]]  # rank of a row, highest where a condition is worst; all 0 if nothing is wrong
_CONDITION = re.compile(
    r"(flips:margin|[a-z0-9-]+)(?:\s*([<>:])\s*((?:\d{1,18}(?:\.\d{0,30})?|\.\d{1,30})(?:e[+-]?\d{1,4})?)\s*(ulps)?)?",
    re.ASCII | re.IGNORECASE,
)


@dataclass(frozen=True)
class SparseReport:
    """A pair of lists for the gate."""

    pair: ListPair
    reference: str
    variant: str
    rows: list[Row]
    figures: dict[str, Any]
    verdict: str
    because: str
    unit: str

    @classmethod
    def of(cls, pair: ListPair, verdict: SparseVerdict | None = None) -> SparseReport:
        rows = [{"prompt": place.prompt, **position_json(place, pair)} for place in pair.positions]
        name, because = (verdict.name, verdict.because) if verdict else (NOT_JUDGED, "")
        unit = UNITS[pair.values]
        return cls(pair, pair.reference, pair.variant, rows, summary_json(pair), name, because, unit)

    def margins(self, row: Row, unit: str) -> list[Bounded]:
        """Margins of both sides, in logits or with unit '_ulps' in ULPs; of probabilities the logarithm of a ratio."""
        if unit or self.pair.values != "prob":
            return [row[f"{side}_margin{unit}"] for side in ("reference", "variant")]
        place: ListPosition = self.pair.positions[next(n for n, each in enumerate(self.rows) if each is row)]
        tops = [(side.values[:2], side.best) for side in (place.reference, place.variant)]
        return [math.log(top[0] / top[1]) if best > 1 and top[1] > 0 else None for top, best in tops]


def low_high(figure: Bounded) -> tuple[float, float]:
    """Bounds of a figure; -inf and inf where it is unknown."""
    low, high = figure if isinstance(figure, list) else (figure, figure)
    return (-math.inf if low is None else low), (math.inf if high is None else high)


def smaller_margin(row: Row) -> float:
    """The smaller of both sides' margins; inf if one is undefined, and 0 if a list does not say it."""
    margins = (row["reference_margin"], row["variant_margin"])
    return (math.inf if "nonfinite_mismatch" in row else 0.0) if None in margins else min(margins)


def is_kl_lost(row: Row) -> bool:
    """Return whether KL is undefined or infinite at a position of whole rows that differ: no limit holds there."""
    return row["kl"] is None and "nonfinite_mismatch" in row and bool(row["neq"])


def _by(*columns: str) -> Key:
    return lambda row: tuple(max(low_high(row.get(column))[0], 0) for column in columns)


_difference = _by("nonfinite_mismatch", "max_abs", "neq")


def by_flip(row: Row) -> tuple[float, ...]:
    """Rank of a row as a flip, highest where both sides are sure of their own token."""
    return (1, smaller_margin(row), *_difference(row)) if row["is_flip"] else (0,)


def by_kl(row: Row) -> tuple[float, ...]:
    return (is_kl_lost(row), *_by("kl")(row))


@dataclass(frozen=True)
class Measure:
    """What a condition compares with its limit: a column of the summary, its unit ('of': a share; 'logits': the pair's
    own), how a sentence says it, the rank of a position under it.

    sign: before the limit, '' if it takes none. refused: why lists of some tokens cannot answer it.
    """

    column: str
    unit: str
    words: str
    key: Key
    sign: str = ""
    refused: str = ""


def _by_bits(row: Row) -> tuple[float, ...]:
    return (*_difference(row), not row.get("bit_identical", True))


_NO_ULPS = "ULPs of elements need both sides' complete logits"
_NO_RMS = "an rms over all elements needs complete rows"
_SAME_TOP1 = "has the same argmax at {} of {of}"
MEASURES = {
    "bits": Measure("neq", "values", "differs in {} values", _by_bits),
    "flips": Measure("flips", "positions", "has another argmax at {} of {of}", by_flip),
    "flips:margin": Measure("flips", "positions", "", by_flip, ">"),
    "ulps": Measure("max_ulps", "ULPs", "is up to {} ULPs apart", _by("nonfinite_mismatch", "max_ulps"), ":", _NO_ULPS),
    "kl": Measure("max_kl", "nats", "has a KL of up to {} nats", by_kl, ">"),
    "rms": Measure(
        "rms", "logits", "differs by {} logits (rms over all elements)", _by("nonfinite_mismatch", "rms"), ">", _NO_RMS
    ),
    "max-abs": Measure("max_abs", "logits", "differs by up to {} {unit}", _difference, ">"),
    "share": Measure("neq_share", "of all elements", "differs in {} of elements", _by("neq"), ">"),
    "same-top1": Measure("same_top1", "of all positions", _SAME_TOP1, by_flip, "<"),
    "verdict": Measure("", "", "is {}", _difference),
}
ALLOWED = "bits, flips, flips:margin>X, ulps:N, kl>X, rms>X, max-abs>X, share>X, same-top1<X or verdict"


@dataclass(frozen=True)
class Outcome:
    """Outcome of one pair under one condition, or of one of its prompts under its bounds.

    outcome: 'passed', 'failed', or 'undecided'; figure: the measured value, in `unit`; says: one sentence; worst: the
    row that is worst under this condition, None if no position differs. Of a prompt under its bounds: its index, None
    if it was not compared, and its key.
    """

    reference: str
    variant: str
    condition: str
    outcome: str
    figure: float | str | None
    unit: str
    says: str
    worst: Row | None = None
    prompt: int | None = None
    key: str | None = None

    @property
    def name(self) -> str:
        """`kl>0.01`, or `bounds of prompt tokens:0c1f...`, which stays the same from build to build."""
        return self.condition if self.key is None else f"{self.condition} of prompt {self.key}"


@dataclass(frozen=True)
class Condition:
    """Condition that fails a build: a kind of `MEASURES` and its limit."""

    kind: str
    limit: float = 0
    is_in_ulps: bool = False

    def __str__(self) -> str:
        limit = str(self.limit) if isinstance(self.limit, int) else f"{self.limit:.15g}"
        sign = MEASURES[self.kind].sign
        return f"{self.kind}{sign}{limit}{'ulps' * self.is_in_ulps}" if sign else self.kind

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Read a condition as a user writes it; UsageError says what is allowed."""
        match = _CONDITION.fullmatch(text.strip())
        kind, sign, digits, ulps = match.groups("") if match else ("", "", "", "")
        measure = MEASURES.get(kind)
        if measure is not None and sign == measure.sign and (not ulps or kind == "flips:margin"):
            is_whole = kind == "ulps" and digits.isdecimal()
            limit = int(digits) if is_whole else float(digits or 0)
            if limit <= (1 if kind in ("share", "same-top1") else 1e300) and (is_whole or kind != "ulps"):
                return cls(kind, limit, bool(ulps))
        raise UsageError(
            f"--fail-on '{shown(text, 60)}' is not known; expected {ALLOWED}. X is a number from 0, a share at most 1;"
            " quote what has < or >."
        )

    def judge(self, pair: PairReport | SparseReport) -> Outcome:
        """Judge a pair by the condition: its outcome, with the position at which it is worst."""
        measure = MEASURES[self.kind]
        figure: Any
        if self.kind == "verdict":
            outcome, figure, says = _judge_verdict(pair)
        elif self.kind == "flips:margin":
            outcome, figure, says = self._judge_sure_flips(pair)
        else:
            outcome, figure, says = self._compare(pair)
        sides = f"'{shown(pair.variant, 200)}' against '{shown(pair.reference, 200)}'"
        unit = pair.unit if measure.unit == "logits" else measure.unit
        worst = worst_row(pair.rows, measure.key)
        return Outcome(pair.reference, pair.variant, str(self), outcome, figure, unit, f"{sides} {says}.", worst)

    def _compare(self, pair: PairReport | SparseReport) -> tuple[str, float | None, str]:
        """Compare the figure with the limit. What a list leaves open is undecided; whole rows fail on what is
        undefined.
        """
        measure, figures, rows = MEASURES[self.kind], pair.figures, pair.rows
        figure = figures[measure.column]
        low, high = low_high(figure)
        mismatch = figures["nonfinite_mismatch"]
        if measure.sign == "<":
            outcome = FAILED if high < self.limit else PASSED if low >= self.limit else UNDECIDED
        else:
            outcome = FAILED if low > self.limit else PASSED if high <= self.limit else UNDECIDED
        value = percent_told(figure) if measure.unit.startswith("of ") else told(figure)
        says = measure.words.format(value, of=plural(len(rows), "position"), unit=pair.unit)
        if self.kind == "bits" and figures["bit_identical"] is False:
            outcome = FAILED
            says += " (zeros differ in sign, or NaNs in their bits)" * (high == 0)
        if self.kind == "kl" and mismatch is not None:
            lost, undefined = sum(map(is_kl_lost, rows)), sum(row["kl"] is None for row in rows)
            outcome = FAILED if lost or outcome == FAILED else PASSED
            if lost:
                says += f"; at {_of(lost, rows)} it is undefined or infinite"
            if undefined > lost:
                says += f"; {_of(undefined - lost, rows)} where the sides are equal and KL is undefined are left out"
        elif mismatch is not None and outcome == UNDECIDED:
            outcome = FAILED
        if mismatch and self.kind in ("ulps", "rms", "max-abs"):  # over elements that are finite on both sides
            outcome = FAILED
            says += f", and {plural(mismatch, 'value is', 'values are')} NaN or infinite on one side only"
        return outcome, None if figure is None else low, says

    def _judge_sure_flips(self, pair: PairReport | SparseReport) -> tuple[str, float | None, str]:
        """Count flips at which both sides prefer their own token by more than the limit. An undefined margin counts, a
        margin that a list does not have leaves it open.
        """
        unit = "_ulps" if self.is_in_ulps else ""
        sure = unknown = flips = 0
        largest = 0.0
        for row in pair.rows:
            if row["is_flip"] is False:
                continue
            flips += 1
            margins: Sequence[Bounded] = pair.margins(row, unit)
            if "nonfinite_mismatch" in row and None in margins:
                margins = [math.inf]
            bounds = [low_high(margin) for margin in margins]
            largest = max(largest, *(low for low, _ in bounds))
            if any(high <= self.limit for _, high in bounds):
                continue
            is_sure = bool(row["is_flip"]) and all(low > self.limit for low, _ in bounds)
            sure, unknown = sure + is_sure, unknown + (not is_sure)
        limit = f"both margins over {self.limit:.15g} {'ULPs' if self.is_in_ulps else 'logits'}"
        at_most = f"; a side prefers its token by up to {number(largest)} {'ULPs' if self.is_in_ulps else 'logits'}"
        says = f"has another argmax at {_of(sure, pair.rows)} with {limit}, of {plural(flips, 'flip')} in all"
        if unknown and not sure:
            return UNDECIDED, sure, f"{says}; margins at {_of(unknown, pair.rows)} are unknown"
        return FAILED if sure else PASSED, sure, says + at_most * bool(flips and not sure)


def _judge_verdict(pair: PairReport | SparseReport) -> tuple[str, str, str]:
    because = f": {pair.because.rstrip('. ')}" if pair.because else ""
    if pair.verdict == NOT_JUDGED:
        because = f": no controls were run; `{COMMAND} judge` or `capture --judge` runs them"
    if f"`{COMMAND} verdict RUN " in because:  # a dump that is compared is not stored, so no run is called anything
        because += f", where RUN is the id that `{COMMAND} ingest` prints"
    is_open = pair.verdict in (UNDECIDED, NOT_JUDGED)
    outcome = FAILED if pair.verdict in FAILING else UNDECIDED if is_open else PASSED
    return outcome, pair.verdict, f"is {pair.verdict}{because}"


def parse_conditions(texts: Sequence[str]) -> list[Condition]:
    """Conditions of every --fail-on, which may hold several with commas between them; each once."""
    return list(dict.fromkeys(Condition.parse(one) for text in texts for one in text.split(",")))


def check_for_lists(conditions: Sequence[Condition]) -> None:
    """UsageError for a condition that no list of some tokens could decide."""
    for condition in conditions:
        if refused := MEASURES[condition.kind].refused:
            raise UsageError(f"--fail-on {condition}: {refused}; leave it out for responses of engines.")


@dataclass(frozen=True)
class GateReport:
    """Result of a gate: one outcome a pair and condition, then one a pair and prompt that has bounds. prompts: empty if
    rows hold their tokens' texts already.
    """

    outcomes: tuple[Outcome, ...]
    prompts: tuple[Prompt, ...] = ()
    vocabulary: dict[int, str] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.outcome == FAILED]

    @property
    def outcome(self) -> str:
        """'failed' if anything failed, 'undecided' if nothing was decided, else 'passed'."""
        if self.failed:
            return FAILED
        return PASSED if any(outcome.outcome == PASSED for outcome in self.outcomes) else UNDECIDED

    @property
    def worst(self) -> Outcome | None:
        """The outcome with the worst position: of those that failed, or of all if none did."""
        placed = [outcome for outcome in self.failed or self.outcomes if outcome.worst is not None]
        return max(placed, key=lambda outcome: _difference(outcome.worst or {}), default=None)

    def place(self, row: Row) -> Row:
        """A position with the token read there and the texts of the tokens."""
        if not self.prompts:
            return row
        prompt, position = self.prompts[row["prompt"]], row["position"]
        token = prompt.token_ids[position] if prompt.token_ids else None
        texts = {f"{side}_text": self.vocabulary.get(row[f"{side}_token"]) for side in ("reference", "variant")}
        text = (
            prompt.token_texts[position] if prompt.token_texts else self.vocabulary.get(-1 if token is None else token)
        )
        return {"prompt": row["prompt"], "position": position, "token": token, "text": text, **row, **texts}

    def in_words(self, row: Row) -> str:
        """`position 17 (after ' the'): 473 ' cat' became 1716 ' dog', margins 0.31 and 0.06 logits (5 and 1 ULPs),
        ...`
        """
        place = self.place(row)
        prompt = f"prompt {place['prompt']}, " if len(self.prompts) != 1 else ""
        after = ""
        if place.get("text") is not None:
            after = f" (after {place['text']!r})"
        elif place.get("token") is not None:
            after = f" (after token {place['token']})"
        tokens = []
        for side in ("reference", "variant"):
            token, text = place[f"{side}_token"], place[f"{side}_text"]
            tokens.append("no token" if token is None else f"{token}" if text is None else f"{token} {text!r}")
        change = f"{tokens[0]} became {tokens[1]}" if place["is_flip"] else f"both choose {tokens[0]}"
        say = number if self.prompts else told  # undefined in whole rows, unknown in lists
        margins, ulps = (
            " and ".join(say(place[f"{side}_margin{unit}"]) for side in ("reference", "variant"))
            for unit in ("", "_ulps")
        )
        unit, max_ulps = (" logits", f" and {number(place['max_ulps'])} ULPs") if self.prompts else ("", "")
        mismatch = place.get("nonfinite_mismatch")
        return (
            f"{prompt}position {place['position']}{after}: {change}, margins {margins}{unit} ({ulps} ULPs), KL"
            f" {say(place['kl'])} nats, up to {say(place['max_abs'])}{unit}{max_ulps} apart"
            + (f", {mismatch:,} NaN or infinite on one side only" if mismatch else "")
        )

    def sentence(self, outcome: Outcome) -> str:
        """An outcome on one line; of a failure with its worst position."""
        is_placed = outcome.outcome == FAILED and outcome.worst is not None
        worst = f" Worst: {self.in_words(outcome.worst or {})}." if is_placed else ""
        return f"{outcome.condition}: {outcome.says}{worst}"

    def table(self) -> str:
        """Every outcome as plain text, a line each, then the notes."""
        lines = [f"{outcome.outcome}: {self.sentence(outcome)}" for outcome in self.outcomes]
        return "\n".join([f"gate {self.outcome}", *lines, *(f"note: {note}" for note in self.notes)])

    def check(self) -> GateReport:
        """Check the gate in a test: AssertionError with every outcome if anything failed; returns itself."""
        __tracebackhide__ = True
        if self.failed:
            raise AssertionError(self.table())
        return self

    def as_json(self) -> dict[str, Any]:
        conditions = []
        for outcome in self.outcomes:
            fields = asdict(outcome)
            if outcome.key is None:
                del fields["prompt"], fields["key"]
            worst = None if outcome.worst is None else self.place(outcome.worst)
            conditions.append({**fields, "figure": plain_number(outcome.figure), "worst": worst})
        worst_of_all = self.worst
        return {
            "outcome": self.outcome,
            "conditions": conditions,
            "worst": worst_of_all
            and {
                "reference": worst_of_all.reference,
                "variant": worst_of_all.variant,
                **self.place(worst_of_all.worst or {}),
            },
            "notes": list(self.notes),
        }


def check_measured(where: str, pairs: Sequence[PairReport]) -> None:
    """StoreError if a figure is undefined that nothing can make so: the file is damaged."""
    for pair in pairs:
        for row in (pair.figures, *pair.rows):
            lost = [name for name, value in row.items() if value is None and name not in NULLABLE]
            if lost:
                raise StoreError(f"{where}: its figure {lost[0]} is no finite number somewhere; the file is damaged.")


def gate_notes(pairs: Sequence[PairReport | SparseReport]) -> list[str]:
    """Notes on what a gate cannot look at: positions without a number on a side, placeholders in lists."""
    notes = []
    for pair in pairs:
        sides = f"'{shown(pair.variant, 200)}' against '{shown(pair.reference, 200)}'"
        if isinstance(pair, SparseReport):
            words = [placeholder_words(pair.pair), "" if pair.pair.listed else f"{not_compared(pair.pair)}."]
            notes += [f"{sides}: {opening(each)}" for each in words if each]
            continue
        empty = [row for row in pair.rows if None in (row["reference_token"], row["variant_token"])]
        if empty:
            first = f"position {empty[0]['position']} of prompt {empty[0]['prompt']} first"
            notes.append(f"at {_of(len(empty), pair.rows)} a side of {sides} holds no number, {first}.")
    return notes


def worst_row(rows: Sequence[Row], key: Key) -> Row | None:
    """The row with the largest key; None if every key is 0."""
    worst = max(rows, key=key, default=None)
    return worst if worst is not None and any(key(worst)) else None


def percent_told(figure: Bounded) -> str:
    """A share for people: `74.9%`, `10.0% to 20.0%`, `unknown`."""
    if not isinstance(figure, list):
        return "unknown" if figure is None else percent(figure)
    return " to ".join(percent(end) for end in figure if end is not None)


def figure_text(outcome: Outcome) -> str:
    """The figure with its unit: `0.0123 nats`, `74.9% of all elements`, `3 positions`; '' if there is none."""
    figure = outcome.figure
    if figure is None or isinstance(figure, str):
        return f"{figure or ''} {outcome.unit}".strip() if figure else ""
    return f"{percent(figure) if outcome.unit.startswith('of all') else number(figure)} {outcome.unit}".strip()


def _of(count: int, rows: Sequence[Row]) -> str:
    return f"{count:,} of {plural(len(rows), 'position')}"
