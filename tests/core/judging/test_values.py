"""Values that are no logits: what needs a vocabulary is absent, and the verdict is careful."""

import numpy as np
import pytest

from core.checks.arrays_alone import ARRAYS_ALONE
from core.checks.embeddings import EMBEDDINGS, SCORES
from core.checks.not_finite import NUMBERS
from core.errors import DumpError, UsageError
from core.evidence import FAILED, NOTED, PASSED
from core.judging.ingest import describe, ingest
from core.judging.stored import judge_stored
from core.judging.uploaded_controls import measure_controls
from core.numerics.metrics import COUNTS_OF_TOKENS, OF_TOKENS
from core.runs.dumps.export import export_npz
from core.runs.queries.verdicts import deciding_controls
from core.runs.reports.conditions import parse_conditions
from core.runs.reports.gate import gate_of
from core.runs.reports.issue_markdown import issue_text
from core.runs.reports.report_json import as_json, report_of_run
from core.runs.store.store import Store
from tests.core.evidence import rows_of
from tests.core.judging.engine_dumps import changed, saved
from tests.core.runs.made_runs import ingested, opened, verdict_of

RANDOM = np.random.default_rng(11)
ROWS = RANDOM.normal(size=(40, 96)).astype(np.float32)
ULP = np.spacing(np.abs(ROWS).max(axis=1, keepdims=True))
NEAR = (ROWS + ULP * RANDOM.normal(size=ROWS.shape)).astype(np.float32)
_OF_SUMMARY = COUNTS_OF_TOKENS | {"mean_kl", "max_kl", "min_margin"}


def stored(folder, reference, variant, **more):
    dump = saved(folder / "dump.npz", reference=reference, variant=variant, **more)
    return ingested(Store(folder / "store"), dump, holds="values")


def row_of(run, check):
    return rows_of(run.evidence(0), check)[0]


def test_what_needs_a_vocabulary_is_null_and_the_rest_is_measured(tmp_path):
    run = stored(tmp_path, ROWS, NEAR)
    assert not run.header.has_tokens
    (pair,), classes = report_of_run(run)
    report = as_json([pair], classes, run.header, with_positions=True)
    assert report["holds"] == "values"
    nulls = {name for name, value in report["summary"].items() if value is None}
    assert nulls == _OF_SUMMARY
    assert report["summary"]["neq"] == (ROWS != NEAR).sum()
    assert report["summary"]["max_abs"] == np.abs(ROWS.astype(float) - NEAR).max()
    for row in report["by_position"]:
        nulls = {name for name, value in row.items() if value is None}
        assert nulls == OF_TOKENS & row.keys()
    # the figures of tokens are NULL in the file too, not 0 or NaN
    flags = "is_flip IS NULL AND near_tie IS NULL AND kl IS NULL AND reference_margin IS NULL"
    counted = run.query(f"SELECT count(*) AS n FROM position WHERE {flags}")
    assert counted["n"][0] == len(ROWS)
    assert run.query("SELECT count(*) AS n FROM top_token")["n"][0] == 0


@pytest.mark.parametrize(
    ("shape", "rows", "values", "prompts"),
    [
        ((40, 96), 40, 96, 1),
        ((3840,), 3840, 1, 1),
        ((3840, 1), 3840, 1, 1),
        ((4, 10, 96), 40, 96, 4),
    ],
)
def test_rows_are_the_leading_axes_and_a_list_of_scores_has_one_value_a_row(
    tmp_path,
    shape,
    rows,
    values,
    prompts,
):
    run = stored(tmp_path, ROWS.reshape(shape), NEAR.reshape(shape))
    header = run.header
    assert header.rows == rows
    assert header.vocab == values
    assert len(header.prompts) == prompts
    bits = run.read_rows(1, 0, rows)
    np.testing.assert_array_equal(bits.view(np.float32).ravel(), NEAR.ravel())
    export_npz(run, tmp_path / "again.npz")
    assert describe([tmp_path / "again.npz"])["positions"] == rows
    again = ingest(Store(tmp_path / "store"), [tmp_path / "again.npz"])
    with opened(Store(tmp_path / "store"), again) as second:
        assert second.header.holds == "value"
        assert [side.sha256 for side in second.sides] == [side.sha256 for side in run.sides]


def test_a_dump_declares_its_values_and_a_wrong_word_is_refused(tmp_path):
    declared, wrong = (
        saved(tmp_path / f"{word}.npz", a=ROWS, b=NEAR, holds=np.array(word))
        for word in ("values", "scores")
    )
    store = Store(tmp_path / "store")
    with ingested(store, declared) as run:
        assert not run.header.has_tokens
    with pytest.raises(DumpError, match="holds"):
        ingest(store, [wrong])


def test_noise_of_rounding_is_likely_rounding(tmp_path):
    run = stored(tmp_path, ROWS, NEAR)
    assert verdict_of(run) == "likely rounding"
    assert row_of(run, ARRAYS_ALONE).outcome == PASSED
    # figures of tokens are absent there too
    assert row_of(run, ARRAYS_ALONE).figures.flips_beyond_noise is None


@pytest.mark.parametrize(
    ("variant", "verdict"),
    [
        (changed(NEAR, ([3, 5], NEAR[[5, 3]])), "bug suspected"),
        (changed(NEAR, ((7, 11), NEAR[7, 11] + 0.01)), "bug suspected"),
        (NEAR + np.float32(0.01), "bug suspected"),
        (changed(NEAR, ((7, 11), np.nan)), "invalid dump"),
        (changed(ROWS, ((7, 11), ROWS[7, 11])), "identical"),
    ],
    ids=["rows swapped", "one element", "an offset", "not finite", "equal"],
)
def test_faults_of_values_are_seen(tmp_path, variant, verdict):
    # named: values of a model in bfloat16 may differ by as much
    run = stored(tmp_path, ROWS, variant, compute_dtype=np.array("float32"))
    assert verdict_of(run) == verdict
    if verdict == "invalid dump":
        assert row_of(run, NUMBERS).outcome == FAILED


def test_rows_of_one_huge_value_excuse_nothing_and_accuse_nothing(tmp_path):
    huge = changed(ROWS, (np.s_[:, 3], 5000.0))
    moved = changed(NEAR, (np.s_[:, 3], 5000.001))
    noise = np.float32(1e-3) * RANDOM.random(ROWS.shape, np.float32)
    run = stored(tmp_path, huge, moved + noise)
    assert verdict_of(run) == "undecided"
    assert row_of(run, ARRAYS_ALONE).outcome == NOTED
    median = np.median(np.abs(huge), axis=1).min()
    assert row_of(run, ARRAYS_ALONE).figures.peak == pytest.approx(5000 / median)


def test_rows_of_mostly_zeros_have_no_typical_size(tmp_path):
    # as after a ReLU
    sparse = np.where(np.abs(ROWS) > 1, ROWS, 0)
    moved = sparse * (1 + 1e-6 * RANDOM.random(ROWS.shape))
    run = stored(tmp_path, sparse, moved.astype(np.float32))
    assert np.median(sparse) == 0
    assert verdict_of(run) == "undecided"
    assert row_of(run, ARRAYS_ALONE).figures.peak is None


def test_a_score_near_zero_is_as_uncertain_as_the_others(tmp_path):
    # its float32 spacing is a millionth of that of the other scores
    scores = changed(ROWS[:, 0], (4, np.float32(1e-6)))
    largest = np.abs(scores).max()
    noise = np.spacing(largest) * RANDOM.normal(size=40)
    run = stored(tmp_path, scores, (scores + noise).astype(np.float32))
    assert run.pairs[0].summary.max_row_ulps > 1000
    assert verdict_of(run) == "likely rounding"


def test_few_values_are_undecided(tmp_path):
    run = stored(tmp_path, ROWS[:1, :8], NEAR[:1, :8])
    assert verdict_of(run) == "undecided"


def test_order_is_recorded_with_the_run(tmp_path):
    embeddings = row_of(stored(tmp_path, ROWS, NEAR), EMBEDDINGS).figures
    assert embeddings.neighbors_changed == 0
    assert embeddings.neighbors_of == 40
    folder = tmp_path / "scores"
    folder.mkdir()
    mine = ROWS[:, 0]
    theirs = changed(mine, ([0, 1], mine[[1, 0]]))
    scores = row_of(stored(folder, mine, theirs), SCORES).figures
    low, high = sorted(mine[:2])
    between = ((mine > low) & (mine < high)).sum()
    # the two, and each of them with every score between them
    assert scores.pairs_changed == 1 + 2 * between
    assert scores.largest_gap == abs(float(mine[0]) - float(mine[1]))


def test_short_rows_have_no_noise_floor_of_their_own(tmp_path):
    run = stored(tmp_path, ROWS[:, :2], NEAR[:, :2])
    assert set(deciding_controls(run, run.evidence(0))) == {"--rerun AGAIN.npz"}
    for kind in ("floor", "float32"):
        with pytest.raises(UsageError, match="too short"):
            measure_controls(run, **{kind: [tmp_path / "dump.npz"]})


def test_a_noise_floor_of_embeddings_decides(tmp_path):
    run = stored(tmp_path, ROWS, NEAR)
    noise = RANDOM.normal(size=(3, *ROWS.shape))
    paths = {f"path {n}": (ROWS + ULP * each).astype(np.float32) for n, each in enumerate(noise)}
    floor = saved(tmp_path / "floor.npz", reference=ROWS, **paths)
    controls = measure_controls(run, floor=[floor])
    store = Store(tmp_path / "store")
    with opened(store, judge_stored(store, run, controls)) as judged:
        assert verdict_of(judged) == "rounding"


def test_a_gate_takes_arrays_conditions_alone(tmp_path):
    run = stored(tmp_path, ROWS, NEAR)
    pairs, _ = report_of_run(run)
    report = gate_of(run, pairs, parse_conditions(["bits,ulps:1000000,rms>1,share>1,verdict"]))
    assert [outcome.outcome for outcome in report.outcomes] == [FAILED, *[PASSED] * 4]
    for condition in ("flips", "same-top1<1", "flips:margin>0", "kl>1"):
        with pytest.raises(UsageError, match="no tokens"):
            gate_of(run, pairs, parse_conditions([condition]))


def test_a_report_speaks_of_rows_and_values(tmp_path):
    run = stored(tmp_path, ROWS, changed(NEAR, ((7, 11), np.nan)))
    text = issue_text(run, run.pairs, "")
    assert "row 7, value 11" in text
    for word in ("flip", "KL", "near tie", "position 7", "logits that"):
        assert word not in text
