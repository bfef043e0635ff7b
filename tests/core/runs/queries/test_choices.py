"""What is shown of choices, planted by hand: which differ, how close, and what is behind them."""

import numpy as np
import pytest

import core
from core.runs.queries.choices import (
    by_module,
    cells,
    choices_json,
    first_flip,
    first_flips,
    sentence,
)
from core.runs.queries.flips import flip_table
from tests.core.runs.choice_runs import BEYOND, GATE, INDEXER, choice_run
from tests.core.runs.made_runs import make_run, opened


@pytest.fixture
def run(store):
    with opened(store, choice_run(store)) as run:
        yield run


def test_only_the_last_choice_of_a_module_counts_and_a_margin_is_that_of_both_sides(run):
    table = by_module(run, 0)
    assert table["module"].tolist() == [GATE[0], INDEXER[0]]
    # 3 and 5 positions; the choice of groups before them is not counted
    assert table["choices"].tolist() == [8, 8]
    assert table[["near_ties", "beyond"]].to_numpy().tolist() == [[0, 1], [1, 0]]
    assert table["agreement_share"].tolist() == [7 / 8, 7 / 8]
    assert table["smallest_margin_row_ulps"].tolist() == [3, 3]
    assert table["largest_flip_row_ulps"].tolist() == [BEYOND + 3, 3]
    assert by_module(run, 0, 0)["differing"].tolist() == [0, 0]


def test_the_first_is_that_of_the_first_position_and_flips_behind_it_say_so(run):
    first = first_flip(by_module(run, 0))
    assert first["module"] == INDEXER[0]
    assert first["first_prompt"] == 1
    assert first["first_position"] == 2
    assert first_flip(by_module(run, 0, 0)) is None
    assert first_flips(run, 0) == {1: 2}
    flips = flip_table(run, 0)
    # every position flips; prompt 1 chooses otherwise from position 2 on
    assert flips["behind_choice"].tolist() == [False] * 3 + [False] * 2 + [True] * 3


def test_a_map_has_the_worst_state_of_each_cell(run):
    grid = cells(run, 0, 1).pivot(index="row", columns="cell", values="value")
    assert grid.to_numpy().tolist() == [[0, 0, 0, 0, 2], [0, 0, 1, 0, 0]]
    pooled = cells(run, 0, 1, 2).pivot(index="row", columns="cell", values="value")
    assert pooled.to_numpy().tolist() == [[0, 2], [1, 0]]


@pytest.mark.parametrize(
    ("rounding", "near", "beyond"),
    [(0.5, 0, 2), (BEYOND, 2, 0)],
)
def test_the_limit_of_the_check_decides_what_a_near_tie_is(store, rounding, near, beyond):
    with opened(store, choice_run(store, rounding_row_ulps=rounding)) as run:
        table = by_module(run, 0)
        assert table["near_ties"].sum() == near
        assert table["beyond"].sum() == beyond
        assert "12.5%" in sentence(run, 0, table)
        figures = choices_json(run, 0)
    # a gap may be 4 times what rounding moves the scores, by the check of choices
    assert figures["by_module"][0]["near_tie_row_ulps"] == 4 * rounding


def test_terminal_file_and_notebook_have_them(cli, store):
    run_id = choice_run(store)
    assert "side_1: 2 of 16" in " ".join(cli("show", run_id).stdout.split())
    (choices,) = cli("show", run_id, "--json").json["choices"]
    assert [module["beyond"] for module in choices["by_module"]] == [1, 0]
    opened_run = core.open(store.path_of(run_id))
    assert opened_run.to_pandas("choices")["differing"].tolist() == [1, 1]
    cells_drawn = opened_run.figure("choices", prompt=1).data[1].z
    assert np.nan_to_num(cells_drawn).max() == 2
    html = opened_run.html()
    assert "<h3>Choices</h3>" in html
    assert html.count("behind another choice") == 3


def test_a_run_without_choices_has_none(store):
    make_run(store, run_id="dense")
    with opened(store, "dense") as run:
        assert run.pairs_with_choices == frozenset()
        assert first_flips(run, 0) == {}
        assert "behind_choice" not in flip_table(run, 0)
