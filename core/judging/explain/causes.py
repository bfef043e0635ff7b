"""Every hypothesis about a pair in one list: what each needs, which causes are named, and what was not looked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ...runs.file.evidence import PairFigures
from ...runs.reader import RunReader
from ...runs.topk.pairing import ListPair, compare_sides
from ...runs.topk.placeholders import MASKED, clauses
from ...runs.topk.records import ListSide
from ...text import number, opening, plural
from .places import moved_ids, other_rows, other_tokens, shifted_rows, shifted_values
from .rows import PairRows, rows_of_lists, rows_of_run
from .scoring import LEAST_ROWS, LEAST_TOKENS, Cause, centered, halves
from .tokens import FEWEST_TOKENS, bias, masked, padded, penalty, renormalized
from .values import coarser, transform_of, upcast

_ONE_ROW = 128  # values of a row that is split
_FEWEST_ROWS = 20  # among which jumps are looked for
_JUMP_SHARE, _JUMP_ROWS = 0.9, 0.1
_JUMP_FACTOR, _JUMP_FACTOR_OF_LISTS = 10.0, 20.0  # times the middle position


def sampler(pair: PairRows) -> Iterator[Cause]:
    """Observation: tokens that were emitted are not the top ones, which greedy decoding would have emitted."""
    for side in (0, 1):
        seen = [one for one in pair.emitted if one[0] == side]
        other = [one for one in seen if one[3] != one[4]]
        if len(other) >= 2 or (other and len(seen) < 8):
            _, prompt, position, top, chosen = other[0]
            yield Cause(
                "sampler",
                f"'{pair.names[side]}' emitted another token than its best at {len(other):,} of"
                f" {plural(len(seen), 'position')}, first at position {position} of prompt {prompt} ({chosen} in place"
                f" of {top}): it sampled, or a penalty or mask stood between.",
                {"positions": len(other), "position": position, "prompt": prompt},
            )


def jumps(pair: PairRows) -> Iterator[Cause]:
    """Observation: nearly all of the difference lies at a few positions, and the others are close."""
    rows = [row for row in pair.rows if len(row.x)]
    sizes = np.array([float(np.sqrt((centered(row.y - row.x, pair.has_constants) ** 2).mean())) for row in rows])
    if len(sizes) < _FEWEST_ROWS:
        return
    order = np.argsort(-sizes)
    squares = sizes[order] ** 2
    few = int(np.searchsorted(np.cumsum(squares), _JUMP_SHARE * squares.sum()) + 1)
    middle = float(np.median(sizes))
    factor = _JUMP_FACTOR if pair.is_full else _JUMP_FACTOR_OF_LISTS
    if few > _JUMP_ROWS * len(sizes) or middle <= 0 or sizes[order[few - 1]] < factor * middle:
        return
    listed = ", ".join(f"{rows[i].position}" for i in sorted(order[: min(few, 5)])) + (", ..." if few > 5 else "")
    looked_at = plural(len(sizes), "row") + (f" sampled of {pair.compared:,}" if len(sizes) < pair.compared else "")
    yield Cause(
        "jumps",
        f"{few} of {looked_at} ({'position' if few == 1 else 'positions'} {listed}) hold {_JUMP_SHARE:.0%} of the"
        f" squared difference, up to {number(float(sizes[order[0]]) / middle, 2)}x the median. Typical of a different"
        " MoE route or a bug at single positions.",
        {"positions": [rows[i].position for i in order[:few]]},
    )


# (looked for, function, what it needs by the names of `_missing`); None: asked together by `transform_of`, which names
# the best one only.
HYPOTHESES: tuple[tuple[str, Callable[[PairRows], Iterator[Cause]] | None, tuple[str, ...]], ...] = (
    ("other tokens", other_tokens, ()),
    ("shifted rows", shifted_rows, ("places",)),
    ("shifted rows", shifted_values, ("places",)),
    ("other or repeated rows", other_rows, ("two rows",)),
    ("moved ids", moved_ids, ("complete", "rows")),
    ("temperature", None, ("values",)),
    ("constant", None, ("values",)),
    ("soft-capping", None, ("logits", "values")),
    ("clamping", None, ("logits", "values")),
    ("coarser dtype", coarser, ("values",)),
    ("penalty", penalty, ("text", "rows")),
    ("logit bias", bias, ("rows",)),
    ("masks", masked, ("complete",)),
    ("padding", padded, ("complete",)),
    ("renormalized top-k", renormalized, ()),
    ("upcast", upcast, ("complete",)),
    ("sampler", sampler, ()),
    ("jumps", jumps, ("many rows",)),
)
_OF_REST = (penalty, bias)  # are asked of what a function of all values leaves
_OF_VALUES = {"temperature", "constant", "soft-capping", "clamped", "penalty", "logit bias", "rounded", "upcast"}
_MISPLACED = {"shifted rows", "other rows", "repeated rows", "moved ids"}
# What another cause brings with it: if that is claimed, this says nothing more.
_IMPLIED: tuple[tuple[set[str], set[str]], ...] = (
    ({"logit bias"}, {"penalty"}),
    ({"sampler", "other rows", "repeated rows"}, {"shifted rows"}),
    ({"other rows"}, {"moved ids"}),
    ({*_OF_VALUES, "jumps"}, _MISPLACED),
    ({"upcast"}, _OF_VALUES - {"upcast"}),
)


def _missing(pair: PairRows) -> dict[str, str]:
    """What a pair has too little of, by what needs it."""
    has_values = halves(pair.rows) is not None
    has_rows = halves(pair.rows, FEWEST_TOKENS, in_parts=False) is not None
    needs = {
        "values": (has_values, f"{2 * LEAST_ROWS} rows of {LEAST_TOKENS} shared values, or a row of {_ONE_ROW}"),
        "rows": (has_rows, f"{2 * LEAST_ROWS} rows of {FEWEST_TOKENS} shared values"),
        "logits": (pair.values == "logit", "logits"),
        "text": (any(row.times is not None for row in pair.rows), "the token ids of the text"),
        "places": (len(pair.places) > 2 * LEAST_ROWS, f"{2 * LEAST_ROWS + 1} rows"),
        "two rows": (len(pair.places) > 1, "2 rows"),
        "complete": (pair.is_full, "the whole vocabulary"),
        "many rows": (len(pair.rows) >= _FEWEST_ROWS, f"{_FEWEST_ROWS} rows"),
    }
    return {name: f"needs {what}" for name, (is_there, what) in needs.items() if not is_there}


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
        """What was looked at and what there was too little of; '' for equal sides."""
        if not self.looked_for:
            return ""
        sampled = f" sampled of {self.compared:,}" if self.rows < self.compared else ""
        says = f"Looked at {plural(self.rows, 'row')}{sampled} for: {', '.join(self.looked_for)}."
        missing = "; ".join(f"{', '.join(names)} ({why})" for why, names in self.not_looked_for.items())
        return says + (f" Not looked for: {missing}." if missing else "")


def explain(pair: PairRows) -> Explanation:
    """Run every hypothesis for which a pair has enough rows and values."""
    transform = transform_of(pair)
    rest: PairRows | None = pair
    causes = []
    if transform is not None:
        causes.append(transform.cause)
        undone = tuple(transform.undo(row) for row in pair.rows)
        rest = replace(pair, rows=undone, factor=transform.factor) if transform.is_noise else None
    looked_for: list[str] = []
    not_looked_for: dict[str, list[str]] = {}
    missing = _missing(pair)
    for name, hypothesis, needs in HYPOTHESES:
        asked = rest if hypothesis in _OF_REST else pair
        why = next((missing[need] for need in needs if need in missing), "")
        if not why and asked is None:
            why = "more than one temperature differs"
        elif not why and asked is not None and hypothesis is not None:
            causes += hypothesis(asked)
        names = not_looked_for.setdefault(why, []) if why else looked_for
        if name not in names:
            names.append(name)
    claimed = {cause.name for cause in causes}
    implied = {name for weak, strong in _IMPLIED if claimed & strong for name in weak}
    if pair.has_constants and claimed & {"renormalized", "penalty", "logit bias"}:  # which move the log-sum too
        implied.add("constant")
    causes = [cause for cause in causes if cause.name not in implied]
    causes.sort(key=lambda cause: -(2.0 if cause.name == "other tokens" else cause.explained or 0.0))
    return Explanation(causes, len(pair.rows), pair.compared, looked_for, not_looked_for)


def explain_pair(run: RunReader, pair: int) -> Explanation:
    """Causes of a stored pair; of a judged one each says how many noise floors it leaves. A pair whose sides have the
    same bits has none, and nothing is looked for.
    """
    if run.header.k is not None:
        sides = run.lists()
        return explain_lists(compare_sides(sides[0], sides[pair + 1]), sides[0], sides[pair + 1])
    if run.pairs[pair].summary.bit_identical:
        return Explanation([], 0, run.header.rows, [], {})
    explanation = explain(rows_of_run(run, pair))
    floors = {
        row.figures.compute_dtype: row.figures.floor_rms_logits
        for row in run.evidence(pair)
        if isinstance(row.figures, PairFigures) and row.figures.floor_rms_logits > 0
    }
    floor = floors.get(run.header.compute_dtype)
    return explanation if floor is None else in_floors(explanation, floor)


def in_floors(explanation: Explanation, floor_rms: float) -> Explanation:
    """Causes with what they leave over a noise floor. floor_rms: in the values' unit."""
    causes = []
    for cause in explanation.causes:
        if cause.left_rms is not None:
            left = cause.left_rms / floor_rms
            says = f"{cause.says[:-1]}, {number(left, 3)} rounding floors."
            cause = replace(cause, left_floors=left, says=says)
        causes.append(cause)
    return replace(explanation, causes=causes)


def explain_lists(pair: ListPair, reference: ListSide, variant: ListSide) -> Explanation:
    """Causes of a pair of lists, values that are no values of a model before all."""
    explanation = explain(rows_of_lists(pair, reference, variant))
    missing = []
    for name, is_mask in (("masking", True), ("placeholders", False)):
        kinds = [one for one in pair.placeholders if (one.kind == MASKED) == is_mask]
        missing += [Cause(name, f"{opening(clause)}.") for clause in clauses(kinds)]
    return replace(explanation, causes=[*missing, *explanation.causes])
