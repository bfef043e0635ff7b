"""What can be said of a dump by itself. Each planted fault is called `invalid dump` with its own sentence; sound dumps
are undecided.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.judging.constant_rows import Filling
from core.judging.ingest import ingest
from core.numerics.formats import BFLOAT16, FLOAT32
from core.runs.file.evidence import FAILED, MISSING, NOTED, PASSED, SAMPLER, SCREENING, STRUCTURE, VALIDITY
from core.runs.file.evidence import FLOAT32 as FLOAT32_RUNG
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
        found.setdefault(row.rung, []).append(row.outcome)
    return found


def test_a_sound_dump_is_likely_rounding_and_names_the_command_that_would_decide(tmp_path):
    run = stored(tmp_path, reference=PLAIN, variant=OTHER, token_ids=np.arange(ROWS))
    (pair,) = run.pairs
    assert pair.verdict == "likely rounding"
    assert next_command(run, pair) == f"ulpscope verdict {run.run_id} --float32 PAIR_IN_FLOAT32.npz"
    assert outcomes(run) == {VALIDITY: [PASSED] * 5, SCREENING: [PASSED], FLOAT32_RUNG: [MISSING], STRUCTURE: [NOTED]}


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


INVALID = {
    "top 20, the rest -inf": (
        PLAIN,
        _top(OTHER, 20, -np.inf),
        "'variant' holds logits cut to the top 20 at every position, -inf elsewhere",
    ),
    "a mask on one side": (
        PLAIN,
        np.where(np.arange(VOCAB) < 99, -np.inf, OTHER),
        "are -inf on one side only, position 0 first, and none is NaN: a mask",
    ),
    "top 20 on both sides": (
        _top(PLAIN, 20, -1e4),
        _top(OTHER, 20, -1e4),
        "'reference' and 'variant' hold logits cut to the top 20 at every position, -10000 elsewhere",
    ),
    "top 20, the rest 0": (PLAIN, _top(OTHER, 20, 0.0), "rows of zeros at every position"),
    "a row never written": (
        PLAIN,
        np.concatenate([OTHER[:-1], np.zeros_like(OTHER[:1])]),
        f"rows of zeros at 1 of {ROWS} positions",
    ),
    "a row of NaN": (
        PLAIN,
        np.concatenate([OTHER[:-1], np.full_like(OTHER[:1], np.nan)]),
        (
            "'variant' is NaN at position 47, token 0, where 'reference' is -0.369141; 600 logits at one position are"
            " not finite on one side only"
        ),
    ),
    "one row only": (PLAIN, np.concatenate([_top(OTHER[:1], 20, -1e4), OTHER[1:]]), f"at 1 of {ROWS} positions"),
    "rows one late": (PLAIN, np.concatenate([OTHER[:1], OTHER[:-1]]), "1 row later"),
    "rows one early": (PLAIN, np.concatenate([OTHER[1:], OTHER[-1:]]), "1 row earlier"),
    "rows two late": (PLAIN, np.concatenate([OTHER[:2], OTHER[:-2]]), "2 rows later"),
    "log-probabilities on one side": (
        PLAIN,
        _log_softmax(OTHER),
        "'reference' holds logits and 'variant' holds log-probabilities",
    ),
    "probabilities on one side": (PLAIN, _softmax(OTHER), "'variant' holds probabilities"),
    "a NaN on one side": (
        PLAIN,
        _with_nan(OTHER),
        "'variant' is NaN at position 7, token 3, where 'reference' is -1.03906: a mask",
    ),
}


@pytest.mark.parametrize(
    ("wrong", "top", "is_named"),
    [(np.inf, 70_000.0, True), (np.nan, 60_000.0, True), (np.nan, 300.0, False), (-np.inf, 70_000.0, False)],
)
def test_an_overflow_of_float16_is_named_if_the_other_side_is_as_large(wrong, top, is_named, tmp_path):
    reference, variant = PLAIN.astype(np.float32), OTHER.astype(np.float32)
    reference[7, 3], variant[7, 3] = top, wrong
    (pair,) = stored(tmp_path, reference=reference, variant=variant).pairs
    assert pair.verdict == "invalid dump"
    assert ("overflow of float16 (largest 65,504)" in pair.because) is is_named


@pytest.mark.spread(5)
@pytest.mark.parametrize("case", INVALID, ids=str)
def test_a_dump_that_cannot_be_compared_is_called_invalid_with_the_reason(case, tmp_path):
    reference, variant, sentence = INVALID[case]
    (pair,) = stored(tmp_path, reference=reference, variant=variant).pairs
    assert pair.verdict == "invalid dump"
    assert sentence in pair.because


def test_token_ids_beyond_the_vocabulary_are_not_those_of_the_logits(tmp_path):
    (pair,) = stored(tmp_path, reference=PLAIN, variant=OTHER, token_ids=np.arange(ROWS) + VOCAB).pairs
    assert pair.verdict == "invalid dump"


TOP_20 = [
    _top(_log_softmax(side / 2), 20, -np.inf)
    for side in (PLAIN, OTHER + np.random.default_rng(3).standard_normal(OTHER.shape))
]


def test_log_probabilities_cut_to_the_top_20_are_called_that_and_no_nan_is_blamed(tmp_path):
    run = stored(tmp_path, reference=TOP_20[0], variant=TOP_20[1])
    (pair,) = run.pairs
    assert pair.verdict == "invalid dump"
    assert "'variant' hold log-probabilities cut" in pair.because
    said = " ".join(row.says for row in run.evidence(0))
    assert "Both sides hold log-probabilities" in said
    assert "NaN or infinite" not in said
    assert "and none is NaN" in said


def test_negative_logits_cut_to_the_top_20_are_no_log_probabilities(tmp_path):
    """As GPT-2's are: their 20 best add up to 1e-16, where 20 of 600 probabilities are a thirtieth at least."""
    run = stored(tmp_path, reference=_top(PLAIN - 60, 20, -np.inf), variant=_top(OTHER - 60, 20, -np.inf))
    assert "hold logits cut" in run.pairs[0].because


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
    assert stored(tmp_path, reference=sides[0], variant=sides[1]).pairs[0].verdict in ("bug suspected", "invalid dump")
    rows = stored(
        tmp_path / "b" if (tmp_path / "b").mkdir() is None else tmp_path, reference=sides[0], variant=sides[1]
    ).evidence(0)
    assert not [row for row in rows if row.outcome == FAILED and "top k" in row.says]


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
    assert watch.first_row == min(filled)
    assert watch.value == -3.0
    assert kept - 30 <= watch.kept <= kept  # a drawn logit may be -3.0 too


def test_the_first_difference_is_found_without_a_control_and_one_place_names_no_block(tmp_path):
    variant = np.concatenate([PLAIN[:32], OTHER[32:]])
    run = stored(tmp_path, reference=PLAIN, variant=variant)
    (row,) = [row for row in run.evidence(0) if row.rung == STRUCTURE]
    assert f"16 of {ROWS} positions differ, position 32 first" in row.says
    assert "every position differs" in row.says
    assert row.figures.block is None


def test_places_that_are_multiples_of_a_block_are_named_without_a_control(tmp_path):
    variant = PLAIN.copy()
    variant[[8, 16, 24, 32, 40]] = OTHER[[8, 16, 24, 32, 40]]
    (row,) = [row for row in stored(tmp_path, reference=PLAIN, variant=variant).evidence(0) if row.rung == STRUCTURE]
    assert "Every place where differences begin" in row.says
    variant[[8, 40]] = PLAIN[[8, 40]]  # 16, 24, 32: three places, as blocks of 8 and nothing smaller have them
    (row,) = [row for row in stored(tmp_path, reference=PLAIN, variant=variant).evidence(0) if row.rung == STRUCTURE]
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
    assert "their own logits, position 9" in run.pairs[0].because


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
