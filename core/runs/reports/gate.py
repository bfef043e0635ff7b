"""The gate of `compare`: what a team declares unacceptable, condition by condition, and the position that is worst
under each.
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
from .report_json import PairReport, plain_number

ALLOWED = "bits, flips, flips:margin>X, ulps:N, kl>X, rms>X, max-abs>X, share>X, same-top1<X or verdict"
UNITS = {
    "bits": "values",
    "flips": "positions",
    "flips:margin": "positions",
    "ulps": "ULPs",
    "kl": "nats",
    "rms": "logits",
    "max-abs": "logits",
    "share": "of all elements",
    "same-top1": "of all positions",
    "verdict": "",
}
_MEANING = {
    "flips:margin": "X in logits, or in ULPs as 5ulps",
    "ulps": "N a whole number of ULPs",
    "kl": "X in nats",
    "rms": "X in logits",
    "max-abs": "X in logits",
    "share": "X from 0 to 1",
    "same-top1": "X from 0 to 1",
}
_SIGNS = {"ulps": ":", "same-top1": "<"}
_PARTS = re.compile(r"(flips:margin|[^<>:]*)([<>:]?)(.*)", re.DOTALL)  # of a condition: kind, sign, limit
_NUMBER = re.compile(r"(\d{1,30}(\.\d{0,30})?|\.\d{1,30})(e[+-]?\d{1,4})?", re.ASCII | re.IGNORECASE)
# Verdicts that no control has decided. `rounding`, `identical` and a wanted lower precision pass.
_OPEN = (UNDECIDED, NOT_JUDGED)


Row = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """Outcome of one pair under one condition, or of one of its prompts under its bounds.

    outcome: 'passed', 'failed', or 'undecided' where nothing known decides it; figure: what was measured, in `unit`;
    says: one sentence; worst: the row of the report that is worst under this condition, None where no position differs.
    Of one prompt under its bounds: prompt is its index, None where it was not compared, and key what it is recognised
    by.
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
    """Condition that fails a build. `limit` is in logits, nats, ULPs (`is_in_ulps`) or a share, as the kind says.

    bits: any bit differs. flips: another argmax. flips:margin: another argmax where the smaller of the two margins is
    more than the limit. ulps, kl, rms, max-abs, share: more than the limit. same-top1: less than it. verdict: a bug
    suspected, nondeterministic, or an invalid dump.
    """

    kind: str
    limit: float = 0
    is_in_ulps: bool = False

    def __str__(self) -> str:
        if self.kind in ("bits", "flips", "verdict"):
            return self.kind
        return f"{self.kind}{_SIGNS.get(self.kind, '>')}{limit_text(self.limit)}{'ulps' if self.is_in_ulps else ''}"

    @classmethod
    def parse(cls, text: str) -> Condition:
        """UsageError where it is none: which one, and what is allowed."""
        compact = re.sub(r"\s*([<>:])\s*", r"\1", text.strip())
        if compact in ("bits", "flips", "verdict"):
            return cls(compact)
        kind, sign, limit = _PARTS.fullmatch(compact).groups()  # type: ignore[union-attr]  # any text fits
        where = f"--fail-on '{shown(text, 60)}'"
        if kind not in _MEANING:
            raise UsageError(f"{where} is not known; expected {ALLOWED}.")
        form = f"{kind}{_SIGNS.get(kind, '>')}{'N' if kind == 'ulps' else 'X'}"
        if not sign and not limit:
            quoted = "" if kind == "ulps" else ", in quotes, or a shell takes the sign for a redirection"
            raise UsageError(f"{where} lacks its limit; expected '{form}', {_MEANING[kind]}{quoted}.")
        is_in_ulps = kind == "flips:margin" and limit.endswith("ulps")
        number = limit.removesuffix("ulps").rstrip() if is_in_ulps else limit
        is_number = re.fullmatch(r"\d{1,18}", number, re.ASCII) if kind == "ulps" else _NUMBER.fullmatch(number)
        if sign != _SIGNS.get(kind, ">") or not is_number:
            raise UsageError(f"{where} makes no sense; expected '{form}', {_MEANING[kind]}.")
        value = int(number) if kind == "ulps" else float(number)
        if not math.isfinite(value) or (kind in ("share", "same-top1") and value > 1):
            raise UsageError(f"{where}: {shown(number)} is too large; expected '{form}', {_MEANING[kind]}.")
        return cls(kind, value, is_in_ulps)

    def judge(self, pair: PairReport) -> Outcome:
        """Judge a pair by the condition: its outcome, with the position at which it is worst."""
        is_failed, figure, says, key = _JUDGES[self.kind](self, pair)
        if self.kind == "verdict":
            outcome = FAILED if is_failed else UNDECIDED if figure in _OPEN else PASSED
        else:
            outcome = FAILED if is_failed else PASSED
        sides = f"'{shown(pair.variant, 200)}' against '{shown(pair.reference, 200)}'"
        worst = worst_row(pair.rows, key)
        return Outcome(
            pair.reference, pair.variant, str(self), outcome, figure, UNITS[self.kind], f"{sides} {says}.", worst
        )


def parse_conditions(given: Sequence[str]) -> list[Condition]:
    """Conditions of every --fail-on, which may hold several with commas between them; each once."""
    return list(dict.fromkeys(Condition.parse(text) for several in given for text in several.split(",")))


@dataclass(frozen=True)
class GateReport:
    """Result of a gate: one outcome a pair and condition, then one a pair and prompt that has bounds; notes: sentences
    beside them.
    """

    outcomes: tuple[Outcome, ...]
    prompts: tuple[Prompt, ...]
    vocabulary: dict[int, str] = field(repr=False)
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
        """The outcome with the worst position: of those that failed, or of all where none did. NaN first, then the
        largest difference.
        """
        placed = [outcome for outcome in self.failed or self.outcomes if outcome.worst is not None]
        return max(placed, key=lambda outcome: _difference(outcome.worst or {}), default=None)

    def place(self, row: Row) -> Row:
        """A position with everything that is known of it: the token read there, both tokens chosen, margins, KL,
        differences.
        """
        prompt = self.prompts[row["prompt"]]
        read = prompt.token_ids[row["position"]] if prompt.token_ids else None
        text = (
            prompt.token_texts[row["position"]]
            if prompt.token_texts
            else self.vocabulary.get(-1 if read is None else read)
        )
        chosen = {f"{side}_text": self.vocabulary.get(row[f"{side}_token"]) for side in ("reference", "variant")}
        return {"prompt": row["prompt"], "position": row["position"], "token": read, "text": text, **row, **chosen}

    def in_words(self, row: Row) -> str:
        """`position 17 (after ' the'): 473 ' cat' became 1716 ' dog', margins 0.31 and 0.06 logits (5 and 1 ULPs),
        ...`
        """
        here = self.place(row)
        prompt = f"prompt {here['prompt']}, " if len(self.prompts) > 1 else ""
        read = (
            f" (after {here['text']!r})"
            if here["text"] is not None
            else f" (after token {here['token']})" * (here["token"] is not None)
        )
        tokens = [
            (
                "no token (all NaN)"
                if here[f"{side}_token"] is None
                else f"{here[f'{side}_token']}"
                + (f" {here[f'{side}_text']!r}" if here[f"{side}_text"] is not None else "")
            )
            for side in ("reference", "variant")
        ]
        chosen = f"{tokens[0]} became {tokens[1]}" if here["is_flip"] else f"both choose {tokens[0]}"
        margins = " and ".join(number(here[f"{side}_margin"]) for side in ("reference", "variant"))
        ulps = " and ".join(number(here[f"{side}_margin_ulps"]) for side in ("reference", "variant"))
        wrong = here["nonfinite_mismatch"]
        odd = f", {wrong:,} NaN or infinite on one side only" if wrong else ""
        return (
            f"{prompt}position {here['position']}{read}: {chosen}, margins {margins} logits ({ulps} ULPs), KL"
            f" {number(here['kl'])} nats, up to {number(here['max_abs'])} logits and {number(here['max_ulps'])} ULPs"
            f" apart{odd}"
        )

    def sentence(self, outcome: Outcome) -> str:
        """An outcome on one line; of a failure with its worst position."""
        worst = ""
        if outcome.outcome == FAILED and outcome.worst is not None:
            worst = f" Worst: {self.in_words(outcome.worst)}."
        return f"{outcome.condition}: {outcome.says}{worst}"

    def table(self) -> str:
        """Every outcome as plain text, a line each, then the notes."""
        told = [f"{outcome.outcome}: {self.sentence(outcome)}" for outcome in self.outcomes]
        return "\n".join([f"gate {self.outcome}", *told, *(f"note: {note}" for note in self.notes)])

    def check(self) -> GateReport:
        """Check the gate in a test: AssertionError with every outcome where anything failed; returns itself."""
        __tracebackhide__ = True
        if self.failed:
            raise AssertionError(self.table())
        return self

    def as_json(self) -> dict[str, Any]:
        def plain(outcome: Outcome) -> dict[str, Any]:
            prompt = {} if outcome.key is None else {"prompt": outcome.prompt, "key": outcome.key}
            return {
                "condition": outcome.condition,
                "reference": outcome.reference,
                "variant": outcome.variant,
                **prompt,
                "outcome": outcome.outcome,
                "figure": plain_number(outcome.figure),
                "unit": outcome.unit,
                "says": outcome.says,
                "worst": None if outcome.worst is None else self.place(outcome.worst),
            }

        worst = self.worst
        return {
            "outcome": self.outcome,
            "conditions": [plain(outcome) for outcome in self.outcomes],
            "worst": (
                None
                if worst is None or worst.worst is None
                else {"reference": worst.reference, "variant": worst.variant, **self.place(worst.worst)}
            ),
            "notes": list(self.notes),
        }


def check_measured(where: str, pairs: Sequence[PairReport]) -> None:
    """StoreError where a figure is undefined that nothing can make so: the file it comes from is damaged, and nothing
    holds of it.
    """
    for pair in pairs:
        for row in ({name: plain_number(value) for name, value in asdict(pair.summary).items()}, *pair.rows):
            lost = [name for name, value in row.items() if value is None and name not in NULLABLE]
            if lost:
                raise StoreError(f"{where}: its figure {lost[0]} is no finite number somewhere; the file is damaged.")


def figure_text(outcome: Outcome) -> str:
    """The figure with its unit: `0.0123 nats`, `74.9% of all elements`, `3 positions`; '' where there is none."""
    if outcome.figure is None or outcome.unit.startswith("of all"):
        return "" if not isinstance(outcome.figure, float) else f"{percent(outcome.figure)} {outcome.unit}"
    return f"{outcome.figure if isinstance(outcome.figure, str) else number(outcome.figure)} {outcome.unit}".strip()


def gate_notes(pairs: Sequence[PairReport]) -> list[str]:
    """Notes on what a gate could not look at, and would else pass over: positions that hold no number on a side."""
    notes = []
    for pair in pairs:
        empty = [row for row in pair.rows if row["reference_token"] is None or row["variant_token"] is None]
        if empty:
            where = f"position {empty[0]['position']} of prompt {empty[0]['prompt']} first"
            notes.append(
                f"at {_of(len(empty), pair)} a side of '{shown(pair.variant, 200)}' against"
                f" '{shown(pair.reference, 200)}' holds no number, {where}."
            )
    return notes


def worst_row(rows: Sequence[Row], key: Callable[[Row], tuple[float, ...]]) -> Row | None:
    """The row with the largest key; None where every key is 0, so where nothing is wrong at any position."""
    worst = max(rows, key=key, default=None)
    return worst if worst is not None and any(key(worst)) else None


def _size(value: float | None) -> float:
    """A figure to sort by: what is undefined is the worst."""
    return math.inf if value is None or value != value else value


def _difference(row: Row) -> tuple[float, ...]:
    return (row["nonfinite_mismatch"], _size(row["max_abs"]), not row["bit_identical"])


def by_flip(row: Row) -> tuple[float, ...]:
    """Rank of a row as a flip, highest where a tie explains it least: both sides are sure of their own token."""
    return (row["is_flip"], _size(smaller_margin(row)), *_difference(row)) if row["is_flip"] else (0,)


def by_kl(row: Row) -> tuple[float, ...]:
    return (is_kl_lost(row), 0 if row["kl"] is None else _size(row["kl"]))


def by_rms(row: Row) -> tuple[float, ...]:
    return (row["nonfinite_mismatch"], _size(row["rms"]))


def by_share(row: Row) -> tuple[float, ...]:
    return (row["neq"],)


def smaller_margin(row: Row, unit: str = "") -> float | None:
    """The smaller of both sides' margins, in logits or with unit '_ulps' in ULPs; None where one is undefined."""
    margins = (row[f"reference_margin{unit}"], row[f"variant_margin{unit}"])
    return None if None in margins else min(margins)


def is_kl_lost(row: Row) -> bool:
    """Return whether KL is undefined or infinite where the sides differ: no limit can be said to hold there."""
    return row["kl"] is None and bool(row["neq"])


_Judged = tuple[bool, float | str | None, str, Callable[[Row], tuple[float, ...]]]


def _bits(_: Condition, pair: PairReport) -> _Judged:
    summary = pair.summary
    if summary.bit_identical:
        return False, 0, "is equal bit for bit", _difference
    what = (
        plural(summary.neq, "value differs", "values differ")
        if summary.neq
        else "all values are equal, but zeros differ in sign or NaNs in their bits"
    )
    return True, summary.neq, f"is not bit-identical ({what})", _difference


def _flips(_: Condition, pair: PairReport) -> _Judged:
    flips = pair.summary.flips
    return (
        flips > 0,
        flips,
        f"has another argmax at {_of(flips, pair)}" if flips else "has the same argmax at every position",
        by_flip,
    )


def _sure_flips(condition: Condition, pair: PairReport) -> _Judged:
    """Flips at which both sides prefer their own token by more than the limit; one with an undefined margin counts."""
    unit = "_ulps" if condition.is_in_ulps else ""
    flips = [row for row in pair.rows if row["is_flip"]]
    sure = [row for row in flips if not _size(smaller_margin(row, unit)) <= condition.limit]
    words = f"{limit_text(condition.limit)} {'ULPs' if condition.is_in_ulps else 'logits'}"
    if sure:
        return (
            True,
            len(sure),
            (
                f"has another argmax at {_of(len(sure), pair)} with both margins over {words}, of"
                f" {plural(len(flips), 'flip')} in all"
            ),
            by_flip,
        )
    if not flips:
        return False, 0, "has the same argmax at every position", by_flip
    most = max(_size(row[f"{side}_margin"]) for row in flips for side in ("reference", "variant"))
    excused = (
        f"has {plural(len(flips), 'flip')}, none with both margins over {words}; at one of them a side prefers its"
        f" token by {number(most)} logits"
    )
    return False, 0, excused, by_flip


def _ulps(condition: Condition, pair: PairReport) -> _Judged:
    summary = pair.summary
    is_failed = summary.max_ulps > condition.limit or summary.nonfinite_mismatch > 0

    def key(row: Row) -> tuple[float, ...]:
        return (row["nonfinite_mismatch"], _size(row["max_ulps"]))

    return is_failed, summary.max_ulps, f"is up to {summary.max_ulps:,} ULPs apart{_mismatch(pair)}", key


def _kl(condition: Condition, pair: PairReport) -> _Judged:
    largest = pair.summary.max_kl
    undefined = [row for row in pair.rows if row["kl"] is None]
    lost = [row for row in undefined if is_kl_lost(row)]
    over = sum(1 for row in pair.rows if row["kl"] is not None and row["kl"] > condition.limit)
    says = "has no KL anywhere" if largest is None else f"has a KL of up to {number(largest)} nats"
    if over:
        says += f", more than {limit_text(condition.limit)} at {_of(over, pair)}"
    if lost:
        says += f"; at {_of(len(lost), pair)} it is undefined or infinite"
    if len(undefined) > len(lost):
        says += f"; {_of(len(undefined) - len(lost), pair)} where the sides are equal and KL is undefined are left out"
    is_within = largest is None or largest <= condition.limit
    return bool(lost or over) or not is_within, largest, says, by_kl


def _rms(condition: Condition, pair: PairReport) -> _Judged:
    is_failed = not pair.summary.rms <= condition.limit or pair.summary.nonfinite_mismatch > 0
    return (
        is_failed,
        pair.summary.rms,
        f"differs by {number(pair.summary.rms)} logits (rms over all elements){_mismatch(pair)}",
        by_rms,
    )


def _max_abs(condition: Condition, pair: PairReport) -> _Judged:
    is_failed = not pair.summary.max_abs <= condition.limit or pair.summary.nonfinite_mismatch > 0
    return (
        is_failed,
        pair.summary.max_abs,
        f"differs by up to {number(pair.summary.max_abs)} logits{_mismatch(pair)}",
        _difference,
    )


def _share(condition: Condition, pair: PairReport) -> _Judged:
    share = pair.summary.neq_share
    return (
        not share <= condition.limit,
        share,
        f"differs in {percent(share)} of elements ({pair.summary.neq:,})",
        by_share,
    )


def _same_top1(condition: Condition, pair: PairReport) -> _Judged:
    same = pair.summary.same_top1
    says = (
        f"has the same argmax at {len(pair.rows) - pair.summary.flips:,} of {plural(len(pair.rows), 'position')}"
        f" ({percent(same)})"
    )
    return not same >= condition.limit, same, says, by_flip


def _verdict(_: Condition, pair: PairReport) -> _Judged:
    because = f": {pair.because.rstrip('. ')}" if pair.because else ""
    if pair.verdict == "not judged":
        because = f": no controls were run; `{COMMAND} judge` or `capture --judge` runs them"
    if f"`{COMMAND} verdict RUN " in because:  # a dump that is compared is not stored, so no run is called anything
        because += f", where RUN is the id that `{COMMAND} ingest` prints"
    return pair.verdict in FAILING, pair.verdict, f"is {pair.verdict}{because}", _difference


_JUDGES: dict[str, Callable[[Condition, PairReport], _Judged]] = {
    "bits": _bits,
    "flips": _flips,
    "flips:margin": _sure_flips,
    "ulps": _ulps,
    "kl": _kl,
    "rms": _rms,
    "max-abs": _max_abs,
    "share": _share,
    "same-top1": _same_top1,
    "verdict": _verdict,
}


def _mismatch(pair: PairReport) -> str:
    """Figures of size are over elements that are finite on both sides; the others cannot be within any limit."""
    wrong = pair.summary.nonfinite_mismatch
    return f", and {plural(wrong, 'value is', 'values are')} NaN or infinite on one side only" if wrong else ""


def _of(count: int, pair: PairReport) -> str:
    return f"{count:,} of {plural(len(pair.rows), 'position')}"


def limit_text(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.15g}"
