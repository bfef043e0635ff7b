"""Declarations of pages: every script of pages/ stands in the navigation, and what a pair has nothing of says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from app import navigation
from app.navigation import absent
from core.runs.reader import RunReader
from core.runs.store.store import Store
from tests.core.runs.made_runs import calm_sides, header_of, write_run

ROOT = Path(__file__).resolve().parents[2]


def test_every_script_of_a_page_stands_in_the_navigation_once():
    scripts = sorted(path.stem for path in (ROOT / "pages").glob("*.py"))
    assert sorted(page.name for group in navigation.GROUPS for page in group.pages) == scripts


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ("where-it-starts", {"flips": "none", "near_ties": "", "layers": "", "kernels": "", "remedies": ""}),
        (
            "fresh-against-cached",
            {"flips": "", "kv_cache": "", "layers": "not captured", "kernels": "not captured", "remedies": "not tried"},
        ),
    ],
)
def test_what_a_pair_has_nothing_of_is_named_with_a_word_for_why(run, words):
    with RunReader(ROOT / "tests" / "runs" / f"{run}.duckdb") as opened:
        found = absent(opened, opened.pairs[0])
    assert {page: found.get(page, "") for page in words} == words


def test_a_pair_of_equal_bits_has_an_empty_map_and_no_flips(tmp_path):
    store, header = Store(tmp_path), header_of()
    sides = calm_sides(header)
    with RunReader(write_run(store, header, [sides[0], sides[0]])) as run:
        found = absent(run, run.pairs[0])
    assert (found["heatmap"], found["flips"]) == ("empty", "none")
