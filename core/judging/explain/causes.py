"""Every hypothesis about a pair in one list, which causes are named, and what was not looked for.

A hypothesis is a function `(pair: PairRows) -> Iterator[Cause]` with few parameters; it raises `TooFewError` if the
pair lacks what it needs. To add one: fit it to the first of `scoring.halves`, let `scoring.score` undo it on the
second, give the result a name and a sentence, and list the function here. What is only observed has no share that it
explains. Its test is a planted cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ...runs.file.evidence import PairFigures
from ...runs.reader import RunReader
from ...runs.topk.pairing import ListPair, compare_sides
from ...runs.topk.placeholders import MASKED, clauses
from ...runs.topk.records import ListSide
from ...text import opening
from .observations import jumps, masked, other_tokens, renormalized, sampler, upcast
from .places import misplaced_rows, moved_ids
from .rows import PairRows, TooFewError, rows_of_lists, rows_of_run
from .scoring import Cause
from .tokens import bias, penalty
from .values import clamped, constant, rounded, soft_capping, temperature

HYPOTHESES: dict[str, Callable[[PairRows], Iterator[Cause]]] = {
    "temperature": temperature,
    "constant": constant,
    "soft-capping": soft_capping,
    "clamping": clamped,
    "penalty": penalty,
    "logit bias": bias,
    "coarser dtype": rounded,
    "upcast": upcast,
    "shifted, other or repeated rows": misplaced_rows,
    "moved ids": moved_ids,
    "masks and padding": masked,
    "renormalized top-k": renormalized,
    "other tokens": other_tokens,
    "sampler": sampler,
    "jumps": jumps,
}
_OF_VALUES = {"temperature", "constant", "soft-capping", "clamped", "penalty", "logit bias", "rounded", "upcast"}
# What another cause brings with it: if that is claimed, this says nothing more.
_IMPLIED: tuple[tuple[set[str], set[str]], ...] = (
    ({"logit bias"}, {"penalty"}),
    ({"sampler", "other rows", "repeated rows"}, {"shifted rows"}),
    ({"other rows"}, {"moved ids"}),
    ({*_OF_VALUES, "jumps"}, {"shifted rows", "other rows", "repeated rows", "moved ids"}),
    ({"upcast"}, _OF_VALUES - {"upcast"}),
)


@dataclass(frozen=True)
class Explanation:
    """Causes that are claimed of a pair, those that explain most first, then observations. rows: how many were looked
    at, of those compared. looked_for: hypotheses; not_looked_for: what was missing -> those that need it.
    """

    causes: list[Cause]
    rows: int
    compared: int
    looked_for: list[str]
    not_looked_for: dict[str, list[str]]

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "causes": [cause.to_json() for cause in self.causes], "looked_at": self.says}

    @property
    def says(self) -> str:
        """What was looked at and what there was too little of; '' for equal sides."""
        missing = "".join(f" Not: {', '.join(names)} (needs {what})." for what, names in self.not_looked_for.items())
        looked_at = f"Looked at {self.rows:,} of {self.compared:,} rows for: {', '.join(self.looked_for)}."
        return looked_at + missing if self.looked_for else ""


def explain(pair: PairRows) -> Explanation:
    """Run every hypothesis for which a pair has enough rows and values."""
    causes: list[Cause] = []
    looked_for: list[str] = []
    not_looked_for: dict[str, list[str]] = {}
    for name, hypothesis in HYPOTHESES.items():
        try:
            causes += hypothesis(_undone(pair, causes) if hypothesis in (penalty, bias) else pair)
            looked_for.append(name)
        except TooFewError as error:
            not_looked_for.setdefault(str(error), []).append(name)
    best = _best(causes)
    claimed = {cause.name for cause in causes if cause.undo is None or cause is best}
    implied = {name for weak, strong in _IMPLIED if claimed & strong for name in weak}
    if pair.has_constants and claimed & {"renormalized", "penalty", "logit bias"}:  # which move the log-sum too
        implied.add("constant")
    causes = [cause for cause in causes if cause.name in claimed - implied]
    causes.sort(key=lambda cause: -(2.0 if cause.name == "other tokens" else cause.explained or 0.0))
    return Explanation(causes, len(pair.rows), pair.compared, looked_for, not_looked_for)


def _best(causes: list[Cause]) -> Cause | None:
    """Return the cause of all values that leaves least; one that leaves more than noise only if there is no other."""
    return min((one for one in causes if one.undo), key=lambda one: (not one.is_noise, one.left_rms), default=None)


def _undone(pair: PairRows, causes: list[Cause]) -> PairRows:
    """Return the pair without the cause that all values have."""
    if (best := _best(causes)) is None or best.undo is None:
        return pair
    if not best.is_noise:
        raise TooFewError("one temperature of all rows")
    return replace(pair, rows=[best.undo(row) for row in pair.rows], factor=best.parameters.get("factor", 1.0))


def explain_pair(run: RunReader, pair: int) -> Explanation:
    """Return the causes of a stored pair; of a judged one each says how many noise floors it leaves."""
    if run.header.k is not None:
        sides = run.lists()
        return explain_lists(compare_sides(sides[0], sides[pair + 1]), sides[0], sides[pair + 1])
    if run.pairs[pair].summary.bit_identical:
        return Explanation([], 0, run.header.rows, [], {})
    explanation = explain(rows_of_run(run, pair))
    dtype, figures = run.header.compute_dtype, [row.figures for row in run.evidence(pair)]
    floors = [one.floor_rms_logits for one in figures if isinstance(one, PairFigures) and one.compute_dtype == dtype]
    floor = max(floors, default=0.0)
    return replace(explanation, causes=[one.in_floors(floor) for one in explanation.causes]) if floor else explanation


def explain_lists(pair: ListPair, reference: ListSide, variant: ListSide) -> Explanation:
    """Return the causes of a pair of lists, values that are no values of a model before all."""
    explanation = explain(rows_of_lists(pair, reference, variant))
    missing = []
    for name, is_mask in (("masking", True), ("placeholders", False)):
        kinds = [one for one in pair.placeholders if (one.kind == MASKED) == is_mask]
        missing += [Cause(name, f"{opening(clause)}.") for clause in clauses(kinds)]
    return replace(explanation, causes=[*missing, *explanation.causes])
