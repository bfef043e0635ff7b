"""A run of the sides that finished, where a later one did not: as if that one had never been asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pytest

from core.errors import UsageError
from core.runs.file.evidence import Check, Evidence, Unmeasured
from core.runs.file.records import FloorRows, Generation
from core.runs.reader import RunReader
from core.runs.store.store import Store
from core.runs.tables.kernels import KernelList, KernelRow
from core.runs.tables.kv_cache import KvPart
from core.runs.tables.layer_spool import LayerModule, LayerPart
from core.runs.tables.layers import LayerRows
from core.runs.tables.remedies import RemedyRow
from core.runs.writer import RunWriter
from tests.core.runs.made_runs import bits_of_sides, calm_sides, header_of, write_run

NOTE = "decode+batch:3 failed (out of memory)."


def judge(writer: RunWriter, pairs: int) -> None:
    rows = np.ones(writer.header.rows)
    for pair in range(pairs):
        evidence = [Evidence(Check.WIDE_PAIR, "a control", Unmeasured(), "passed", "It is rounding.")]
        writer.write_verdict(pair, "rounding", "It is rounding.", 1.0, evidence, [FloorRows("float32", rows, rows)])


def put_out(layers: LayerRows, side: int, bits: np.ndarray) -> None:
    """What one module put out on a side: some of its logits' bits."""
    layers.write(side, LayerPart(0, LayerModule(0, "model.norm", "norm"), 0, bits[:2, :16].copy(), "bfloat16"))
    layers.end(side, 0)


def look_closer(writer: RunWriter, sides: int) -> None:
    for side in range(sides):
        writer.write_kernels(
            KernelList(side, (KernelRow("model.norm", "torch", "aten::mean", "3x16", 1 + side, 2.0),), 1, 1)
        )
    for pair in range(sides - 1):
        writer.write_remedies(
            pair, [RemedyRow("as it is", "Nothing.", "bfloat16", refusal=f"It failed on pair {pair}.")]
        )


def stopped_at(store: Store, written_rows: int, *, sides: int = 3) -> Path:
    """A run whose last side got no further than `written_rows`, with caches and generations of all of them."""
    header = header_of(sides=sides)
    bits = bits_of_sides(header)
    with RunWriter(store, header, run_id="kept") as writer:
        layers = writer.layers([[0, 2], [1]])
        for side in range(sides):
            put_out(layers, side, bits[side])
            part = KvPart(0, 0, "key", 0, bits[side][:3, :16].reshape(1, 3, 16).copy())
            writer.write_kv(side, part)
            writer.write(side, 0, bits[side][: header.rows if side < sides - 1 else written_rows])
        tokens = tuple((side, 2) for side in range(sides))
        writer.write_generation(Generation(0, 3, 2, tokens, tuple("abc"[:sides])))
        judge(writer, sides - 1)
        look_closer(writer, sides)
        assert writer.finished_sides == ("side_0", "side_1", "side_2")[: sides - 1]
        return store.path_of(writer.finish(only_finished=True, note=NOTE))


def of_two(store: Store) -> Path:
    """The same with the first two sides only, from the beginning."""
    header = header_of(sides=3)
    bits = bits_of_sides(header)
    with RunWriter(store, replace(header, sides=header.sides[:2]), run_id="two") as writer:
        layers = writer.layers([[0, 2], [1]])
        for side in range(2):
            put_out(layers, side, bits[side])
            writer.write_kv(side, KvPart(0, 0, "key", 0, bits[side][:3, :16].reshape(1, 3, 16).copy()))
            writer.write(side, 0, bits[side])
        writer.write_generation(Generation(0, 3, 2, ((0, 2), (1, 2)), ("a", "b")))
        judge(writer, 1)
        look_closer(writer, 2)
        return store.path_of(writer.finish())


def tables(path: Path) -> dict[str, list[tuple]]:
    """Every row of every table but `run`, sorted."""
    with duckdb.connect(str(path), read_only=True) as database:
        names = [row[0] for row in database.execute("SELECT table_name FROM duckdb_tables()").fetchall()]
        return {
            name: sorted(map(repr, database.execute(f"SELECT * FROM {name}").fetchall()))
            for name in names
            if name != "run"
        }


@pytest.mark.spread(2)
@pytest.mark.parametrize("written_rows", [0, 1, 5, 7])
def test_what_is_kept_equals_row_for_row_a_run_of_those_sides_alone(tmp_path, written_rows):
    store = Store(tmp_path)
    kept, alone = stopped_at(store, written_rows), of_two(store)
    assert tables(kept) == tables(alone)
    with RunReader(kept) as run:
        assert [side.name for side in run.sides] == ["side_0", "side_1"]
        assert [pair.variant for pair in run.pairs] == ["side_1"]
        assert run.header.provenance.note == NOTE
        assert [generation.texts for generation in run.generations.values()] == [("a", "b")]
    assert not list(tmp_path.glob(".partial*"))


def test_with_fewer_than_two_finished_sides_nothing_is_stored(tmp_path):
    with pytest.raises(UsageError, match="run needs at least two"):
        stopped_at(Store(tmp_path), 7, sides=2)
    assert list(tmp_path.iterdir()) == []


def test_without_asking_for_it_an_unfinished_side_is_still_refused(tmp_path):
    header = header_of(sides=3)
    bits = calm_sides(header)
    with RunWriter(Store(tmp_path), header) as writer:
        writer.write(0, 0, bits[0])
        writer.write(1, 0, bits[1])
        with pytest.raises(UsageError, match="side 'side_2' has 0 of 8 rows"):
            writer.finish()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_the_file_gives_the_room_of_what_was_taken_out_back(tmp_path):
    """Logits of 3 x 24 MB, of which one goes: committed long before, because a writer commits every 64 MB."""
    header = replace(header_of(lengths=(96,), vocab=128_000, sides=3), prompts=header_of(lengths=(96, 1)).prompts[:1])
    random = np.random.default_rng(1)
    bits = [random.integers(0, 1 << 14, (96, 128_000), dtype=np.uint16) for _ in range(3)]
    store = Store(tmp_path)
    with RunWriter(store, header, run_id="kept") as writer:
        for side in range(3):
            for row in range(0, 96 if side < 2 else 90, 6):
                writer.write(side, row, bits[side][row : row + 6])
        kept = store.path_of(writer.finish(only_finished=True))
    alone = write_run(store, replace(header, sides=header.sides[:2]), bits[:2])
    assert kept.stat().st_size < 1.05 * alone.stat().st_size
