"""The statistic on made figures: rounding drawn by numpy is never accused, planted faults are seen
and placed.
"""

import numpy as np
import pytest

from core.checks.drawn import DRAWN_LIMITS
from core.checks.pair import OWN, WIDE
from core.numerics.statistic import FALSE_ALARM, floor_test, smallest_fault

POSITIONS = 4096


def rounding(seed, draws, positions=POSITIONS):
    """Mean squares: a scale of its own at each position, times log-normal noise. [draws,
    positions]
    """
    rng = np.random.default_rng(seed)
    scale = np.exp(rng.normal(0, 1, positions)) * 1e-6
    return (scale * np.exp(rng.normal(0, 0.3, (draws, positions)))) ** 2


def test_rounding_is_rarely_called_a_fault():
    """200 pairs drawn as the floor is: at a false-alarm rate of 1 in 1000, more than 2 have
    probability 1e-3.
    """
    alarms = 0
    for seed in range(200):
        drawn = rounding(seed, 5, 512)
        alarms += not floor_test(drawn[0], drawn[1:], WIDE).is_passed
    assert FALSE_ALARM == 1e-3
    assert alarms <= 2


def test_a_fault_at_one_position_of_4096_is_not_averaged_away():
    drawn = rounding(1, 5)
    pair = drawn[0].copy()
    # a position of ordinary scale
    row = int(np.argsort(drawn[1:].mean(0))[POSITIONS // 2])
    pair[row] *= 24**2
    test = floor_test(pair, drawn[1:], WIDE)
    assert not test.is_passed
    assert test.outliers.tolist() == [row]
    assert test.position.worst_place == row
    # over all positions it is invisible
    assert test.ratio < WIDE.over_all


def test_a_pair_larger_everywhere_fails_as_a_whole():
    drawn = rounding(2, 5)
    test = floor_test(drawn[0] * 24**2, drawn[1:], WIDE)
    assert test.ratio == pytest.approx(24, rel=0.5)
    assert not test.is_passed
    assert test.is_larger_everywhere


@pytest.mark.parametrize(
    ("limits", "factor", "is_passed"),
    [
        (WIDE, 3.9, True),
        (WIDE, 4.1, False),
        (DRAWN_LIMITS, 1.9, True),
        (DRAWN_LIMITS, 2.1, False),
    ],
)
def test_a_pair_is_rounding_up_to_the_limit_that_the_calibration_states(limits, factor, is_passed):
    draws = rounding(2, 4)
    assert floor_test(draws.mean(0) * factor**2, draws, limits).is_passed is is_passed


@pytest.mark.parametrize("jump", [1, 1e5])
def test_a_fault_at_most_positions_still_begins_where_it_begins(jump):
    """Two positions of three: the pair's own median is then the fault, and would hide where it
    starts. Half of the positions of a draw may jump: a value in the middle of two falls to the
    other.
    """
    drawn = rounding(7, 5, 300)
    is_sound = np.arange(300) < 100
    pair = np.where(is_sound, drawn[0], drawn[0] * 1e6**2)
    drawn[2, 10:40] *= jump**2
    test = floor_test(pair, drawn[1:], WIDE)
    assert test.outliers.tolist() == list(range(100, 300))
    assert not test.is_larger_everywhere


def test_a_fault_at_the_only_position_that_differs_is_found():
    drawn = rounding(8, 5, 300)
    pair = np.where(np.arange(300) == 40, drawn[1:].mean(0), 0.0)
    assert floor_test(pair * 30**2, drawn[1:], WIDE).outliers.tolist() == [40]
    assert floor_test(pair * 2**2, drawn[1:], WIDE).is_passed


def test_a_pair_in_16_bits_is_compared_as_a_whole():
    """Single positions jump by orders of magnitude there; ten times the whole floor is no
    rounding.
    """
    drawn = rounding(6, 5)
    # in 16 bits a position may round alike in all draws, and has no scale then
    drawn[1:, 7] = 0
    assert floor_test(drawn[0], drawn[1:], OWN).is_passed
    assert not floor_test(drawn[0] * 20**2, drawn[1:], OWN).is_passed


def test_no_floor_and_no_difference_is_no_fault():
    assert floor_test(np.zeros(8), np.zeros((4, 8)), WIDE).is_passed
    assert not floor_test(np.full(8, 1e-12), np.zeros((4, 8)), WIDE).is_passed


# Errors in 16 bits over roundings drawn anew.

VOCAB, LENGTH, DRAWS = 60, 40, 8


def errors_of_rounding(generator, prompts, mixing):
    """A dozen directions, positions whose size varies by a fifth. [positions, vocab], rms about
    1
    """
    rows = prompts * LENGTH
    size = np.exp(0.2 * generator.standard_normal((rows, 1)))
    return size * (generator.standard_normal((rows, len(mixing))) @ mixing)


def errors(of):
    return (of**2).mean(1)


def tried(seed, prompts, fault=lambda _: None):
    """A path whose rounding is one more draw, with a fault planted into its errors."""
    generator = np.random.default_rng(seed)
    mixing = generator.standard_normal((12, VOCAB)) / np.sqrt(12)
    engine, *draws = (errors_of_rounding(generator, prompts, mixing) for _ in range(DRAWS + 1))
    # the draws are drawn before the fault, so that a seed has the same rounding with any fault
    fault(engine)
    return floor_test(
        errors(engine),
        np.stack([errors(one) for one in draws]),
        DRAWN_LIMITS,
        lengths=[LENGTH] * prompts,
    )


# 200 prompts in every case, and nothing but rounding in all of them
@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("prompts", "engines"),
    [
        (1, 200),
        (5, 40),
        (20, 10),
    ],
)
def test_roundings_drawn_anew_are_not_accused(prompts, engines):
    assert [seed for seed in range(engines) if not tried(seed, prompts).is_passed] == []


@pytest.mark.parametrize("factor", [0.05, 0.7, 1.5])
def test_fewer_roundings_and_half_as_many_again_are_not_accused(factor):
    def scaled(engine):
        engine *= factor

    assert tried(1, 10, scaled).is_passed


def directed(rms):
    """A vector over the vocabulary of that rms."""
    vector = np.random.default_rng(9).standard_normal(VOCAB)
    return rms * vector / np.sqrt((vector**2).mean())


@pytest.mark.parametrize("prompts", [1, 10])
@pytest.mark.parametrize(
    ("times", "is_seen"),
    [
        (1.5, True),
        (0.3, False),
    ],
)
def test_a_fault_at_one_position_is_seen_above_the_limit_and_placed(
    prompts,
    times,
    is_seen,
):
    limit = smallest_fault(tried(3, prompts).position.limit)

    def plant(engine):
        engine[17] += directed(times * limit)

    test = tried(3, prompts, plant)
    assert test.outliers.tolist() == ([17] if is_seen else [])
    assert test.is_passed is not is_seen


@pytest.mark.parametrize(
    ("rows", "kind", "place"),
    [
        # a kernel of one block size that spoils the first row of each block
        (
            np.arange(10 * LENGTH) % LENGTH % 16 == 0,
            "place in a block of 16",
            0,
        ),
        (slice(2 * LENGTH, 3 * LENGTH), "prompt", 2),
        (slice(23, None, LENGTH), "place in the prompt", 23),
    ],
)
def test_a_fault_that_no_single_position_shows_is_seen_where_it_gathers(
    rows,
    kind,
    place,
):
    def fault(engine):
        engine[rows] *= 3

    test = tried(5, 10, fault)
    assert not test.is_passed
    (of_kind,) = (each for each in test.places if each.kind == kind)
    assert place in of_kind.outliers
    assert test.ratio < 2.0


def test_a_fault_everywhere_is_placed_by_the_draws_not_by_its_own_median():
    def tail(engine):
        engine[12:] *= 20

    test = tried(2, 1, tail)
    assert test.ratio > 10
    assert test.outliers.tolist() == list(range(12, LENGTH))


@pytest.mark.parametrize(
    ("ratio", "fault"),
    [
        (1, 0),
        (2, 3**0.5),
        (5, 24**0.5),
    ],
)
def test_independent_rounding_and_fault_add_as_squares(ratio, fault):
    """A fault of the size f next to rounding of the size 1 makes sqrt(1 + f**2)."""
    assert smallest_fault(ratio) == pytest.approx(fault)


def test_a_score_whose_draws_are_all_0_is_compared_with_those_of_the_others():
    drawn = np.square(np.random.default_rng(5).normal(size=(5, 40)))
    drawn[1:, 7] = 0.0
    pair = drawn[0]
    draws = drawn[1:]
    assert floor_test(pair, draws, WIDE).outliers.tolist() == [7]
    assert floor_test(pair, draws, WIDE, shares_scale=True).is_passed
    pair[3] = 200.0**2
    test = floor_test(pair, draws, WIDE, shares_scale=True)
    assert test.worst > 100
    assert not test.is_passed
