"""What can be said of a dump by itself. Each planted fault is called `invalid dump` with its own sentence; sound dumps
are undecided.
"""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from core.commands.comparing import pair_table
from core.judging.constant_rows import Filling
from core.judging.ingest import ingest
from core.numerics.formats import BFLOAT16, FLOAT32
from core.runs.dumps.dump import open_dump
from core.runs.file.evidence import FAILED, MISSING, NOTED, PASSED, SAMPLER, SCREENING, STRUCTURE, VALIDITY
from core.runs.file.evidence import FLOAT32 as FLOAT32_RUNG
from core.runs.reader import RunReader
from core.runs.reports.issue_markdown import issue_text
from core.runs.reports.report_json import as_json, over_logits, over_margins, over_positions, report_of_dump
from core.runs.store.store import Store
from tests.core.judging.engine_dumps import ROWS, VOCAB, in_bfloat16, in_float32, saved, states

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
    assert f"ulpscope verdict {run.run_id} --float32" in pair.because
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


def test_log_probabilities_on_both_sides_are_noted(tmp_path):
    run = stored(tmp_path, reference=_log_softmax(PLAIN), variant=_log_softmax(OTHER))
    assert run.pairs[0].verdict == "undecided"
    assert "Both sides hold log-probabilities" in " ".join(row.says for row in run.evidence(0))


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


def test_a_cut_of_no_one_size_is_told_with_its_range(tmp_path):
    variant = np.concatenate([_top(OTHER[:1], 20, -np.inf), _top(OTHER[1:], 30, -np.inf)])
    assert "masked (20 to 30 tokens" in stored(tmp_path, reference=PLAIN, variant=variant).pairs[0].because


def test_kl_of_a_cut_dump_says_over_how_many_positions_it_is_wherever_it_is_shown(tmp_path):
    reference, variant = TOP_20
    kept = np.isfinite(reference), np.isfinite(variant)
    variant[:14] = np.where(kept[0][:14], OTHER[:14], -np.inf)  # there the variant has mass wherever the reference has
    reference[40:43] = np.nan
    infinite = int((kept[0] & ~kept[1])[14:].any(axis=1).sum()) - int((kept[0] & ~kept[1])[40:43].any(axis=1).sum())
    defined = ROWS - 3 - infinite
    assert (defined, infinite) == (14, ROWS - 17)  # every other row lacks a token, or the case shows nothing
    run = stored(tmp_path, reference=reference, variant=variant)
    summary = run.pairs[0].summary
    finite = int((np.isfinite(reference) & np.isfinite(variant)).sum())
    assert (summary.kl_positions, summary.kl_infinite, summary.margin_positions, summary.finite) == (
        defined,
        infinite,
        ROWS,
        finite,
    )
    words = f"over 14 of {ROWS} positions; infinite at {infinite}; undefined at 3"
    assert over_positions(summary, ROWS) == words
    assert words in issue_text(run, run.pairs, "")
    assert f"over {finite:,} of {ROWS * VOCAB:,} logits" in issue_text(run, run.pairs, "")
    with open_dump([tmp_path / "dump.npz"]) as dump:
        pairs, classes = report_of_dump(dump)
    assert pairs[0].summary == summary  # straight from the dump and from the stored run
    cells = [str(cell) for column in pair_table(pairs, "float32", ROWS, VOCAB).columns for cell in column.cells]
    assert f"mean KL is {words}" in cells
    told = as_json(pairs, classes, compute_dtype="float32", rows=ROWS, vocab=VOCAB, prompts=1)["summary"]
    assert (told["kl_positions"], told["kl_infinite"]) == (14, infinite)


def test_figures_over_every_position_say_nothing_of_it(tmp_path):
    run = stored(tmp_path, reference=PLAIN, variant=OTHER)
    summary = run.pairs[0].summary
    assert (over_positions(summary, ROWS), over_logits(summary, ROWS * VOCAB), over_margins(summary, ROWS)) == (
        "",
        "",
        "",
    )
    assert " over " not in issue_text(run, run.pairs, "").split("| rung")[0]


def test_a_mask_on_half_of_the_vocabulary_is_no_truncation(tmp_path):
    """The twin of the truncated ones: what one value fills to less than a half."""
    masked = [side.copy() for side in (PLAIN, OTHER)]
    for side in masked:
        side[:, : VOCAB // 2 - 1] = -np.inf
    run = stored(tmp_path, reference=masked[0], variant=masked[1])
    assert run.pairs[0].verdict == "likely rounding"


def test_a_mask_that_both_sides_share_is_noted(tmp_path):
    masked = [_top(PLAIN, 20, -np.inf), None]
    masked[1] = np.where(np.isinf(masked[0]), -np.inf, OTHER)
    run = stored(tmp_path, reference=masked[0], variant=masked[1])
    assert run.pairs[0].verdict == "likely rounding"
    assert "masked alike" in " ".join(row.says for row in run.evidence(0))


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


def test_logits_of_bfloat16_with_their_many_equal_values_are_not_filled():
    values = (np.random.default_rng(1).standard_normal((200, 5000)) * 0.01 + 5).astype(ml_dtypes.bfloat16)
    assert len(np.unique(values)) < 10  # as coarse as it gets
    watch = Filling(BFLOAT16)
    watch.see(values.view(np.uint16))
    share = max(np.bincount(row.view(np.uint16)).max() for row in values) / 5000
    assert (watch.rows > 0) == (share > 0.5)


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


def test_emitted_tokens_come_back_from_an_export(tmp_path):
    from core.runs.dumps.export import export_npz

    emitted = {"emitted:reference": _emitted(PLAIN), "emitted:variant": _emitted(OTHER)}
    run = stored(tmp_path, reference=PLAIN, variant=OTHER, **emitted)
    export_npz(run, tmp_path / "out.npz")
    out = np.load(tmp_path / "out.npz")
    for key, tokens in emitted.items():
        assert np.array_equal(out[key], tokens)


def test_one_prompt_of_several_may_have_emitted_nothing(tmp_path):
    tokens = [_emitted(side).reshape(2, ROWS // 2) for side in (PLAIN, OTHER)]
    for each in tokens:
        each[0] = -1
        each[1, 0] = -1
    sides = [side.reshape(2, ROWS // 2, VOCAB) for side in (PLAIN, OTHER)]
    run = stored(
        tmp_path, reference=sides[0], variant=sides[1], **{"emitted:reference": tokens[0], "emitted:variant": tokens[1]}
    )
    assert list(run.generations) == [1]
    assert outcomes(run)[SAMPLER] == [PASSED, PASSED]


def test_float32_logits_lack_a_floor_and_not_a_pair(tmp_path):
    run = stored(tmp_path, reference=in_float32(X, HEAD, 1), variant=in_float32(X, HEAD, 2))
    assert run.pairs[0].verdict == "likely rounding"
    assert "--floor WAYS_IN_FLOAT32.npz" in run.pairs[0].because
