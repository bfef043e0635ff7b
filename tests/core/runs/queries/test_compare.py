"""Runs side by side; expected figures are counted by hand or with numpy."""

from dataclasses import replace

import numpy as np
import pytest

from core.runs.file.records import Prompt, Provenance, RunHeader, SideHeader
from core.runs.queries.compare import (
    RunPair,
    differing_inputs,
    distribution,
    figures,
    flips,
    machine,
    movements,
    same_tokens,
    shared_flips,
)
from core.runs.reader import RunReader
from core.runs.store.store import Store
from tests.core.runs.made_runs import write_run
from tests.places import ROOT

VOCAB = 8


def pair_of(run):
    return RunPair(run, run.pairs[0], run.positions(0))


def shipped(*names):
    return [pair_of(RunReader(ROOT / "sample_runs" / f"{name}.duckdb")) for name in names]


def compared(
    folder,
    flipping,
    ids=(5, 6, 7, 8),
    step=0.25,
):
    """A pair that differs by `step` at token 0 of every position, whose variant prefers
    `flipping[position]`.
    """
    header = RunHeader(
        "r",
        "float32",
        VOCAB,
        (Prompt(len(ids) or 4, ids),),
        (SideHeader("a", "", "float32"), SideHeader("b", "", "float32")),
        Provenance("upload"),
    )
    reference = np.tile(np.arange(VOCAB, dtype=np.float32), (header.rows, 1))
    variant = reference.copy()
    variant[:, 0] += step
    for position, token in flipping.items():
        # above 7, the largest logit of the reference
        variant[position, token] = 20
    sides = [reference.view(np.uint32), variant.view(np.uint32)]
    return pair_of(RunReader(write_run(Store(folder), header, sides)))


def test_figures_stand_beside_each_other(tmp_path):
    table = figures([compared(tmp_path / "a", {}), compared(tmp_path / "b", {}, step=0.5)])
    assert table["max_abs"].tolist() == [0.25, 0.5]
    assert table["neq_share"].tolist() == [1 / VOCAB, 1 / VOCAB]
    # one of VOCAB elements of each row differs
    steps = np.array([0.25, 0.5])
    assert table["rms"].to_numpy() == pytest.approx(steps / np.sqrt(VOCAB))
    assert "noise_ratio" not in table  # of neither run
    assert table["median_ulps"].tolist() == [0, 0]
    percentiles = table["p99_ulps"].tolist()
    assert percentiles == [int(each) for each in percentiles]
    assert min(percentiles) > 0


def test_an_identical_pair_is_at_0_of_its_noise_floor():
    with RunReader(ROOT / "sample_runs" / "batches-on-an-h100.duckdb") as run:
        pairs = [RunPair(run, pair, run.positions(pair.index)) for pair in run.pairs]
        assert [pair.summary.bit_identical for pair in run.pairs] == [True, False]
        ratios = figures(pairs)["noise_ratio"].tolist()
        assert ratios == [0.0, pytest.approx(0.9375728308972463)]
        moved, _ = movements(pairs)
        # equal in 16 bits alone: the ratio of the dtype that failed
        failed = replace(run.pairs[0], verdict="bug suspected", noise_ratio=12.0)
        table = figures([pairs[0]._replace(pair=failed)])
        assert table["noise_ratio"].tolist() == [12.0]
    assert "RMS / noise floor 0.00x → 0.94x" in moved


def test_counts_over_different_totals_are_compared_as_rates(tmp_path):
    """1 of 4 positions flips in the one, 2 of 8 in the other."""
    runs = [
        compared(tmp_path / "a", {1: 2}),
        compared(tmp_path / "b", {1: 2, 5: 3}, ids=tuple(range(8))),
    ]
    assert figures(runs)["flips_share"].tolist() == [0.25, 0.25]
    assert "positions that flip 25.0%" in movements(runs)[1]


def test_flips_that_all_runs_share_come_first_and_others_name_their_runs(tmp_path):
    runs = [
        compared(tmp_path / "a", {1: 2, 3: 4}),
        compared(tmp_path / "b", {3: 5, 0: 1}),
    ]
    found = flips(runs)
    columns = ["position", "run", "reference_token", "variant_token", "runs"]
    assert found[columns].to_numpy().tolist() == [
        [3, 0, VOCAB - 1, 4, 2],
        [3, 1, VOCAB - 1, 5, 2],
        [0, 1, VOCAB - 1, 1, 1],
        [1, 0, VOCAB - 1, 2, 1],
    ]
    assert "1 of 3" in shared_flips(runs, found)
    moved, unchanged = movements([*runs, compared(tmp_path / "c", {3: 5})])
    assert moved[-1] == "positions that flip 50.0% → 50.0% → 25.0%"
    assert unchanged[-1] == "RMS / noise floor not measured"


def test_only_runs_of_the_same_tokens_have_the_same_positions(tmp_path):
    a = compared(tmp_path / "a", {})
    b = compared(tmp_path / "b", {})
    other, unknown = (
        compared(tmp_path / "c", {}, ids=(5, 6, 7, 9)),
        compared(tmp_path / "d", {}, ids=()),
    )
    assert [same_tokens([a, each]) for each in (b, other, unknown)] == [True, False, None]
    assert same_tokens([a, other, unknown]) is False


def test_inputs_that_differ_or_are_unknown_are_named(tmp_path):
    a = compared(tmp_path / "a", {})
    unknown = compared(tmp_path / "b", {}, ids=())
    listed, served = shipped("trainer-against-rollout", "vllm-against-transformers")
    assert differing_inputs([a, a]) == []
    assert differing_inputs([a, unknown]) == ["unknown tokens"]
    assert differing_inputs([listed, served]) == [
        "unknown tokens",
        "different models",
        "unknown vocabularies",
        "different units",
    ]
    # the older one spells "dequantised"
    of_two_versions = shipped("fresh-against-cached", "continuations-that-part")
    assert differing_inputs(of_two_versions) == ["different tokens"]
    on_two_machines = shipped("fresh-against-cached", "batches-on-an-h100")
    assert differing_inputs(on_two_machines) == ["different tokens", "different weights"]
    assert differing_inputs([a, served]) == [
        "different tokens",
        "unknown models",
        "different vocabularies",
    ]


def test_weights_are_no_fact_of_a_machine():
    with RunReader(ROOT / "sample_runs" / "batches-on-an-h100.duckdb") as run:
        assert "weights" in run.header.provenance.versions
        assert machine(run)["chip"] == "NVIDIA H100 80GB HBM3"
        assert "weights" not in machine(run)


def test_the_distribution_is_the_share_that_is_at_least_so_far_apart(tmp_path):
    one = compared(tmp_path, {1: 2}, step=0.0)
    (counted,) = {distance for distance in one.run.histogram(0) if distance}
    found = distribution(one)
    assert found["distance"].tolist() == [counted]
    assert found["share"].tolist() == [1 / (4 * VOCAB)]
