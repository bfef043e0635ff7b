"""Check whether the two sides of a dump can be compared at all. No check says rounding: that takes a control."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..numerics.formats import values_of
from ..runs.dumps.source_dtype import are_log_probabilities
from ..runs.figures import Figures
from ..runs.file.evidence import (
    FAILED,
    NOTED,
    PASSED,
    Check,
    Evidence,
    LogsumexpFigures,
    NumbersFigures,
    SamplerFigures,
    ShapesFigures,
    ShiftFigures,
    TruncationFigures,
)
from ..runs.file.records import Generation, RunHeader
from ..text import joined, plural
from .constant_rows import Filling
from .places import FLOAT16_MAX, NotFinite, place_in_words
from .statistic import BLOCKS
from .structure import structure_of

if TYPE_CHECKING:
    import pandas as pd

_SHIFTS = {-2: "two_earlier", -1: "one_earlier", 1: "one_later", 2: "two_later"}  # rows, and the figure of each
_LEAST_ROWS = 8  # fewer say nothing about a shift
_LEAST_TOKENS = 4  # different argmaxes, or every shift agrees
# A shift is believed if half of the rows agree under it, and twice as many as without one.
_AGREES, _MORE_OFTEN = 0.5, 2.0
_RANKS = 20


class _Side(NamedTuple):
    """A side of a dump. holds: logits, log-probabilities or probabilities; least, largest: logsumexp of a row, nats."""

    name: str
    filling: Filling
    holds: str = "logits"
    least: float | None = None
    largest: float | None = None


def checks_of(figures: Figures, fillings: Sequence[Filling]) -> list[list[Evidence]]:
    """Return the validity checks of every pair. fillings: of every side."""
    header = figures.header
    first, *others = [_side_of(figures, index, filling) for index, filling in enumerate(fillings)]
    checks = []
    for pair, other in enumerate(others):
        sides = first, other
        table = figures.positions(pair)
        scale, cut, numbers = _scale(sides), _truncation(header, table, sides), _numbers(figures, pair, sides)
        checks.append([_tokens(header), _shift(table, sides), scale, cut, numbers])
    return checks


def _side_of(figures: Figures, index: int, filling: Filling) -> _Side:
    """Tell what a side holds by the logsumexp of its rows: 0 for log-probabilities, less if they were cut. The sum of
    exp(p) over probabilities p lies between V and V + e - 2.
    """
    name, vocab, values = figures.header.sides[index].name, figures.header.vocab, figures.logsumexp(index)
    values = values[np.isfinite(values)]
    if not len(values):
        return _Side(name, filling)
    best = figures.best_tokens(index, 1)["logit"].to_numpy(float)
    left = filling.others if filling.rows and filling.value < 0 else vocab
    low, high = np.log(vocab + 1.0) - 0.02 / vocab, np.log(vocab + np.e - 1) + 0.02 / vocab
    holds = "logits"
    if (best <= 0).all() and are_log_probabilities(values, left, vocab):
        holds = "log-probabilities"
    elif ((values > low) & (values < high)).all() and ((best > 0) & (best <= 1)).all():
        holds = "probabilities"
    return _Side(name, filling, holds, float(values.min()), float(values.max()))


def _tokens(header: RunHeader) -> Evidence:
    highest = max((max(prompt.token_ids) for prompt in header.prompts if prompt.token_ids), default=None)
    shape = f"Both sides have {plural(header.rows, 'position')} x {header.vocab:,} tokens"
    outcome, says = PASSED, f"{shape} and the same token ids."
    if highest is None:
        outcome, says = NOTED, f"{shape}; the dump has no token_ids."
    elif highest >= header.vocab:
        outcome = FAILED
        says = f"Token ids reach {highest:,}, beyond the vocabulary of {header.vocab:,}: they are of other logits."
    figures = ShapesFigures(positions=header.rows, vocab=header.vocab, highest_token_id=highest)
    return Evidence(Check.SHAPES, "shapes, and token ids against the vocabulary", figures, outcome, says)


def _shift(table: pd.DataFrame, sides: tuple[_Side, _Side]) -> Evidence:
    """Check whether rows of the two sides agree best as they stand or one or two further along."""
    reference, variant = (table[name].astype("Int64") for name in ("reference_token", "variant_token"))
    # of rows t where variant[t + shift] has the argmax of reference[t]
    same = {n: (variant.groupby(table["prompt"]).shift(-n) == reference).dropna() for n in (0, *_SHIFTS)}
    agreed = {shift: float(rows.mean()) if len(rows) else 0.0 for shift, rows in same.items()}
    best = max(_SHIFTS, key=agreed.__getitem__)
    outcome = PASSED
    says = f"The argmax is the same at {agreed[0]:.1%} of positions; no shift by a row or two fits better."
    if len({*reference.dropna(), *variant.dropna()}) < _LEAST_TOKENS or len(same[0]) < _LEAST_ROWS:
        outcome, says = NOTED, "Too few different argmaxes to tell whether one side is shifted."
    elif len(same[best]) >= _LEAST_ROWS and agreed[best] >= _AGREES and agreed[best] > _MORE_OFTEN * agreed[0]:
        outcome, way = FAILED, "later" if best > 0 else "earlier"
        says = (
            f"'{sides[1].name}' is shifted: read {plural(abs(best), 'row')} {way}, it has the argmax of"
            f" '{sides[0].name}' at {agreed[best]:.0%} of positions, else at {agreed[0]:.0%}."
        )
    figures = ShiftFigures(unshifted=agreed[0], **{name: agreed[shift] for shift, name in _SHIFTS.items()})
    return Evidence(Check.SHIFT, "argmaxes of the two sides, up to two rows apart", figures, outcome, says)


def _scale(sides: tuple[_Side, _Side]) -> Evidence:
    mine, theirs = sides
    outcome, says = PASSED, "Both sides hold logits, not probabilities."
    if mine.holds != theirs.holds:
        outcome = FAILED
        says = f"'{mine.name}' holds {mine.holds} and '{theirs.name}' holds {theirs.holds}: they cannot be compared."
    elif mine.holds != "logits":
        outcome, says = NOTED, f"Both sides hold {mine.holds}, not logits: ULPs, margins and rms are of those."
    figures = LogsumexpFigures(
        reference_least_logsumexp=mine.least,
        reference_largest_logsumexp=mine.largest,
        variant_least_logsumexp=theirs.least,
        variant_largest_logsumexp=theirs.largest,
    )
    return Evidence(Check.LOGSUMEXP, "logsumexp of every row of both sides", figures, outcome, says)


def _truncation(header: RunHeader, table: pd.DataFrame, sides: tuple[_Side, _Side]) -> Evidence:
    filled = [side for side in sides if side.filling.rows]
    least = min((side.filling.others for side in filled), default=None)
    outcome, says = PASSED, "No value fills more than half of a row."
    if filled:
        most, holds = max((side.filling for side in filled), key=lambda filling: filling.rows), filled[0].holds
        where = "every position" if most.rows == header.rows else f"{most.rows:,} of {header.rows:,} positions"
        who = f"{joined([repr(side.name) for side in filled])} {'holds' if len(filled) == 1 else 'hold'}"
        if all(map(_is_cut, sides)) and not table["nonfinite_mismatch"].any():
            outcome = NOTED
            says = f"Both sides mask more than half of the vocabulary at {where}: only other logits are compared."
        elif most.value == 0:
            outcome, says = FAILED, f"{who} rows of zeros at {where}: padding, or rows that were never written."
        else:
            outcome, cut = FAILED, f"{holds} cut or masked to {least:,} tokens at {where}, {most.value:g} elsewhere"
            says = f"{who} {cut}. Save the {holds} before that."
    figures = TruncationFigures(
        reference_filled_rows=sides[0].filling.rows, variant_filled_rows=sides[1].filling.rows, least_other_logits=least
    )
    return Evidence(Check.TRUNCATION, "rows that one single value fills to more than a half", figures, outcome, says)


def _is_cut(side: _Side) -> bool:
    return bool(side.filling.rows and np.isneginf(side.filling.value))


def _numbers(figures: Figures, pair: int, sides: tuple[_Side, _Side]) -> Evidence:
    broken, lengths = not_finite_of(figures, pair), figures.header.lengths
    measured = NumbersFigures(nonfinite_mismatch=0, positions=0, first=None)
    outcome, says = PASSED, "No logit is NaN or infinite on one side only."
    if broken is not None:
        measured = NumbersFigures(
            nonfinite_mismatch=broken.logits, positions=len(broken.rows), first=broken.place(lengths)
        )
        if figures.is_only_masked(pair):
            is_cut = any(map(_is_cut, sides))
            outcome, why = (NOTED, "one side is cut") if is_cut else (FAILED, "one side is masked, padded or cut")
            count, first = plural(broken.logits, "logit is", "logits are"), place_in_words(int(broken.rows[0]), lengths)
            says = f"{count} -inf on one side only, first at {first}, none is NaN: {why}."
        else:
            outcome, measured.token = FAILED, broken.token
            reason = "masked, padded, never written, or a kernel's fault."
            if broken.is_overflow and figures.header.compute_dtype != "bfloat16":
                reason = f"an overflow of float16 (largest {FLOAT16_MAX:,.0f}). Use bfloat16 or float32."
            says = f"{broken.says(lengths)}: {reason}"
    return Evidence(Check.NUMBERS, "NaN and infinities of one side against the other", measured, outcome, says)


def not_finite_of(figures: Figures, pair: int) -> NotFinite | None:
    """Return the logits of a pair that are NaN or infinite on one side only, None if there are none."""
    header = figures.header
    by_row = figures.positions(pair)["nonfinite_mismatch"].to_numpy(np.int64)
    if not by_row.any():
        return None
    row = int(np.flatnonzero(by_row)[0])
    values = [values_of(figures.read_rows(side, row, row + 1)[0], header.format) for side in (0, pair + 1)]
    first = first_mismatch(values[0], values[1])
    other = values[1 if np.isfinite(first[2]) else 0]
    largest = float(np.where(np.isfinite(other), other, -np.inf).max())
    return replace(not_finite(header, pair, by_row, first), largest=largest)


def not_finite(header: RunHeader, pair: int, by_row: NDArray[np.int64], first: tuple[int, float, float]) -> NotFinite:
    """Make one from figures: how many at each position, and the first token with its value on both sides."""
    token, *values = first
    texts = {
        i: text for prompt in header.prompts for i, text in zip(prompt.token_ids, prompt.token_texts, strict=False)
    }
    text = header.vocabulary.get(token, texts.get(token, ""))
    return NotFinite(by_row, token, text, (header.sides[0].name, header.sides[pair + 1].name), (values[0], values[1]))


def first_mismatch(reference: NDArray[np.float32], variant: NDArray[np.float32]) -> tuple[int, float, float]:
    """Return the first token that is NaN or infinite and not alike on both sides [vocab], and its values."""
    is_number = np.isfinite(reference) & np.isfinite(variant)
    is_same = (reference == variant) | (np.isnan(reference) & np.isnan(variant))
    token = int(np.flatnonzero(~is_number & ~is_same)[0])
    return token, float(reference[token]), float(variant[token])


def sampling(figures: Figures, generations: Sequence[Generation]) -> dict[int, Evidence]:
    """Check the emitted tokens of every side that has some, by side. Of tokens that tie, any may be emitted."""
    header, checks = figures.header, {}
    starts = np.cumsum([0, *header.lengths])
    for index, side in enumerate(header.sides):
        emitted = [
            (int(starts[made.prompt]) + made.given_positions - 1 + step, int(token))
            for made in generations
            for step, token in enumerate(made.tokens[index])
        ]
        if not emitted:
            continue
        best = figures.best_tokens(index, _RANKS)
        rows = starts[best["prompt"]] + best["position"].to_numpy(np.int64)
        ties = best["logit"] == best["logit"].groupby(rows).transform("max")
        allowed = best["token_id"][ties].groupby(rows[ties]).agg(set).to_dict()
        for row, token in emitted:
            if len(allowed.get(row, ())) == _RANKS and token not in allowed[row]:  # more may tie: the row itself tells
                values = values_of(figures.read_rows(index, row, row + 1)[0], header.format)
                allowed[row] = set(np.flatnonzero(values == np.nanmax(values)).tolist())
        checks[index] = sampler_evidence(emitted, allowed, side.name, header.lengths)
    return checks


def sampler_evidence(
    emitted: Sequence[tuple[int, int]], allowed: Mapping[int, Collection[int]], side: str, lengths: Sequence[int]
) -> Evidence:
    """Check whether each emitted token has the largest logit of the row it was chosen from.

    emitted: (row, token) of each; allowed: the token ids with the largest logit, by row; lengths: positions by prompt.
    """
    wrong = [index for index, (row, token) in enumerate(emitted) if token not in allowed.get(row, ())]
    figures = SamplerFigures(tokens=len(emitted), not_the_argmax=len(wrong), first=wrong[0] if wrong else None)
    outcome, says = PASSED, "Every emitted token is the argmax of its own logits."
    if wrong:
        outcome, first = FAILED, place_in_words(emitted[wrong[0]][0], lengths)
        count = f"{len(wrong):,} of {len(emitted):,} emitted tokens"
        says = f"{count} are not the argmax of their own logits, first at {first}: a fault of the sampler."
    control = f"emitted tokens against the argmax of '{side}'s own logits"
    return Evidence(Check.EMITTED, control, figures, outcome, says, side)


def differing(figures: Figures, pair: int) -> list[Evidence]:
    """Return the row on where the sides begin to differ, which never decides; none if they are equal."""
    header = figures.header
    rows = np.flatnonzero(~figures.positions(pair)["bit_identical"].to_numpy(bool))
    if not len(rows):
        return []
    shown = structure_of(rows, header.lengths, BLOCKS)
    says = "Every position differs, the first included."
    if shown.rows < header.rows:
        after = " From there on every position differs." if shown.is_tail else ""
        smaller = f" (or {shown.smaller_block})" if shown.smaller_block else ""
        block = f" Differences begin at multiples of {shown.block}{smaller}." if shown.block else ""
        where = place_in_words(int(rows[0]), header.lengths)
        says = f"{shown.rows:,} of {header.rows:,} positions differ, first {where}.{after}{block}"
    return [Evidence(Check.DIFFERING, "positions with a bit that differs", shown.figures(of=header.rows), NOTED, says)]
