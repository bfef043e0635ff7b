"""What can be said of a dump by itself: each planted fault is called `invalid dump` by its own
check.
"""

import ml_dtypes
import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from core.checks.not_finite import NUMBERS
from core.checks.probabilities import LOGSUMEXP
from core.checks.shapes import SHAPES
from core.checks.shift import SHIFT
from core.checks.single_logit import SINGLE_LOGIT
from core.checks.truncation import TRUNCATION
from core.errors import DumpError
from core.evidence import (
    FAILED,
    MISSING,
    NOTED,
    PASSED,
    SAMPLER,
    SCREENING,
    STRUCTURE,
    VALIDITY,
)
from core.evidence import FLOAT32 as FLOAT32_GROUP
from core.judging.stored import explain_pair
from core.numerics.constant_rows import Filling
from core.numerics.formats import BFLOAT16, FLOAT32
from core.runs.queries.flips import telling_place
from core.runs.queries.verdicts import next_command
from core.runs.store.store import Store
from tests.core.evidence import rows_of
from tests.core.judging.engine_dumps import (
    ROWS,
    VOCAB,
    changed,
    in_bfloat16,
    in_float32,
    saved,
    states,
)
from tests.core.runs.made_runs import ingested, verdict_of

X, HEAD = states()
PLAIN = in_bfloat16(X, HEAD, 1)
OTHER = in_bfloat16(X, HEAD, 2)


FLOAT32_NAMED = {"compute_dtype": np.array("float32")}
WIDE = in_float32(X, HEAD, 1)
WIDE_OTHER = in_float32(X, HEAD, 2)


def stored(folder, reference=PLAIN, variant=OTHER, **more):
    folder.mkdir(exist_ok=True)
    store = Store(folder / "store")
    dump = saved(folder / "dump.npz", reference=reference, variant=variant, **more)
    return ingested(store, dump)


def outcomes(run):
    found = {}
    for row in run.evidence(0):
        found.setdefault(row.group, []).append(row.outcome)
    return found


def test_a_sound_dump_is_likely_rounding_and_names_the_command_that_would_decide(tmp_path):
    run = stored(tmp_path, token_ids=np.arange(ROWS))
    (pair,) = run.pairs
    assert pair.verdict == "likely rounding"
    assert next_command(run, pair) == f"ulpscope verdict {run.run_id} --float32 PAIR_IN_FLOAT32.npz"
    assert outcomes(run) == {
        VALIDITY: [PASSED],
        SCREENING: [PASSED],
        FLOAT32_GROUP: [MISSING],
        STRUCTURE: [NOTED],
    }


def _top(logits, k, fill):
    cut = np.full_like(logits, fill)
    best = np.argsort(-logits, axis=1)[:, :k]
    np.put_along_axis(cut, best, np.take_along_axis(logits, best, 1), 1)
    return cut


def _log_softmax(logits):
    return log_softmax(logits.astype(np.float64), axis=1).astype(np.float32)


INVALID = {  # the sides, the check that fails, and some of its figures
    "top 20, the rest -inf": (
        PLAIN,
        _top(OTHER, 20, -np.inf),
        TRUNCATION,
        {"least_other_logits": 20},
    ),
    "a mask on one side": (
        PLAIN,
        np.where(np.arange(VOCAB) < 99, -np.inf, OTHER),
        NUMBERS,
        {
            "nonfinite_mismatch": 99 * ROWS,
            "first": (0, 0),
            "token": None,
        },
    ),
    "top 20 on both sides": (
        _top(PLAIN, 20, -1e4),
        _top(OTHER, 20, -1e4),
        TRUNCATION,
        {"reference_filled_rows": ROWS, "variant_filled_rows": ROWS, "least_other_logits": 20},
    ),
    "a row never written": (
        PLAIN,
        np.concatenate([OTHER[:-1], np.zeros_like(OTHER[:1])]),
        TRUNCATION,
        {"reference_filled_rows": 0, "variant_filled_rows": 1, "least_other_logits": 0},
    ),
    "rows one late": (
        PLAIN,
        np.concatenate([OTHER[:1], OTHER[:-1]]),
        SHIFT,
        {},
    ),
    "rows one early": (
        PLAIN,
        np.concatenate([OTHER[1:], OTHER[-1:]]),
        SHIFT,
        {},
    ),
    "rows two late": (
        PLAIN,
        np.concatenate([OTHER[:2], OTHER[:-2]]),
        SHIFT,
        {},
    ),
    "log-probabilities on one side": (
        PLAIN,
        _log_softmax(OTHER),
        LOGSUMEXP,
        {},
    ),
    "probabilities on one side": (
        PLAIN,
        np.exp(_log_softmax(OTHER)),
        LOGSUMEXP,
        {},
    ),
    "a NaN on one side": (
        PLAIN,
        changed(OTHER, ((7, 3), np.nan)),
        NUMBERS,
        {
            "nonfinite_mismatch": 1,
            "positions": 1,
            "first": (0, 7),
            "token": 3,
        },
    ),
    "tokens beyond the vocabulary": (
        PLAIN,
        OTHER,
        SHAPES,
        {"highest_token_id": ROWS - 1 + VOCAB},
    ),
    "one value": (
        PLAIN,
        np.full_like(OTHER, 0.375),
        TRUNCATION,
        {"variant_filled_rows": ROWS},
    ),
}
SHIFTED = {
    "rows one late": "one_later",
    "rows one early": "one_earlier",
    "rows two late": "two_later",
}


# 65,504 is float16's largest: near it a logit becomes infinite, and infinity less infinity is NaN
@pytest.mark.parametrize(
    ("wrong", "top", "is_named"),
    [
        (np.inf, 70_000.0, True),
        (np.nan, 60_000.0, True),
        (np.nan, 300.0, False),
        (-np.inf, 70_000.0, False),
    ],
)
def test_an_overflow_of_float16_is_named_if_the_other_side_is_as_large(
    wrong,
    top,
    is_named,
    tmp_path,
):
    reference = PLAIN.astype(np.float32)
    variant = OTHER.astype(np.float32)
    reference[7, 3] = top
    variant[7, 3] = wrong
    (pair,) = stored(tmp_path, reference, variant).pairs
    assert pair.verdict == "invalid dump"
    assert ("overflow of float16" in pair.because) is is_named


@pytest.mark.spread(5)
@pytest.mark.parametrize("case", INVALID, ids=str)
def test_a_dump_that_cannot_be_compared_is_called_invalid_with_the_reason(case, tmp_path):
    reference, variant, check, figures = INVALID[case]
    more = {"token_ids": np.arange(ROWS) + VOCAB} if check is SHAPES else {}
    run = stored(tmp_path, reference, variant, **more)
    assert verdict_of(run) == "invalid dump"
    (row,) = rows_of(run.evidence(0), check)
    assert row.outcome == FAILED
    assert {name: getattr(row.figures, name) for name in figures} == figures
    if case == "one value":
        assert "one value, 0.375, for all tokens" in run.pairs[0].because
    if case in SHIFTED:
        assert getattr(row.figures, SHIFTED[case]) > 0.9 > row.figures.unshifted


def test_log_probabilities_cut_to_the_top_20_are_called_that_and_no_nan_is_blamed(tmp_path):
    noise = np.random.default_rng(3).standard_normal(OTHER.shape)
    sides = [_log_softmax(side / 2) for side in (PLAIN, OTHER + noise)]
    run = stored(tmp_path, *(_top(side, 20, -np.inf) for side in sides))
    assert verdict_of(run) == "invalid dump"
    rows = {row.check: row for row in run.evidence(0)}
    assert rows[TRUNCATION].outcome == FAILED
    assert "log-probabilities" in rows[LOGSUMEXP].says
    assert NUMBERS not in rows
    # Negative logits are none: the 20 best of GPT-2 add up to 1e-16, 20 of 600 probabilities to a
    # thirtieth at least.
    negative = [_top(side - 60, 20, -np.inf) for side in (PLAIN, OTHER)]
    run = stored(tmp_path / "negative", *negative)
    assert not rows_of(run.evidence(0), LOGSUMEXP)


@pytest.mark.parametrize(
    "sides",
    [
        [np.where(np.arange(VOCAB) < VOCAB // 2 - 1, -np.inf, side) for side in (PLAIN, OTHER)],
        np.random.default_rng(0).integers(0, 2, (2, 12, 2)).astype(np.float32),
    ],
    ids=["a mask on half of the vocabulary", "two tokens that tie"],
)
def test_less_than_half_of_a_row_is_no_truncation(sides, tmp_path):
    run = stored(tmp_path, *sides)
    assert not rows_of(run.evidence(0), TRUNCATION)
    assert verdict_of(run) != "invalid dump"


@pytest.mark.parametrize("fmt", [BFLOAT16, FLOAT32], ids=lambda fmt: fmt.name)
def test_filled_rows_are_counted_exactly_wherever_the_others_lie(fmt):
    random = np.random.default_rng(0)
    values = random.standard_normal((40, 5000)).astype(fmt.values)
    filled = random.choice(40, 11, replace=False)
    # a fifth of each
    kept = 1000
    for row in filled:
        where = random.choice(5000, 5000 - kept, replace=False)
        values[row, where] = -3.0
    watch = Filling(fmt)
    # chunks of 7 do not divide the 40 rows
    for start in range(0, 40, 7):
        watch.see(values[start : start + 7].view(fmt.carrier))
    assert watch.rows == 11
    assert watch.value == -3.0
    # a drawn logit may be -3.0 too
    assert kept - 30 <= watch.others <= kept


@pytest.mark.parametrize(
    ("places", "is_tail", "block"),
    [
        (range(32, ROWS), True, None),
        (range(8, 41, 8), False, 8),
    ],
)
def test_the_first_difference_and_its_blocks_are_found_without_a_control(
    places,
    is_tail,
    block,
    tmp_path,
):
    variant = np.where(np.isin(np.arange(ROWS), places)[:, None], OTHER, PLAIN)
    (row,) = rows_of(stored(tmp_path, PLAIN, variant).evidence(0), STRUCTURE)
    assert row.figures.positions == len(places)
    assert row.figures.first == (0, places[0])
    assert row.figures.is_tail == is_tail
    assert row.figures.block == block


def _emitted(logits, given=4):
    tokens = logits.argmax(1)
    tokens[:given] = -1
    return tokens


def test_emitted_tokens_that_are_the_argmax_pass_and_another_is_the_samplers_fault(tmp_path):
    right = {"emitted:reference": _emitted(PLAIN), "emitted:variant": _emitted(OTHER)}
    run = stored(tmp_path, **right)
    assert outcomes(run)[SAMPLER] == [PASSED, PASSED]
    assert verdict_of(run) == "likely rounding"
    assert run.generations[0].given_positions == 5
    assert run.generations[0].tokens[1] == tuple(OTHER.argmax(1)[4:])
    another = np.where(np.arange(ROWS) == 20, 3, right["emitted:variant"])
    wrong = {**right, "emitted:variant": another}
    run = stored(tmp_path / "b", **wrong)
    assert outcomes(run)[SAMPLER] == [PASSED, FAILED]
    assert verdict_of(run) == "bug suspected"


@pytest.mark.parametrize(
    ("token", "first"),
    [
        (55, None),
        (70, 9),
    ],
)
def test_of_tokens_that_tie_any_may_be_emitted(token, first, tmp_path):
    """Of more than are kept, too."""
    flat = np.round(PLAIN)
    tokens = np.full(ROWS, 55)
    # sixty tokens tie at the top, three times as many as are stored
    flat[:, :60] = flat.max() + 8
    tokens[9] = token
    run = stored(
        tmp_path,
        flat,
        **{"emitted:reference": tokens, "emitted:variant": OTHER.argmax(1)},
    )
    expected = PASSED if first is None else FAILED
    assert outcomes(run)[SAMPLER] == [expected, PASSED]
    rows = rows_of(run.evidence(0), SAMPLER)
    assert [row.figures.first for row in rows] == [first, None]


VARIANT_EMITTED = {"emitted:variant": _emitted(PLAIN)}


@pytest.mark.parametrize(
    ("emitted", "sentence"),
    [
        ({"emitted:reference": _emitted(PLAIN)}, "not of 'variant'; expected all or none"),
        ({"emitted:nobody": _emitted(PLAIN)}, "belongs to no side"),
        (
            {"emitted:reference": _emitted(PLAIN), "emitted:variant": _emitted(PLAIN, 5)},
            "begin at different positions",
        ),
        (
            {"emitted:reference": _emitted(PLAIN)[1:], **VARIANT_EMITTED},
            "expected one for each position",
        ),
        ({"emitted:reference": _emitted(PLAIN) - 1, **VARIANT_EMITTED}, "numbers from -1"),
        ({"emitted:reference": _emitted(PLAIN) * 1.0, **VARIANT_EMITTED}, "whole numbers"),
    ],
)
def test_odd_emitted_tokens_are_refused_in_a_sentence(emitted, sentence, tmp_path):
    with pytest.raises(DumpError, match=sentence):
        stored(tmp_path, **emitted)
    assert Store(tmp_path / "store").paths() == []


# The difference, by the arrays alone.


@pytest.mark.parametrize(
    ("reference", "variant", "more", "verdict"),
    [
        (PLAIN, PLAIN, {}, "identical"),
        (WIDE, WIDE_OTHER, FLOAT32_NAMED, "likely rounding"),
        # a log-softmax hides the grid of the bfloat16 logits that it was taken of
        (_log_softmax(PLAIN), _log_softmax(OTHER), {}, "undecided"),
        (_log_softmax(PLAIN), _log_softmax(OTHER), FLOAT32_NAMED, "bug suspected"),
    ],
)
def test_a_difference_is_compared_with_what_its_dtype_rounds(
    reference,
    variant,
    more,
    verdict,
    tmp_path,
):
    assert verdict_of(stored(tmp_path, reference, variant, **more)) == verdict


@pytest.mark.parametrize(
    ("reference", "variant"),
    [(PLAIN, OTHER), (WIDE, WIDE_OTHER)],
    ids=["bfloat16", "float32"],
)
def test_unrelated_arrays_and_one_swapped_row_are_a_suspected_bug(tmp_path, reference, variant):
    noise = np.random.default_rng(0).standard_normal(reference.shape)
    unrelated = (noise * reference.std()).astype(np.float32)
    assert verdict_of(stored(tmp_path, reference, unrelated)) == "bug suspected"
    swapped = variant.copy()
    swapped[11] = variant[29]
    with stored(tmp_path / "swapped", reference, swapped) as run:
        assert verdict_of(run) == "bug suspected"
        assert telling_place(run.positions(0)) == (0, 11)


def test_a_difference_of_medium_size_stays_undecided(tmp_path):
    signs = np.random.default_rng(1).choice([-1, 1], PLAIN.shape)
    # of bfloat16 at the largest logit
    exponent = np.floor(np.log2(np.abs(PLAIN).max()))
    step = 2.0 ** (exponent - 7)
    moved = np.round(PLAIN / step + 6 * signs).astype(np.float32) * np.float32(step)
    run = stored(tmp_path, PLAIN, moved, compute_dtype=np.array("bfloat16"))
    assert verdict_of(run) == "undecided"


# Of all rows, as a frequent token has a large logit.
COMMON = 2 * np.random.default_rng(5).standard_normal(VOCAB)
TOKENS = np.arange(VOCAB)
# Faults as large as rounding, alike in all rows, and their verdicts. [positions, vocab] -> the same
STEADY = {
    "nothing": (lambda logits: logits, "likely rounding"),
    "a scale": (lambda logits: logits * 1.004, "undecided"),
    "a bias of the head": (
        lambda logits: logits + 0.04 * np.random.default_rng(6).standard_normal(VOCAB),
        "undecided",
    ),
    "a block of columns": (
        lambda logits: logits + 0.06 * (TOKENS >= 3 * VOCAB // 4),
        "undecided",
    ),
    "a bias of one token": (lambda logits: logits + 0.1 * (TOKENS == 7), "bug suspected"),
}


@pytest.mark.parametrize("fault", STEADY)
def test_a_difference_that_is_alike_in_all_rows_is_no_rounding(fault, tmp_path):
    reference = _rounded(PLAIN + COMMON, "bfloat16")
    add, verdict = STEADY[fault]
    variant = _rounded(add(OTHER + COMMON), "bfloat16")
    with stored(tmp_path, reference, variant) as run:
        assert run.pairs[0].summary.rms_row_ulps < 2
        assert verdict_of(run) == verdict


@pytest.mark.parametrize(
    "mask",
    [
        -1e4,
        -65504.0,
        -1e30,
        float(np.finfo(np.float32).min),
    ],
)
@pytest.mark.parametrize(
    ("reference", "variant"),
    [
        (PLAIN, OTHER),
        (WIDE, WIDE_OTHER),
    ],
)
def test_a_mask_by_a_number_on_both_sides_hides_no_fault(reference, variant, mask, tmp_path):
    noise = 0.3 * np.random.default_rng(2).standard_normal(reference.shape)
    sides = [reference.copy(), (variant + noise).astype(np.float32)]
    for side in sides:
        side[:, -100:] = mask
    run = stored(tmp_path, *sides, compute_dtype=np.array("float32"))
    assert verdict_of(run) == "undecided"


def test_a_column_far_beyond_the_others_hides_no_fault_in_16_bits(tmp_path):
    """Its step is 2; the noise is 0.3, 5 steps of the others."""
    noise = 0.3 * np.random.default_rng(2).standard_normal(PLAIN.shape)
    sides = [PLAIN.copy(), _rounded(OTHER + noise, "bfloat16")]
    for side in sides:
        side[:, 3] = -500
    run = stored(tmp_path, *sides, compute_dtype=np.array("bfloat16"))
    assert run.pairs[0].verdict == "undecided"


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_probabilities_are_not_accused_of_what_their_sizes_do(dtype, tmp_path):
    """The largest of them round by far more than the others."""
    sides = [_rounded(softmax(each.astype(np.float64), axis=1), dtype) for each in (PLAIN, OTHER)]
    run = stored(tmp_path, *sides, compute_dtype=np.array(dtype))
    assert run.pairs[0].verdict == "undecided"


def _rounded(logits, dtype):
    return logits.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype).astype(np.float32)


SINGLES = {  # rows and tokens that are 6 logits off
    "one logit": ([5], [777]),
    "a few logits at several positions": ([5, 29], [3, 777, 2048]),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("rest", ["equal", "rounded"])
@pytest.mark.parametrize("case", [*SINGLES, "sound"])
def test_a_logit_that_moves_alone_is_a_suspected_bug_in_every_dtype(case, rest, dtype, tmp_path):
    """Row maxima are about 18, so 6 logits are 48 row ULPs of bfloat16; one position has no others'
    size to show it.
    """
    random = np.random.default_rng(4)
    x = random.standard_normal((ROWS, 64))
    head = random.standard_normal((64, 4096)) / 2
    bits = {"bfloat16": 9, "float16": 12, "float32": 23}
    eps = 2.0 ** -bits[dtype]
    moved = x * (1 + eps * random.standard_normal(x.shape)) if rest == "rounded" else x
    reference, variant = (_rounded(states @ head, dtype) for states in (x, moved))
    # the one difference of a sound pair whose rest is equal
    variant[7, 9] = reference[7, 9] * (1 + 2 * eps)
    variant = _rounded(variant, dtype)
    if case != "sound":
        rows, tokens = SINGLES[case]
        variant[np.ix_(rows, tokens)] += 6
    named = {"compute_dtype": np.array(dtype)}
    run = stored(tmp_path, reference, _rounded(variant, dtype), **named)
    (pair,) = run.pairs
    singles = [row.figures for row in rows_of(run.evidence(0), SINGLE_LOGIT)]
    if case == "sound":
        assert pair.verdict == "likely rounding"
        assert singles == []
    else:
        assert pair.verdict == "bug suspected"
        assert singles[0].first == (0, rows[0])
        assert singles[0].positions_beyond == len(rows)
        assert singles[0].token in tokens


# ---- rows of other places, among more rows than are read whole

BATCH = np.random.default_rng(7)
LOGITS = BATCH.normal(size=(2, 100, 24)) @ BATCH.normal(0, 0.7, (24, 128))
SWAPPED = np.arange(200)
SWAPPED[[9, 171]] = 171, 9


@pytest.mark.parametrize("noise", [1e-6, 0.03])
@pytest.mark.parametrize(
    ("rows", "count", "words"),
    [
        (np.tile(np.arange(100), 2), 100, "prompt 1 position 0 that of prompt 0 position 0"),
        (np.roll(np.arange(200), 60), 200, "prompt 0 position 0 that of prompt 1 position 40"),
        (SWAPPED, 2, "prompt 0 position 9 that of prompt 1 position 71"),
        (
            np.full(200, 133),
            200,
            "repeats one row at 200 of 200 positions: that of prompt 1 position 33",
        ),
    ],
)
def test_rows_of_other_places_are_counted_over_the_whole_dump(tmp_path, noise, rows, count, words):
    noise_of_all = BATCH.normal(0, noise, LOGITS.shape)
    moved = LOGITS.reshape(200, -1)[rows].reshape(LOGITS.shape) + noise_of_all
    with stored(tmp_path, LOGITS.astype(np.float32), moved.astype(np.float32)) as run:
        (cause,) = explain_pair(run, 0).causes
    assert cause.parameters["positions"] == count
    assert words in cause.says


def test_equal_prompts_are_no_rows_of_other_places(tmp_path):
    """The variant's rounding of one prompt may be that of the reference's other one."""
    x, y = (LOGITS[0] + BATCH.normal(0, 1e-6, LOGITS[0].shape) for _ in range(2))
    reference = np.stack([x, y]).astype(np.float32)
    variant = np.stack([y, x]).astype(np.float32)
    with stored(tmp_path, reference, variant) as run:
        assert verdict_of(run) == "likely rounding"
        assert explain_pair(run, 0).causes == []
