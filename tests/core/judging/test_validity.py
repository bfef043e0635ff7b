"""What can be said of a dump by itself: each planted fault is called `invalid dump` by its own check."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.judging.constant_rows import Filling
from core.judging.ingest import ingest
from core.numerics.formats import BFLOAT16, FLOAT32
from core.runs.file.evidence import FAILED, MISSING, NOTED, PASSED, SAMPLER, SCREENING, STRUCTURE, VALIDITY, Check
from core.runs.file.evidence import FLOAT32 as FLOAT32_GROUP
from core.runs.queries.verdicts import next_command
from core.runs.reader import RunReader
from core.runs.store.store import Store
from tests.core.judging.engine_dumps import ROWS, VOCAB, in_bfloat16, saved, states

X, HEAD = states()
PLAIN = in_bfloat16(X, HEAD, 1)
OTHER = in_bfloat16(X, HEAD, 2)


def stored(folder: Path, **arrays: Any) -> RunReader:
    store = Store(folder / "store")
    return RunReader(store.path_of(ingest(store, [saved(folder / "dump.npz", **arrays)])))


def outcomes(run: RunReader) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in run.evidence(0):
        found.setdefault(row.group, []).append(row.outcome)
    return found


def test_a_sound_dump_is_likely_rounding_and_names_the_command_that_would_decide(tmp_path):
    run = stored(tmp_path, reference=PLAIN, variant=OTHER, token_ids=np.arange(ROWS))
    (pair,) = run.pairs
    assert pair.verdict == "likely rounding"
    assert next_command(run, pair) == f"ulpscope verdict {run.run_id} --float32 PAIR_IN_FLOAT32.npz"
    assert outcomes(run) == {VALIDITY: [PASSED], SCREENING: [PASSED], FLOAT32_GROUP: [MISSING], STRUCTURE: [NOTED]}


def test_equal_sides_are_identical(tmp_path):
    assert stored(tmp_path, reference=PLAIN, variant=PLAIN).pairs[0].verdict == "identical"


def _top(logits: np.ndarray, k: int, fill: float) -> np.ndarray:
    cut = np.full_like(logits, fill)
    best = np.argsort(-logits, axis=1)[:, :k]
    np.put_along_axis(cut, best, np.take_along_axis(logits, best, 1), 1)
    return cut


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    return (wide - np.log(np.exp(wide).sum(1, keepdims=True))).astype(np.float32)


def _softmax(logits: np.ndarray) -> np.ndarray:
    return np.exp(_log_softmax(logits))


def _with_nan(logits: np.ndarray) -> np.ndarray:
    changed = logits.copy()
    changed[7, 3] = np.nan
    return changed


INVALID = {  # the sides, the check that fails, and some of its figures
    "top 20, the rest -inf": (PLAIN, _top(OTHER, 20, -np.inf), Check.TRUNCATION, {"least_other_logits": 20}),
    "a mask on one side": (
        PLAIN,
        np.where(np.arange(VOCAB) < 99, -np.inf, OTHER),
        Check.NUMBERS,
        {"nonfinite_mismatch": 99 * ROWS, "first": (0, 0), "token": None},
    ),
    "top 20 on both sides": (
        _top(PLAIN, 20, -1e4),
        _top(OTHER, 20, -1e4),
        Check.TRUNCATION,
        {"reference_filled_rows": ROWS, "variant_filled_rows": ROWS, "least_other_logits": 20},
    ),
    "top 20, the rest 0": (PLAIN, _top(OTHER, 20, 0.0), Check.TRUNCATION, {"variant_filled_rows": ROWS}),
    "a row never written": (
        PLAIN,
        np.concatenate([OTHER[:-1], np.zeros_like(OTHER[:1])]),
        Check.TRUNCATION,
        {"reference_filled_rows": 0, "variant_filled_rows": 1, "least_other_logits": 0},
    ),
    "a row of NaN": (
        PLAIN,
        np.concatenate([OTHER[:-1], np.full_like(OTHER[:1], np.nan)]),
        Check.NUMBERS,
        {"nonfinite_mismatch": VOCAB, "positions": 1, "first": (0, ROWS - 1), "token": 0},
    ),
    "one row only": (
        PLAIN,
        np.concatenate([_top(OTHER[:1], 20, -1e4), OTHER[1:]]),
        Check.TRUNCATION,
        {"variant_filled_rows": 1, "least_other_logits": 20},
    ),
    "rows one late": (PLAIN, np.concatenate([OTHER[:1], OTHER[:-1]]), Check.SHIFT, {}),
    "rows one early": (PLAIN, np.concatenate([OTHER[1:], OTHER[-1:]]), Check.SHIFT, {}),
    "rows two late": (PLAIN, np.concatenate([OTHER[:2], OTHER[:-2]]), Check.SHIFT, {}),
    "log-probabilities on one side": (PLAIN, _log_softmax(OTHER), Check.LOGSUMEXP, {}),
    "probabilities on one side": (PLAIN, _softmax(OTHER), Check.LOGSUMEXP, {}),
    "a NaN on one side": (
        PLAIN,
        _with_nan(OTHER),
        Check.NUMBERS,
        {"nonfinite_mismatch": 1, "positions": 1, "first": (0, 7), "token": 3},
    ),
}
SHIFTED = {"rows one late": "one_later", "rows one early": "one_earlier", "rows two late": "two_later"}


@pytest.mark.parametrize(
    ("wrong", "top", "is_named"),
    [(np.inf, 70_000.0, True), (np.nan, 60_000.0, True), (np.nan, 300.0, False), (-np.inf, 70_000.0, False)],
)
def test_an_overflow_of_float16_is_named_if_the_other_side_is_as_large(wrong, top, is_named, tmp_path):
    reference, variant = PLAIN.astype(np.float32), OTHER.astype(np.float32)
    reference[7, 3], variant[7, 3] = top, wrong
    (pair,) = stored(tmp_path, reference=reference, variant=variant).pairs
    assert pair.verdict == "invalid dump"
    assert ("overflow of float16" in pair.because) is is_named


@pytest.mark.spread(5)
@pytest.mark.parametrize("case", INVALID, ids=str)
def test_a_dump_that_cannot_be_compared_is_called_invalid_with_the_reason(case, tmp_path):
    reference, variant, check, figures = INVALID[case]
    run = stored(tmp_path, reference=reference, variant=variant)
    assert run.pairs[0].verdict == "invalid dump"
    (row,) = [row for row in run.evidence(0) if row.check is check]
    assert row.outcome == FAILED
    assert {name: getattr(row.figures, name) for name in figures} == figures
    if case in SHIFTED:
        assert getattr(row.figures, SHIFTED[case]) > 0.9 > row.figures.unshifted


def test_token_ids_beyond_the_vocabulary_are_not_those_of_the_logits(tmp_path):
    (pair,) = stored(tmp_path, reference=PLAIN, variant=OTHER, token_ids=np.arange(ROWS) + VOCAB).pairs
    assert pair.verdict == "invalid dump"


TOP_20 = [
    _top(_log_softmax(side / 2), 20, -np.inf)
    for side in (PLAIN, OTHER + np.random.default_rng(3).standard_normal(OTHER.shape))
]


def test_log_probabilities_cut_to_the_top_20_are_called_that_and_no_nan_is_blamed(tmp_path):
    run = stored(tmp_path, reference=TOP_20[0], variant=TOP_20[1])
    assert run.pairs[0].verdict == "invalid dump"
    rows = {row.check: row for row in run.evidence(0)}
    assert rows[Check.TRUNCATION].outcome == FAILED
    assert "log-probabilities" in rows[Check.LOGSUMEXP].says
    assert Check.NUMBERS not in rows


def test_negative_logits_cut_to_the_top_20_are_no_log_probabilities(tmp_path):
    """As GPT-2's are: their 20 best add up to 1e-16, where 20 of 600 probabilities are a thirtieth at least."""
    run = stored(tmp_path, reference=_top(PLAIN - 60, 20, -np.inf), variant=_top(OTHER - 60, 20, -np.inf))
    assert Check.LOGSUMEXP not in {row.check for row in run.evidence(0)}


def test_a_mask_on_half_of_the_vocabulary_is_no_truncation(tmp_path):
    """The twin of the truncated ones: what one value fills to less than a half."""
    masked = [side.copy() for side in (PLAIN, OTHER)]
    for side in masked:
        side[:, : VOCAB // 2 - 1] = -np.inf
    run = stored(tmp_path, reference=masked[0], variant=masked[1])
    assert run.pairs[0].verdict == "likely rounding"


def test_of_two_tokens_that_tie_nothing_is_called_truncated(tmp_path):
    random = np.random.default_rng(0)
    sides = [random.integers(0, 2, (12, 2)).astype(np.float32) for _ in range(2)]
    run = stored(tmp_path, reference=sides[0], variant=sides[1])
    assert Check.TRUNCATION not in {row.check for row in run.evidence(0)}


@pytest.mark.parametrize("fmt", [BFLOAT16, FLOAT32], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("share", [0.95, 0.8])
def test_filled_rows_are_counted_exactly_wherever_the_others_lie(fmt, share):
    random = np.random.default_rng(0)
    values = random.standard_normal((40, 5000)).astype(fmt.values)
    filled = random.choice(40, 11, replace=False)
    kept = round(5000 * (1 - share))
    for row in filled:
        where = random.choice(5000, 5000 - kept, replace=False)
        values[row, where] = -3.0
    watch = Filling(fmt)
    for start in range(0, 40, 7):
        watch.see(values[start : start + 7].view(fmt.carrier))
    assert watch.rows == 11
    assert watch.value == -3.0
    assert kept - 30 <= watch.others <= kept  # a drawn logit may be -3.0 too


def test_the_first_difference_is_found_without_a_control_and_one_place_names_no_block(tmp_path):
    variant = np.concatenate([PLAIN[:32], OTHER[32:]])
    run = stored(tmp_path, reference=PLAIN, variant=variant)
    (row,) = [row for row in run.evidence(0) if row.group == STRUCTURE]
    assert (row.figures.positions, row.figures.first, row.figures.is_tail) == (16, (0, 32), True)
    assert row.figures.block is None


def test_places_that_are_multiples_of_a_block_are_named_without_a_control(tmp_path):
    variant = PLAIN.copy()
    variant[[8, 16, 24, 32, 40]] = OTHER[[8, 16, 24, 32, 40]]
    (row,) = [row for row in stored(tmp_path, reference=PLAIN, variant=variant).evidence(0) if row.group == STRUCTURE]
    assert row.figures.block == 8
    variant[[8, 40]] = PLAIN[[8, 40]]  # 16, 24, 32: three places, as blocks of 8 and nothing smaller have them
    (row,) = [row for row in stored(tmp_path, reference=PLAIN, variant=variant).evidence(0) if row.group == STRUCTURE]
    assert row.figures.block == 8


# ---- what was emitted


def _emitted(logits: np.ndarray, given: int = 4) -> np.ndarray:
    tokens = logits.argmax(1)
    tokens[:given] = -1
    return tokens


def test_emitted_tokens_that_are_the_argmax_pass_and_another_is_the_samplers_fault(tmp_path):
    right = {"emitted:reference": _emitted(PLAIN), "emitted:variant": _emitted(OTHER)}
    run = stored(tmp_path, reference=PLAIN, variant=OTHER, **right)
    assert outcomes(run)[SAMPLER] == [PASSED, PASSED]
    assert run.pairs[0].verdict == "likely rounding"
    assert run.generations[0].given_positions == 5
    assert run.generations[0].tokens[1] == tuple(OTHER.argmax(1)[4:])
    wrong = {**right, "emitted:variant": np.where(np.arange(ROWS) == 20, 3, right["emitted:variant"])}
    (tmp_path / "b").mkdir()
    run = stored(tmp_path / "b", reference=PLAIN, variant=OTHER, **wrong)
    assert outcomes(run)[SAMPLER] == [PASSED, FAILED]
    assert run.pairs[0].verdict == "bug suspected"


def test_of_tokens_that_tie_any_may_be_emitted(tmp_path):
    tied = PLAIN.copy()
    tied[10, [5, 300]] = 40.0
    tokens = tied.argmax(1)
    tokens[10] = 300
    run = stored(
        tmp_path, reference=tied, variant=OTHER, **{"emitted:reference": tokens, "emitted:variant": OTHER.argmax(1)}
    )
    assert outcomes(run)[SAMPLER] == [PASSED, PASSED]


def test_of_more_tokens_that_tie_than_are_kept_any_may_be_emitted(tmp_path):
    flat = np.round(PLAIN)
    flat[:, :60] = flat.max() + 8
    tokens = np.full(ROWS, 55)
    run = stored(
        tmp_path, reference=flat, variant=OTHER, **{"emitted:reference": tokens, "emitted:variant": OTHER.argmax(1)}
    )
    assert outcomes(run)[SAMPLER] == [PASSED, PASSED]
    (tmp_path / "b").mkdir()
    tokens[9] = 70
    run = stored(
        tmp_path / "b",
        reference=flat,
        variant=OTHER,
        **{"emitted:reference": tokens, "emitted:variant": OTHER.argmax(1)},
    )
    assert outcomes(run)[SAMPLER] == [FAILED, PASSED]
    assert [row.figures.first for row in run.evidence(0) if row.group == SAMPLER] == [9, None]


@pytest.mark.parametrize(
    ("emitted", "sentence"),
    [
        ({"emitted:reference": _emitted(PLAIN)}, "not of 'variant'; expected all or none"),
        ({"emitted:nobody": _emitted(PLAIN)}, "belongs to no side"),
        ({"emitted": _emitted(PLAIN)}, "belongs to no side"),
        ({"emitted:reference": _emitted(PLAIN), "emitted:variant": _emitted(PLAIN, 5)}, "begin at different positions"),
        (
            {"emitted:reference": _emitted(PLAIN)[1:], "emitted:variant": _emitted(PLAIN)},
            "expected one for each position",
        ),
        ({"emitted:reference": _emitted(PLAIN) - 1, "emitted:variant": _emitted(PLAIN)}, "numbers from -1"),
        ({"emitted:reference": _emitted(PLAIN) * 1.0, "emitted:variant": _emitted(PLAIN)}, "whole numbers"),
    ],
)
def test_odd_emitted_tokens_are_refused_in_a_sentence(emitted, sentence, tmp_path):
    from core.errors import DumpError

    store = Store(tmp_path / "store")
    with pytest.raises(DumpError, match=sentence.replace("(", r"\(")):
        ingest(store, [saved(tmp_path / "dump.npz", reference=PLAIN, variant=OTHER, **emitted)])
    assert store.paths() == []
