"""The gate of `compare`: the outcomes of conditions on the pairs of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ...errors import StoreError
from ...evidence import FAILED, PASSED
from ...numerics.metrics import COUNTS_OF_TOKENS, NULLABLE, OF_TOKENS
from ...text import number, percent, plural
from ...verdict import UNDECIDED, Checked
from ..file.records import UNITS, VALUE, Prompt
from ..measured import MemoryRun
from ..reader import RunReader
from .conditions import Condition, Outcome, Record, by_difference, check_decidable, of_positions
from .report_json import PairReport, plain_number


@dataclass(frozen=True)
class GateReport(Checked):
    """Result of a gate: one outcome a pair and condition.

    prompts: empty if rows hold their tokens' texts already; rows: every position of a pair, by
    (reference, variant).
    """

    outcomes: tuple[Outcome, ...]
    prompts: tuple[Prompt, ...] = ()
    vocabulary: dict[int, str] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()
    unit: str = "logits"
    rows: Mapping[tuple[str, str], Sequence[Record]] = field(default_factory=dict, repr=False)

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.outcome == FAILED]

    @property
    def outcome(self) -> str:
        """'failed' if anything failed, 'undecided' if nothing was decided, else 'passed'."""
        outcomes = {outcome.outcome for outcome in self.outcomes}
        return next((each for each in (FAILED, PASSED) if each in outcomes), UNDECIDED)

    @property
    def worst(self) -> Outcome | None:
        """The outcome with the worst position: of those that failed, or of all if none did."""
        candidates = [each for each in self.failed or self.outcomes if each.worst]
        # conditions rank positions differently: between them the difference decides
        return max(candidates, key=lambda each: by_difference(each.worst or {}), default=None)

    def place(self, row: Record) -> Record:
        """Add to a position the token read there and the texts of the tokens."""
        if not self.prompts:
            return row
        position = row["position"]
        prompt = self.prompts[row["prompt"]]
        token = prompt.token_ids[position] if prompt.token_ids else None
        text = self.vocabulary.get(-1 if token is None else token)
        if prompt.token_texts:
            text = prompt.token_texts[position]
        place = {"prompt": row["prompt"], "position": position, "token": token, "text": text, **row}
        for side in ("reference", "variant"):
            place[f"{side}_text"] = self.vocabulary.get(row[f"{side}_token"])
        return place

    def in_words(self, row: Record) -> str:
        """`position 17 (after ' the'): 473 ' cat' became 1716 ' dog', margins 0.31 and 0.06 logits
        (5 and 1 ULPs), ...`
        """
        place = self.place(row)
        prompt = f"prompt {place['prompt']}, " if len(self.prompts) != 1 else ""
        difference = f"largest difference {number(place['max_abs'])} {self.unit}"
        mismatch = place.get("nonfinite_mismatch")
        odd = f", {mismatch:,} NaN or infinite on one side only" if mismatch else ""
        if place["is_flip"] is None and place["reference_token"] is place["variant_token"] is None:
            word = "row" if self.unit == UNITS[VALUE] else "position"
            return f"{prompt}{word} {place['position']}: {difference}{odd}"
        context = ""
        if place.get("text"):
            context = f" (after {place['text']!r})"
        elif place.get("token") is not None:
            context = f" (after token {place['token']})"
        tokens = []
        for side in ("reference", "variant"):
            token, text = place[f"{side}_token"], place[f"{side}_text"]
            words = "no token"
            if token is not None:
                words = f"{token}" if text is None else f"{token} {text!r}"
            tokens.append(words)
        change = " became ".join(tokens) if place["is_flip"] else f"both choose {tokens[0]}"
        margins = place["reference_margin"], place["variant_margin"]
        ulps = place["reference_margin_ulps"], place["variant_margin_ulps"]
        sizes = f"{' and '.join(map(number, margins))} {self.unit}"
        # lists of servers seldom show the dtype that ULPs are of
        if ulps != (None, None):
            sizes += f" ({' and '.join(map(number, ulps))} ULPs)"
        name, unit = "max_ulps", "ULPs"
        # Elements near zero are thousands of ULPs apart by rounding alone: what passed is said in
        # the row's spacing.
        if not self.failed and "max_row_ulps" in place:
            name, unit = "max_row_ulps", "row ULPs"
        if place[name] is not None:
            difference += f" and {number(place[name])} {unit}"
        return (
            f"{prompt}position {place['position']}{context}: {change}, margins"
            f" {sizes}, KL {number(place['kl'])} nats, {difference}{odd}"
        )

    def sentence(self, outcome: Outcome) -> str:
        """Return an outcome on one line, a failure with its worst position."""
        says = f"{outcome.condition}: {outcome.says}"
        if outcome.outcome == FAILED and outcome.worst:
            says += f" Worst: {self.in_words(outcome.worst)}."
        return says

    def table(self) -> str:
        """Every outcome as plain text, a line each, then the notes."""
        lines = [f"gate {self.outcome}"]
        lines += [f"{outcome.outcome}: {self.sentence(outcome)}" for outcome in self.outcomes]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    __str__ = table

    def check(self) -> GateReport:
        """Check the gate in a test: AssertionError with every outcome if anything failed; returns
        itself.
        """
        # pytest then shows the line of the test, not this one
        __tracebackhide__ = True
        if self.failed:
            raise AssertionError(self.table())
        return self

    def as_json(self) -> dict[str, Any]:
        conditions = []
        for outcome in self.outcomes:
            worst = outcome.worst and self.place(outcome.worst)
            figure = plain_number(outcome.figure)
            conditions.append({**asdict(outcome), "figure": figure, "worst": worst})
        worst = None
        if of_all := self.worst:
            sides = {"reference": of_all.reference, "variant": of_all.variant}
            worst = sides | self.place(of_all.worst or {})
        return {
            "outcome": self.outcome,
            "conditions": conditions,
            "worst": worst,
            "notes": list(self.notes),
        }


def gate_of(
    run: RunReader | MemoryRun,
    pairs: Sequence[PairReport],
    conditions: Sequence[Condition],
) -> GateReport:
    """Judge the pairs of a run by conditions. UsageError for one that cannot be decided of it."""
    check_decidable(conditions, pairs)
    may_be_null = NULLABLE if run.header.has_tokens else NULLABLE | OF_TOKENS | COUNTS_OF_TOKENS
    for pair in pairs:
        for row in [] if pair.is_list else [pair.figures, *pair.rows]:
            for name, value in row.items():
                if name not in may_be_null and not isinstance(value, int | float):
                    raise StoreError(
                        f"{run.path.name}: its figure {name} is not a finite number; the file is"
                        " damaged.",
                    )
    outcomes = tuple(condition.judge(pair) for condition in conditions for pair in pairs)
    notes = [run.header.kept_note] if run.header.is_list else []
    for pair in pairs:
        # positions without a number on a side
        empty = [row for row in pair.rows if None in (row["reference_token"], row["variant_token"])]
        if empty and not pair.is_list and pair.has_tokens:
            first = f"position {empty[0]['position']} of prompt {empty[0]['prompt']} first"
            notes.append(
                f"at {of_positions(len(empty), pair.rows)} a side of {pair.sides} holds no number,"
                f" {first}.",
            )
    rows = {
        (pair.reference, pair.variant): pair.rows
        for pair in pairs
        if len(pair.rows) == pair.positions
    }
    about = run.header.prompts, run.vocabulary, tuple(notes), run.header.unit
    return GateReport(outcomes, *about, rows)


def figure_text(outcome: Outcome) -> str:
    """Return the figure with its unit: `0.0123 nats`, `74.9% of all elements`, `3 positions`; '' if
    there is none.
    """
    figure = outcome.figure
    if figure is None or isinstance(figure, str):
        return f"{figure} {outcome.unit}".strip() if figure else ""
    if outcome.unit == "positions":
        return plural(int(figure), "position")
    is_share = outcome.unit.startswith("of all")
    return f"{percent(figure) if is_share else number(figure)} {outcome.unit}".strip()
