"""A run file gives back every bit, says what its columns mean, and answers questions in plain
SQL.
"""

import hashlib
from datetime import UTC, datetime

import duckdb
import numpy as np
import pytest

from core.errors import CaptureError, StoreError, UsageError
from core.numerics.divergence import compare, histogram_of
from core.numerics.metrics import METRICS
from core.runs.file.records import Prompt, Provenance, RunHeader, SideHeader
from core.runs.reader import RunReader
from core.runs.tables.logits import TILE_BYTES
from core.runs.tables.schema import TABLES
from core.runs.writer import RunWriter
from tests.core.runs.made_runs import (
    bits_of_sides,
    calm_sides,
    copied,
    header_of,
    make_run,
    write_run,
)

# dtype, prompt lengths, vocab, sides. A tile is 8192 bytes: 4096 or 2048 logits, so one vocabulary
# is a multiple, others are not.
SHAPES = [
    ("bfloat16", (3, 5), 300, 2),
    ("float16", (1,), 4096, 2),
    ("float32", (2, 1, 7), 4099, 4),
    ("bfloat16", (9, 2), 12289, 3),
    ("float16", (4,), 2, 3),
]


def _shell(path):
    return duckdb.connect(str(path), read_only=True)


def _sha256_by_sql_alone(path):
    """(recomputed, stored) of every side, by someone with only the DuckDB shell."""
    with _shell(path) as shell:
        stored = shell.sql("SELECT sha256 FROM side ORDER BY side").fetchall()
        pairs = []
        for side, (digest,) in enumerate(stored):
            recomputed = hashlib.sha256()
            rows = shell.execute(
                "SELECT bits FROM logits WHERE side = ? ORDER BY prompt, position, tile",
                [side],
            )
            for (bits,) in rows.fetchall():
                recomputed.update(bits)
            pairs.append((recomputed.hexdigest(), digest))
        return pairs


def _contents(path):
    with _shell(path) as shell:
        return {
            name: sorted(shell.sql(f"SELECT * FROM {name}").fetchall(), key=repr)
            for name in TABLES.keys() - {"run"}
        }


@pytest.mark.spread(2)
@pytest.mark.parametrize(("dtype", "lengths", "vocab", "count"), SHAPES)
def test_every_bit_comes_back_by_sql_alone_and_by_every_way_of_reading(
    dtype,
    lengths,
    vocab,
    count,
    store,
):
    header = header_of(dtype, lengths, vocab, count)
    sides = bits_of_sides(header)
    path = write_run(store, header, sides)
    expected = [hashlib.sha256(bits.tobytes()).hexdigest() for bits in sides]
    assert _sha256_by_sql_alone(path) == [(digest, digest) for digest in expected]

    random = np.random.default_rng(1)
    places = header.places()
    with RunReader(path) as run:
        assert run.header.prompts == header.prompts
        assert run.header.provenance == header.provenance
        for side, bits in enumerate(sides):
            for row, (prompt, position) in enumerate(places):
                assert np.array_equal(run.at(side, prompt, position), bits[row])
            for _ in range(8):
                start, stop = sorted(random.choice(header.rows + 1, 2, replace=False))
                left, right = sorted(random.choice(vocab + 1, 2, replace=False))
                assert np.array_equal(run.read_rows(side, start, stop), bits[start:stop])
                assert np.array_equal(
                    run.read_window(side, (start, stop), (left, right)),
                    bits[start:stop, left:right],
                )
        # exactly at the borders of tiles
        for left in range(0, vocab, TILE_BYTES // header.format.itemsize):
            assert np.array_equal(
                run.read_window(0, (0, 1), (left, left + 1)),
                sides[0][:1, left : left + 1],
            )


@pytest.mark.parametrize(
    ("dtype", "lengths", "vocab", "count"),
    [SHAPES[0], SHAPES[2]],
)
def test_the_position_table_holds_what_the_kernel_says(dtype, lengths, vocab, count, store):
    header = header_of(dtype, lengths, vocab, count)
    for sides in (bits_of_sides(header), calm_sides(header)):
        with RunReader(write_run(store, header, sides)) as run:
            for pair in range(count - 1):
                table, figures = (
                    run.positions(pair),
                    compare(sides[0], sides[pair + 1], header.format),
                )
                assert list(zip(table.prompt, table.position, strict=True)) == header.places()
                for metric in METRICS:
                    expected = getattr(figures, metric.name).astype(np.float64)
                    if metric.is_nullable and "token" in metric.name:
                        expected = np.where(expected < 0, np.nan, expected)
                    stored = table[metric.name].to_numpy(np.float64, na_value=np.nan)
                    assert np.array_equal(stored, expected, equal_nan=True), metric.name
                assert run.histogram(pair) == histogram_of(figures.distances)
                assert run.pairs[pair].summary.neq == figures.neq.sum()


def test_every_column_says_what_it_means(store):
    header = header_of()
    with _shell(write_run(store, header)) as shell:
        columns = shell.sql(
            "SELECT table_name, column_name, comment FROM duckdb_columns() WHERE NOT internal",
        ).fetchall()
        tables = shell.sql("SELECT table_name, comment FROM duckdb_tables()").fetchall()
        kind = shell.sql(
            "SELECT DISTINCT compression FROM pragma_storage_info('logits') WHERE column_name ="
            " 'bits'",
        ).fetchall()
    # an empty answer would have every comment
    assert len(columns) > 80
    assert [where for *where, comment in columns + tables if not comment] == []
    # how DuckDB stores which values are null
    others = {"Constant", "Empty Validity", "Roaring"}
    assert all("ncompressed" in name for (name,) in kind if name not in others)


@pytest.mark.spread(1)
@pytest.mark.parametrize("make", [bits_of_sides, calm_sides])
def test_the_reference_far_ahead_gives_the_same_file_as_sides_in_step(make, store):
    header = header_of("float32", (3, 8, 2), 5000, 3)
    sides = make(header)
    steps = [(0, 2), (2, 7), (7, 13)]
    with RunWriter(store, header) as writer:
        for start, stop in steps:
            for side, bits in enumerate(sides):
                writer.write(side, start, bits[start:stop])
        in_step = store.path_of(writer.finish())
    with RunWriter(store, header) as writer:
        writer.write(0, 0, sides[0])
        for side in (2, 1):
            for start, stop in steps:
                writer.write(side, start, sides[side][start:stop])
        ahead = store.path_of(writer.finish())
    assert _contents(in_step) == _contents(ahead)
    sides[1] = sides[1].copy()
    sides[1][4, 4] ^= 1
    assert _contents(write_run(store, header, sides))["logits"] != _contents(ahead)["logits"]


@pytest.mark.parametrize(
    ("rows", "tokens"),
    [
        ((0, 0), (0, 1)),
        ((-1, 2), (0, 1)),
        ((0, 9), (0, 1)),
        ((0, 1), (5, 5)),
        ((0, 1), (0, 301)),
        ((2, 1), (0, 9)),
    ],
)
def test_what_is_outside_the_run_is_refused(rows, tokens, tmp_path):
    with RunReader(copied(tmp_path / "run.duckdb")) as run:
        with pytest.raises(UsageError, match="expected a range within"):
            run.read_window(0, rows, tokens)
        for side, prompt, position in ((2, 0, 0), (0, 2, 0), (0, 0, 3), (-1, 0, 0)):
            with pytest.raises(StoreError, match="no logits at prompt"):
                run.at(side, prompt, position)


ODD_TEXTS = (
    "",
    " ",
    "\n",
    "'; DROP TABLE run; --",
    "\x00",
    "日本",
    "\U0001f40d",
    '"',
    "\ufffd",
    "\u202e",
    "a" * 1_024,
)


def test_odd_texts_and_numbers_come_back_as_they_were(store):
    prompt = Prompt(
        len(ODD_TEXTS),
        tuple(range(2**31 - len(ODD_TEXTS), 2**31)),
        ODD_TEXTS,
    )
    about = Provenance(
        "upload",
        ODD_TEXTS[3],
        *ODD_TEXTS[4:7],
        seed=2**64 - 1,
        note=ODD_TEXTS[-1],
        versions={"\x00": "日本"},
        request='{"model": "a/b", "note": "日本"}',
    )
    created = datetime(2026, 11, 20, 21, 30, 0, 123456, tzinfo=UTC)
    sides = (SideHeader("日本", "decode+batch:8", "bfloat16"), SideHeader("it's", "", "float32"))
    vocabulary = dict(enumerate(ODD_TEXTS))
    header = RunHeader(ODD_TEXTS[3], "bfloat16", 300, (prompt,), sides, about, vocabulary, created)
    with RunReader(write_run(store, header)) as run:
        assert run.header.prompts == (prompt,)
        assert run.header.sides == sides
        assert run.header.provenance == about
        assert run.header.name == ODD_TEXTS[3]
        assert run.vocabulary == vocabulary
        assert run.created == created.replace(tzinfo=None)


@pytest.mark.parametrize(
    "prompt",
    [
        Prompt(1, (2**31,)),
        Prompt(1, (2**80,)),
        Prompt(1, (), ("\ud800",)),
    ],
    ids=["31 bits", "64 bits", "surrogate"],
)
def test_a_token_that_cannot_be_stored_is_refused_before_the_first_logit(prompt, store):
    sides = (SideHeader("a", "", "bfloat16"), SideHeader("b", "", "bfloat16"))
    with pytest.raises(StoreError, match="cannot be stored"):
        RunWriter(store, RunHeader("x", "bfloat16", 300, (prompt,), sides, Provenance("upload")))
    assert list(store.directory.iterdir()) == []


def test_rows_out_of_order_or_of_another_shape_are_refused(store):
    header = header_of()
    bits = calm_sides(header)[0]
    with RunWriter(store, header) as writer:
        writer.write(0, 0, bits[:4])
        for side, row, rows in [
            (0, 0, bits[:1]),
            (0, 5, bits[5:6]),
            (0, 4, bits),
            # the reference is at row 4, and a variant may not be ahead of it
            (1, 0, bits[:5]),
            (0, 4, bits[4:, :-1]),
            (0, 4, bits[4:].astype(np.uint32)),
            (0, 4, bits[4]),
        ]:
            with pytest.raises(UsageError, match="arrived"):
                writer.write(side, row, rows)
        with pytest.raises(UsageError, match="has 4 of 8 rows"):
            writer.finish()
    assert list(store.directory.iterdir()) == []


def test_a_large_chunk_reaches_the_file_in_pieces(store, monkeypatch):
    monkeypatch.setattr(
        "core.runs.tables.logits._INSERT_BYTES",
        1500,
    )  # two rows of 600 bytes; the true bound would need gigabytes
    header = header_of()
    sides = bits_of_sides(header)
    digests = [hashlib.sha256(bits.tobytes()).hexdigest() for bits in sides]
    assert [found for found, _ in _sha256_by_sql_alone(write_run(store, header, sides))] == digests


@pytest.mark.parametrize(
    ("error", "kind"),
    [(ValueError("odd"), StoreError), (CaptureError("too large"), CaptureError)],
)
def test_a_file_is_blamed_for_what_its_contents_raise_only(error, kind, store):
    """A judge with a model runs while figures are read."""
    run = make_run(store)
    with pytest.raises(kind), RunReader(run) as reader, reader.decoding("figures"):
        raise error
