"""Sparse figures: each exact one equals that of the complete rows, each interval holds it, whatever k."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import log_softmax, rel_entr

from core.numerics import sparse
from core.numerics.sparse import Interval, ListedRow, compare_rows

VOCAB = 48


def bfloat16(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values rounded to bfloat16 by truncating float32's lower half: any grid will do here."""
    bits = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(np.float64)


def pair(seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Two rows of logits [VOCAB]: close, far apart, tied at the top, or with their order turned around."""
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
    """The k best of a row, the lower token first where values are equal, and some others."""
    order = sorted(range(len(row)), key=lambda token: (-row[token], token))
    kept = order[:k] + [token for token in order[k:] if token in also]
    ids = np.array(kept, np.int64)
    return ListedRow(ids, row[ids], min(k, len(row)), is_full=k >= len(row))


@pytest.mark.parametrize("values", ["logit", "logprob", "prob"])
@pytest.mark.parametrize("seed", range(24))
def test_figures_of_a_cut_row_are_those_of_the_whole_or_hold_them(values: str, seed: int) -> None:
    logits = pair(seed)
    whole = [as_values(row, values) for row in logits]
    shares = [np.exp(log_softmax(row)) for row in logits]
    changes = np.abs(whole[1] - whole[0])
    kl = float(rel_entr(*shares).sum())
    best = [int(np.argmax(row)) for row in whole]  # the first of equal ones, the lowest token
    ranks = [sorted(range(VOCAB), key=lambda token, row=row: (-row[token], token)) for row in whole]
    margins = [float(row[order[0]] - row[order[1]]) for row, order in zip(whole, ranks, strict=True)]
    near = min(margins) <= 2 * changes.max()
    for k in range(1, VOCAB + 1):
        extra = (int(ranks[1][min(k + 3, VOCAB - 1)]),)  # a chosen token from further down
        for also in ((), extra):
            figures = compare_rows(cut(whole[0], k, also), cut(whole[1], k, also), values, VOCAB)
            assert changes.max() in figures.max_abs
            assert int(np.count_nonzero(changes)) in figures.neq
            assert figures.kl is None or holds(figures.kl, kl)
            if figures.max_probability_change is not None:
                assert holds(figures.max_probability_change, float(np.abs(shares[1] - shares[0]).max()))
            assert figures.is_flip is (best[0] != best[1])
            assert [figures.reference.token, figures.variant.token] == best
            for side, row, margin in zip((figures.reference, figures.variant), (0, 1), margins, strict=True):
                assert side.margin == (margin if k > 1 else None)
                if side.rest is not None:
                    assert holds(
                        side.rest,
                        math.fsum(shares[row][[t for t in range(VOCAB) if t not in listed(whole[row], k, also)]]),
                    )
            assert figures.could_flip in (None, near)
            assert figures.variant_rank_of_reference in (None, ranks[1].index(best[0]))
            if k == VOCAB:
                assert figures.max_abs.is_exact
                assert figures.neq.is_exact
                assert figures.could_flip is not None
                assert figures.kl is not None
                assert figures.kl.high is not None


def listed(row: NDArray[np.float64], k: int, also: tuple[int, ...]) -> set[int]:
    return set(cut(row, k, also).token_ids.tolist())


def holds(interval: Interval, value: float) -> bool:
    """Bounds are computed in float64 as the expected value is: both have its rounding."""
    slack = 1e-12 * max(1.0, abs(value))
    return interval.low - slack <= value and (interval.high is None or value <= interval.high + slack)


def test_a_bound_that_forgets_the_rest_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: KL of the common tokens alone is no lower bound, for their terms may exceed the whole."""
    monkeypatch.setattr(sparse, "_shared_out", lambda *_: 0.0)
    noticed = 0
    for seed in range(8):
        try:
            test_figures_of_a_cut_row_are_those_of_the_whole_or_hold_them("logprob", seed)
        except AssertionError:
            noticed += 1
    assert noticed


def test_a_token_that_left_the_list_bounds_the_divergence() -> None:
    """By hand: the reference gives token 0 the probability 0.9, the variant lists two others whose least has 0.1; so
    token 0 has at most 0.1 there, and KL is at least 0.9 log(0.9 / 0.1) + 0.1 log(0.1 / 0.8).
    """
    reference = ListedRow(np.array([0, 1]), np.log([0.9, 0.05]), 2, is_full=False)
    variant = ListedRow(np.array([1, 2]), np.log([0.5, 0.1]), 2, is_full=False)
    figures = compare_rows(reference, variant, "logprob")
    assert figures.kl is not None
    # Common: token 1, 0.05 log(0.05 / 0.5); token 0 at its cap of 0.1; rest 0.05 against 0.5 - 0.1 = 0.4.
    expected = 0.05 * math.log(0.05 / 0.5) + 0.9 * math.log(0.9 / 0.1) + 0.05 * math.log(0.05 / 0.4)
    assert figures.kl.low == pytest.approx(expected, abs=1e-9)
    assert figures.is_flip is True
    assert figures.variant_rank_of_reference is None


def test_a_chosen_token_alone_says_its_change_and_nothing_of_the_top() -> None:
    one = ListedRow(np.array([7]), np.array([-1.25]), 0, is_full=False)
    other = ListedRow(np.array([7]), np.array([-1.5]), 0, is_full=False)
    figures = compare_rows(one, other, "logprob", 100)
    assert (figures.max_abs, figures.neq) == (Interval(0.25, None), Interval(1, 100))
    assert (figures.is_flip, figures.could_flip, figures.reference.margin) == (None, None, None)
    rest = figures.reference.rest
    assert rest is not None
    assert rest.low == pytest.approx(1 - math.exp(-1.25))
