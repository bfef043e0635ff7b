"""Check a dump by its own arrays: can they be compared, and does their difference look like
rounding?

`python -m benchmarks.verdicts.screening` measures what harmless paths do
(docs/explanation/calibration.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from ..numerics.constant_rows import Filling
from ..numerics.formats import values_of
from ..numerics.side_divergence import Divergence
from ..runs.dumps.source_dtype import looks_normalised
from ..runs.figures import Figures
from ..runs.file import evidence
from ..runs.file.evidence import FAILED, NOTED, PASSED, Check, Evidence
from ..runs.file.records import Generation, RunHeader
from ..runs.queries.flips import beyond_noise, dominating
from ..text import number, plural, series
from .explain.signs import shift_in_words
from .limits import ROW_ULPS, STANDS_OUT, STANDS_OUT_MOST
from .places import FLOAT16_MAX, NotFinite, place_in_words, place_of, structure_of

if TYPE_CHECKING:
    import pandas as pd

_LEAST_ROWS = 8  # fewer say nothing about a shift
_LEAST_TOKENS = 4  # different argmaxes, or every shift agrees
# A shift is believed if half of the rows agree under it, and twice as many as without one.
_AGREES, _MORE_OFTEN = 0.5, 2.0
_FIRST_ROWS = 64  # that tell logits from probabilities
# float32 arrays may hold what a 16-bit model computed, if a cast, softcap or log-softmax hides its
# grid. Only a named dtype is taken for the one of the computation.
NAMED = (
    *("Compute dtype: float32, declared", "Compute dtype: float32, chosen"),
    *("compute dtype declared:", "compute dtype override:"),  # of 1.0.0
)
KL = 0.25  # mean, nats: harmless up to 0.0017 in dense models, 0.022 with experts
FLOAT32_STEPS = 1 << 16  # row ULPs of float32 in one of bfloat16


@dataclass(frozen=True)
class _Side:
    """A side of a dump. holds: logits, log-probabilities or probabilities; logsumexp: of every row,
    nats.
    """

    name: str
    filling: Filling
    holds: str
    logsumexp: NDArray[np.float64]

    @property
    def is_cut(self) -> bool:
        return bool(self.filling.rows and np.isneginf(self.filling.value))


def checks_of(figures: Figures, fillings: Sequence[Filling]) -> list[list[Evidence]]:
    """Return the validity checks of every pair: shapes and tokens, and others that find something.

    fillings: of every side.
    """
    header = figures.header
    highest = max(
        (max(prompt.token_ids) for prompt in header.prompts if prompt.token_ids),
        default=None,
    )
    shape = f"Both sides have {plural(header.rows, 'position')} x {header.vocab:,} tokens"
    outcome, says = PASSED, f"{shape} and the same token ids."
    if highest is None:
        outcome, says = NOTED, f"{shape}; the dump has no token_ids."
    elif highest >= header.vocab:
        outcome = FAILED
        says = (
            f"Token ids reach {highest:,}, beyond the vocabulary of {header.vocab:,}: they are of"
            " other logits."
        )
    record = evidence.ShapesFigures(
        positions=header.rows,
        vocab=header.vocab,
        highest_token_id=highest,
    )
    shapes = Evidence(
        Check.SHAPES,
        "shapes, and token ids vs the vocabulary",
        record,
        outcome,
        says,
    )
    sides, checks = [], []
    for index, filling in enumerate(fillings):
        rows = values_of(figures.read_rows(index, 0, min(_FIRST_ROWS, header.rows)), header.format)
        rows = rows[~(np.isnan(rows) | np.isposinf(rows)).any(axis=1)]
        if filling.rows and filling.value < 0:
            rows = np.where(rows == filling.value, -np.inf, rows)
        holds = looks_normalised(rows) if len(rows) else ""
        sides.append(
            _Side(header.sides[index].name, filling, holds or "logits", figures.logsumexp(index)),
        )
    for pair, other in enumerate(sides[1:]):
        both, table = (sides[0], other), figures.positions(pair)
        every = (
            _shift(table, both),
            _scale(both),
            _truncation(header, table, both),
            _numbers(figures, pair, both),
        )
        checks.append([shapes, *filter(None, every)])
    return checks


def _shift(table: pd.DataFrame, sides: tuple[_Side, _Side]) -> Evidence | None:
    """Check whether rows of the two sides agree best as they stand or one or two further along."""
    reference, variant = (
        table[name].astype("Int64") for name in ("reference_token", "variant_token")
    )
    # of rows t where variant[t + shift] has the argmax of reference[t]
    rows_of, shifts = variant.groupby(table["prompt"]), evidence.SHIFTS
    same = {name: (rows_of.shift(-shift) == reference).dropna() for name, shift in shifts.items()}
    shares = {name: float(rows.mean()) if len(rows) else 0.0 for name, rows in same.items()}
    unshifted = shares["unshifted"]
    best = max(list(shares)[1:], key=shares.__getitem__)
    is_varied = (
        len({*reference.dropna(), *variant.dropna()}) >= _LEAST_TOKENS
        and len(same[best]) >= _LEAST_ROWS
    )
    if not is_varied or shares[best] < _AGREES or shares[best] <= _MORE_OFTEN * unshifted:
        return None
    agrees = f"argmaxes agree at {shares[best]:.0%} of positions then, else at {unshifted:.0%}"
    says = f"{shift_in_words(sides[0].name, sides[1].name, -shifts[best])}: {agrees}."
    figures = evidence.ShiftFigures(**shares)
    return Evidence(
        Check.SHIFT,
        "argmaxes of the two sides, up to two rows apart",
        figures,
        FAILED,
        says,
    )


def _scale(sides: tuple[_Side, _Side]) -> Evidence | None:
    mine, theirs = sides
    if mine.holds == theirs.holds == "logits":
        return None
    outcome, says = (
        NOTED,
        f"Both sides hold {mine.holds}, not logits: ULPs, margins and rms are of those.",
    )
    if mine.holds != theirs.holds:
        outcome = FAILED
        says = (
            f"'{mine.name}' holds {mine.holds} and '{theirs.name}' holds {theirs.holds}: they"
            " cannot be compared."
        )
    finite = [side.logsumexp[np.isfinite(side.logsumexp)] for side in sides]
    ends = [float(end(rows)) if len(rows) else None for rows in finite for end in (np.min, np.max)]
    figures = evidence.LogsumexpFigures(
        **dict(zip(evidence.LogsumexpFigures.__struct_fields__, ends, strict=True)),
    )
    return Evidence(Check.LOGSUMEXP, "logsumexp of every row of both sides", figures, outcome, says)


def _truncation(
    header: RunHeader,
    table: pd.DataFrame,
    sides: tuple[_Side, _Side],
) -> Evidence | None:
    filled_sides = [side for side in sides if side.filling.rows]
    if not filled_sides:
        return None
    most, holds = (
        max((side.filling for side in filled_sides), key=lambda filling: filling.rows),
        filled_sides[0].holds,
    )
    least = min(side.filling.others for side in filled_sides)
    place = (
        "every position"
        if most.rows == header.rows
        else f"{most.rows:,} of {header.rows:,} positions"
    )
    who = (
        f"{series([repr(side.name) for side in filled_sides])}"
        f" {'holds' if len(filled_sides) == 1 else 'hold'}"
    )
    clause = f"{holds} cut or masked to {least:,} tokens at {place}, {most.value:g} elsewhere"
    outcome, says = FAILED, f"{who} {clause}. Save the {holds} before that."
    if all(side.is_cut for side in sides) and not table["nonfinite_mismatch"].any():
        outcome = NOTED
        says = (
            f"Both sides mask more than half of the vocabulary at {place}: only other logits are"
            " compared."
        )
    elif most.whole == most.rows and most.value != 0:
        says = (
            f"{who} one value, {most.value:g}, for all tokens at {place}: the output head computes"
            " nothing."
        )
    elif most.value == 0:
        says = f"{who} rows of zeros at {place}: padding, or rows that were never written."
    mine, theirs = (side.filling.rows for side in sides)
    figures = evidence.TruncationFigures(
        reference_filled_rows=mine,
        variant_filled_rows=theirs,
        least_other_logits=least,
    )
    return Evidence(
        Check.TRUNCATION,
        "rows that one single value fills to more than a half",
        figures,
        outcome,
        says,
    )


def _numbers(figures: Figures, pair: int, sides: tuple[_Side, _Side]) -> Evidence | None:
    mismatch, lengths = not_finite_of(figures, pair), figures.header.lengths
    is_masked = mismatch is not None and figures.is_only_masked(pair)
    # a cut is named by itself
    if mismatch is None or (is_masked and any(side.is_cut for side in sides)):
        return None
    reason = "mask, padding or kernel fault"
    if mismatch.is_overflow and figures.header.compute_dtype != "bfloat16":
        reason = f"an overflow of float16 (largest {FLOAT16_MAX:,.0f})"
    says = f"{mismatch.says(lengths)}: {reason}."
    if is_masked:
        count, first = (
            plural(mismatch.logits, "logit is", "logits are"),
            place_in_words(int(mismatch.rows[0]), lengths),
        )
        says = (
            f"{count} -inf on one side only, first at {first}, none is NaN: one side is masked,"
            " padded or cut."
        )
    record = evidence.NumbersFigures(
        nonfinite_mismatch=mismatch.logits,
        positions=len(mismatch.rows),
        first=mismatch.place(lengths),
        token=None if is_masked else mismatch.token,
    )
    return Evidence(
        Check.NUMBERS,
        "NaN and infinities of one side vs the other",
        record,
        FAILED,
        says,
    )


def not_finite_of(figures: Figures, pair: int, wide: Divergence | None = None) -> NotFinite | None:
    """Return the logits of a pair that are NaN or infinite on one side only, None if there are
    none.

    wide: the pair in float32, else it is the one that is stored.
    """
    header, largest = figures.header, np.nan
    by_row = (
        wide.mismatches
        if wide
        else figures.positions(pair)["nonfinite_mismatch"].to_numpy(np.int64)
    )
    if not by_row.any():
        return None
    first = wide.first_mismatch if wide else None
    if first is None:
        row = int(np.flatnonzero(by_row)[0])
        values = [
            values_of(figures.read_rows(side, row, row + 1)[0], header.format)
            for side in (0, pair + 1)
        ]
        first = first_mismatch(values[0], values[1])
        other = values[1 if np.isfinite(first[2]) else 0]
        largest = float(np.where(np.isfinite(other), other, -np.inf).max())
    token, *ends = first
    names = header.sides[0].name, header.sides[pair + 1].name
    return NotFinite(
        by_row,
        token,
        header.vocabulary.get(token, ""),
        names,
        (ends[0], ends[1]),
        largest,
    )


def first_mismatch(
    reference: NDArray[np.float32],
    variant: NDArray[np.float32],
) -> tuple[int, float, float]:
    """Return the first token that is NaN or infinite and not alike on both sides [vocab], and its
    values.
    """
    is_number = np.isfinite(reference) & np.isfinite(variant)
    is_same = (reference == variant) | (np.isnan(reference) & np.isnan(variant))
    token = int(np.flatnonzero(~is_number & ~is_same)[0])
    return token, float(reference[token]), float(variant[token])


def sampling(figures: Figures, generations: Sequence[Generation]) -> dict[int, Evidence]:
    """Check the emitted tokens of every side that has some, by side.

    Of tokens that tie, any may be emitted.
    """
    lengths, checks = figures.header.lengths, {}
    starts = np.cumsum([0, *lengths])
    for index, side in enumerate(figures.header.sides):
        choices = [
            (int(starts[generation.prompt]) + generation.given_positions - 1 + step, int(token))
            for generation in generations
            for step, token in enumerate(generation.tokens[index])
        ]
        if choices:
            checks[index] = sampler_evidence(
                choices,
                figures.argmaxes(index, dict(choices)),
                side.name,
                lengths,
            )
    return checks


def sampler_evidence(
    choices: Sequence[tuple[int, int]],
    argmaxes: Mapping[int, Collection[int]],
    side: str,
    lengths: Sequence[int],
) -> Evidence:
    """Check whether each emitted token has the largest logit of the row it was chosen from.

    choices: (row, token) of each; argmaxes: the token ids with the largest logit, by row; lengths:
    positions by prompt.
    """
    wrong = [
        index for index, (row, token) in enumerate(choices) if token not in argmaxes.get(row, ())
    ]
    figures = evidence.SamplerFigures(
        tokens=len(choices),
        not_the_argmax=len(wrong),
        first=wrong[0] if wrong else None,
    )
    outcome, says = PASSED, "Every emitted token is the argmax of its own logits."
    if wrong:
        outcome, first = FAILED, place_in_words(choices[wrong[0]][0], lengths)
        count = f"{len(wrong):,} of {len(choices):,} emitted tokens"
        says = (
            f"{count} are not the argmax of their own logits, first at {first}: a fault of the"
            " sampler."
        )
    control = f"emitted tokens vs the argmax of '{side}'s own logits"
    return Evidence(Check.EMITTED, control, figures, outcome, says, side)


def differing(figures: Figures, pair: int) -> list[Evidence]:
    """Return the row on the first difference of the sides, which never decides; none if they are
    equal.
    """
    header = figures.header
    rows = np.flatnonzero(~figures.positions(pair)["bit_identical"].to_numpy(bool))
    if not len(rows):
        return []
    shape = structs.replace(structure_of(rows, header.lengths), of=header.rows)
    tail = ", and all after it" if 1 < len(rows) < header.rows and shape.is_tail else ""
    block = f"; differences begin at multiples of {shape.block}" if shape.block else ""
    first = place_in_words(int(rows[0]), header.lengths)
    says = f"{len(rows):,} of {plural(header.rows, 'position')} differ, first {first}{tail}{block}."
    return [Evidence(Check.DIFFERING, "positions with a bit that differs", shape, NOTED, says)]


def may_be_16_bits(header: RunHeader) -> bool:
    """Return whether float32 arrays may hold what a 16-bit model computed: nobody named their
    dtype.
    """
    return header.compute_dtype == "float32" and not header.provenance.note.startswith(NAMED)


def screen(
    header: RunHeader,
    positions: pd.DataFrame,
    causes: Sequence[str] = (),
    *,
    has_experts: bool = False,
) -> Evidence:
    """Screen a pair by its figures at each position, as `run.positions` gives them.

    causes: sentences of common causes that explain the difference; has_experts: a near tie of the
    router may choose another expert, which moves a position as far as a bug does. The evidence is
    noted if undecided.
    """
    dtype = header.compute_dtype
    rounding, bug, step = ROW_ULPS[dtype]
    rms = np.nan_to_num(positions["rms_row_ulps"].to_numpy(float))
    size = float(np.sqrt((rms**2).mean()))
    over_typical = rms / max(float(np.median(rms)), step)
    worst = float(over_typical.max())
    kl = float(np.nan_to_num(positions["kl"].to_numpy(float)).mean())
    outliers = np.flatnonzero(over_typical > STANDS_OUT)
    flips = int(beyond_noise(positions).sum())
    first = outliers[0] if len(outliers) else dominating(rms)
    of_16_bits = size / FLOAT32_STEPS
    measurement = f"The RMS difference is {number(size, 3)} row ULPs of {dtype}"
    outcome = FAILED
    if causes:
        says = causes[0]
    elif kl > KL:
        says = (
            f"The mean KL is {number(kl, 3)} nats (rounding: up to 0.02): a bug, or other weights."
        )
    elif len(outliers) and not has_experts:
        place, ratio = (
            place_in_words(int(outliers[0]), header.lengths),
            number(float(over_typical[outliers[0]]), 3),
        )
        reach = f"{ratio}x the median position's (rounding: up to {STANDS_OUT_MOST}x)"
        says = (
            f"The difference at {place} is {reach}. A mixture of experts may do this"
            " (--mixture-of-experts)."
        )
    elif size > bug and may_be_16_bits(header) and of_16_bits <= ROW_ULPS["bfloat16"][1]:
        outcome, in_16_bits = NOTED, f"{number(of_16_bits, 3)} if the model computes in bfloat16"
        says = f"{measurement}, {in_16_bits}. Name its --compute-dtype."
    elif size > bug and not has_experts:
        causes_of_it = (
            "a bug, other weights, lower precision, or a mixture of experts (--mixture-of-experts)"
        )
        says = f"{measurement} (rounding: up to {rounding:g}): {causes_of_it}."
    elif size > rounding or worst > STANDS_OUT_MOST or flips:
        outcome = NOTED
        reach = f"{number(worst, 3)}x at one position, {plural(flips, 'flip')} beyond the noise"
        says = f"{measurement} (rounding: up to {rounding:g}), {reach}: undecided."
    else:
        outcome = PASSED
        says = (
            f"Consistent with rounding in {dtype}: {number(size, 3)} row ULPs (RMS). A fault below"
            f" {rounding:g} row ULPs, or {STANDS_OUT_MOST}x at one position, would not show."
        )
    figures = evidence.ScreeningFigures(
        compute_dtype=dtype,
        rms_row_ulps=size,
        rounding_row_ulps=rounding,
        bug_row_ulps=bug,
        worst_position_ratio=worst,
        position_ratio_allowed=float(STANDS_OUT_MOST),
        positions_beyond=len(outliers),
        flips_beyond_noise=flips,
        first=None if first is None else place_of(int(first), header.lengths),
        causes=tuple(causes),
    )
    return Evidence(Check.ARRAYS_ALONE, "the two arrays, without controls", figures, outcome, says)
