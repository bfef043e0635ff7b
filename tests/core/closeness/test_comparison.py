"""Errors drawn by NumPy: rounding is never accused, and each kind of planted fault is found, at its
place or with its size.
"""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import torch

from core.closeness.comparison import close, compare_errors
from core.errors import UsageError

SHAPE = (4, 64, 96)
# rms over a value: several times that of one rounding to bfloat16
ROUNDING = 4e-3


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def exact(rng):
    return rng.standard_normal(SHAPE)


def rounded(rng, exact, sigma=ROUNDING):
    """A result in bfloat16 whose error is that of several roundings."""
    noise = sigma * np.abs(exact) * rng.standard_normal(SHAPE)
    return (exact + noise).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("trusted", [1, 4, 8])
@pytest.mark.parametrize("seed", range(3))
def test_rounding_drawn_anew_is_rounding(seed, trusted):
    rng = np.random.default_rng(seed)
    exact = rng.standard_normal(SHAPE)
    expected = [rounded(rng, exact) for _ in range(trusted)]
    assert compare_errors(rounded(rng, exact), expected, exact).verdict == "rounding"


def test_figures_are_ratios_of_rms(rng, exact):
    actual = rounded(rng, exact, 6e-3)
    expected = rounded(rng, exact)
    found = compare_errors(actual, expected, exact)
    errors = [(each.astype(np.float64) - exact) ** 2 for each in (actual, expected)]

    def ratio(axes=None):
        ours, theirs = (each.mean(axes) for each in errors)
        return pytest.approx(np.sqrt(ours / theirs).ravel(), rel=1e-3)

    assert [found.ratio] == ratio()
    assert found.rows == ratio(-1)
    assert found.columns == ratio((0, 1))
    assert found.differing == np.count_nonzero(actual != expected)
    assert found.dtype == "bfloat16"


@pytest.mark.parametrize("trusted", [1, 8])
@pytest.mark.parametrize("size", [0.3, 1.0])
def test_a_scale_below_the_rounding_is_found_with_its_size(rng, exact, size, trusted):
    """A scale of 1.0012 at a third of the rounding: no bound of twice the error can see it."""
    scale = 1 + size * ROUNDING
    expected = [rounded(rng, exact) for _ in range(trusted)]
    found = compare_errors(rounded(rng, exact * scale), expected, exact)
    assert found.ratio < 2
    assert found.verdict == "bug suspected"
    (direction,) = [each for each in found.directions if each.kind == "scale"]
    assert direction.is_fault
    assert direction.coefficient == pytest.approx(scale - 1, rel=0.2)


def plant(kind, exact, error):
    """A fault of the kind, and the place or direction it has."""
    faulty = exact.copy()
    if kind == "constant":
        faulty += error
    elif kind == "value":
        faulty[exact > 1] += 3 * error
    elif kind == "columns":
        faulty *= 1 + error * np.sign(np.sin(np.arange(96)))
    elif kind == "column":
        faulty[..., 7] *= 1 + 20 * error
    elif kind == "pattern":
        waves = np.outer(np.sin(np.arange(256)), np.cos(np.arange(96)))
        faulty += 5 * error * waves.reshape(SHAPE)
    elif kind == "row":
        faulty[2, 5] *= 1 + 20 * error
    elif kind == "axis 0":
        faulty[1] *= 1 + 6 * error
    elif kind == "axis 1":
        faulty[:, 7] *= 1 + 10 * error
    elif kind == "element":
        faulty[3, 1, 4] += 60 * error
    return faulty


def found_of(kind, rng, exact):
    """The comparison of a planted fault, of the size of rounding, with eight roundings."""
    expected = [rounded(rng, exact) for _ in range(8)]
    faulty = plant(kind, exact, ROUNDING)
    found = compare_errors(rounded(rng, faulty), expected, exact)
    assert found.verdict == "bug suspected"
    return found


@pytest.mark.parametrize("kind", ["constant", "value", "columns", "pattern"])
def test_a_direction_is_found(rng, exact, kind):
    found = found_of(kind, rng, exact)
    assert kind.removesuffix("s") in {each.kind for each in found.directions if each.is_fault}


@pytest.mark.parametrize(
    ("kind", "index"),
    [
        ("row", (2, 5)),
        ("column", (7,)),
        ("axis 0", (1,)),
        ("axis 1", (7,)),
        ("element", (3, 1, 4)),
    ],
)
def test_a_place_is_found(rng, exact, kind, index):
    places = found_of(kind, rng, exact).places
    assert (kind, index) in {(each.kind, each.index) for each in places}


def test_one_row_does_not_make_its_index_stand_out(rng):
    """Scores of an attention that cancel move a row as a whole, by another size in every result."""
    exact = rng.standard_normal((2, 64, 96))

    def result(row_sizes):
        noise = rng.standard_normal(exact.shape)
        return (exact + 1e-6 * row_sizes * noise).astype(np.float32)

    # a size for each row of one result and of eight trusted ones
    of_actual, *of_expected = np.exp(0.4 * rng.standard_normal((9, 2, 64, 1)))
    of_actual[1, 2] = 6
    found = compare_errors(result(of_actual), [result(each) for each in of_expected], exact)
    assert found.verdict == "rounding"


def test_an_epsilon_ten_times_too_large_is_found_below_twice_the_rounding(rng):
    """A norm with an epsilon of 1e-5 for 1e-6, on activations of 0.03: missed by ratios."""
    x = rng.standard_normal((256, 128)) * 0.03
    # 9e-4 on average: the wrong epsilon scales a row by 0.5 %
    mean_squares = (x**2).mean(-1, keepdims=True)
    exact, faulty = (x / np.sqrt(mean_squares + epsilon) for epsilon in (1e-6, 1e-5))
    sigma = 3e-3
    noise = [sigma * exact * rng.standard_normal(x.shape) for _ in range(9)]
    expected = [(exact + each).astype(ml_dtypes.bfloat16) for each in noise[1:]]
    actual = (faulty + noise[0]).astype(ml_dtypes.bfloat16)
    found = compare_errors(actual, expected, exact)
    assert found.ratio < 2
    assert found.verdict == "bug suspected"


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e30])
def test_one_impossible_number_is_a_bug(rng, exact, number):
    values = rounded(rng, exact).astype(np.float32)
    values[2, 3, 4] = number
    found = compare_errors(values, rounded(rng, exact), exact, dtype="bfloat16")
    assert found.verdict == "bug suspected"
    assert "(2, 3, 4)" in found.because


def test_infinities_of_all_are_no_difference(rng, exact):
    """Masked scores, and an overflow of float16 that the trusted result has too."""
    exact[0, 0, 0] = -np.inf
    exact[1, 1, 1] = 1e6
    noise = [1e-3 * rng.standard_normal(SHAPE) for _ in range(2)]
    with np.errstate(over="ignore"):
        actual, expected = ((exact * (1 + each)).astype(np.float16) for each in noise)
    assert compare_errors(actual, expected, exact).verdict == "rounding"


@pytest.mark.parametrize("fill", [-1e4, -1e9, float(np.finfo(np.float32).min)])
@pytest.mark.parametrize(
    ("size", "verdict"),
    [
        (1, "rounding"),
        (12, "bug suspected"),
    ],
)
def test_a_mask_of_a_large_number_hides_nothing(rng, exact, fill, size, verdict):
    actual, expected = (rounded(rng, exact, each * 2e-3) for each in (size, 1))
    is_masked = np.triu(np.ones((64, 96), bool), 1)
    for each in (actual, expected, exact):
        each[..., is_masked] = fill
    assert compare_errors(actual, expected, exact).verdict == verdict


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "repeats",
    [
        (64, 1),
        (1, 96),
    ],
)
def test_equal_values_have_equal_errors_and_no_direction(seed, repeats):
    """A batch of one input repeated."""
    rng = np.random.default_rng(seed)
    once = rng.standard_normal((64 // repeats[0], 96 // repeats[1]))
    errors = [ROUNDING * once * rng.standard_normal(once.shape) for _ in range(2)]
    values = once, once + errors[0], once + errors[1]
    exact, actual, expected = (np.tile(each, repeats) for each in values)
    results = [each.astype(ml_dtypes.bfloat16) for each in (actual, expected)]
    assert compare_errors(*results, exact).verdict == "rounding"


def test_one_number_near_the_largest_is_a_bug(rng, exact):
    actual = rounded(rng, exact)
    # its square is infinite in float32
    actual[2, 3, 4] = 3e38
    found = compare_errors(actual, rounded(rng, exact), exact.astype(np.float32))
    assert found.verdict == "bug suspected"
    assert found.ratio > 1e38


def test_a_kernel_that_wrote_nothing_is_a_bug(rng, exact):
    """Zeros in float32 are values of bfloat16 too."""
    expected = (exact + 1e-7 * rng.standard_normal(SHAPE)).astype(np.float32)
    found = compare_errors(np.zeros(SHAPE, np.float32), expected, exact)
    assert found.verdict == "bug suspected"
    assert found.dtype == "float32"


def test_a_function_that_rounds_nothing_may_not_differ():
    """Sums of integers."""
    exact = np.arange(-32.0, 32).reshape(4, 16)
    result = exact.astype(np.float32)
    assert compare_errors(result, result.copy(), exact).verdict == "identical"
    close(result, None, exact, may_be_rounded=False)
    faulty = result.copy()
    faulty[1, 2] += 1
    found = compare_errors(faulty, result, exact, may_be_rounded=False)
    assert found.verdict == "bug suspected"
    assert "element (1, 2)" in found.because


def test_a_scale_of_float32_is_told_from_one(rng, exact):
    # less than two spacings of float32 above 1, which are 1.2e-7 each
    actual, expected = (
        (exact * (scale + 1e-8 * rng.standard_normal(SHAPE))).astype(np.float32)
        for scale in (1 + 2e-7, 1)
    )
    assert "a scale of 1+2e-07" in compare_errors(actual, expected, exact).because


def test_equal_bits_are_identical(rng, exact):
    actual = rounded(rng, exact)
    # a row that is masked everywhere
    actual[0, 0] = exact[0, 0] = np.nan
    assert compare_errors(actual, actual.copy(), exact).verdict == "identical"


def test_without_a_trusted_result_one_rounding_is_the_measure(exact, rng):
    found = compare_errors(exact.astype(np.float16), None, exact)
    assert found.verdict == "likely rounding"
    assert found.ratio == 1.0
    assert found.differing == 0
    assert compare_errors(rounded(rng, exact, 1e-2), None, exact).verdict == "undecided"


@pytest.mark.parametrize(
    ("trusted", "copies", "verdict"),
    [
        (1, 1, "undecided"),
        (1, 4, "undecided"),
        (8, 1, "bug suspected"),
    ],
    ids=["one", "reruns of one", "several"],
)
def test_one_trusted_result_may_have_rounded_less_by_luck(rng, exact, trusted, copies, verdict):
    """Copies decide as little as one does: a rerun is no other rounding."""
    expected = copies * [rounded(rng, exact) for _ in range(trusted)]
    actual = rounded(rng, exact, 3 * ROUNDING)
    assert compare_errors(actual, expected, exact).verdict == verdict


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tensors_of_torch_have_the_figures_of_their_arrays(rng, exact, dtype):
    noise = [1e-2 * torch.tensor(exact * rng.standard_normal(SHAPE)) for _ in range(2)]
    # tensors of a graph, as an operation under test returns them
    values = [torch.tensor(exact) + each for each in noise]
    tensors = [each.to(dtype).requires_grad_() for each in values]
    name = str(dtype).removeprefix("torch.")
    arrays = [each.detach().float().numpy() for each in tensors]
    found = compare_errors(*tensors, torch.tensor(exact))
    assert found.dtype == name
    assert found.ratio == compare_errors(*arrays, exact, dtype=dtype).ratio


def test_upcast_values_are_of_their_dtype(rng, exact):
    actual = rounded(rng, exact).astype(np.float32)
    assert compare_errors(actual, None, exact).dtype == "bfloat16"


@pytest.mark.parametrize(
    "shape",
    [
        (),
        (5,),
        (1, 7),
        (300, 1),
    ],
)
def test_any_shape_is_compared(rng, shape):
    exact = rng.standard_normal(shape)
    errors = 1e-2 * rng.standard_normal((9, *shape))
    actual, *expected = (exact * (1 + errors)).astype(np.float32)
    # a result of one number is a scalar of numpy and no array
    trusted = list(map(np.asarray, expected))
    found = compare_errors(np.asarray(actual), trusted, exact)
    assert found.shape == shape
    assert found.verdict == "rounding"
    assert compare_errors(np.asarray(actual + 1), trusted, exact).verdict == "bug suspected"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (lambda a, e, x: (a, e, None), "'exact'"),
        (lambda a, e, x: (a, e, x[:2]), "'exact'"),
        (lambda a, e, x: (a, e[..., :3], x), "'expected'"),
        (lambda a, e, x: (a, [], x), "'expected'"),
        (lambda a, e, x: (a.view(np.uint16), e, x), "'actual'"),
        (lambda a, e, x: (a[:0], e[:0], x[:0]), "'exact'"),
        # upcast from bfloat16: no more exact
        (lambda a, e, x: (a, e, a.astype(np.float32)), "'exact'"),
        (lambda a, e, x: (a.astype(np.float32) + 1e-6, e, x.astype(np.float32)), "'exact'"),
        (lambda a, e, x: (a, x, x), "'expected'"),
        (lambda a, e, x: (x + 1e-9, e, x), "'actual'"),
        # a float32 result is no trusted one in bfloat16
        (lambda a, e, x: (a, (x * (1 + 1e-6)).astype(np.float32), x), "'expected'"),
    ],
)
def test_bad_input_is_refused_by_name(rng, exact, arguments, named):
    actual, expected = rounded(rng, exact), rounded(rng, exact)
    with pytest.raises(UsageError, match=named):
        compare_errors(*arguments(actual, expected, exact))


def test_close_raises_what_the_comparison_says(rng, exact):
    close(rounded(rng, exact), rounded(rng, exact), exact)
    actual = rounded(rng, exact * 1.03)
    with pytest.raises(AssertionError, match="bug suspected"):
        close(actual, rounded(rng, exact), exact)


def test_a_call_imports_no_more_than_numpy():
    script = """
import sys, numpy as np, ulpscope
x = np.random.default_rng(0).standard_normal((8, 64))
ulpscope.close(x.astype(np.float16), None, x)
heavy = {"duckdb", "pandas", "pyarrow", "numba", "torch", "scipy"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", script], check=True)
