"""Check whether the two sides of a dump can be compared at all. No check says rounding: that takes a control."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

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

_SHIFTS = {-2: "two_earlier", -1: "one_earlier", 1: "one_later", 2: "two_later"}  # rows, and the figure of each
_LEAST_ROWS = 8  # fewer say nothing about a shift
_LEAST_TOKENS = 4  # different argmaxes, or every shift agrees
# A shift is believed if half of the rows agree under it, and twice as many as without one.
_AGREES, _MORE_OFTEN = 0.5, 2.0
_RANKS = 20
_Scale = tuple[str, float | None, float | None]  # logits, log-probabilities or probabilities; range of logsumexp, nats


def checks_of(figures: Figures, fillings: Sequence[Filling]) -> list[list[Evidence]]:
    """Return the validity checks of every pair; `fillings`: of every side."""
    scales = [_scale_of(figures, side, filling) for side, filling in enumerate(fillings)]
    return [
        [
            _tokens(figures.header),
            _alignment(figures, pair),
            _scale(_names(figures, pair), scales[0], scales[pair + 1]),
            _truncation(figures, pair, (scales[0], scales[pair + 1]), (fillings[0], fillings[pair + 1])),
            _numbers(figures, pair, (fillings[0], fillings[pair + 1])),
        ]
        for pair in range(len(fillings) - 1)
    ]


def _names(figures: Figures, pair: int) -> tuple[str, str]:
    return figures.header.sides[0].name, figures.header.sides[pair + 1].name


def _lengths(header: RunHeader) -> list[int]:
    return [prompt.positions for prompt in header.prompts]


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
    control = "shapes of the sides, and the dump's token ids against the vocabulary"
    return Evidence(Check.SHAPES, control, figures, outcome, says)


def _alignment(figures: Figures, pair: int) -> Evidence:
    """Check whether rows of the two sides agree best as they stand or one or two further along."""
    table = figures.positions(pair)
    reference, variant = (table[name].astype("Int64") for name in ("reference_token", "variant_token"))

    def agreement(shift: int) -> tuple[float, int]:
        """(share of rows t where variant[t + shift] has the argmax of reference[t], how many rows have both)"""
        is_same = (variant.groupby(table["prompt"]).shift(-shift) == reference).dropna()
        return float(is_same.mean()) if len(is_same) else 0.0, len(is_same)

    agreed = {shift: agreement(shift) for shift in (0, *_SHIFTS)}
    best = max(_SHIFTS, key=lambda shift: agreed[shift][0])
    (share, compared), (unshifted, unmoved) = agreed[best], agreed[0]
    is_varied = len({*reference.dropna(), *variant.dropna()}) >= _LEAST_TOKENS
    outcome = PASSED
    says = f"The argmax is the same at {unshifted:.1%} of positions; no shift by a row or two fits better."
    if is_varied and compared >= _LEAST_ROWS and share >= _AGREES and share > _MORE_OFTEN * unshifted:
        names, way = _names(figures, pair), "later" if best > 0 else "earlier"
        outcome = FAILED
        says = (
            f"'{names[1]}' is shifted: read {plural(abs(best), 'row')} {way}, it has the argmax of '{names[0]}' at"
            f" {share:.0%} of positions, else at {unshifted:.0%}."
        )
    elif not is_varied or unmoved < _LEAST_ROWS:
        outcome, says = NOTED, "Too few different argmaxes to tell whether one side is shifted."
    measured = ShiftFigures(unshifted=unshifted, **{name: agreed[shift][0] for shift, name in _SHIFTS.items()})
    control = "argmaxes of one side against those of the other, one and two rows earlier and later"
    return Evidence(Check.SHIFT, control, measured, outcome, says)


def _scale_of(figures: Figures, side: int, filling: Filling) -> _Scale:
    """Return what a side's rows are by the logsumexp of each: 0 for log-probabilities, less if they were cut. The sum
    of exp(p) over probabilities p lies between V and V + e - 2.
    """
    values = figures.logsumexp(side)
    values = values[np.isfinite(values)]
    if not len(values):
        return "logits", None, None
    vocab, best = figures.header.vocab, figures.best_tokens(side, 1)["logit"].to_numpy(float)
    left = filling.others if filling.rows and filling.value < 0 else vocab
    low, high = np.log(vocab + 1.0) - 0.02 / vocab, np.log(vocab + np.e - 1) + 0.02 / vocab
    kind = "logits"
    if (best <= 0).all() and are_log_probabilities(values, left, vocab):
        kind = "log-probabilities"
    elif ((values > low) & (values < high)).all() and ((best > 0) & (best <= 1)).all():
        kind = "probabilities"
    return kind, float(values.min()), float(values.max())


def _scale(names: tuple[str, str], reference: _Scale, variant: _Scale) -> Evidence:
    outcome, says = PASSED, "Both sides hold logits, not probabilities."
    if reference[0] != variant[0]:
        outcome = FAILED
        says = f"'{names[0]}' holds {reference[0]} and '{names[1]}' holds {variant[0]}: they cannot be compared."
    elif reference[0] != "logits":
        outcome, says = NOTED, f"Both sides hold {reference[0]}, not logits: ULPs, margins and rms are of those."
    measured = LogsumexpFigures(
        reference_least_logsumexp=reference[1],
        reference_largest_logsumexp=reference[2],
        variant_least_logsumexp=variant[1],
        variant_largest_logsumexp=variant[2],
    )
    return Evidence(Check.LOGSUMEXP, "logsumexp of every row of both sides", measured, outcome, says)


def _truncation(
    figures: Figures, pair: int, scales: tuple[_Scale, _Scale], fillings: tuple[Filling, Filling]
) -> Evidence:
    sides = zip(_names(figures, pair), fillings, scales, strict=True)
    filled = [(name, filling, scale[0]) for name, filling, scale in sides if filling.rows]
    least = min((filling.others for _, filling, _ in filled), default=None)
    outcome, says = PASSED, "No value fills more than half of a row."
    if filled:
        most = max((filling for _, filling, _ in filled), key=lambda filling: filling.rows)
        rows, kind = figures.header.rows, filled[0][2]
        where = "every position" if most.rows == rows else f"{most.rows:,} of {rows:,} positions"
        who = f"{joined([repr(name) for name, _, _ in filled])} {'holds' if len(filled) == 1 else 'hold'}"
        outcome = FAILED
        says = (
            f"{who} {kind} cut or masked to {least:,} tokens at {where}, {most.value:g} elsewhere. Save the {kind}"
            " before that."
        )
        is_alike = not figures.positions(pair)["nonfinite_mismatch"].any()
        if is_alike and all(filling.rows and np.isneginf(filling.value) for filling in fillings):
            outcome = NOTED
            says = f"Both sides mask more than half of the vocabulary at {where}: only other logits are compared."
        elif most.value == 0:
            says = f"{who} rows of zeros at {where}: padding, or rows that were never written."
    measured = TruncationFigures(
        reference_filled_rows=fillings[0].rows, variant_filled_rows=fillings[1].rows, least_other_logits=least
    )
    return Evidence(Check.TRUNCATION, "rows that one single value fills to more than a half", measured, outcome, says)


def _numbers(figures: Figures, pair: int, fillings: tuple[Filling, Filling]) -> Evidence:
    header = figures.header
    wrong = figures.positions(pair)["nonfinite_mismatch"].to_numpy(np.int64)
    rows, count, lengths = np.flatnonzero(wrong), int(wrong.sum()), _lengths(header)
    measured = NumbersFigures(
        nonfinite_mismatch=count, positions=len(rows), first=header.places()[rows[0]] if len(rows) else None
    )
    outcome = FAILED
    if (broken := not_finite_of(figures, pair)) is None:
        outcome, says = PASSED, "No logit is NaN or infinite on one side only."
    elif figures.is_only_masked(pair):
        is_cut = any(filling.rows and np.isneginf(filling.value) for filling in fillings)
        outcome, why = (NOTED, "one side is cut") if is_cut else (FAILED, "one side is masked, padded or cut")
        first = place_in_words(int(rows[0]), lengths)
        says = f"{plural(count, 'logit is', 'logits are')} -inf on one side only, first at {first}, none is NaN: {why}."
    else:
        measured.token = broken.token
        reason = "masked, padded, never written, or a kernel's fault."
        if broken.is_overflow and header.compute_dtype != "bfloat16":
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
    lengths = _lengths(header)
    begins = np.cumsum([0, *lengths])
    for index, side in enumerate(header.sides):
        emitted = [
            (int(begins[made.prompt]) + made.given_positions - 1 + step, int(token))
            for made in generations
            for step, token in enumerate(made.tokens[index])
        ]
        if not emitted:
            continue
        best = figures.best_tokens(index, _RANKS)
        rows = begins[best["prompt"].to_numpy(np.int64)] + best["position"].to_numpy(np.int64)
        ties = best["logit"] == best["logit"].groupby(rows).transform("max")
        allowed = best["token_id"][ties].groupby(rows[ties]).agg(set).to_dict()
        for row, token in emitted:
            if len(allowed.get(row, ())) == _RANKS and token not in allowed[row]:  # more may tie: the row itself tells
                values = values_of(figures.read_rows(index, row, row + 1)[0], header.format)
                allowed[row] = set(np.flatnonzero(values == np.nanmax(values)).tolist())
        checks[index] = sampler_evidence(emitted, allowed, side.name, lengths)
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
        outcome = FAILED
        says = (
            f"{len(wrong):,} of {len(emitted):,} emitted tokens are not the argmax of their own logits, first at"
            f" {place_in_words(emitted[wrong[0]][0], lengths)}: a fault of the sampler."
        )
    control = f"emitted tokens against the argmax of '{side}'s own logits"
    return Evidence(Check.EMITTED, control, figures, outcome, says, side)


def structure(figures: Figures, pair: int) -> list[Evidence]:
    """Return the row on where the sides begin to differ, which never decides; none if they are equal."""
    header = figures.header
    rows = np.flatnonzero(~figures.positions(pair)["bit_identical"].to_numpy(bool))
    if not len(rows):
        return []
    shown = structure_of(rows, _lengths(header), BLOCKS)
    says = "Every position differs, the first included." if header.rows > 1 else "The one position differs."
    if shown.rows < header.rows:
        after = " From there on every position differs." if shown.is_tail else ""
        smaller = f" (or {shown.smaller_block})" if shown.smaller_block else ""
        block = f" Differences begin at multiples of {shown.block}{smaller}." if shown.block else ""
        where = place_in_words(int(rows[0]), _lengths(header))
        says = f"{shown.rows:,} of {header.rows:,} positions differ, first {where}.{after}{block}"
    return [Evidence(Check.DIFFERING, "positions with a bit that differs", shown.figures(of=header.rows), NOTED, says)]
