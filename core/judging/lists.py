"""Lists of top tokens judged: of a probe, of uploaded responses, and with a model's noise floor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..rl.causes import NO_TEMPERATURE, explain_tokens
from ..rl.writing import TokenPair
from ..runs.file.evidence import (
    FAILED,
    NOTED,
    PASSED,
    Check,
    Evidence,
    SentFigures,
    Unmeasured,
    Verdict,
)
from ..runs.file.records import BUG_SUSPECTED, IDENTICAL, INVALID_DUMP, UNDECIDED
from ..runs.topk.pairing import ListPair, compare_sides
from ..runs.topk.records import ListSide
from ..text import number, opening, plural
from .explain.causes import explain
from .explain.rows import rows_of_lists
from .explain.scoring import Cause
from .judge import Controls, NotAvailableError, Pair, Rerun, judge

_REQUESTS = "the requests that were sent"
_NORMAL_K3 = "NeMo-RL: about 0.001 is normal"  # of its `gen_kl_error`, the same figure


@dataclass
class ListControls(Controls):
    """One pair of lists. repeats: of a probe, whether a side gives the same answer again;
    floor_row: of a model.
    """

    lists: ListPair
    sides: Sequence[ListSide]
    repeats: Mapping[str, bool] = field(default_factory=dict)
    floor_row: Evidence | None = None

    def __post_init__(self) -> None:
        pair = self.lists
        self.names, self.lengths, self.dtype = (
            (pair.reference, pair.variant),
            [len(pair.positions)],
            "",
        )
        self.parting = next((each for each in pair.meetings if each.is_parting_in_prompt), None)
        self.is_certain = not pair.differs and 2 * pair.certain > len(pair.positions)
        self.is_text_alone = bool(self.repeats) and not pair.differs and pair.has_other_text
        doubts = pair.differs, pair.placeholders, self.parting, self.is_certain, self.is_text_alone
        self.is_identical = pair.common_values > 0 and pair.is_most_compared and not any(doubts)

    def validity(self) -> list[Evidence]:
        """Return what both sides sent (values, placeholders, inputs, the dtype of values) and the
        noise floor.
        """
        pair, rows = self.lists, [self.floor_row] if self.floor_row else []

        def add(
            check: Check,
            outcome: str,
            says: str,
            side: str | None = None,
            **figures: Any,
        ) -> None:
            rows.append(Evidence(check, _REQUESTS, check.record(**figures), outcome, says, side))

        zeros = (
            f"; {plural(pair.zeros, 'token')} of probability 0 not compared" if pair.zeros else ""
        )
        outcome = NOTED if pair.differs or not pair.common_values else PASSED
        left_out = f"; {pair.left_out}" if pair.left_out else ""
        add(
            Check.SENT,
            outcome,
            f"{opening(pair.in_words)}{zeros}{left_out}.",
            positions=len(pair.positions),
            values=pair.common_values,
            neq=pair.differing,
            flips=pair.flips,
        )
        for one in pair.placeholders:
            outcome, says = FAILED if pair.is_void else NOTED, f"{opening(one.clause)}."
            add(
                Check.PLACEHOLDERS,
                outcome,
                says,
                one.side,
                kind=one.kind,
                tokens=one.tokens,
                of=one.of,
            )
        for note in pair.notes:
            add(Check.CONTEXT, FAILED if self.parting else NOTED, note, prompts=len(pair.meetings))
        for name, grid in zip(self.names, pair.grids, strict=True):
            if grid is not None:
                dtype = grid.compute_dtype or " or ".join(grid.formats)
                add(
                    Check.GRID,
                    NOTED,
                    f"Its values are logits of {dtype}.",
                    name,
                    formats=grid.formats,
                )
        return rows

    def pair(self, dtype: str) -> Pair:
        if dtype:
            raise NotAvailableError("")
        return Pair(np.zeros(1), is_identical=self.is_identical)

    def rerun(self) -> Rerun:
        repeats = {name: self.repeats[name] for name in self.names if name in self.repeats}
        if not repeats:
            raise NotAvailableError("")
        unstable = tuple(name for name, is_same in repeats.items() if not is_same)
        return Rerun("the same request sent again", tuple(repeats), unstable)

    def arrays_alone(self) -> Evidence | None:
        faults = [cause.says for cause in self.simple_causes[:1] if cause.is_fault]
        return (
            Evidence(Check.ARRAYS_ALONE, "the lists alone", Unmeasured(), FAILED, faults[0])
            if faults
            else None
        )

    @cached_property
    def simple_causes(self) -> Sequence[Cause]:
        return (
            []
            if self.is_identical
            else explain(rows_of_lists(self.lists, self.sides[0], self.sides[1])).causes
        )

    @property
    def causes(self) -> Sequence[str]:
        if self.floor_row and self.lists.is_most_compared:
            return [self.floor_row.says]
        says = f"{opening(next(self._says())).removesuffix('.')}."
        return [f"{says} {self.floor_row.says}" if self.floor_row else says]

    def _says(self) -> Iterator[str]:
        """Yield what there is to say about the pair, the most telling first."""
        pair = self.lists
        words = f"{pair.left_out}; {pair.in_words}" if pair.left_out else pair.in_words
        placeholders = [one.clause for one in pair.placeholders[:1]]
        for cause in self.simple_causes if placeholders else ():
            if cause.name == "renormalized":  # of which what else is named is a part
                yield f"{cause.says.removesuffix('.')}; {placeholders[0]}"
        if pair.is_void:
            yield from placeholders
        if self.simple_causes and (
            self.simple_causes[0].is_fault or self.parting or not placeholders
        ):
            yield self.simple_causes[0].says
        if self.parting is not None:
            yield (
                f"the inputs differ from position {self.parting.parting} of prompt"
                f" {self.parting.prompt} on"
            )
        yield from placeholders
        if not pair.is_most_compared:
            yield f"only {words}"
        if self.is_certain:
            yield (
                f"both sides send probability 1 for a token at {pair.certain:,} positions:"
                " placeholders, or a mask"
            )
        if self.is_text_alone:
            yield f"the texts differ, although {words}"
        has_ids = pair.keys == "token_id" and all(each.is_prompt_checked for each in pair.meetings)
        yield (
            f"{words}. To decide, bring the model's weights"
            if pair.differing and has_ids
            else words
        )


def judge_probe(sides: Sequence[ListSide], pairs: Sequence[ListPair]) -> list[Verdict]:
    """Judge each pair of a probe, whose side 'warm again' is the rerun of 'warm'.

    What a request under load shares a batch with depends on the moment: it may differ from its
    rerun without a fault.
    """
    by_name, repeats = {side.name: side for side in sides}, {}
    for name, side in by_name.items():
        if (again := by_name.get(f"{name} again")) is not None:
            is_same = not ((pair := compare_sides(side, again)).differs or pair.has_other_text)
            if is_same or "load:" not in name:
                repeats[name] = repeats[again.name] = is_same
    return judge_responses(sides, pairs, repeats)


def judge_responses(
    sides: Sequence[ListSide],
    pairs: Sequence[ListPair],
    repeats: Mapping[str, bool] | None = None,
) -> list[Verdict]:
    """Judge each pair of responses, the first side with each other. repeats: as of ListControls."""
    controls = [
        ListControls(pair, (sides[0], side), repeats or {})
        for pair, side in zip(pairs, sides[1:], strict=True)
    ]
    return [
        replace(judge(each), first_place=None, pair=index) for index, each in enumerate(controls)
    ]


def judge_with_floor(
    earlier: Verdict,
    pair: ListPair,
    sides: Sequence[ListSide],
    floor: Evidence,
) -> Verdict:
    """Judge a stored, undecided pair again with a model's noise floor."""
    # what had failed had not decided
    rows = tuple(row for row in earlier.evidence if row.outcome != FAILED)
    if not pair.is_most_compared and floor.outcome == PASSED:
        floor = replace(floor, outcome=NOTED)
    verdict = judge(ListControls(pair, sides, floor_row=floor), replace(earlier, evidence=rows))
    ratio = getattr(floor.figures, "noise_ratio", None)
    return replace(verdict, noise_ratio=ratio, first_place=None, pair=earlier.pair)


def judge_tokens(tokens: TokenPair) -> Verdict:
    """Judge two files of chosen tokens by the causes that one value per token can show."""
    figures, name = tokens.summary, UNDECIDED
    of = f"of {figures.finite:,} log-probabilities of chosen tokens"
    constants = zip(tokens.sample.names, tokens.constants, strict=True)
    if constant := next(
        (f"'{side}' is {value}" for side, value in constants if value is not None),
        "",
    ):
        name, says = INVALID_DUMP, f"Every value of {constant}: placeholders."
    elif not figures.finite:
        says = "No token has a log-probability on both sides."
    elif not figures.neq:
        name, says = IDENTICAL, f"{figures.finite:,} {of} are equal; other tokens are not compared."
    elif causes := sorted(
        explain_tokens(tokens.sample),
        key=lambda cause: not cause.is_fault,
    ):
        name, says = BUG_SUSPECTED if causes[0].is_fault else UNDECIDED, causes[0].says
    else:
        size = (
            f"k3 {number(tokens.k3)} nats ({_NORMAL_K3}), largest difference"
            f" {number(figures.max_abs)} nats"
        )
        says = (
            f"{size}; no simple cause, and one value per token cannot tell rounding from a fault."
        )
        if tokens.sample.entropy is None:
            says = f"{says} {NO_TEMPERATURE}"
    record = SentFigures(
        positions=tokens.positions,
        values=figures.finite,
        neq=figures.neq,
        flips=None,
    )
    outcome = {INVALID_DUMP: FAILED, BUG_SUSPECTED: FAILED, IDENTICAL: PASSED}.get(name, NOTED)
    return Verdict(
        name,
        says,
        (Evidence(Check.SENT, "both sides, token by token", record, outcome, says),),
    )
