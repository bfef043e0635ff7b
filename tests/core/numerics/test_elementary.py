"""Exponentials and logarithms, compiled and not, against Python's decimal arithmetic of 40 digits."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from numba import njit

from core.numerics import elementary, reproducible

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

EXPS = ["0x1.cf46d99d52b3ap-1", "0x1.78b56362cef38p-2", "0x1.1b48655f37267p-29", "0x1.d99ba65a1c91fp-939"]
LOGS = ["-0x1.26bb1bbb55515p+1", "0x0.0p+0", "0x1.7f7427b73e391p+1", "0x1.9e8d03f927283p+2"]


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


@pytest.mark.parametrize(("function", "allowed"), [(compiled_exp, 3.2e-14), (elementary.exp, 4e-16)])
def test_exp_is_e_to_the_x(function, allowed):
    for x in EXPONENTS:
        want, got = exact("exp", float(x)), Decimal(float(function(x)))
        allow = min(allowed, 1e-15 + 5e-17 * -x)
        assert abs(got - want) <= Decimal(float(allow)) * want, x
    assert function(0.0) == 1.0


@pytest.mark.parametrize("function", [compiled_log, elementary.log])
def test_log_is_within_an_ulp(function):
    for x in POSITIVE:
        want, got = exact("ln", float(x)), float(function(x))
        assert abs(Decimal(got) - want) <= Decimal(math.ulp(got)), x
    assert function(1.0) == 0.0


def test_what_over_and_underflows_is_as_ieee_754_says():
    with np.errstate(all="ignore"):
        odd = np.array([np.inf, -np.inf, np.nan, 1e300, -1e300, 709.7, 709.8, -745.0, -746.0])
        np.testing.assert_allclose(elementary.exp(odd), np.exp(odd), rtol=1e-13)
        odd = np.array([0.0, -0.0, -1.0, np.inf, -np.inf, np.nan, 5e-324, 1e-310])
        np.testing.assert_allclose(elementary.log(odd), np.log(odd), rtol=1e-15)


def test_their_bits_are_those_that_were_recorded_on_another_machine():
    x = np.array([-0.1, -1.0, -20.0, -650.25])
    assert [float(value).hex() for value in elementary.exp(x)] == EXPS
    assert [float(value).hex() for value in elementary.log(-x)] == LOGS


def test_a_sum_of_squares_is_that_of_exact_numbers():
    @njit
    def summed(values, count):
        return reproducible.sum_of_squares(values, count)

    values = np.arange(1.0, 97.0)
    for count in (0, 32, 64, 96):
        assert summed(values, count) == sum(int(value) ** 2 for value in values[:count])
