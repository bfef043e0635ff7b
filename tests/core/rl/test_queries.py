"""What trainer against rollout depends on, against the same figures by numpy."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core.errors import UsageError
from core.rl import queries as rl
from core.runs.reader import RunReader
from core.runs.store.store import Store
from tests.core.runs.made_runs import ingested
from tests.json_lines import write_lines
from tests.places import ROLLOUTS, ROOT

LENGTHS = [20, 20, 20, 40, 29]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of five sequences; r is ten times as large in every other one. -> run, its values"""
    folder = tmp_path_factory.mktemp("rollouts")
    random = np.random.default_rng(1)
    sequence = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    rollout = -random.gamma(0.7, 1.0, len(sequence))
    noise = random.normal(0, 1, len(sequence)) * np.where(sequence % 2, 0.2, 0.02)
    sides = {"rollout": rollout, "trainer": np.minimum(rollout + noise, -1e-9)}
    rows = []
    for number, length in enumerate(LENGTHS):
        row = {name: side[sequence == number].tolist() for name, side in sides.items()}
        rows.append({"token_ids": list(range(length)), **row})
    pq.write_table(pa.Table.from_pylist(rows), folder / "a.parquet")
    with ingested(Store(folder / "runs"), folder / "a.parquet") as run:
        yield run, sides["trainer"] - sides["rollout"]


def tokens_of_half(r):
    """How many tokens have half of the KL, those with most of it first."""
    k3 = np.sort(np.expm1(r) - r)[::-1]
    return np.searchsorted(np.cumsum(k3), k3.sum() / 2) + 1


def values_of(run, framework="ulpscope"):
    return {row["name"]: row["value"] for row in rl.figures_of(run, framework)}


def test_figures_are_compared_with_what_frameworks_call_normal(made):
    run, r = made
    # beyond the 0.001 nats of NeMo-RL's guide
    assert np.mean(np.expm1(r) - r) > 0.001
    usual = {row["name"]: row["is_usual"] for row in rl.figures_of(run)}
    expected = {
        "k3": False,
        "ess": True,
        "ratio": True,
        "mean_abs": None,
    }
    assert {name: usual[name] for name in expected} == expected
    slime = rl.figures_of(run, "slime")[0]
    (miles,) = rl.figures_of(run, "miles")
    assert slime["usual"] == "at most 0.1 (slime)"
    assert miles["usual"] == "at most 0.03 (miles)"


def test_figures_and_counts_are_those_of_the_arrays(made, monkeypatch):
    run, r = made
    values = {row["name"]: row for row in rl.figures_of(run)}
    mean = values["mean_abs"]
    assert mean["value"] == pytest.approx(np.abs(r).mean(), rel=1e-12)
    assert mean["low"] <= mean["value"] <= mean["high"]
    assert values["max_abs"]["high"] is None
    counts = rl.summary(run, "tokens")
    assert counts == {
        "tokens": len(r),
        "sequences": len(LENGTHS),
        "half": tokens_of_half(r),
        "masked": 0,
        "missing": 0,
    }
    # fewer than the longest sequence has: tokens are read in parts
    monkeypatch.setattr(rl, "_TOKENS_AT_ONCE", 30)
    again = rl.summaries(run)
    assert again["tokens"] == counts
    values = [row["value"] for row in rl.figures_of(run, "verl")]
    assert [row["value"] for row in again["figures of verl"]] == pytest.approx(values, rel=1e-12)


def test_steps_that_stand_out_have_figures_of_their_own():
    with RunReader(ROOT / "sample_runs/trainer-against-rollout.duckdb") as run:
        sql = "SELECT step, variant - reference AS r FROM chosen_token JOIN sequence USING (prompt)"
        ratios = np.exp(run.query(sql).query("step == 5")["r"])
        values = rl.at_worst_steps(run)["step 5"]
        assert "beyond it at 6 of 6 steps" in rl.mismatch_json(run)["usual"]
    assert values["ratio"] == pytest.approx(ratios.mean())
    assert values["ess"] == pytest.approx(ratios.mean() ** 2 / (ratios**2).mean())


def test_files_without_a_token_that_both_sides_have_are_a_run_without_figures(store, tmp_path):
    row = {
        "token_ids": [1, 2],
        "rollout": [-1.0, -2.0],
        "trainer": [None, None],
    }
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    with ingested(store, tmp_path / "a.jsonl") as run:
        assert not run.has_rollouts


# at 1e-9 a token's k3 is 5e-19, which exp(r) - 1 - r would round to 0
@pytest.mark.parametrize("size", [1.0, 1e-9])
def test_percentiles_and_half_of_the_kl_of_many_tokens_are_those_of_numpy(size, store, tmp_path):
    random = np.random.default_rng(5)
    rollout = -random.gamma(0.7, 1.0, 50_000)
    trainer = rollout - size * np.abs(random.standard_t(2, 50_000))
    trainer[::7] = rollout[::7]
    r = trainer - rollout
    table = {
        "token_ids": [np.zeros(50_000, int)],
        "rollout": [rollout],
        "trainer": [trainer],
    }
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    with ingested(store, tmp_path / "a.parquet") as run:
        values = values_of(run)
        half = rl.summary(run, "tokens")["half"]
    for name, share in (
        ("p50", 0.5),
        ("p99", 0.99),
        ("p99.9", 0.999),
    ):
        assert values[name] == pytest.approx(
            np.quantile(np.abs(r), share),
            rel=1e-4,
        )
    assert half == pytest.approx(tokens_of_half(r), abs=2)


RAGGED = json.loads(
    (ROLLOUTS / "ragged.json").read_text(),
)


@pytest.fixture(scope="module")
def ragged(tmp_path_factory):
    """A run of responses that are partly empty or masked out, with outliers."""
    folder = tmp_path_factory.mktemp("ragged")
    names = ("rollout", "trainer", "mask")
    rows = []
    for values in zip(*map(RAGGED.get, names), strict=True):
        row = dict(zip(names, values, strict=True))
        rows.append({"token_ids": [0] * 12, **row})
    path = write_lines(folder / "a.jsonl", rows)
    with ingested(Store(folder / "runs"), path) as run:
        yield run


@pytest.mark.parametrize("framework", RAGGED["expected"])
def test_figures_of_ragged_responses_are_those_of_the_frameworks_own_functions(framework, ragged):
    values = values_of(ragged, framework)
    # verl divides by the number of tokens + 1e-8, and by the mean weight + 1e-8, squared.
    assert values == pytest.approx(RAGGED["expected"][framework], rel=3e-8, abs=1e-8)
    left_out = rl.mismatch_json(ragged, framework)["left_out"]
    assert "3 responses without a token of the loss: counted" in left_out


def test_nemo_rl_does_not_clamp_and_what_is_in_no_figure_is_said(ragged):
    differences = np.array(RAGGED["trainer"]) - RAGGED["rollout"]
    r = differences[np.array(RAGGED["mask"], bool)]
    values = values_of(ragged, "nemo-rl")
    assert values["sampling_importance_ratio"] == pytest.approx(np.exp(r).mean(), rel=1e-12)
    sentence = rl.sentence(rl.mismatch_json(ragged))
    assert "3 responses without a token of the loss: in no figure." in sentence


def test_an_unknown_framework_is_refused_with_those_known(made):
    with pytest.raises(UsageError, match=r"--as 'verlx': expected one of ulpscope, verl, trl"):
        rl.figures_of(made[0], "verlx")


def test_shares_beyond_a_bar_are_those_of_the_arrays(made):
    run, r = made
    # IcePop's bounds
    outside = (np.exp(r) < 0.5) | (np.exp(r) > 5)
    k3 = np.expm1(r) - r
    bars = rl.bars(run).set_index("bar")
    share_of_k3 = k3[outside].sum() / k3.sum()
    assert bars.iloc[1].tolist() == pytest.approx([outside.mean(), share_of_k3])
