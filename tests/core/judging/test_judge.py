"""The judge on made controls: what decides, in which order, and what the verdict's sentence
says.
"""

import math

import numpy as np
import pytest

from core.checks import CHECKS
from core.checks.drawn import DRAWN, Errors, Exact
from core.checks.modules_alone import ALONE, AloneFigures
from core.checks.other_rows import OTHER_PROMPTS, OtherPromptsFigures, OtherRows
from core.checks.outliers import structure_of
from core.checks.pair import OWN_PAIR, WIDE_PAIR, NoiseFloor, Pair
from core.checks.rerun import AGAIN, Rerun, RerunFigures
from core.checks.shrink import shrink_row
from core.errors import UsageError
from core.evidence import (
    FAILED,
    FLOAT32,
    MISSING,
    NEIGHBOURS,
    NOTED,
    OWN_DTYPE,
    PASSED,
    PRECISION,
    RERUN,
    SAMPLER,
    VALIDITY,
    Evidence,
    Unmeasured,
)
from core.judging import judge as judging
from core.judging.conclude import conclude
from core.judging.controls import Controls, NotAvailableError
from core.places import NotFinite
from tests.core.evidence import rows_of

POSITIONS = 300
SIDES = ("prefill", "engine")


class MadeControls(Controls):
    """A pair of 2 prompts in bfloat16, by default of rounding alone. wide, narrow: factor on the
    pair's rounding in float32, and on a side's error in 16 bits, at each position.
    """

    def __init__(self, dtype="bfloat16", wide=1.0, narrow=1.0, *, has_wide=True):
        rng = np.random.default_rng(0)
        self.names = SIDES
        self.lengths = [100, 200]
        self.dtype = dtype
        # mean squares with 50 degrees of freedom: their roots vary by a tenth
        self.wide = rng.chisquare(50, (5, POSITIONS)) / 50
        self.errors = rng.chisquare(50, (9, POSITIONS)) / 50
        self.wide[0] *= np.asarray(wide) ** 2
        self.errors[0] *= np.asarray(narrow) ** 2
        self.has_wide = has_wide
        self.systematic = 1.0
        self.not_finite = None
        self.moved = ()
        self.rerun_squares = None
        self.other_prompts = None

    def pair(self, dtype):
        if dtype == "float32" and not self.has_wide:
            raise NotAvailableError("The engine takes bfloat16 only.")
        return Pair(self.wide[0], self.not_finite)

    def floor(self, dtype):
        return NoiseFloor(self.wide[1:], "4 reorderings")

    def rerun(self):
        return Rerun("each called twice", self.names, self.moved, self.rerun_squares)

    def neighbours(self):
        if self.other_prompts is None:
            return []
        return [
            OtherRows(
                "engine",
                "other prompts",
                OtherPromptsFigures(rows=8, bit_identical=self.other_prompts),
            ),
        ]

    def exact(self):
        draws = [Errors(draw, 1.0) for draw in self.errors[1:]]
        return Exact(
            {"engine": Errors(self.errors[0], self.systematic)},
            draws,
            lambda: self.own_paths,
        )

    @property
    def own_paths(self):
        return {"prefill": Errors(np.random.default_rng(1).chisquare(50, POSITIONS) / 50, 1.0)}


def judge(controls, earlier=None):
    """Judge, and count the words of every sentence."""
    verdict = judging.judge(controls, earlier)
    sentences = [verdict.because, *(row.says for row in verdict.evidence)]
    assert max(len(says.split()) for says in sentences) <= 25
    return verdict


def at(row, factor):
    factors = np.ones(POSITIONS)
    factors[row] = factor
    return factors


A_NAN = NotFinite(2 * (np.arange(POSITIONS) == 103), 7, " the", SIDES, (1.25, math.nan))


def test_both_comparisons_have_to_pass():
    sound = judge(MadeControls())
    assert sound.name == "rounding"
    assert sound.first_place is None
    assert sound.noise_ratio == pytest.approx(1, abs=0.1)
    wide = judge(MadeControls(wide=17.8))
    assert wide.name == "bug suspected"
    assert wide.noise_ratio == pytest.approx(17.8, rel=0.1)
    narrow = judge(MadeControls(narrow=3.0))
    assert narrow.name == "bug suspected"
    assert narrow.noise_ratio == pytest.approx(3.0, rel=0.1)
    assert {row.outcome for row in rows_of(narrow.evidence, FLOAT32)} == {PASSED}
    (drawn,) = rows_of(narrow.evidence, DRAWN)
    assert drawn.outcome == FAILED


@pytest.mark.parametrize(
    ("share", "is_named"),
    [
        (0.99, True),
        (0.5, False),
    ],
)
def test_a_fault_in_one_column_of_the_vocabulary_says_the_token(share, is_named):
    class Column(MadeControls):
        def differences(self, row, dtype):
            return np.where(np.arange(50) == 31, share, (1 - share) / 49)

    verdict = judge(Column("float32", wide=at(164, 30)))
    assert ("token 31" in verdict.because) is is_named


@pytest.mark.parametrize("first", [None, (1, 64)])
def test_modules_that_all_compute_in_fewer_bits_may_be_an_undeclared_precision(first):
    class Noisy(MadeControls):
        def modules(self, *_):
            figures = AloneFigures(
                largest_ratio_allowed=10.0,
                modules_beyond=("layers.0.self_attn",),
                largest_ratio_of_others=1.0,
                modules=("layers.0.self_attn",),
                alone_rms=(1.0,),
                own_rounding_rms=(0.1,),
                first_module="layers.0.self_attn",
                first=first,
                kind="self_attn",
                blocks=30,
                bits=10.2,
            )
            return [
                Evidence(
                    ALONE,
                    "each module",
                    figures,
                    NOTED,
                    "self_attn differs.",
                    "engine",
                ),
            ]

    verdict = judge(Noisy("float32", wide=1e3))
    assert verdict.is_bug_suspected
    assert ("undeclared lower precision" in verdict.because) is (first is None)
    # a fault on top of the noise
    assert first in (None, verdict.first_place)


@pytest.mark.parametrize("has_wide", [True, False])
def test_an_error_that_goes_with_the_logits_is_a_suspected_bug(has_wide):
    """It is no larger than rounding over all and at every position."""
    for systematic, name in ((1.9, "rounding"), (2.1, "bug suspected")):
        controls = MadeControls(has_wide=has_wide)
        controls.systematic = systematic
        assert judge(controls).name == name


def test_draws_that_the_models_own_paths_do_not_look_like_decide_nothing():
    class Odd(MadeControls):
        @property
        def own_paths(self):
            return {"decode": Errors(np.full(POSITIONS, 9.0))}

    for narrow in (1.0, 3.0):
        verdict = judge(Odd(narrow=narrow, has_wide=False))
        assert verdict.name == "undecided"
        assert rows_of(verdict.evidence, DRAWN)[0].outcome == MISSING
    # float32 decides
    assert judge(Odd(narrow=1.0)).name == "rounding"
    # of a fault in 16 bits alone it says nothing
    assert judge(Odd(narrow=3.0)).name == "undecided"


def test_a_mixture_of_experts_is_decided_in_float64():
    class Experts(MadeControls):
        has_experts = True
        double = 1.0

        def pair(self, dtype):
            if dtype == "float64":
                return Pair(self.wide[1] * self.double**2)
            return super().pair(dtype)

    # a near tie chose another expert
    controls = Experts("float32", wide=at(7, 100))
    assert judge(controls).name == "rounding"
    controls.double = 1e12
    assert judge(controls).is_bug_suspected
    # as large as float32 rounds: a part of it stays in float32, so float32 decides
    controls.double = 2.0**29
    assert judge(controls).is_bug_suspected
    controls = Experts("float32")
    controls.double = 2.0**29
    assert judge(controls).name == "rounding"


@pytest.mark.parametrize(
    ("moves_more", "is_bug"),
    [
        (1.0, True),
        (8.0, False),
    ],
)
def test_a_position_beyond_few_draws_of_the_floor_is_compared_with_more(moves_more, is_bug):
    """moves_more: how far two of sixteen draws move position 7, which the first four do not."""

    class Unstable(MadeControls):
        asked = 0

        def larger_floor(self, dtype):
            self.asked += 1
            draws = np.tile(self.wide[1:], (4, 1))
            draws[8:10, 7] *= moves_more**2
            return NoiseFloor(draws, "16 reorderings")

    controls = Unstable("float32", wide=at(7, 8.0))
    assert judge(controls).is_bug_suspected is is_bug
    assert controls.asked == 1
    for wide in (1.0, 17.8, at(7, 100.0)):
        controls = Unstable("float32", wide=wide)
        judge(controls)
        assert controls.asked == 0
    # infinitely far beyond at a position that the floor does not move
    controls = Unstable("float32", wide=0.0)
    controls.wide[1:, :200] = 0.0
    controls.wide[0, 7] = 100.0
    judge(controls)
    assert controls.asked == 0


@pytest.mark.parametrize(
    ("faults", "name"),
    [
        ({"wide": 17.8}, "undecided"),
        ({"wide": at(7, 1e7)}, "undecided"),
        ({"narrow": 3.0}, "undecided"),
        ({"narrow": 3.0, "has_wide": False}, "undecided"),
        ({}, "rounding"),
    ],
)
def test_a_model_that_chooses_its_keys_is_at_worst_undecided(faults, name):
    class Indexed(MadeControls):
        chooses_keys = True

        def modules(self, *_):
            raise AssertionError

    verdict = judge(Indexed(**faults))
    assert verdict.name == name
    assert ("indexer" in verdict.because) is (name == "undecided")
    controls = Indexed("float32")
    controls.moved = ("engine",)
    controls.rerun_squares = controls.wide[2] * 1e6
    assert judge(controls).name == "nondeterministic"
    # no choice makes a NaN
    controls.not_finite = A_NAN
    assert judge(controls).is_bug_suspected


@pytest.mark.parametrize("has_experts", [True, False])
def test_other_prompts_that_change_bits_are_a_leak_of_a_dense_model(has_experts):
    controls = MadeControls()
    controls.has_experts = has_experts
    controls.other_prompts = False
    assert judge(controls).is_bug_suspected is not has_experts
    # other bits with the same prompts too
    controls.moved = ("engine",)
    assert judge(controls).name == "nondeterministic"


def test_a_nan_needs_no_floor():
    class NoFloor(MadeControls):
        def floor(self, dtype):
            raise NotAvailableError("its weights are int8")

    controls = NoFloor("float32")
    assert judge(controls).name == "undecided"
    controls.not_finite = A_NAN
    verdict = judge(controls)
    assert verdict.name == "bug suspected"
    assert verdict.first_place == (1, 3)
    assert verdict.noise_ratio is None


def test_earlier_evidence_stands_for_checks_that_are_not_made_now():
    before = judge(MadeControls(wide=at(164, 30)))
    verdict = judge(MadeControls(has_wide=False), before)
    assert verdict.is_bug_suspected
    assert verdict.first_place == (1, 64)
    assert [row.outcome for row in rows_of(verdict.evidence, FLOAT32)] == [FAILED]


def row(group, outcome, says="so it is.", side=None):
    # the usual one of its group
    checks = [OWN_PAIR, WIDE_PAIR, *CHECKS.values()]
    return Evidence(
        next(check for check in checks if check.group == group),
        "a control",
        Unmeasured(),
        outcome,
        says,
        side,
    )


@pytest.mark.parametrize(
    ("evidence", "is_identical", "name"),
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
def test_the_first_check_that_fails_decides(evidence, is_identical, name):
    assert conclude(evidence, is_bit_identical=is_identical).name == name


def test_a_test_can_ask_for_rounding_and_is_shown_the_evidence_otherwise():
    rounding = conclude(
        [row(RERUN, PASSED), row(FLOAT32, PASSED, "one floor.")],
        is_bit_identical=False,
    )
    assert rounding.check() is rounding
    bug = conclude(
        [row(RERUN, PASSED), row(FLOAT32, FAILED, "24 times the floor.")],
        is_bit_identical=False,
    )
    with pytest.raises(AssertionError, match="bug suspected: 24 times the floor"):
        bug.check()
    assert bug.check(allowed=["bug suspected"]) is bug
    with pytest.raises(UsageError):
        rounding.check(allowed=["fine"])


@pytest.mark.parametrize(
    ("dtype", "full"),
    [
        ("bfloat16", 65536),
        ("float16", 8192),
    ],
)
def test_a_pair_that_shrinks_with_the_precision_passes_and_one_that_does_not_fails(dtype, full):
    """Unit roundoffs: 2^-8 of bfloat16, 2^-11 of float16, 2^-24 of float32 (IEEE 754)."""
    pair = MadeControls(dtype)
    wide = np.random.default_rng(3).chisquare(9, 1000)
    pair.lengths = [400, 600]
    row = shrink_row(pair, wide * (full * 0.2) ** 2, wide)
    assert row.outcome == PASSED
    assert row.figures.times_finer_float32_is == full
    assert row.figures.times_smaller_in_float32 == pytest.approx(0.2 * full)
    assert shrink_row(pair, wide, wide).outcome == FAILED
    assert shrink_row(pair, wide * (full * 0.01) ** 2, wide).outcome == MISSING
    # hardly a position moves in 16 bits: only a floor decides
    few = np.where(np.arange(1000) < 9, wide, 0.0)
    assert shrink_row(pair, few, wide).outcome == MISSING
    assert shrink_row(pair, few, np.zeros_like(wide)).outcome == PASSED
    # one position that does not shrink is not averaged away
    narrow = wide * (full * 0.2) ** 2
    wide[500] *= 1e10
    narrow[500] = wide[500]
    row = shrink_row(pair, narrow, wide)
    assert row.outcome == FAILED
    assert row.figures.worst_position == (1, 100)


def test_blocks_are_recognised_by_where_faults_begin():
    places = structure_of(np.array([32, 33, 34, 64, 65, 160]), [200])
    assert (places.block, places.first, places.starts, places.is_tail) == (
        32,
        (0, 32),
        (32, 64, 160),
        False,
    )
    assert structure_of(np.array([32, 33, 70, 160]), [200]).block is None  # 70 is no multiple of 8
    assert structure_of(np.arange(48, 100), [100]).is_tail
    assert structure_of(np.array([], int), [100]).first is None


@pytest.mark.thorough
def test_random_places_are_hardly_ever_called_boundaries():
    """By hand: of 511 positions 63 are multiples of 8, so three drawn ones are all that with
    probability C(63, 3) / C(511, 3) = 0.18 %.
    """
    rng = np.random.default_rng(11)
    draws = 10_000
    named = sum(
        structure_of(np.sort(rng.choice(np.arange(1, 512), 3, replace=False)), [512]).block
        is not None
        for _ in range(draws)
    )
    expected = draws * math.comb(63, 3) / math.comb(511, 3)
    assert abs(named - expected) < 5 * math.sqrt(expected)


@pytest.mark.parametrize(
    ("ratio", "outcome"),
    [
        (3.9, NOTED),
        (4.1, FAILED),
    ],
)
def test_a_side_that_moves_by_itself_leaks_if_others_move_it_four_times_as_far(
    ratio,
    outcome,
):
    itself = RerunFigures(not_repeatable=("engine",), rerun_rms_logits=0.01)
    others = OtherPromptsFigures(bit_identical=False, rms_logits=0.01 * ratio)
    rows = [
        Evidence(AGAIN, "called twice", itself, FAILED, "It moves."),
        Evidence(OTHER_PROMPTS, "next to others", others, FAILED, "It leaks.", "engine"),
    ]
    verdict = conclude(rows, is_bit_identical=False)
    (row,) = rows_of(verdict.evidence, OTHER_PROMPTS)
    assert row.outcome == outcome


@pytest.mark.parametrize(
    ("ratio", "is_beyond"),
    [
        (1, False),
        (40, True),
    ],
)
def test_a_rerun_that_jumps_at_one_position_is_more_than_rounding(ratio, is_beyond):
    controls = MadeControls("float32")
    squares = controls.wide[1].copy()
    squares[7] *= ratio**2
    controls.moved, controls.rerun_squares = ("engine",), squares
    verdict = judging.judge(controls)
    (row,) = rows_of(verdict.evidence, AGAIN)
    assert row.figures.beyond_noise_floor is is_beyond
    assert verdict.name == ("bug suspected" if is_beyond else "nondeterministic")


def test_a_lower_precision_of_one_side_does_not_excuse_the_other():
    wide = row(FLOAT32, FAILED)
    lower = row(PRECISION, PASSED, side="prefill")
    faulty = row(PRECISION, FAILED, side="engine")
    assert conclude([lower, wide], is_bit_identical=False).name == "lower precision"
    assert conclude([lower, faulty, wide], is_bit_identical=False).name == "bug suspected"
