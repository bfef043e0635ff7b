"""Row ULPs in a run file: stored with what is written today, computed from the logits of a file of version 1."""

from __future__ import annotations

import gzip
from dataclasses import asdict
from pathlib import Path

import duckdb
import numpy as np
import pytest

from core.errors import StoreError
from core.judging.ingest import ingest
from core.numerics.formats import format_named
from core.runs.dumps.dump import open_dump
from core.runs.file.database import FILE_VERSION
from core.runs.importing.adopt import adopt
from core.runs.reader import RunReader
from core.runs.reports.report_json import report_of_run
from core.runs.store.cards import read_runs
from core.runs.store.store import Store
from core.runs.views.heatmap import MEASURES, Tile, is_offered, largest_in, tile_cells
from tests.core.numerics.oracle import expected
from tests.core.runs.made_runs import ROOT, as_version_1, bits_of_sides, header_of, write_run
from tests.core.runs.test_contract_cases import CASE

FIGURES = ["max_row_ulps", "rms_row_ulps"]


def keep(_, make):
    return make()


@pytest.fixture
def both(tmp_path: Path) -> tuple[Path, Path]:
    """A run of three sides, of any bits at all, and the same file as version 1 had it."""
    header = header_of(vocab=3000, sides=3)
    path = write_run(Store(tmp_path / "now"), header, bits_of_sides(header, 4))
    return path, as_version_1(path, tmp_path / "then" / path.name)


@pytest.mark.spread(3)
@CASE
def test_the_figures_of_an_example_are_those_of_a_slow_oracle(path, tmp_path):
    with open_dump([path]) as dump:
        fmt = format_named(dump.compute_dtype)
        sides = [np.concatenate(parts) for parts in zip(*(sides for _, sides in dump.chunks()), strict=True)]
    wanted = expected(sides[0], sides[1], fmt)
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


def test_a_file_of_version_1_has_the_figures_of_its_logits(both):
    with RunReader(both[0]) as now, RunReader(both[1]) as then:
        assert (now.version, then.version) == (FILE_VERSION, 1)
        for pair in range(2):
            a, b = now.positions(pair), then.positions(pair)
            assert list(a.columns) == list(b.columns)
            for name in a.columns:
                assert a[name].equals(b[name]), name
            x, y = asdict(now.pairs[pair].summary), asdict(then.pairs[pair].summary)
            assert x.pop("rms_row_ulps") == pytest.approx(y.pop("rms_row_ulps"), rel=1e-13)
            assert x == y
            assert x["max_row_ulps"] > 0


def test_another_logit_in_a_file_of_version_1_would_be_noticed(both):
    """The twin: the figures are of these logits, not of anything that the file says."""
    with duckdb.connect(str(both[1])) as shell:
        shell.execute("UPDATE logits SET bits = repeat('\x01\x00'::BLOB, octet_length(bits) // 2) WHERE side = 0")
    with RunReader(both[0]) as now, RunReader(both[1]) as then:
        assert not now.positions(0)["max_row_ulps"].equals(then.positions(0)["max_row_ulps"])


def test_the_heatmap_of_a_file_of_version_1_is_that_of_a_file_of_today(both):
    with RunReader(both[0]) as now, RunReader(both[1]) as then:
        assert (now.has_row_ulp_cells, then.has_row_ulp_cells) == (True, False)
        for level in (0, 2, 5):
            for order in ("id", "rank"):
                assert is_offered(then, order, "row_ulps")
                tile = Tile(0, level if level < 2 else 2, 0, 0)
                a, b = (tile_cells(run, 1, tile, order, "row_ulps", keep) for run in (now, then))
                assert np.array_equal(a, b)
        stored = now.stored_cells("row_ulps", 1, 0, (0, now.header.rows))
        single = tile_cells(now, 1, Tile(0, 0, 0, 0), "id", "row_ulps", keep)
        assert np.array_equal(single.reshape(len(single), -1, 32).max(axis=2), stored[:, : single.shape[1] // 32])


def test_the_largest_of_a_row_is_its_figure(both):
    with RunReader(both[0]) as run:
        table = run.positions(0)
        for row in range(run.header.rows):
            if table["nonfinite_mismatch"][row] == 0:
                found = largest_in(run, 0, (row, row + 1), (0, run.header.vocab), "id", "row_ulps")
                assert found.row_ulps == table["max_row_ulps"][row]


def test_the_page_opens_in_row_ulps():
    assert MEASURES[0] == "row_ulps"


def test_a_file_of_version_1_is_taken_in_as_one_of_today(both, tmp_path):
    store = Store(tmp_path / "taken")
    taken = store.path_of(adopt(store, both[1]))

    def rows(path: Path, table: str) -> list:
        with duckdb.connect(str(path), read_only=True) as shell:
            columns = [name for (name,) in shell.sql(f"SELECT column_name FROM (DESCRIBE {table})").fetchall()]
            return sorted(shell.sql(f"SELECT {', '.join(sorted(columns))} FROM {table}").fetchall(), key=repr)

    for table in ("position", "pair", "ulp_tile", "row_ulp_tile", "logits", "side"):
        assert rows(taken, table) == rows(both[0], table), table
    with RunReader(taken) as run:
        assert run.version == FILE_VERSION


def test_a_file_that_version_1_wrote_is_read(tmp_path):
    path = tmp_path / "old.duckdb"
    path.write_bytes(gzip.decompress((ROOT / "tests/core/runs/version_1.duckdb.gz").read_bytes()))
    with RunReader(path) as run:
        assert run.version == 1
        assert all(pair.summary.max_row_ulps is not None for pair in run.pairs)
        assert run.positions(0)["max_row_ulps"].notna().all()
        for table in (run.kv(0), run.layers(0)):
            assert {*FIGURES} <= set(table.columns)
            assert table[FIGURES].isna().all().all()


def test_a_card_says_nothing_where_the_file_does_not(both):
    cards = read_runs(both)
    assert cards[both[1]].max_row_ulps is None
    assert cards[both[0]].max_row_ulps == max(cards[both[0]].max_row_ulps, 0.1)


def test_a_file_of_version_2_without_the_columns_is_refused(both):
    with duckdb.connect(str(both[1])) as shell:
        shell.execute("UPDATE run SET file_version = 2")
    with pytest.raises(StoreError, match="without the table 'row_ulp_tile'"):
        RunReader(both[1])
