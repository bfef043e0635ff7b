"""A run may keep fewer logits: its figures are those of the run that keeps all, bit for bit, and a
file that holds other logits than it says is refused.
"""

from dataclasses import replace
from typing import get_args, get_type_hints

import duckdb
import numpy as np
import pytest

from core.capture_request import CaptureRequest
from core.errors import StoreError, UsageError
from core.numerics import pyramid
from core.runs.file.records import ALL, FIGURES, KEEPS
from core.runs.reader import RunReader
from core.runs.store.cards import list_runs
from core.runs.store.store import Store
from core.runs.tables.schema import TABLES
from core.runs.writer import RunWriter
from tests.core.runs.damaging import damaged
from tests.core.runs.made_runs import bits_of_sides, calm_sides, header_of, write_run

LENGTHS, VOCAB = (40, 3, 90), 300
PYRAMID = ("ulp_tile", "row_ulp_tile")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """One capture of two variants in pieces of uneven size, kept in both ways."""
    header = replace(
        header_of(lengths=LENGTHS, vocab=VOCAB, sides=3),
        vocabulary={i: f"v{i}" for i in range(VOCAB)},
    )
    sides = calm_sides(header)
    found = {}
    for keep in KEEPS:
        store = Store(tmp_path_factory.mktemp(keep))
        with RunWriter(store, replace(header, keep=keep)) as writer:
            for side, bits in enumerate(sides):
                # 17 rows: pieces end inside of prompts, and reach over their ends
                for start in range(0, header.rows, 17):
                    writer.write(side, start, bits[start : start + 17].copy())
            found[keep] = store.path_of(writer.finish())
    return found


def _rows(path, table, where=""):
    with duckdb.connect(str(path), read_only=True) as shell:
        return sorted(shell.execute(f"SELECT * FROM {table} {where}").fetchall(), key=repr)


@pytest.mark.parametrize(
    "table",
    sorted(TABLES.keys() - {"run", "logits", "vocabulary", *PYRAMID}),
)
def test_every_figure_is_that_of_the_run_that_keeps_all(kept, table):
    assert _rows(kept[FIGURES], table) == _rows(kept[ALL], table)


@pytest.mark.parametrize("measure", ["ulps", "row_ulps"])
def test_kept_levels_of_the_heatmap_are_those_of_the_whole_run(kept, measure):
    with RunReader(kept[FIGURES]) as run, RunReader(kept[ALL]) as whole:
        assert run.levels() == pyramid.coarse_levels(sum(LENGTHS), VOCAB)
        for level in run.levels():
            cells, expected = (
                each.stored_cells(measure, 1, level, (0, 133)) for each in (run, whole)
            )
            assert np.array_equal(cells, expected)


@pytest.mark.parametrize("most", [1000, 100, 20])
def test_a_coarse_level_is_made_as_its_rows_pass_by(most, store, kept, monkeypatch):
    monkeypatch.setattr(pyramid, "MOST_COARSE", most)
    header = header_of(lengths=LENGTHS, vocab=VOCAB)
    sides = bits_of_sides(header)
    with RunWriter(store, replace(header, keep=FIGURES)) as writer:
        for start in range(0, header.rows, 7):
            for side, bits in enumerate(sides):
                writer.write(side, start, bits[start : start + 7])
        path = store.path_of(writer.finish())
    elements = pyramid.element_ulps(sides[0], sides[1], header.format)
    with RunReader(path) as run:
        assert run.levels().start == {1000: 1, 100: 2, 20: 2}[most]
        for level in run.levels():
            assert np.array_equal(
                run.stored_cells("ulps", 0, level, (0, header.rows)),
                pyramid.maxima(elements, *pyramid.cell_shape(level)),
            )


def test_a_run_of_figures_has_no_logits_and_says_so(kept):
    with RunReader(kept[FIGURES]) as run:
        assert not run.has_all_logits
        for read in (
            lambda: run.at(0, 0, 0),
            lambda: run.read_rows(1, 0, 1),
            lambda: run.read_window(0, (0, 1), (0, 2)),
        ):
            with pytest.raises(StoreError, match="figures only, no logits; capture"):
                read()
    assert _rows(kept[FIGURES], "logits") == []


def test_texts_are_kept_of_the_tokens_that_figures_name(kept):
    used = "token_id IN (SELECT token_id FROM top_token UNION SELECT token_id FROM token)"
    assert _rows(kept[FIGURES], "vocabulary") == _rows(kept[ALL], "vocabulary", f"WHERE {used}")


LIES = {
    "says figures, has logits": (ALL, "UPDATE run SET kept = 'figures'", "logits for 0 rows"),
    "says all, lacks some": (
        ALL,
        "DELETE FROM logits WHERE side = 2 AND position = 57",
        # of 3 sides x 133 rows of one tile each, one is gone
        "has 398 tiles",
    ),
    "says all, has none": (FIGURES, "UPDATE run SET kept = 'all'", "has 0 tiles"),
    "says something else": (ALL, "UPDATE run SET kept = 'most'", "'most'"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_file_that_holds_other_logits_than_it_says_is_refused(lie, kept, tmp_path):
    source, statement, says = LIES[lie]
    path = tmp_path / "lie.duckdb"
    path.write_bytes(kept[source].read_bytes())
    RunReader(path).close()
    damaged(path, statement)
    with pytest.raises(StoreError, match=says):
        RunReader(path)


def test_a_run_is_asked_for_what_a_file_can_keep(kept):
    for keep, path in kept.items():
        assert [card.keep for card in list_runs(Store(path.parent))[0]] == [keep]
    assert get_args(get_type_hints(CaptureRequest)["keep"]) == KEEPS
    with pytest.raises(UsageError, match="--keep 'most': expected all, figures"):
        replace(header_of(), keep="most")


def test_a_large_vocabulary_takes_no_more_than_the_dry_run_says(store):
    header = replace(
        header_of(lengths=(64,), vocab=32000),
        vocabulary={i: f"token {i}" for i in range(32000)},
    )
    sides = calm_sides(header)
    header = replace(header, keep=FIGURES)
    path = write_run(store, header, sides)
    assert path.stat().st_size < header.file_bytes < sides[0].nbytes
