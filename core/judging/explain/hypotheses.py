"""Every hypothesis about a pair: what it needs, which of their causes are told, and what was not looked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...text import plural
from .alignment import moved_ids, other_rows, other_tokens, shifted_rows, shifted_values
from .grids import coarser, upcast
from .masks import masked, padded, renormalized
from .observations import FEWEST_ROWS, jumps, sampler
from .penalties import FEWEST_TOKENS, bias, penalty
from .rows import PairRows
from .scoring import LEAST_ROWS, LEAST_TOKENS, Cause, halves
from .transforms import transform_of

_ONE_ROW = 128  # values of a row that is split

Needs = Callable[[PairRows], str]
"""What a pair has too little of for a hypothesis, '' where nothing is missing."""


def _values(pair: PairRows) -> str:
    is_enough = halves(pair.rows) is not None
    return "" if is_enough else f"needs {2 * LEAST_ROWS} rows of {LEAST_TOKENS} shared values, or a row of {_ONE_ROW}"


def _logits(pair: PairRows) -> str:
    return _values(pair) if pair.values == "logit" else "needs logits"


def _rows(pair: PairRows) -> str:
    is_enough = halves(pair.rows, FEWEST_TOKENS, in_parts=False) is not None
    return "" if is_enough else f"needs {2 * LEAST_ROWS} rows of {FEWEST_TOKENS} shared values"


def _text(pair: PairRows) -> str:
    return _rows(pair) if any(row.before for row in pair.rows) else "needs the token ids of the text"


def _places(pair: PairRows) -> str:
    return "" if len(pair.places) > 2 * LEAST_ROWS else f"needs {2 * LEAST_ROWS + 1} rows"


def _two_rows(pair: PairRows) -> str:
    return "" if len(pair.places) > 1 else "needs 2 rows"


def _complete(pair: PairRows) -> str:
    return "" if pair.is_full else "needs the whole vocabulary"


def _complete_rows(pair: PairRows) -> str:
    return _complete(pair) or _rows(pair)


def _many_rows(pair: PairRows) -> str:
    return "" if len(pair.rows) >= FEWEST_ROWS else f"needs {FEWEST_ROWS} rows"


def _anything(_: PairRows) -> str:
    return ""


@dataclass(frozen=True)
class Hypothesis:
    """finds: of a pair the causes that it claims. of_rest: it is asked of what a function of all values leaves."""

    looks_for: str
    finds: Callable[[PairRows], Iterator[Cause]]
    needs: Needs = _anything
    of_rest: bool = False


# The one list. Functions of all values are asked together, for the best one only is told: `transform_of`.
HYPOTHESES = (
    Hypothesis("other tokens", other_tokens),
    Hypothesis("shifted rows", shifted_rows, _places),
    Hypothesis("shifted rows", shifted_values, _places),
    Hypothesis("other or repeated rows", other_rows, _two_rows),
    Hypothesis("moved ids", moved_ids, _complete_rows),
    Hypothesis("temperature", lambda _: iter(()), _values),
    Hypothesis("constant", lambda _: iter(()), _values),
    Hypothesis("soft-capping", lambda _: iter(()), _logits),
    Hypothesis("clamping", lambda _: iter(()), _logits),
    Hypothesis("coarser dtype", coarser, _values),
    Hypothesis("penalty", penalty, _text, of_rest=True),
    Hypothesis("logit bias", bias, _rows, of_rest=True),
    Hypothesis("masks", masked, _complete),
    Hypothesis("padding", padded, _complete),
    Hypothesis("renormalized top-k", renormalized),
    Hypothesis("upcast", upcast, _complete),
    Hypothesis("sampler", sampler),
    Hypothesis("jumps", jumps, _many_rows),
)
_OF_VALUES = {"temperature", "constant", "soft-capping", "clamped", "penalty", "logit bias", "rounded", "upcast"}
_MISPLACED = {"shifted rows", "other rows", "repeated rows", "moved ids"}
# What another cause brings with it: where that is claimed, this says nothing more.
_IMPLIED: tuple[tuple[set[str], set[str]], ...] = (
    ({"logit bias"}, {"penalty"}),
    ({"sampler", "other rows", "repeated rows"}, {"shifted rows"}),
    ({"other rows"}, {"moved ids"}),
    ({*_OF_VALUES, "jumps"}, _MISPLACED),
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
        return {**asdict(self), "looked_at": self.says}

    @property
    def says(self) -> str:
        """Return what was looked at and what there was too little of; '' for equal sides."""
        if not self.looked_for:
            return ""
        sampled = f" sampled of {self.compared:,}" if self.rows < self.compared else ""
        says = f"Looked at {plural(self.rows, 'row')}{sampled} for: {', '.join(self.looked_for)}."
        if self.not_looked_for:
            missing = "; ".join(f"{', '.join(names)} ({why})" for why, names in self.not_looked_for.items())
            says += f" Not looked for: {missing}."
        return says


def explain(pair: PairRows) -> Explanation:
    """Run every hypothesis for which a pair has enough rows and values."""
    transform = transform_of(pair)
    rest: PairRows | None = pair
    found = []
    if transform is not None:
        found.append(transform.cause)
        undone = tuple(transform.undo(row) for row in pair.rows)
        rest = replace(pair, rows=undone, factor=transform.factor) if transform.is_noise else None
    looked_for: list[str] = []
    not_looked_for: dict[str, list[str]] = {}
    for hypothesis in HYPOTHESES:
        asked = rest if hypothesis.of_rest else pair
        missing = hypothesis.needs(pair) or ("" if asked else "more than one temperature differs")
        if asked is not None and not missing:
            found += hypothesis.finds(asked)
        names = not_looked_for.setdefault(missing, []) if missing else looked_for
        if hypothesis.looks_for not in names:
            names.append(hypothesis.looks_for)
    claimed = {cause.name for cause in found}
    implied = {name for weak, strong in _IMPLIED if claimed & strong for name in weak}
    if pair.has_constants and claimed & {"renormalized", "penalty", "logit bias"}:  # which move the log-sum too
        implied.add("constant")
    told = [cause for cause in found if cause.name not in implied]
    told.sort(key=lambda cause: -(2.0 if cause.name == "other tokens" else cause.explained or 0.0))
    return Explanation(told, len(pair.rows), pair.compared, looked_for, not_looked_for)


def causes_of(pair: PairRows) -> list[Cause]:
    """Every cause that is claimed. Empty: no simple cause found."""
    return explain(pair).causes
