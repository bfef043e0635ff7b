"""Runs side by side; expected figures are counted by hand or with numpy."""

from __future__ import annotations

import numpy as np
import pytest

from core.runs.file.records import Prompt, Provenance, RunHeader, SideHeader
from core.runs.reader import RunReader
from core.runs.store.store import Store
from core.runs.views.compare import Compared, distribution, flip_sets, headline, same_tokens, sentence
from tests.core.runs.made_runs import write_run

VOCAB = 8


def compared(folder, flips: dict[int, int], ids: tuple[int, ...] = (5, 6, 7, 8), step: float = 0.25) -> Compared:
    """A pair that differs by `step` at token 0 of every position, and whose variant prefers token `flips[position]`."""
    header = RunHeader(
        "r",
        "float32",
        VOCAB,
        (Prompt(len(ids) or 4, ids),),
        (SideHeader("a", "", "float32"), SideHeader("b", "", "float32")),
        Provenance("upload"),
    )
    reference = np.tile(np.arange(VOCAB, dtype=np.float32), (len(ids) or 4, 1))
    variant = reference.copy()
    variant[:, 0] += step
    for position, token in flips.items():
        variant[position, token] = 20
    run = RunReader(write_run(Store(folder), header, [reference.view(np.uint32), variant.view(np.uint32)]))
    return Compared(run, run.pairs[0], run.positions(0))


def headline_of(runs: list[Compared]) -> dict:
    return {row["measure"]: row for row in headline(runs, [one.run.histogram(0) for one in runs])}


def test_figures_stand_beside_each_other_with_their_ratio_to_the_first(tmp_path):
    runs = [compared(tmp_path / "a", {}), compared(tmp_path / "b", {}, step=0.5)]
    rows = headline_of(runs)
    assert rows["largest difference, logits"]["values"] == [0.25, 0.5]
    assert rows["largest difference, logits"]["ratios"] == [1.0, 2.0]
    assert rows["differing logits, share"]["values"] == [1 / VOCAB, 1 / VOCAB]
    assert rows["rms difference, logits"]["values"] == pytest.approx([0.25 / np.sqrt(VOCAB), 0.5 / np.sqrt(VOCAB)])
    assert rows["flips, share of positions"]["ratios"] == [None, None]  # a ratio to nothing says nothing
    assert rows["smallest margin, logits"]["ratios"] == [None, None]
    assert "rms / noise floor" not in rows  # of neither run
    assert rows["median ULPs"]["values"] == [0, 0]


def test_counts_over_different_totals_are_compared_as_rates(tmp_path):
    """1 of 4 positions flips in the one, 2 of 8 in the other."""
    runs = [compared(tmp_path / "a", {1: 2}), compared(tmp_path / "b", {1: 2, 5: 3}, ids=tuple(range(8)))]
    assert headline_of(runs)["flips, share of positions"]["values"] == [0.25, 0.25]
    assert headline_of(runs)["flips, share of positions"]["ratios"] == [1.0, 1.0]
    assert "25.0% vs 25.0%" in sentence(runs)


def test_flips_that_all_runs_share_come_first_and_others_name_their_runs(tmp_path):
    runs = [compared(tmp_path / "a", {1: 2, 3: 4}), compared(tmp_path / "b", {3: 5, 0: 1})]
    found = flip_sets(runs)
    assert [(one.position, one.flips, one.is_shared) for one in found] == [
        (3, (True, True), True),
        (0, (False, True), False),
        (1, (True, False), False),
    ]
    assert found[0].tokens == ((VOCAB - 1, 4), (VOCAB - 1, 5))
    assert found[1].tokens == (None, (VOCAB - 1, 1))


def test_only_runs_of_the_same_tokens_have_the_same_positions(tmp_path):
    a, b = compared(tmp_path / "a", {}), compared(tmp_path / "b", {})
    other, unknown = compared(tmp_path / "c", {}, ids=(5, 6, 7, 9)), compared(tmp_path / "d", {}, ids=())
    assert same_tokens([a, b]) is True
    assert same_tokens([a, other]) is False
    assert same_tokens([a, unknown]) is None


def test_the_distribution_is_the_share_that_is_at_least_so_far_apart():
    ulps, share = distribution({0: 90, 1: 5, 4: 3, 100: 2})
    assert ulps.tolist() == [1, 4, 100]
    assert share.tolist() == pytest.approx([0.10, 0.05, 0.02])
    ulps, share = distribution({})
    assert (len(ulps), len(share)) == (0, 0)
