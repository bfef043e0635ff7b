"""Validity of a dump: can its two sides be compared at all? And what do they show by themselves, without a control?

Every check is a row of evidence, of the rungs `validity`, `sampler` and `structure`. Nothing here says rounding: that
takes a control.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import structs
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
from ..text import plural
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


class Scale(NamedTuple):
    """The kind of a side's rows: logits, log-probabilities or probabilities; its logsumexp, in nats, None if none is
    finite.
    """

    kind: str
    least: float | None
    largest: float | None


def scale_of(figures: Figures, side: int, filling: Filling) -> Scale:
    """Scale of a side by the logsumexp of every row, which is 0 for log-probabilities, and at most 0 where `filling`
    says that they were cut. The sum of exp(p) over probabilities p lies between V and V + e - 2.
    """
    values = figures.logsumexp(side)
    values = values[np.isfinite(values)]
    if not len(values):
        return Scale("logits", None, None)
    vocab, best = figures.header.vocab, figures.best_tokens(side, 1)["logit"].to_numpy(float)
    kept = filling.kept if filling.rows and filling.value < 0 else vocab
    low, high = np.log(vocab + 1.0) - 0.02 / vocab, np.log(vocab + np.e - 1) + 0.02 / vocab
    kind = "logits"
    if (best <= 0).all() and are_log_probabilities(values, kept, vocab):
        kind = "log-probabilities"
    elif ((values > low) & (values < high)).all() and ((best > 0) & (best <= 1)).all():
        kind = "probabilities"
    return Scale(kind, float(values.min()), float(values.max()))


def checks_of(figures: Figures, fillings: Sequence[Filling]) -> list[list[Evidence]]:
    """Rows of the rung `validity` of every pair; `fillings`: of every side."""
    scales = [scale_of(figures, side, filling) for side, filling in enumerate(fillings)]
    header = figures.header
    checks = []
    for side in range(1, len(fillings)):
        names = (header.sides[0].name, header.sides[side].name)
        of_pair = (fillings[0], fillings[side])
        positions = figures.positions(side - 1)
        is_alike = not positions["nonfinite_mismatch"].any()  # a cut is the cause of its infinities
        checks.append(
            [
                _tokens(header),
                _alignment(header, positions, names),
                _scale(scales[0], scales[side], names),
                _truncation(header, of_pair, (scales[0], scales[side]), names, is_alike=is_alike),
                _numbers(figures, side - 1, positions, of_pair),
            ]
        )
    return checks


def _tokens(header: RunHeader) -> Evidence:
    highest = max((max(prompt.token_ids) for prompt in header.prompts if prompt.token_ids), default=-1)
    shape = f"Both sides are {plural(header.rows, 'position')} x {header.vocab:,} tokens"
    outcome, says = PASSED, f"{shape}; the dump names one list of token ids for both."
    if highest >= header.vocab:
        outcome = FAILED
        says = (
            f"The dump's token ids go up to {highest:,}, beyond its vocabulary of {header.vocab:,}: they are not those"
            " of these logits."
        )
    elif highest < 0:
        outcome, says = NOTED, f"{shape}. Which tokens they are of is not known: the dump has no token_ids."
    figures = ShapesFigures(
        positions=header.rows, vocab=header.vocab, highest_token_id=highest if highest >= 0 else None
    )
    control = "shapes of the sides, and the dump's token ids against the vocabulary"
    return Evidence(Check.SHAPES, control, figures, outcome, says)


def _alignment(header: RunHeader, positions: pd.DataFrame, names: tuple[str, str]) -> Evidence:
    """Evidence on whether rows of the two sides agree best where they stand or one further along."""
    argmaxes = positions[["reference_token", "variant_token"]].to_numpy(float, na_value=np.nan)
    bounds = np.cumsum([0, *(prompt.positions for prompt in header.prompts)])
    parts = [argmaxes[start:stop] for start, stop in pairwise(bounds)]
    agreed = {shift: _agreement(parts, shift) for shift in (0, *_SHIFTS)}
    best = max(_SHIFTS, key=lambda shift: agreed[shift][0])
    (share, compared), unshifted = agreed[best], agreed[0][0]
    varied = len(np.unique(argmaxes[np.isfinite(argmaxes)])) >= _LEAST_TOKENS
    outcome = PASSED
    says = (
        f"No shift by one or two rows agrees better: the argmax is the same at {unshifted:.1%} of positions as they"
        " stand."
    )
    if varied and compared >= _LEAST_ROWS and share >= _AGREES and share > _MORE_OFTEN * unshifted:
        outcome = FAILED
        says = (
            f"The sides do not stand beside each other: '{names[1]}' has the argmax of '{names[0]}' at {share:.0%} of"
            f" positions when it is read {plural(abs(best), 'row')} {'later' if best > 0 else 'earlier'}, and at"
            f" {unshifted:.0%} as it is. Either the dump was saved with an offset, or one engine returned the logits of"
            " another step."
        )
    elif not varied or agreed[0][1] < _LEAST_ROWS:
        outcome, says = NOTED, "Too few different argmaxes to tell whether one side is shifted."
    figures = ShiftFigures(unshifted=unshifted, **{name: agreed[shift][0] for shift, name in _SHIFTS.items()})
    control = "argmaxes of one side against those of the other, one and two rows earlier and later"
    return Evidence(Check.SHIFT, control, figures, outcome, says)


def _agreement(parts: Sequence[NDArray[np.float64]], shift: int) -> tuple[float, int]:
    """(share of rows t where variant[t + shift] has the argmax of reference[t], how many rows have both), over all
    prompts.
    """
    same = compared = 0
    for part in parts:
        reference = part[max(0, -shift) : len(part) - max(0, shift), 0]
        variant = part[max(0, shift) : len(part) - max(0, -shift), 1]
        is_known = np.isfinite(reference) & np.isfinite(variant)
        same += int((reference == variant)[is_known].sum())
        compared += int(is_known.sum())
    return (same / compared if compared else 0.0), compared


def _scale(reference: Scale, variant: Scale, names: tuple[str, str]) -> Evidence:
    """Evidence on whether both sides hold logits."""
    measured = LogsumexpFigures(
        reference_least_logsumexp=reference.least,
        reference_largest_logsumexp=reference.largest,
        variant_least_logsumexp=variant.least,
        variant_largest_logsumexp=variant.largest,
    )
    outcome, says = PASSED, "Both sides hold logits, not probabilities."
    if reference.kind != variant.kind:
        outcome = FAILED
        says = (
            f"'{names[0]}' holds {reference.kind} and '{names[1]}' holds {variant.kind}: one is not the other's"
            " divergence."
        )
    elif reference.kind != "logits":
        outcome, says = NOTED, f"Both sides hold {reference.kind}, not logits: ULPs, margins and rms are of those."
    return Evidence(Check.LOGSUMEXP, "logsumexp of every row of both sides", measured, outcome, says)


def _truncation(
    header: RunHeader,
    fillings: tuple[Filling, Filling],
    scales: tuple[Scale, Scale],
    names: tuple[str, str],
    *,
    is_alike: bool,
) -> Evidence:
    """is_alike: no logit is infinite on one side only, so a mask of -inf is the same on both."""
    filled = [(name, each) for name, each in zip(names, fillings, strict=True) if each.rows]
    most = max((each for _, each in filled), key=lambda each: each.rows, default=fillings[0])
    least = min((each.kept for _, each in filled), default=None)
    where = "every position" if most.rows == header.rows else f"{most.rows:,} of {header.rows:,} positions"
    who = " and ".join(f"'{name}'" for name, _ in filled) + (" holds" if len(filled) == 1 else " hold")
    outcome = FAILED
    if not filled:
        outcome = PASSED
        says = (
            "No row repeats one value for more than half of the vocabulary, as rows that were cut or never written do."
        )
    elif len(filled) == 2 and is_alike and all(np.isneginf(each.value) for each in fillings):
        outcome = NOTED
        says = (
            f"Both sides are masked alike, -inf for more than half of the vocabulary at {where}: only the other logits"
            " are compared."
        )
    elif most.value == 0:
        says = f"{who} rows of zeros at {where}: padding, or rows that were never written."
    else:
        kind = next(scale.kind for scale, each in zip(scales, fillings, strict=True) if each.rows)
        largest = max(each.most_kept for _, each in filled)
        cut = (
            f"cut to the top {least:,}"
            if least == largest
            else f"cut or masked ({least:,} to {largest:,} tokens are kept)"
        )
        says = (
            f"{who} {kind} {cut} at {where}, {most.value:g} elsewhere: no figure here is of the whole vocabulary. Save"
            f" the {kind} before that."
        )
    figures = TruncationFigures(
        reference_filled_rows=fillings[0].rows, variant_filled_rows=fillings[1].rows, least_other_logits=least
    )
    return Evidence(Check.TRUNCATION, "rows that one single value fills to more than a half", figures, outcome, says)


def not_finite_of(figures: Figures, pair: int) -> NotFinite | None:
    """Logits that are NaN or infinite on one side of a pair only, in the run's dtype; None where there are none."""
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
    """From figures: how many at each position, and the first token with its value on both sides."""
    token, *values = first
    known = {
        i: text for prompt in header.prompts for i, text in zip(prompt.token_ids, prompt.token_texts, strict=False)
    }
    text = header.vocabulary.get(token, known.get(token, ""))
    return NotFinite(by_row, token, text, (header.sides[0].name, header.sides[pair + 1].name), (values[0], values[1]))


def first_mismatch(reference: NDArray[np.float32], variant: NDArray[np.float32]) -> tuple[int, float, float]:
    """(the first token at which one is NaN or infinite and the other not, or not alike; both values there). [vocab]
    each
    """
    is_number = np.isfinite(reference) & np.isfinite(variant)
    is_same = (reference == variant) | (np.isnan(reference) & np.isnan(variant))
    token = int(np.flatnonzero(~is_number & ~is_same)[0])
    return token, float(reference[token]), float(variant[token])


def _numbers(figures: Figures, pair: int, positions: pd.DataFrame, fillings: tuple[Filling, Filling]) -> Evidence:
    header = figures.header
    lengths = [prompt.positions for prompt in header.prompts]
    wrong = positions["nonfinite_mismatch"].to_numpy(np.int64)
    rows, count = np.flatnonzero(wrong), int(wrong.sum())
    measured = NumbersFigures(
        nonfinite_mismatch=count, positions=len(rows), first=header.places()[rows[0]] if len(rows) else None
    )
    outcome = FAILED
    if (broken := not_finite_of(figures, pair)) is None:
        outcome, says = PASSED, "No logit is NaN or infinite on one side only."
    elif figures.is_only_masked(pair):
        is_cut = any(filling.rows and np.isneginf(filling.value) for filling in fillings)
        outcome = NOTED if is_cut else FAILED
        why = (
            "tokens that one side kept and the other cut."
            if is_cut
            else "a mask or padding of one side's vocabulary, or tokens that one side left out."
        )
        many = plural(count, "logit is", "logits are")
        where = place_in_words(int(rows[0]), lengths)
        says = f"{many} -inf on one side only, {where} first, and none is NaN: {why}"
    else:
        measured = structs.replace(measured, token=broken.token)
        reason = (
            "a mask or padding of one side's vocabulary, rows that were never written, a kernel that made them, or an"
            " overflow of the dtype."
        )
        if broken.is_overflow and header.compute_dtype != "bfloat16":
            reason = (
                f"an overflow of float16 (largest {FLOAT16_MAX:,.0f}), for logits reach {broken.largest:,.0f} there:"
                " use bfloat16 or float32."
            )
        says = f"{broken.says(lengths)}: {reason}"
    return Evidence(Check.NUMBERS, "NaN and infinities of one side against the other", measured, outcome, says)


def sampling(figures: Figures, generations: Sequence[Generation]) -> dict[int, Evidence]:
    """The row of the rung `sampler` of every side whose emitted tokens the dump names. Of tokens that tie, any will
    do.
    """
    header = figures.header
    lengths = [prompt.positions for prompt in header.prompts]
    begins = np.cumsum([0, *lengths])
    found = {}
    for side in range(len(header.sides)):
        emitted = [
            (int(begins[made.prompt]) + made.given_positions - 1 + step, int(token))
            for made in generations
            for step, token in enumerate(made.tokens[side])
        ]
        if not emitted:
            continue
        best = figures.best_tokens(side, _RANKS)
        rows = begins[best["prompt"].to_numpy(np.int64)] + best["position"].to_numpy(np.int64)
        logits, ranks = best["logit"].to_numpy(float), best["rank"].to_numpy(np.int64)
        top = np.full(header.rows, np.nan)
        top[rows[ranks == 0]] = logits[ranks == 0]
        ties = logits == top[rows]
        allowed: dict[int, set[int]] = {}
        for row, token in zip(rows[ties].tolist(), best["token_id"].to_numpy(np.int64)[ties].tolist(), strict=True):
            allowed.setdefault(row, set()).add(token)
        crowded = set(rows[ties & (ranks == _RANKS - 1)].tolist())  # more may tie than are kept: the row itself tells
        for row in crowded.intersection(row for row, token in emitted if token not in allowed.get(row, ())):
            values = values_of(figures.read_rows(side, row, row + 1)[0], header.format)
            allowed[row] = set(np.flatnonzero(values == top[row]).tolist())
        found[side] = sampler_evidence(
            [token for _, token in emitted],
            [allowed.get(row, set()) for row, _ in emitted],
            header.sides[side].name,
            lambda place, emitted=emitted: place_in_words(emitted[place][0], lengths),  # type: ignore[misc]
        )
    return found


def sampler_evidence(
    tokens: Sequence[int],
    argmaxes: Sequence[int | Collection[int]],
    side: str | None = None,
    place: Callable[[int], str] = "position {}".format,
) -> Evidence:
    """Evidence on whether each emitted token is the argmax of the logits it was chosen from. Right logits and a wrong
    token are a fault of the sampler.

    tokens: what was emitted [positions]; argmaxes: of the same side's logits at the same positions, the lowest token
    id, or all ids that share the largest logit if the sampler may take any of them; side: its name; place: a token's
    position in words, by its index.
    """
    allowed = [{best} if isinstance(best, int | np.integer) else best for best in argmaxes]
    wrong = [position for position, token in enumerate(tokens) if token not in allowed[position]]
    figures = SamplerFigures(tokens=len(tokens), not_the_argmax=len(wrong), first=wrong[0] if wrong else None)
    says = "Every emitted token is the argmax of its own logits."
    if wrong:
        says = (
            f"{len(wrong):,} of {len(tokens):,} emitted tokens are not the argmax of their own logits,"
            f" {place(wrong[0])} first: the sampler does not take the most likely token."
        )
    whose = "the side" if side is None else f"'{side}'"
    control = f"emitted tokens against the argmax of {whose}'s own logits"
    return Evidence(Check.EMITTED, control, figures, FAILED if wrong else PASSED, says, side)


def structure(figures: Figures, pair: int) -> list[Evidence]:
    """The rung `structure`, which takes no control and never decides: where the sides begin to differ at all."""
    header = figures.header
    rows = np.flatnonzero(~figures.positions(pair)["bit_identical"].to_numpy(bool))
    if not len(rows):
        return []
    lengths = [prompt.positions for prompt in header.prompts]
    shown = structure_of(rows, lengths, BLOCKS)
    assert shown.first is not None
    if shown.rows == header.rows:
        says = "The one position differs." if header.rows == 1 else "Every position differs, the first included."
    else:
        position = shown.first[1]
        before = f"; the {position:,} before it are equal bit for bit" if position > 1 else ""
        after = " From there on every position differs." if shown.is_tail else ""
        block = f" Every place where differences begin is {shown.block_in_words}." if shown.block else ""
        where = place_in_words(int(rows[0]), lengths)
        says = f"{shown.rows:,} of {header.rows:,} positions differ, {where} first{before}.{after}{block}"
    return [Evidence(Check.DIFFERING, "positions with a bit that differs", shown.figures(of=header.rows), NOTED, says)]
