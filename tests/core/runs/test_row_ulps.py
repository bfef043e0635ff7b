"""Row ULPs in a run file, by position and in the cells of the heatmap."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pytest

from core.errors import StoreError
from core.judging.ingest import ingest
from core.numerics.formats import format_named
from core.runs.dumps.dump import open_dump
from core.runs.queries.heatmap import MEASURES, Tile, largest_in, tile_cells
from core.runs.reader import RunReader
from core.runs.reports.report_json import report_of_run
from core.runs.store.store import Store
from tests.core.numerics.oracle import expected_figures
from tests.core.runs.made_runs import bits_of_sides, header_of, write_run
from tests.core.runs.test_contract_cases import CASE

FIGURES = ["max_row_ulps", "rms_row_ulps"]


def keep(_, make):
    return make()


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    """A run of three sides, of any bits at all."""
    header = header_of(vocab=3000, sides=3)
    return write_run(Store(tmp_path), header, bits_of_sides(header, 4))


@pytest.mark.spread(3)
@CASE
def test_the_figures_of_an_example_are_those_of_a_slow_oracle(path, tmp_path):
    with open_dump([path]) as dump:
        fmt = format_named(dump.compute_dtype)
        sides = [np.concatenate(parts) for parts in zip(*(sides for _, sides in dump.chunks()), strict=True)]
    wanted = expected_figures(sides[0], sides[1], fmt)
    store = Store(tmp_path)
    with RunReader(store.path_of(ingest(store, [path]))) as run:
        pairs, _ = report_of_run(run)
    largest, rms = ([row[name] for row in pairs[0].rows] for name in FIGURES)
    none = np.isnan(wanted.exact["max_row_ulps"])
    assert [value is None for value in largest] == none.tolist()
    assert np.array_equal(np.array(largest, float), wanted.exact["max_row_ulps"], equal_nan=True)
    np.testing.assert_allclose(np.array(rms, float), wanted.close["rms_row_ulps"], rtol=1e-12)
    summary = pairs[0].summary
    assert summary.max_row_ulps == np.nanmax(wanted.exact["max_row_ulps"])
    mean = np.nansum(wanted.close["row_squares"]) / wanted.exact["finite"].sum()
    assert summary.rms_row_ulps == pytest.approx(np.sqrt(mean), rel=1e-12)


def test_stored_cells_are_the_largest_of_their_logits(run_path):
    with RunReader(run_path) as run:
        stored = run.stored_cells("row_ulps", 1, 0, (0, run.header.rows))
        single = tile_cells(run, 1, Tile(0, 0, 0, 0), "id", "row_ulps", keep)
        assert np.array_equal(single.reshape(len(single), -1, 32).max(axis=2), stored[:, : single.shape[1] // 32])


def test_the_largest_of_a_row_is_its_figure(run_path):
    with RunReader(run_path) as run:
        table = run.positions(0)
        for row in range(run.header.rows):
            if table["nonfinite_mismatch"][row] == 0:
                found = largest_in(run, 0, (row, row + 1), (0, run.header.vocab), "id", "row_ulps")
                assert found.row_ulps == table["max_row_ulps"][row]


def test_a_file_of_another_version_is_refused_with_what_to_do(run_path):
    with duckdb.connect(str(run_path)) as shell:
        shell.execute("UPDATE run SET file_version = 4")
    with pytest.raises(StoreError, match="version 4; this ULPscope reads version 7"):
        RunReader(run_path)
    with duckdb.connect(str(run_path)) as shell:  # as the first versions wrote it: columns are missing too
        shell.execute("ALTER TABLE run DROP COLUMN kept")
    with pytest.raises(StoreError, match="version 4; this ULPscope reads version 7"):
        RunReader(run_path)


def test_the_page_opens_in_row_ulps():
    assert MEASURES[0] == "row_ulps"
