"""The statistics of the verdict on made figures, where what is rounding and what is not is known; and the order of the
ladder.
"""

import math

import numpy as np
import pytest

from core.errors import UsageError
from core.judging.ladder.noise_ratio import FALSE_ALARM, floor_test, is_larger_everywhere
from core.judging.ladder.places import NotFinite
from core.judging.ladder.shrink import shrink_test
from core.judging.ladder.structure import structure_evidence, structure_of
from core.judging.ladder.verdict import conclude
from core.judging.validity import sampler_evidence
from core.runs.file.evidence import (
    FAILED,
    FLOAT32,
    MISSING,
    NEIGHBOURS,
    NOTED,
    OWN_DTYPE,
    PASSED,
    RERUN,
    SAMPLER,
    VALIDITY,
    Check,
    Evidence,
    SamplerFigures,
    Unmeasured,
)

POSITIONS = 4096


def rounding(rng: np.random.Generator, seeds: int, positions: int = POSITIONS, spread: float = 0.3) -> np.ndarray:
    """Mean squares: a scale of its own at each position (as contexts differ), times log-normal noise. [seeds,
    positions]
    """
    scale = np.exp(rng.normal(0, 1, positions)) * 1e-6
    return (scale * np.exp(rng.normal(0, spread, (seeds, positions)))) ** 2


def test_rounding_is_rarely_called_a_fault():
    """200 pairs drawn as the floor is: at a false-alarm rate of one in a thousand, 200 draws have more than 2 with
    probability 1e-3.
    """
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(200):
        drawn = rounding(rng, 5, 512)
        alarms += not floor_test(drawn[0], drawn[1:]).is_passed
    assert FALSE_ALARM == 1e-3
    assert alarms <= 2


@pytest.mark.parametrize("factor", [24, 100, 1e4])
def test_a_fault_at_one_position_of_4096_is_not_averaged_away(factor):
    drawn = rounding(np.random.default_rng(1), 5)
    pair = drawn[0].copy()
    where = int(np.argsort(drawn[1:].mean(0))[POSITIONS // 2])  # a position of ordinary scale
    pair[where] *= factor**2
    found = floor_test(pair, drawn[1:])
    assert not found.is_passed
    assert found.outliers.tolist() == [where]
    assert found.worst_row == where
    if factor == 24:
        assert found.ratio < 4  # over all positions it is invisible


def test_a_pair_larger_everywhere_fails_as_a_whole():
    drawn = rounding(np.random.default_rng(2), 5)
    found = floor_test(drawn[0] * 24**2, drawn[1:])
    assert found.ratio == pytest.approx(24, rel=0.5)
    assert not found.is_passed
    assert is_larger_everywhere(found)


def test_a_fault_at_most_positions_still_begins_where_it_begins():
    """Two positions of three: the pair's own median is then the fault, and would hide where it starts."""
    drawn = rounding(np.random.default_rng(7), 5, 300)
    pair = drawn[0].copy()
    pair[100:] *= 1e4**2
    found = floor_test(pair, drawn[1:])
    assert found.outliers.tolist() == list(range(100, 300))
    assert not is_larger_everywhere(found)


def test_a_fault_at_the_only_position_that_differs_is_found():
    drawn = rounding(np.random.default_rng(8), 5, 300)
    pair = np.zeros(300)
    pair[40] = drawn[1:, 40].mean() * 30**2
    found = floor_test(pair, drawn[1:])
    assert found.outliers.tolist() == [40]
    pair[40] = drawn[1:, 40].mean() * 2**2
    assert floor_test(pair, drawn[1:]).is_passed


def test_in_16_bits_the_floor_is_what_rounding_to_16_bits_does_where_reorderings_move_nothing():
    """In a narrow model sums kept in float32 round to the same 16 bits in any order."""
    drawn = rounding(np.random.default_rng(9), 5)
    degenerate = drawn[1:] * 1e-4**2
    assert not floor_test(drawn[0], degenerate, is_16_bits=True).is_passed
    found = floor_test(drawn[0], degenerate, is_16_bits=True, own_rounding=drawn[1])
    assert found.is_passed
    assert found.ratio == pytest.approx(1, rel=0.5)
    assert not floor_test(drawn[0] * 20**2, degenerate, is_16_bits=True, own_rounding=drawn[1]).is_passed
    assert floor_test(drawn[0], drawn[1:], is_16_bits=True, own_rounding=drawn[1] * 1e-8).ratio == pytest.approx(
        1, rel=0.5
    )


@pytest.mark.parametrize(
    ("tokens", "argmaxes", "wrong"),
    [
        ([5, 6, 7], [5, 6, 7], []),
        ([5, 9, 8], [5, 6, 7], [1, 2]),
        ([5, 6], [{5, 9}, (6, 7)], []),  # ties: any of them may be taken
        ([5, 8], [{5, 9}, (6, 7)], [1]),
        ([np.int64(5)], np.array([5]), []),
        ([], [], []),
    ],
)
def test_a_token_that_is_not_the_argmax_of_its_own_logits_is_the_samplers_fault(tokens, argmaxes, wrong):
    row = sampler_evidence(tokens, argmaxes)
    assert row.rung == SAMPLER
    assert row.outcome == (FAILED if wrong else PASSED)
    assert row.figures == SamplerFigures(
        tokens=len(tokens), not_the_argmax=len(wrong), first=wrong[0] if wrong else None
    )
    assert conclude([row], is_bit_identical=True).name == ("bug suspected" if wrong else "identical")


def test_a_path_that_rounds_a_little_more_than_reordering_is_rounding():
    drawn = rounding(np.random.default_rng(3), 5)
    assert floor_test(drawn[0] * 2.0**2, drawn[1:]).is_passed


def test_a_nan_on_one_side_fails_whatever_the_figures():
    drawn = rounding(np.random.default_rng(5), 5)
    by_row = np.zeros(POSITIONS, np.int64)
    by_row[[7, 9]] = 1, 2
    broken = NotFinite(by_row, 3, " the", ("a", "b"), (1.25, float("nan")))
    for is_16_bits in (False, True):
        found = floor_test(drawn[0], drawn[1:], not_finite=broken, is_16_bits=is_16_bits)
        assert not found.is_passed
        assert (found.noise_ratio, found.nonfinite, found.outliers.tolist(), found.worst_row) == (None, 3, [7, 9], 7)
    assert "3 logits at 2 positions" in broken.says([5, POSITIONS])
    assert broken.place([5, POSITIONS]) == (1, 2)


def test_in_16_bits_only_the_whole_pair_is_judged():
    """A position where the floor is 0 by luck is no outlier; ten times the whole floor is."""
    drawn = rounding(np.random.default_rng(6), 5)
    drawn[1:, 7] = 0
    assert floor_test(drawn[0], drawn[1:], is_16_bits=True).is_passed
    assert not floor_test(drawn[0] * 20**2, drawn[1:], is_16_bits=True).is_passed


def test_no_floor_and_no_difference_is_no_fault():
    assert floor_test(np.zeros(8), np.zeros((4, 8))).is_passed
    assert not floor_test(np.full(8, 1e-12), np.zeros((4, 8))).is_passed


def test_blocks_are_recognised_by_where_faults_begin():
    found = structure_of(np.array([32, 33, 34, 64, 65, 160]), [200])
    assert found.block == 32
    assert found.first == (0, 32)
    assert found.starts == (32, 64, 160)
    assert not found.is_tail
    assert structure_of(np.array([32, 33, 70, 160]), [200]).block is None  # 70 is no multiple of 8
    assert structure_of(np.arange(48, 100), [100]).is_tail
    assert structure_of(np.array([], int), [100]).first is None


@pytest.mark.thorough
def test_random_places_are_hardly_ever_called_boundaries():
    """By hand: of 511 positions 63 are multiples of 8, so three drawn ones are all that with probability C(63, 3) /
    C(511, 3) = 0.18 %.
    """
    rng = np.random.default_rng(11)
    draws = 10_000
    named = sum(
        structure_of(np.sort(rng.choice(np.arange(1, 512), 3, replace=False)), [512]).block is not None
        for _ in range(draws)
    )
    expected = draws * math.comb(63, 3) / math.comb(511, 3)
    assert abs(named - expected) < 5 * math.sqrt(expected)
    aligned = [
        structure_of(np.sort(rng.choice(np.arange(16, 512, 16), 3, replace=False)), [512]).block for _ in range(1000)
    ]
    assert None not in aligned  # the twin: faults at blocks of 16 are always seen
    # Three of blocks of 16 are all multiples of 32 with probability C(15, 3) / C(31, 3) = 0.10.
    assert abs(sum(block > 16 for block in aligned) - 1000 * math.comb(15, 3) / math.comb(31, 3)) < 50


def test_the_sentence_says_which_blocks_the_places_do_not_tell_apart():
    def said(places: list[int]) -> str:
        drawn = rounding(np.random.default_rng(6), 5, 512)
        drawn[0, places] *= 1e8
        test = floor_test(drawn[0], drawn[1:])
        return structure_evidence(structure_of(test.outliers, [512]), test, [512]).says

    assert said([64]) == "It begins at position 64."
    assert "3 places do not tell" in said([16, 48, 80])
    assert "multiple of 16" in said([16, 48, 80, 112, 176])


def row(rung, outcome, says="so it is."):
    return Evidence(next(check for check in Check if check.rung == rung), "a control", Unmeasured(), outcome, says)


@pytest.mark.parametrize(
    ("rows", "is_identical", "name"),
    [
        ([row(VALIDITY, FAILED), row(FLOAT32, PASSED)], False, "invalid dump"),
        ([row(SAMPLER, FAILED), row(FLOAT32, PASSED)], True, "bug suspected"),
        ([row(FLOAT32, PASSED), row(RERUN, PASSED)], False, "rounding"),
        ([row(FLOAT32, PASSED), row(RERUN, FAILED)], False, "nondeterministic"),
        ([row(FLOAT32, FAILED), row(RERUN, FAILED)], False, "bug suspected"),
        ([row(OWN_DTYPE, FAILED), row(FLOAT32, PASSED)], False, "bug suspected"),
        ([row(NEIGHBOURS, FAILED), row(FLOAT32, PASSED)], False, "bug suspected"),
        ([row(NEIGHBOURS, NOTED), row(FLOAT32, PASSED)], False, "rounding"),
        ([row(RERUN, PASSED)], True, "identical"),
        ([row(RERUN, FAILED)], False, "nondeterministic"),
        ([row(OWN_DTYPE, PASSED), row(FLOAT32, MISSING)], False, "undecided"),
        ([], False, "undecided"),
        ([], True, "identical"),
    ],
)
def test_the_first_rung_that_fails_decides(rows, is_identical, name):
    assert conclude(rows, is_bit_identical=is_identical).name == name


def test_a_test_can_ask_for_rounding_and_is_shown_the_evidence_otherwise():
    rounding = conclude([row(RERUN, PASSED), row(FLOAT32, PASSED, "one floor.")], is_bit_identical=False)
    assert rounding.check() is rounding
    bug = conclude(
        [row(RERUN, PASSED, "same bits."), row(FLOAT32, FAILED, "24 times the floor.")], is_bit_identical=False
    )
    with pytest.raises(AssertionError) as raised:
        bug.check()
    assert str(raised.value).splitlines() == [
        "bug suspected: 24 times the floor.",
        "  rerun    passed  same bits.",
        "  float32  failed  24 times the floor.",
    ]
    assert bug.check(allowed=["bug suspected"]) is bug
    with pytest.raises(UsageError, match="'fine' is no verdict"):
        rounding.check(allowed=["fine"])


# ---- a float32 pair without a floor


@pytest.mark.parametrize(("bits", "full"), [(8, 65536), (11, 8192)])
def test_a_pair_that_shrinks_with_the_precision_passes_and_one_that_does_not_fails(bits, full):
    """Unit roundoffs: 2^-8 of bfloat16, 2^-11 of float16, 2^-24 of float32 (IEEE 754)."""
    wide = rounding(np.random.default_rng(3), 1)[0]
    found = shrink_test(wide * (full * 0.2) ** 2, wide, bits)
    assert (found.outcome, found.full) == (PASSED, full)
    assert found.share == pytest.approx(0.2)
    assert shrink_test(wide, wide, bits).outcome == FAILED
    assert shrink_test(wide * (full * 0.01) ** 2, wide, bits).outcome == MISSING


def test_a_position_that_does_not_shrink_is_not_averaged_away():
    wide = rounding(np.random.default_rng(4), 1, spread=0.1)[0]
    narrow = wide * (65536 * 0.2) ** 2
    where = int(np.argsort(wide)[POSITIONS // 2])
    wide[where] *= 1e5**2
    narrow[where] = wide[where]
    found = shrink_test(narrow, wide, 8)
    assert (found.outcome, found.worst_row) == (FAILED, where)


def test_where_hardly_a_position_moves_in_16_bits_only_a_floor_decides():
    wide = rounding(np.random.default_rng(5), 1)[0]
    narrow = np.zeros_like(wide)
    narrow[:9] = wide[:9]
    assert shrink_test(narrow, wide, 8).outcome == MISSING
    assert shrink_test(narrow, np.zeros_like(wide), 8).outcome == PASSED
