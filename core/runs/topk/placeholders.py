"""Placeholders: what servers send if they have no log-probability of the model.

With speculative decoding, servers send 0.0 and no list for drafted tokens; null, -9999.0 or -inf for a token without a
probability; probabilities in place of their logarithms. Such rows are emptied before anything is compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ...numerics.grid import sent_error
from ...text import number, plural, series
from .records import ListSide

DRAFTED = "draft_n_accepted"  # of settings: drafted tokens that were accepted, as llama.cpp's timings say
ROUNDING = 1e-3  # a rounded log-probability is at most so far above 0
_MOST_TOGETHER = 1.5  # a row's probabilities together, of log-probabilities rounded to bfloat16
_REPEATS = 3  # rows of chosen tokens without lists that hold one whole number, and a quarter of all rows
CERTAIN = {"logprob": 0.0, "prob": 1.0}  # the value of probability 1

MASKED, MISSING = "masked", "missing"  # of one token; the rest of its list holds values
_IMPOSSIBLE = "impossible values"
_HEADS = {MASKED: "a mask (top-p or a grammar)", "out of range": _IMPOSSIBLE, "sum above 1": _IMPOSSIBLE}

Rows = NDArray[np.bool_]


@dataclass(frozen=True)
class Placeholders:
    """Rows of one side that hold no values of a model.

    kind: 'probabilities', 'out of range', 'constant', 'no list', 'sum above 1', 'contradicted', 'masked', 'missing' or
    'certain'. tokens: such rows, of: all rows of the side. what: clause on their values.
    """

    side: str
    kind: str
    tokens: int
    of: int
    what: str


def clauses(placeholders: Sequence[Placeholders]) -> list[str]:
    """Return clauses on what is seen, one for sides of which the same is true."""
    groups: dict[tuple[str, str], list[Placeholders]] = {}
    for one in placeholders:
        groups.setdefault((one.kind, one.what), []).append(one)
    says = []
    for (kind, what), (first, *others) in groups.items():
        places = [f"{first.tokens:,} of {plural(first.of, 'token')} of '{first.side}'"]
        places += [f"{one.tokens:,} of {one.of:,} of '{one.side}'" for one in others]
        head = f"{_HEADS.get(kind, 'placeholders')} at {series(places)}"
        if kind == "probabilities":
            sides = series([f"'{one.side}'" for one in (first, *others)])
            head = f"the values of {sides} look like probabilities, not log-probabilities"
        says.append(f"{head}: {what}")
    return says


class _SideRows:
    """Finite values of a side, and what its rows hold of them, one response after another. values: [entries], else
    [rows]

    missing: entries that the reader took for placeholders, and -inf; is_masked, lacks_chosen: the prompt's own token,
    or another one that is given or was emitted, is one of these; probability: of the values together.
    """

    def __init__(self, side: ListSide) -> None:
        def of_all(name: str) -> NDArray:
            return np.concatenate([getattr(response.rows, name) for response in side.responses])

        values, targets, self.positions = of_all("values"), of_all("targets"), of_all("positions")
        counts = np.concatenate([np.diff(response.rows.offsets) for response in side.responses])
        rows = len(counts)
        row_of = np.repeat(np.arange(rows), counts)
        finite = np.isfinite(values)
        has_chosen = np.zeros(rows, np.bool_)
        has_chosen[row_of[finite & (of_all("token_ids") == targets[row_of])]] = True
        self.missing = of_all("missing") + np.bincount(row_of[~finite], minlength=rows)
        values, row_of = values[finite], row_of[finite]
        self.values, self.counts = values, np.bincount(row_of, minlength=rows)
        self.largest, self.smallest = np.full(rows, np.nan), np.full(rows, np.nan)
        self.largest[row_of[::-1]], self.smallest[row_of] = values[::-1], values  # best first within a row
        shares = np.exp(np.minimum(values, 1.0)) if side.values == "logprob" else values
        self.total, self.probability = (np.bincount(row_of, each, minlength=rows) for each in (values, shares))
        starts = [one.generated_from if one.generated_from is not None else math.inf for one in side.responses]
        self.is_generated = self.positions >= np.repeat(starts, [len(one.rows) for one in side.responses])
        lacks = ~has_chosen & (self.missing > 0) & ~of_all("full")
        self.is_masked = lacks & (self.counts > 0) & ~self.is_generated
        self.lacks_chosen = lacks & ~self.is_masked & (targets >= 0)
        self.is_log, self.certain = side.values == "logprob", CERTAIN.get(side.values)
        self.top_logprobs = max(response.top_logprobs or 0 for response in side.responses)
        self.drafted = sum(int(response.settings.get(DRAFTED, "0")) for response in side.responses)
        self.of_drafts = "; turn speculative decoding off" if self.drafted else ""


def without_placeholders(side: ListSide) -> tuple[ListSide, tuple[Placeholders, ...]]:
    """Return the side with rows of placeholders emptied, their values counted as missing; and what they are."""
    flat = _SideRows(side)
    is_emptied = np.zeros(len(flat.counts), np.bool_)
    placeholders: list[Placeholders] = []
    for kind, rows, what in _kinds(flat):
        rows = rows & ~is_emptied
        if rows.any():
            placeholders.append(Placeholders(side.name, kind, int(rows.sum()), len(rows), what))
        if kind not in (MASKED, MISSING):
            is_emptied |= rows
    if not is_emptied.any():
        return side, tuple(placeholders)
    ends = np.cumsum([len(response.rows) for response in side.responses])[:-1]
    responses = []
    for response, rows in zip(side.responses, np.split(is_emptied, ends), strict=True):
        response_rows, counts = response.rows, np.diff(response.rows.offsets)
        rest = response_rows.part(np.ones(len(response_rows), np.bool_), ~np.repeat(rows, counts))
        missing = response_rows.missing + np.where(rows, counts, 0)
        rest = replace(
            rest, best=np.where(rows, 0, response_rows.best), missing=missing, full=response_rows.full & ~rows
        )
        responses.append(replace(response, rows=rest))
    return replace(side, responses=tuple(responses)), tuple(placeholders)


def _kinds(flat: _SideRows) -> Iterator[tuple[str, Rows, str]]:
    """(kind, rows of it, clause), the kind that says most first; a row is of the first kind that has it."""
    has_values, certain = flat.counts > 0, flat.certain
    yield MASKED, flat.is_masked, "the prompt's own token has probability 0"
    if certain is not None and len(flat.values):
        yield from _impossible(flat)
    if has_values.sum() > 1 and flat.values.min() == flat.values.max():
        yield "constant", has_values, f"every value is {_value(flat.values[0], certain)}{flat.of_drafts}"
    rows = _without_list(flat, certain)
    if rows.any():
        numbers, times = np.unique(flat.largest[rows], return_counts=True)
        no_list = " and no list" if max(flat.top_logprobs, int((flat.counts + flat.missing).max())) > 1 else ""
        yield "no list", rows, f"{_value(numbers[times.argmax()], certain)}{no_list}{flat.of_drafts}"
    if certain is not None:
        together = flat.probability
        what = f"their probabilities add up to {number(float(together.max(initial=0.0)), 3)}"
        yield "sum above 1", together > _MOST_TOGETHER, what
        rows = (flat.largest == certain) & (together > 1 + _most_beside_one(flat.values))
        yield "contradicted", rows, f"probability 1, though its list exceeds 1{flat.of_drafts}"
    yield MISSING, flat.lacks_chosen, "null, -9999.0 or -inf for the emitted token"


def _most_beside_one(values: NDArray[np.float64]) -> float:
    """Largest probability that rounding leaves for the other tokens of a list that has 1 for one token."""
    with np.errstate(over="ignore"):
        narrow = [values.astype(dtype).astype(np.float64) for dtype in (np.float16, ml_dtypes.bfloat16)]
    if any(np.array_equal(values, each) for each in narrow):
        return _MOST_TOGETHER - 1  # a log-softmax in 16 bits
    return 10 * ROUNDING + 4 * sent_error(values)


def _impossible(flat: _SideRows) -> Iterator[tuple[str, Rows, str]]:
    """Yield rows with a value that no probability has; all rows if most have one."""
    has_values, is_log = flat.counts > 0, flat.is_log
    with np.errstate(invalid="ignore"):
        is_impossible = flat.largest > ROUNDING if is_log else (flat.largest > 1 + ROUNDING) | (flat.smallest < 0)
    if not is_impossible.any():
        return
    is_positive = is_log and flat.values.min() >= 0
    if is_positive and flat.total.max() <= 1 + 10 * ROUNDING:
        yield "probabilities", has_values, "all lie between 0 and 1, and no list adds up to more than 1"
        return
    first = int(is_impossible.argmax())
    value = flat.largest[first] if is_log or flat.largest[first] > 1 else flat.smallest[first]
    what = f"{value:+.4g} is no {'log-probability' if is_log else 'probability'} (position {flat.positions[first]:,})"
    if is_positive:
        what += "; all are positive"
    yield "out of range", has_values if 2 * is_impossible.sum() > has_values.sum() else is_impossible, what


def _without_list(flat: _SideRows, certain: float | None) -> Rows:
    """Rows of one value that is no value of a model, those of prompts and generated ones by themselves.

    If other rows have lists: probability 1, or a whole number that stands twice. If no row has one: probability 1
    of drafted tokens, or a whole number at many rows, if it is not what rounding makes of small values.
    """
    is_placeholder = np.zeros(len(flat.counts), np.bool_)
    entries = flat.counts + flat.missing
    for rows in (flat.is_generated, ~flat.is_generated):
        alone = rows & (entries == 1) & (flat.counts == 1)
        numbers, times = np.unique(flat.largest[alone], return_counts=True)
        is_whole = numbers == np.round(numbers)
        if (entries[rows] > 1).any():
            none = numbers[(numbers == certain) | (is_whole & (times > 1))]
        elif certain is not None and ((flat.top_logprobs > 1 and set(numbers) == {certain}) or flat.drafted):
            none = numbers[numbers == certain]
        else:
            none = numbers[is_whole & (times >= _REPEATS) & (4 * times >= alone.sum())]
            others = numbers[~np.isin(numbers, none)]
            is_coarse = sent_error(others) > ROUNDING or not np.any(256 * others % 1)
            if certain is not None and (is_coarse or np.any(np.abs(others - certain) < ROUNDING)):
                none = none[none != certain]
        is_placeholder |= alone & np.isin(flat.largest, none)
    return is_placeholder


def _value(value: np.float64, certain: float | None) -> str:
    return f"{float(abs(value))} (probability 1)" if value == certain else f"{float(value)}"
