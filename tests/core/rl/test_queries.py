"""What trainer against rollout depends on, against the same figures by numpy."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core.errors import UsageError
from core.rl import queries as rl
from core.runs.store.store import Store
from tests.core.runs.made_runs import ingested

LENGTHS = [20, 20, 20, 40, 29]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of five sequences; r is ten times as large in every other one."""
    folder, random = tmp_path_factory.mktemp("rollouts"), np.random.default_rng(1)
    rows = []
    for number, length in enumerate(LENGTHS):
        rollout = -random.gamma(0.7, 1.0, length)
        size = 0.2 if number % 2 else 0.02
        trainer = np.minimum(rollout + random.normal(0, size, length), -1e-9)
        rows.append(
            {
                "token_ids": list(range(length)),
                "rollout": rollout.tolist(),
                "trainer": trainer.tolist(),
            },
        )
    pq.write_table(pa.Table.from_pylist(rows), folder / "a.parquet")
    store = Store(folder / "runs")
    with ingested(store, folder / "a.parquet") as run:
        yield run, rows


def of_rows(rows, name):
    return np.concatenate([row[name] for row in rows])


def test_figures_and_counts_are_those_of_the_arrays(made, monkeypatch):
    run, rows = made
    r = of_rows(rows, "trainer") - of_rows(rows, "rollout")
    values = {row["name"]: row for row in rl.figures_of(run)}
    assert values["mean_abs"]["value"] == pytest.approx(np.abs(r).mean(), rel=1e-12)
    assert values["mean_abs"]["low"] <= values["mean_abs"]["value"] <= values["mean_abs"]["high"]
    k3 = np.sort(np.expm1(r) - r)[::-1]
    counts = rl.summary(run, "tokens")
    assert counts == {
        "tokens": len(r),
        "sequences": len(LENGTHS),
        "half": int(np.searchsorted(np.cumsum(k3), k3.sum() / 2)) + 1,
        "masked": 0,
        "missing": 0,
    }
    monkeypatch.setattr(rl, "_TOKENS_AT_ONCE", 30)  # read in parts
    again = rl.summaries(run)
    assert again["tokens"] == counts
    assert [row["value"] for row in again["figures of verl"]] == pytest.approx(
        [row["value"] for row in rl.figures_of(run, "verl")],
        rel=1e-12,
    )


@pytest.mark.parametrize("size", [1.0, 1e-9])
def test_percentiles_and_half_of_the_kl_of_many_tokens_are_those_of_numpy(size, tmp_path):
    random = np.random.default_rng(5)
    rollout = -random.gamma(0.7, 1.0, 50_000)
    trainer = rollout - size * np.abs(random.standard_t(2, 50_000))
    trainer[::7] = rollout[::7]
    rows = {"token_ids": np.zeros(50_000, int), "rollout": rollout, "trainer": trainer}
    pq.write_table(
        pa.table({name: pa.array([values]) for name, values in rows.items()}),
        tmp_path / "a.parquet",
    )
    store, r = Store(tmp_path / "runs"), trainer - rollout
    with ingested(store, tmp_path / "a.parquet") as run:
        values = {row["name"]: row["value"] for row in rl.figures_of(run)}
        half = rl.summary(run, "tokens")["half"]
    for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
        assert values[name] == pytest.approx(np.quantile(np.abs(r), share), rel=1e-4)
    k3 = np.sort(np.expm1(r) - r)[::-1]
    assert half == pytest.approx(np.searchsorted(np.cumsum(k3), k3.sum() / 2) + 1, abs=2)


RAGGED = json.loads(
    (Path(__file__).resolve().parents[2] / "cases" / "rollouts" / "ragged.json").read_text(),
)


@pytest.fixture(scope="module")
def ragged(tmp_path_factory):
    """A run of responses that are partly empty or masked out, with outliers."""
    folder = tmp_path_factory.mktemp("ragged")
    sides = zip(RAGGED["rollout"], RAGGED["trainer"], RAGGED["mask"], strict=True)
    rows = [
        {"token_ids": [0] * 12, "rollout": one, "trainer": other, "mask": mask}
        for one, other, mask in sides
    ]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    store = Store(folder / "runs")
    with ingested(store, folder / "a.jsonl") as run:
        yield run


@pytest.mark.parametrize("framework", RAGGED["expected"])
def test_figures_of_ragged_responses_are_those_of_the_frameworks_own_functions(framework, ragged):
    values = {row["name"]: row["value"] for row in rl.figures_of(ragged, framework)}
    # verl divides by the number of tokens + 1e-8, and by the mean weight + 1e-8, squared.
    assert values == pytest.approx(RAGGED["expected"][framework], rel=3e-8, abs=1e-8)
    assert (
        "3 responses without a token of the loss: counted"
        in rl.mismatch_json(ragged, framework)["left_out"]
    )


def test_nemo_rl_does_not_clamp_and_what_is_in_no_figure_is_said(ragged):
    r = (np.array(RAGGED["trainer"]) - RAGGED["rollout"])[np.array(RAGGED["mask"], bool)]
    values = {row["name"]: row["value"] for row in rl.figures_of(ragged, "nemo-rl")}
    assert values["sampling_importance_ratio"] == pytest.approx(np.exp(r).mean(), rel=1e-12)
    assert "3 responses without a token of the loss: in no figure." in rl.sentence(
        rl.mismatch_json(ragged),
    )


def test_an_unknown_framework_is_refused_with_those_known(made):
    with pytest.raises(UsageError, match=r"--as 'verlx': expected one of ulpscope, verl, trl"):
        rl.figures_of(made[0], "verlx")


def test_shares_beyond_a_bar_are_those_of_the_arrays(made):
    run, rows = made
    r = of_rows(rows, "trainer") - of_rows(rows, "rollout")
    outside = (np.exp(r) < 0.5) | (np.exp(r) > 5)
    k3 = np.expm1(r) - r
    bars = rl.bars(run).set_index("bar")
    assert bars.iloc[1].tolist() == pytest.approx([outside.mean(), k3[outside].sum() / k3.sum()])
