"""Validity of a dump: can its two sides be compared at all? And what do they show by themselves, without a control?

Every check is a row of evidence, of the rungs `validity`, `sampler` and `structure`. Nothing here says rounding: that
takes a control.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
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
from .constant_rows import Filling
from .ladder.nonfinite import FLOAT16_MAX, NotFinite
from .ladder.places import place_in_words
from .ladder.structure import BLOCKS, structure_of

if TYPE_CHECKING:
    import pandas as pd

_SHIFTS = {-2: "two_earlier", -1: "one_earlier", 1: "one_later", 2: "two_later"}  # rows, and the figure of each
_LEAST_ROWS = 8  # fewer say nothing about a shift
_LEAST_TOKENS = 4  # different argmaxes, or every shift agrees
_AGREES, _MORE_OFTEN = (
    0.5,
    2.0,
)  # a shift is believed where half of the rows agree under it, and twice as many as without one
_RANKS = 20


@dataclass(frozen=True)
class Scale:
    """The kind of a side's rows: logits, log-probabilities or probabilities; its logsumexp, in nats, None where none is
    finite.
    """

    kind: str
    least: float | None
    largest: float | None


def scale_of(figures: Figures, side: int, filling: Filling) -> Scale:
    """Scale of a side by the logsumexp of every row, which is 0 for log-probabilities, and at most 0 where `filling`
    says that they were cut.
    """
    values = figures.logsumexp(side)
    values = values[np.isfinite(values)]
    vocab = figures.header.vocab
    kept = filling.kept if filling.rows and filling.value < 0 else vocab
    kind = _kind(values, figures.best_tokens(side, 1)["logit"].to_numpy(float), vocab, kept)
    return Scale(kind, *((float(values.min()), float(values.max())) if len(values) else (None, None)))


def validity(
    figures: Figures, pair: int, fillings: tuple[Filling, Filling], scales: tuple[Scale, Scale]
) -> list[Evidence]:
    """Rows of the rung `validity` for one pair; `fillings`, `scales`: of the reference and the variant."""
    header = figures.header
    names = (header.sides[0].name, header.sides[pair + 1].name)
    positions = figures.positions(pair)
    return [
        _tokens(header),
        _alignment(header, positions, names),
        _scale(scales[0], scales[1], names),
        _truncation(
            header, fillings, scales, names, is_alike=not positions["nonfinite_mismatch"].any()
        ),  # a cut is the cause of its infinities
        _numbers(figures, pair, positions, fillings),
    ]


def checks_of(figures: Figures, fillings: Sequence[Filling]) -> list[list[Evidence]]:
    """Checks of every pair; `fillings`: of every side."""
    scales = [scale_of(figures, side, filling) for side, filling in enumerate(fillings)]
    return [
        validity(figures, side - 1, (fillings[0], fillings[side]), (scales[0], scales[side]))
        for side in range(1, len(fillings))
    ]


def _tokens(header: RunHeader) -> Evidence:
    control = "shapes of the sides, and the dump's token ids against the vocabulary"
    highest = max((max(prompt.token_ids) for prompt in header.prompts if prompt.token_ids), default=-1)
    figures = ShapesFigures(
        positions=header.rows, vocab=header.vocab, highest_token_id=highest if highest >= 0 else None
    )
    if highest >= header.vocab:
        says = (
            f"The dump's token ids go up to {highest:,}, beyond its vocabulary of {header.vocab:,}: they are not those"
            " of these logits."
        )
        return Evidence(Check.SHAPES, control, figures, FAILED, says)
    shape = (
        f"Both sides are {header.rows:,} {'position' if header.rows == 1 else 'positions'} x {header.vocab:,} tokens"
    )
    if highest < 0:
        says = f"{shape}. Which tokens they are of is not known: the dump has no token_ids."
        return Evidence(Check.SHAPES, control, figures, NOTED, says)
    return Evidence(Check.SHAPES, control, figures, PASSED, f"{shape}; the dump names one list of token ids for both.")


def _alignment(header: RunHeader, positions: pd.DataFrame, names: tuple[str, str]) -> Evidence:
    """Evidence on whether rows of the two sides agree best where they stand or one further along."""
    control = "argmaxes of one side against those of the other, one and two rows earlier and later"
    argmaxes = positions[["reference_token", "variant_token"]].to_numpy(float, na_value=np.nan)
    bounds = np.cumsum([0, *(prompt.positions for prompt in header.prompts)])
    parts = [argmaxes[start:stop] for start, stop in pairwise(bounds)]
    agreed = {shift: _agreement(parts, shift) for shift in (0, *_SHIFTS)}
    figures = ShiftFigures(unshifted=agreed[0][0], **{name: agreed[shift][0] for shift, name in _SHIFTS.items()})
    best = max(_SHIFTS, key=lambda shift: agreed[shift][0])
    share, compared = agreed[best]
    varied = len(np.unique(argmaxes[np.isfinite(argmaxes)])) >= _LEAST_TOKENS
    if varied and compared >= _LEAST_ROWS and share >= _AGREES and share > _MORE_OFTEN * agreed[0][0]:
        rows = f"{abs(best)} {'row' if abs(best) == 1 else 'rows'}"
        says = (
            f"The sides do not stand beside each other: '{names[1]}' has the argmax of '{names[0]}' at {share:.0%} of"
            f" positions when it is read {rows} {'later' if best > 0 else 'earlier'}, and at {agreed[0][0]:.0%} as it"
            " is. Either the dump was saved with an offset, or one engine returned the logits of another step."
        )
        return Evidence(Check.SHIFT, control, figures, FAILED, says)
    if not varied or agreed[0][1] < _LEAST_ROWS:
        says = "Too few different argmaxes to tell whether one side is shifted."
        return Evidence(Check.SHIFT, control, figures, NOTED, says)
    says = (
        f"No shift by one or two rows agrees better: the argmax is the same at {agreed[0][0]:.1%} of positions as they"
        " stand."
    )
    return Evidence(Check.SHIFT, control, figures, PASSED, says)


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
    """Logits beside logits?"""
    control = "logsumexp of every row of both sides"
    measured = LogsumexpFigures(
        reference_least_logsumexp=reference.least,
        reference_largest_logsumexp=reference.largest,
        variant_least_logsumexp=variant.least,
        variant_largest_logsumexp=variant.largest,
    )
    if reference.kind != variant.kind:
        says = (
            f"'{names[0]}' holds {reference.kind} and '{names[1]}' holds {variant.kind}: one is not the other's"
            " divergence."
        )
        return Evidence(Check.LOGSUMEXP, control, measured, FAILED, says)
    if reference.kind != "logits":
        says = f"Both sides hold {reference.kind}, not logits: ULPs, margins and rms are of those."
        return Evidence(Check.LOGSUMEXP, control, measured, NOTED, says)
    return Evidence(Check.LOGSUMEXP, control, measured, PASSED, "Both sides hold logits, not probabilities.")


def _kind(logsumexp: NDArray[np.float64], best: NDArray[np.float64], vocab: int, kept: int) -> str:
    """Kind of rows with these logsumexp and largest values, `kept` of them not filled by one value: the sum of exp(p)
    over probabilities p lies between V and V + e - 2.
    """
    if not len(logsumexp):
        return "logits"
    if (best <= 0).all() and are_log_probabilities(logsumexp, kept, vocab):
        return "log-probabilities"
    low, high = np.log(vocab + 1.0), np.log(vocab + np.e - 1)
    is_probable = (logsumexp > low - 0.02 / vocab) & (logsumexp < high + 0.02 / vocab)
    return "probabilities" if is_probable.all() and ((best > 0) & (best <= 1)).all() else "logits"


def _truncation(
    header: RunHeader,
    fillings: tuple[Filling, Filling],
    scales: tuple[Scale, Scale],
    names: tuple[str, str],
    *,
    is_alike: bool,
) -> Evidence:
    """is_alike: no logit is infinite on one side only, so a mask of -inf is the same on both."""
    control = "rows that one single value fills to more than a half"
    figures = TruncationFigures(
        reference_filled_rows=fillings[0].rows,
        variant_filled_rows=fillings[1].rows,
        least_other_logits=min((filling.kept for filling in fillings if filling.rows), default=None),
    )
    filled = [(name, filling) for name, filling in zip(names, fillings, strict=True) if filling.rows]
    if not filled:
        says = (
            "No row repeats one value for more than half of the vocabulary, as rows that were cut or never written do."
        )
        return Evidence(Check.TRUNCATION, control, figures, PASSED, says)
    who = " and ".join(f"'{name}'" for name, _ in filled)
    most = max(filled, key=lambda pair: pair[1].rows)[1]
    where = "every position" if most.rows == header.rows else f"{most.rows:,} of {header.rows:,} positions"
    if len(filled) == 2 and is_alike and all(np.isneginf(filling.value) for filling in fillings):
        says = (
            f"Both sides are masked alike, -inf for more than half of the vocabulary at {where}: only the other logits"
            " are compared."
        )
        return Evidence(Check.TRUNCATION, control, figures, NOTED, says)
    if most.value == 0:
        says = (
            f"{who} {'holds' if len(filled) == 1 else 'hold'} rows of zeros at {where}: padding, or rows that were"
            " never written."
        )
        return Evidence(Check.TRUNCATION, control, figures, FAILED, says)
    kind = next(scale.kind for scale, filling in zip(scales, fillings, strict=True) if filling.rows)
    least, largest = min(f.kept for _, f in filled), max(f.most_kept for _, f in filled)
    cut = (
        f"cut to the top {least:,}" if least == largest else f"cut or masked ({least:,} to {largest:,} tokens are kept)"
    )
    says = (
        f"{who} {'holds' if len(filled) == 1 else 'hold'} {kind} {cut} at {where}, {most.value:g} elsewhere: no figure"
        f" here is of the whole vocabulary. Save the {kind} before that."
    )
    return Evidence(Check.TRUNCATION, control, figures, FAILED, says)


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
    control = "NaN and infinities of one side against the other"
    wrong = positions["nonfinite_mismatch"].to_numpy(np.int64)
    rows = np.flatnonzero(wrong)
    measured = NumbersFigures(
        nonfinite_mismatch=int(wrong.sum()), positions=len(rows), first=header.places()[rows[0]] if len(rows) else None
    )
    broken = not_finite_of(figures, pair)
    if broken is None:
        return Evidence(Check.NUMBERS, control, measured, PASSED, "No logit is NaN or infinite on one side only.")
    where = place_in_words(int(rows[0]), [prompt.positions for prompt in header.prompts])
    count = int(wrong.sum())
    many = f"{count:,} {'logit is' if count == 1 else 'logits are'}"
    if figures.is_only_masked(pair):
        is_cut = any(filling.rows and np.isneginf(filling.value) for filling in fillings)
        says = f"{many} -inf on one side only, {where} first, and none is NaN: " + (
            "tokens that one side kept and the other cut."
            if is_cut
            else "a mask or padding of one side's vocabulary, or tokens that one side left out."
        )
        return Evidence(Check.NUMBERS, control, measured, NOTED if is_cut else FAILED, says)
    reason = (
        "a mask or padding of one side's vocabulary, rows that were never written, a kernel that made them, or an"
        " overflow of the dtype."
    )
    if broken.is_overflow and header.compute_dtype != "bfloat16":
        reason = (
            f"an overflow of float16 (largest {FLOAT16_MAX:,.0f}), for logits reach {broken.largest:,.0f} there: use"
            " bfloat16 or float32."
        )
    says = f"{broken.says([prompt.positions for prompt in header.prompts])}: {reason}"
    return Evidence(Check.NUMBERS, control, replace(measured, token=broken.token), FAILED, says)


def sampling(figures: Figures, generations: Sequence[Generation]) -> dict[int, Evidence]:
    """The row of the rung `sampler` of every side whose emitted tokens the dump names. Of tokens that tie, any will
    do.
    """
    header = figures.header
    begins = np.cumsum([0, *(prompt.positions for prompt in header.prompts)])
    lengths = [prompt.positions for prompt in header.prompts]
    found = {}
    for side in range(len(header.sides)) if generations else ():
        starts = [int(begins[made.prompt]) + made.given_positions - 1 for made in generations]
        rows = np.concatenate(
            [np.arange(len(made.tokens[side])) + start for made, start in zip(generations, starts, strict=True)]
        )
        tokens = np.concatenate([np.array(made.tokens[side], np.int64) for made in generations])
        if not len(tokens):
            continue
        best = figures.best_tokens(side, _RANKS)
        of_row = begins[best["prompt"].to_numpy(np.int64)] + best["position"].to_numpy(np.int64)
        top = np.full(header.rows, np.nan)
        logits, ranks = best["logit"].to_numpy(float), best["rank"].to_numpy(np.int64)
        top[of_row[ranks == 0]] = logits[ranks == 0]
        ties = logits == top[of_row]
        keys = of_row[ties] * np.int64(header.vocab) + best["token_id"].to_numpy(np.int64)[ties]
        is_best = np.isin(rows * np.int64(header.vocab) + tokens, keys) & (tokens < header.vocab)
        crowded = set(of_row[ties & (ranks == _RANKS - 1)].tolist())  # more may tie than are kept: the row itself tells
        for place in np.flatnonzero(~is_best):
            row, token = int(rows[place]), int(tokens[place])
            if row in crowded and token < header.vocab:
                values = values_of(figures.read_rows(side, row, row + 1)[0], header.format)
                is_best[place] = float(values[token]) == top[row]
        allowed = [{int(token)} if good else set() for token, good in zip(tokens, is_best, strict=True)]
        wrong = np.flatnonzero(~is_best)
        places = [""] * len(tokens)
        if len(wrong):
            places[wrong[0]] = place_in_words(int(rows[wrong[0]]), lengths)
        found[side] = sampler_evidence(tokens.tolist(), allowed, header.sides[side].name, places)
    return found


def sampler_evidence(
    tokens: Sequence[int],
    argmaxes: Sequence[int | Collection[int]],
    side: str | None = None,
    places: Sequence[str] = (),
) -> Evidence:
    """Evidence on whether each emitted token is the argmax of the logits it was chosen from. Right logits and a wrong
    token are a fault of the sampler.

    tokens: what was emitted [positions]; argmaxes: of the same side's logits at the same positions, the lowest token
    id, or all ids that share the largest logit where the sampler may take any of them; side: its name; places: each
    token's position in words, if it is not its index.
    """
    if len(tokens) != len(argmaxes):
        raise UsageError(f"{len(tokens)} emitted tokens against {len(argmaxes)} argmaxes; expected one for each.")
    allowed = [{best} if isinstance(best, int | np.integer) else set(best) for best in argmaxes]
    wrong = [position for position, token in enumerate(tokens) if token not in allowed[position]]
    figures = SamplerFigures(tokens=len(tokens), not_the_argmax=len(wrong), first=wrong[0] if wrong else None)
    whose = "the side" if side is None else f"'{side}'"
    control = f"emitted tokens against the argmax of {whose}'s own logits"
    if not wrong:
        says = "Every emitted token is the argmax of its own logits."
        return Evidence(Check.EMITTED, control, figures, PASSED, says, side)
    where = places[wrong[0]] if places else f"position {wrong[0]}"
    says = (
        f"{len(wrong):,} of {len(tokens):,} emitted tokens are not the argmax of their own logits, {where} first: the "
        "sampler does not take the most likely token."
    )
    return Evidence(Check.EMITTED, control, figures, FAILED, says, side)


def structure(figures: Figures, pair: int) -> list[Evidence]:
    """The rung `structure`, which takes no control and never decides: where the sides begin to differ at all."""
    header = figures.header
    positions = figures.positions(pair)
    rows = np.flatnonzero(~positions["bit_identical"].to_numpy(bool))
    if not len(rows):
        return []
    shown = structure_of(rows, [prompt.positions for prompt in header.prompts], BLOCKS)
    assert shown.first is not None
    measured = shown.figures(of=header.rows)
    control = "positions with a bit that differs"
    if shown.rows == header.rows:
        says = "The one position differs." if header.rows == 1 else "Every position differs, the first included."
        return [Evidence(Check.DIFFERING, control, measured, NOTED, says)]
    position = shown.first[1]
    where = place_in_words(int(rows[0]), [prompt.positions for prompt in header.prompts])
    before = f"; the {position:,} before it are equal bit for bit" if position > 1 else ""
    after = " From there on every position differs." if shown.is_tail else ""
    block = f" Every place where differences begin is {shown.block_in_words}." if shown.block else ""
    count = f"{shown.rows:,} of {header.rows:,} positions differ, {where} first{before}."
    return [Evidence(Check.DIFFERING, control, measured, NOTED, f"{count}{after}{block}")]
