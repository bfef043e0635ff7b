"""Figures of lists: each one equals that of the complete rows, for any k, or is open."""

import numpy as np
import pytest
from scipy.special import log_softmax

from core.numerics.top_tokens import TopTokenRows, compare_rows, concatenate, largest, summary_of

VOCAB = 48


def bfloat16(values):
    """Values rounded to bfloat16 by truncating float32's lower half: any grid will do here."""
    bits = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(np.float64)


def pair(seed):
    """Two rows of logits [VOCAB]: close, different, tied at the top, or with their order turned
    around.
    """
    rng = np.random.default_rng(seed)
    reference = bfloat16(rng.normal(0, [1, 4, 12][seed % 3], VOCAB))
    change = rng.normal(0, [1e-3, 0.1, 3.0][(seed // 3) % 3], VOCAB)
    variant = bfloat16(reference + change)
    if seed % 7 == 0:
        reference[np.argsort(reference)[-3:]] = reference.max()
    if seed % 11 == 0:
        variant = reference[::-1].copy()
    return reference, variant


def listed(row, best):
    """One row of these values, largest first."""
    none = np.zeros(1, np.int64)
    ids = np.array(list(row), np.int64)
    values = np.array(list(row.values()))
    return TopTokenRows(
        none,
        np.array([0, len(row)]),
        ids,
        values,
        np.array([best]),
        none,
        none,
        np.array([np.nan]),
    )


def cut(row, k, extra):
    """The k best of a row, the lower token first if values are equal, and a chosen token from
    further down.
    """
    order = np.argsort(-row, kind="stable").tolist()
    kept = order[:k] + [token for token in order[k:] if token == extra]
    return listed({token: row[token] for token in kept}, k)


@pytest.mark.parametrize("seed", range(24))
def test_figures_of_a_cut_row_are_those_of_the_whole_or_open(seed):
    whole = [log_softmax(row) for row in pair(seed)]
    # argmax returns the first of equal values, which is the lowest token
    best = [int(np.argmax(row)) for row in whole]
    margins = []
    for row in whole:
        first, second = np.sort(row)[::-1][:2]
        margins.append(float(first - second))
    variant_ranks = np.argsort(-whole[1], kind="stable").tolist()
    cases = []
    for k in range(1, VOCAB + 1):
        # servers append the sampled token to the top k, from whatever rank it has
        below_the_cut = variant_ranks[min(k + 3, VOCAB - 1)]
        cases += [(k, None), (k, below_the_cut)]
    rows = [concatenate([cut(side, *case) for case in cases]) for side in whole]
    figures = compare_rows(*rows)
    for at, (k, _) in enumerate(cases):
        reference_ids, variant_ids = (set(side.row(at)[0].tolist()) for side in rows)
        both = sorted(reference_ids & variant_ids)
        changes = whole[1][both] - whole[0][both]
        largest_change = None
        rms = None
        if both:
            largest_change = np.abs(changes).max()
            rms = pytest.approx(np.sqrt(np.square(changes).mean()))
        assert figures.common[at] == len(both)
        assert figures.neq[at] == np.count_nonzero(changes)
        assert figures.max_abs.tolist()[at] == largest_change
        assert figures.rms.tolist()[at] == rms
        assert figures.is_flip.tolist()[at] is (best[0] != best[1])
        assert [figures.reference_token[at], figures.variant_token[at]] == best
        both_margins = [
            figures.reference_margin.tolist()[at],
            figures.variant_margin.tolist()[at],
        ]
        assert both_margins == (margins if k > 1 else [None, None])
        assert figures.is_tie.tolist()[at] == (0.0 in margins if k > 1 else None)
        # a shorter list may lack the largest change of the row
        if k == VOCAB:
            assert figures.could_flip[at] == (min(margins) <= 2 * largest_change)


def test_a_chosen_token_alone_says_its_change_and_nothing_of_the_top():
    figures = compare_rows(listed({7: -1.25}, 0), listed({7: -1.5}, 0))
    assert figures.max_abs[0] == 0.25
    assert figures.rms[0] == 0.25
    assert figures.neq[0] == 1
    assert figures.bit_identical.tolist() == [False]
    for name in ("is_flip", "could_flip", "is_tie", "reference_margin"):
        assert getattr(figures, name).tolist() == [None]


def test_a_pair_without_a_common_token_has_open_figures():
    figures = compare_rows(listed({7: -0.5}, 1), listed({8: -0.5}, 1))
    assert figures.common[0] == 0
    assert figures.max_abs.tolist() == [None]
    assert figures.is_flip.tolist() == [True]
    summary = summary_of(figures)
    assert summary.finite == 0
    assert summary.neq == 0
    assert summary.neq_share is None
    assert summary.flips == 1
    assert summary.same_top1 == 0.0


@pytest.mark.parametrize("count", [1, 3, 20, 47, 48, 60])
def test_equal_values_are_chosen_by_their_place_however_they_are_permuted(count):
    """Values of four levels in any order: nearly all are tied, and the cut is always among equal
    ones.
    """
    for seed in range(8):
        # argpartition passes for some orders: among equals it picks by the processor's vectors
        levels = np.repeat([-np.inf, -1.5, 0.25, 3.0], VOCAB // 4)
        values = np.random.default_rng(seed).permutation(levels)
        expected = np.argsort(-values, kind="stable")[:count]
        assert largest(values, count).tolist() == expected.tolist()


def test_a_token_without_an_id_repeats_no_other():
    # -1 has all bits set: in the key of row and token it would reach into the row
    row = {7: 2.0, -1: 1.0, 3: 0.5}
    rows = concatenate([listed(row, 2), listed(row, 2)])
    assert not rows.has_repeats.any()
