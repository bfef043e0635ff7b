"""Figures of lists: each one equals that of the complete rows, for any k, or is open."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import log_softmax, rel_entr

from core.numerics.topk import ListedRow, compare_rows, summary_of

VOCAB = 48


def bfloat16(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values rounded to bfloat16 by truncating float32's lower half: any grid will do here."""
    bits = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(np.float64)


def pair(seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Two rows of logits [VOCAB]: close, different, tied at the top, or with their order turned around."""
    rng = np.random.default_rng(seed)
    reference = bfloat16(rng.normal(0, [1, 4, 12][seed % 3], VOCAB))
    change = rng.normal(0, [1e-3, 0.1, 3.0][(seed // 3) % 3], VOCAB)
    variant = bfloat16(reference + change)
    if seed % 7 == 0:
        reference[np.argsort(reference)[-3:]] = reference.max()
    if seed % 11 == 0:
        variant = reference[::-1].copy()
    return reference, variant


def as_values(row: NDArray[np.float64], values: str) -> NDArray[np.float64]:
    if values == "logit":
        return row
    return log_softmax(row) if values == "logprob" else np.exp(log_softmax(row))


def cut(row: NDArray[np.float64], k: int, also: tuple[int, ...] = ()) -> ListedRow:
    """The k best of a row, the lower token first if values are equal, and some others."""
    order = sorted(range(len(row)), key=lambda token: (-row[token], token))
    kept = order[:k] + [token for token in order[k:] if token in also]
    ids = np.array(kept, np.int64)
    return ListedRow(ids, row[ids], min(k, len(row)), is_full=k >= len(row))


@pytest.mark.parametrize("values", ["logit", "logprob", "prob"])
@pytest.mark.parametrize("seed", range(24))
def test_figures_of_a_cut_row_are_those_of_the_whole_or_open(values: str, seed: int) -> None:
    logits = pair(seed)
    whole = [as_values(row, values) for row in logits]
    shares = [np.exp(log_softmax(row)) for row in logits]
    best = [int(np.argmax(row)) for row in whole]  # the first of equal ones, the lowest token
    ranks = [sorted(range(VOCAB), key=lambda token, row=row: (-row[token], token)) for row in whole]
    margins = [float(row[order[0]] - row[order[1]]) for row, order in zip(whole, ranks, strict=True)]
    for k in range(1, VOCAB + 1):
        extra = (int(ranks[1][min(k + 3, VOCAB - 1)]),)  # a chosen token from further down
        for also in ((), extra):
            rows = [cut(row, k, also) for row in whole]
            figures = compare_rows(*rows, values)
            both = sorted(set(rows[0].token_ids.tolist()) & set(rows[1].token_ids.tolist()))
            changes = whole[1][both] - whole[0][both]
            assert (figures.common, figures.neq) == (len(both), int(np.count_nonzero(changes)))
            assert figures.max_abs == (float(np.abs(changes).max()) if both else None)
            assert figures.is_flip is (best[0] != best[1])
            assert [figures.reference.token, figures.variant.token] == best
            assert [figures.reference.margin, figures.variant.margin] == (margins if k > 1 else [None, None])
            assert figures.is_tie == (0.0 in margins if k > 1 else None)
            assert (figures.kl is None) == (k < VOCAB)
            if k == VOCAB:
                assert figures.kl == pytest.approx(float(rel_entr(*shares).sum()), rel=1e-9, abs=1e-12)
                assert figures.could_flip == (min(margins) <= 2 * np.abs(changes).max())


def test_a_chosen_token_alone_says_its_change_and_nothing_of_the_top() -> None:
    one = ListedRow(np.array([7]), np.array([-1.25]), 0, is_full=False)
    other = ListedRow(np.array([7]), np.array([-1.5]), 0, is_full=False)
    figures = compare_rows(one, other, "logprob")
    assert (figures.max_abs, figures.rms, figures.neq, figures.bit_identical) == (0.25, 0.25, 1, False)
    assert (figures.is_flip, figures.could_flip, figures.reference.margin) == (None, None, None)


def test_a_pair_without_a_common_token_has_open_figures() -> None:
    rows = [ListedRow(np.array([token]), np.array([-0.5]), 1, is_full=False) for token in (7, 8)]
    figures = compare_rows(*rows, "logprob")
    assert (figures.common, figures.max_abs, figures.rms, figures.is_flip) == (0, None, None, True)
    summary = summary_of([figures])
    assert (summary.finite, summary.neq, summary.neq_share, summary.flips, summary.same_top1) == (0, 0, None, 1, 0.0)
