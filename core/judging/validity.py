"""Check a dump by its own arrays: can they be compared?"""

from collections.abc import Sequence

import numpy as np

from ..checks.emitted_tokens import sampler_evidence
from ..checks.not_finite import numbers_row
from ..checks.probabilities import DumpSide, logsumexp_row
from ..checks.shapes import shapes_row
from ..checks.shift import shift_row
from ..checks.truncation import truncation_row
from ..evidence import Evidence
from ..numerics.arrays import Values
from ..numerics.constant_rows import Filling
from ..numerics.formats import values_of
from ..numerics.side_divergence import Divergence
from ..places import NotFinite
from ..runs.dumps.source_dtype import looks_normalised
from ..runs.file.records import Generation, RunHeader
from ..runs.measured import Measured
from .values import some_values

FIRST_ROWS = 64  # that tell logits from probabilities
# float32 arrays may hold what a 16-bit model computed, if a cast, softcap or log-softmax hides its
# grid. Only a named dtype is taken for the one of the computation.
NAMED = (
    *("Compute dtype: float32, declared", "Compute dtype: float32, chosen"),
    *("compute dtype declared:", "compute dtype override:"),  # of 1.0.0
)


def checks_of(figures: Measured, fillings: Sequence[Filling]) -> list[list[Evidence]]:
    """Return the validity checks of every pair: shapes and tokens, and others that find something.

    fillings: of every side.
    """
    header = figures.header
    highest_of_each = [max(prompt.token_ids) for prompt in header.prompts if prompt.token_ids]
    shapes = shapes_row(
        header.rows,
        header.vocab,
        max(highest_of_each, default=None),
        has_tokens=header.has_tokens,
    )
    if not header.has_tokens:
        numbers = [_numbers(figures, pair) for pair in range(len(header.sides) - 1)]
        return [[shapes, *filter(None, [each])] for each in numbers]
    checks = []
    sides = []
    for index, filling in enumerate(fillings):
        bits = figures.read_rows(index, 0, min(FIRST_ROWS, header.rows))
        rows = values_of(bits, header.format)
        rows = rows[~(np.isnan(rows) | np.isposinf(rows)).any(axis=1)]
        if filling.rows and filling.value < 0:
            rows = np.where(rows == filling.value, -np.inf, rows)
        holds = looks_normalised(rows) if len(rows) else ""
        sides.append(
            DumpSide(
                header.sides[index].name,
                filling,
                holds or "logits",
                figures.logsumexp(index),
            )
        )
    for pair, other in enumerate(sides[1:]):
        both = (sides[0], other)
        columns = figures.columns(pair)
        every = (
            shift_row(columns, (sides[0].name, other.name)),
            logsumexp_row(both),
            truncation_row(
                both,
                header.rows,
                has_mismatch=bool(columns["nonfinite_mismatch"].any()),
            ),
            _numbers(figures, pair, is_cut=sides[0].is_cut or other.is_cut),
        )
        checks.append([shapes, *filter(None, every)])
    return checks


def _numbers(figures: Measured, pair: int, *, is_cut: bool = False) -> Evidence | None:
    mismatch = not_finite_of(figures, pair)
    if not mismatch:
        return None
    header = figures.header
    is_masked = figures.is_only_masked(pair)
    # a cut is named by itself
    if is_masked and is_cut:
        return None
    return numbers_row(
        mismatch,
        header.lengths,
        header.compute_dtype,
        is_masked=is_masked,
    )


def not_finite_of(figures: Measured, pair: int, wide: Divergence | None = None) -> NotFinite | None:
    """Return the logits of a pair that are NaN or infinite on one side only, None if there are
    none.

    wide: the pair in float32, else it is the one that is stored.
    """
    header = figures.header
    largest = np.nan
    by_row = wide.mismatches if wide else figures.columns(pair)["nonfinite_mismatch"]
    if not by_row.any():
        return None
    first = wide.first_mismatch if wide else None
    if not first:
        row = int(np.flatnonzero(by_row)[0])
        span = row, row + 1
        reference, variant = (some_values(figures, side, span)[0] for side in (0, pair + 1))
        first = first_mismatch(reference, variant)
        other = variant if np.isfinite(first[2]) else reference
        largest = float(np.where(np.isfinite(other), other, -np.inf).max())
    return NotFinite(
        by_row,
        first[0],
        header.vocabulary.get(first[0], ""),
        (header.sides[0].name, header.sides[pair + 1].name),
        first[1:],
        largest,
    )


def first_mismatch(
    reference: Values,
    variant: Values,
) -> tuple[int, float, float]:
    """Return the first token that is NaN or infinite and not alike on both sides [vocab], and its
    values.
    """
    is_number = np.isfinite(reference) & np.isfinite(variant)
    is_same = (reference == variant) | (np.isnan(reference) & np.isnan(variant))
    token = int(np.flatnonzero(~is_number & ~is_same)[0])
    return token, float(reference[token]), float(variant[token])


def sampling(figures: Measured, generations: Sequence[Generation]) -> dict[int, Evidence]:
    """Check the emitted tokens of every side that has some, by side.

    Of tokens that tie, any may be emitted.
    """
    lengths = figures.header.lengths
    checks = {}
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


def may_be_16_bits(header: RunHeader) -> bool:
    """Return whether float32 arrays may hold what a 16-bit model computed: no one named their
    dtype.
    """
    return header.compute_dtype == "float32" and not header.provenance.note.startswith(NAMED)
