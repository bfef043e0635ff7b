"""Compiled exponentials and logarithms against Python's decimal arithmetic of 40 digits."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
from numba import njit

from core.numerics import reproducible

EXPONENTS = -np.concatenate(
    [np.geomspace(1e-18, 699.9, 1500), np.arange(0.0, 700.0, 7.0), np.log(2) * np.arange(1, 1000, 13) / 2]
)
POSITIVE = np.concatenate(
    [
        np.geomspace(1e-300, 1e300, 1500),
        1 + np.linspace(-0.3, 0.5, 501),
        1 + np.geomspace(1e-15, 1e-3, 200),
        [0.5**0.5, 2**0.5, 1.0],
    ]
)


@njit
def compiled_exp(x):
    return reproducible.exp(x)


@njit
def compiled_log(x):
    return reproducible.log(x)


def exact(name: str, x: float) -> Decimal:
    with localcontext() as context:
        context.prec = 40
        return getattr(Decimal(x), name)()


def test_exp_is_e_to_the_x():
    for x in EXPONENTS:
        want, got = exact("exp", float(x)), Decimal(float(compiled_exp(x)))
        assert abs(got - want) <= Decimal(float(1e-15 + 5e-17 * -x)) * want, x
    assert compiled_exp(0.0) == 1.0


def test_log_is_within_an_ulp():
    for x in POSITIVE:
        want, got = exact("ln", float(x)), float(compiled_log(x))
        assert abs(Decimal(got) - want) <= Decimal(math.ulp(got)), x
    assert compiled_log(1.0) == 0.0


def test_lanes_fold_to_the_sum_of_exact_numbers():
    @njit
    def folded(lanes, first, count):
        return reproducible.fold(lanes, first, count)

    for first, count in ((0, 1), (3, 2), (4, 64)):
        lanes = np.arange(100.0) ** 2
        assert folded(lanes.copy(), first, count) == lanes[first : first + count].sum()
