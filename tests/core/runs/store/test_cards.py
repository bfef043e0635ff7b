"""What is no readable run is named with a reason and harms no other; what is damaged is noticed
before it is shown.
"""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pytest
from msgspec import structs

from core.errors import StoreError
from core.runs.file.records import Prompt
from core.runs.reader import RunReader
from core.runs.store.cards import count_verdicts, list_runs, prompt_texts
from core.runs.store.store import Store
from core.runs.tables.schema import TABLES
from tests.core.runs.made_runs import calm_sides, copied, header_of, make_run, write_run
from tests.places import RUNS

ONE_RUN = (
    "INSERT INTO run VALUES"
    " ('i','n',now()::TIMESTAMP,'upload','','','bfloat16',2,1,'','',NULL,'',NULL,'','{}',"
)
SCHEMA = "".join(table.ddl for table in TABLES.values())


def _shell(path, sql):
    with duckdb.connect(str(path)) as shell:
        shell.execute(sql)


def _text(path):
    path.write_text("this is not a database\n" * 1000)


def _changed(sql):
    """A good run, tampered with in the DuckDB shell."""

    def plant(path):
        _shell(copied(path), sql)

    return plant


def _views(path):
    """All the tables of a run, but `run` is a view that reads a file of this machine; a table `run`
    lies in another schema.
    """
    secret = path.with_suffix(".txt")
    secret.write_text("secret")
    _shell(path, SCHEMA)
    _shell(
        path,
        "CREATE SCHEMA other; CREATE TABLE other.run AS SELECT 1 AS a; ALTER TABLE run RENAME TO"
        " was_run;",
    )
    _shell(
        path,
        f"CREATE VIEW run AS SELECT * REPLACE ((SELECT content FROM read_text('{secret}')) AS name)"
        " FROM was_run",
    )
    _shell(path, ONE_RUN.replace("run VALUES", "was_run VALUES") + "1, NULL)")


# name of the fault -> (how it is planted, what the sentence says of it)
FOREIGN = {
    "nothing in it": (Path.touch, "not a valid DuckDB database"),
    "text": (_text, "not a valid DuckDB database"),
    "a directory": (Path.mkdir, "not a regular file"),
    "a pipe": (os.mkfifo, "not a regular file"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
    "a link to nothing": (lambda path: path.symlink_to("gone"), "cannot be opened"),
    "a link to itself": (lambda path: path.symlink_to(path), "cannot be"),
    "another database": (lambda path: _shell(path, "CREATE TABLE t AS SELECT 42 AS a"), "run"),
    "an empty run": (lambda path: _shell(path, SCHEMA), "no rows of provenance"),
    "a view called run": (_views, "with the view 'run', so not a run file"),
    "a newer form": (
        _changed("UPDATE run SET file_version = 9"),
        "of version 9; this ULPscope reads version 7",
    ),
    "a text for a version": (
        _changed("ALTER TABLE run ALTER file_version TYPE VARCHAR USING 'x'"),
        "of version 'x'; this ULPscope reads version 7",
    ),
    "a run that counts nothing": (_changed("ALTER TABLE run DROP file_version"), "of version None"),
    "two provenances": (_changed("INSERT INTO run SELECT * FROM run"), "2 rows of provenance"),
    "a missing column": (_changed("ALTER TABLE run DROP COLUMN device"), "device"),
    "an unknown dtype": (_changed("UPDATE run SET compute_dtype = 'int4'"), "'int4' is not known"),
    "a vocabulary of words": (_changed("ALTER TABLE run ALTER vocab TYPE VARCHAR"), "is invalid"),
    "a promise of a petabyte": (
        _changed("UPDATE run SET positions = 2e9; UPDATE prompt SET positions = 2e9"),
        "cannot hold",
    ),
}


def _read_all(path):
    """All there is to read of a run; StoreError from any of it."""
    with RunReader(path) as run:
        header = run.header
        seen = [run.sides, run.pairs, header, run.vocabulary, run.histogram(0)]
        for side in range(2):
            seen += [run.at(side, *place) for place in header.places()]
            seen.append(run.read_rows(side, 0, header.rows))
        seen += [run.read_window(1, (1, 3), (7, 99)), run.logsumexp(0)]
        seen.append(run.stored_cells("ulps", 0, 0, (0, header.rows)))
        seen += [run.positions(pair.index) for pair in run.pairs]
        return [*seen, run.top_tokens([0], 0, 0)]


@pytest.mark.spread(8)
@pytest.mark.parametrize("fault", FOREIGN)
def test_a_foreign_file_is_named_with_a_reason_and_harms_no_run(fault, store):
    plant, sentence = FOREIGN[fault]
    # before, between and after the bad ones
    good = [copied(store.directory / f"{run_id}.duckdb") for run_id in "amz"]
    bad = store.directory / "l.duckdb", store.directory / "n.duckdb"
    for path in bad:
        plant(path)
    cards, broken = list_runs(store)
    assert {card.run_id for card in cards} == {path.stem for path in good}
    assert [found.path for found in broken] == list(bad)
    for found in broken:
        assert sentence in found.reason
        assert found.path.name in found.reason
        assert found.reason.endswith(".")
        assert "\n" not in found.reason
        assert "secret" not in found.reason
    with pytest.raises(StoreError):
        RunReader(bad[0]).close()


@pytest.mark.spread(6)
@pytest.mark.parametrize(
    "tampered",
    [
        "DELETE FROM logits WHERE side = 1 AND position = 1",
        "UPDATE logits SET bits = bits || '\\x00'::BLOB WHERE side = 1 AND position = 1",
        "ALTER TABLE logits ALTER bits TYPE INTEGER USING 1",
        "DELETE FROM ulp_tile WHERE first_row = 2",
        "UPDATE ulp_tile SET cells = '\\x00'::BLOB",
        "ALTER TABLE ulp_tile ALTER cells TYPE INTEGER[] USING [1, 2]",
        "UPDATE pair SET reference = 7",
        "UPDATE side SET source_dtype = 'int3'",
        "UPDATE run SET versions = 'no json'",
        "UPDATE run SET vocab = 299",
        "UPDATE prompt SET positions = 4 WHERE prompt = 0",
        "DELETE FROM prompt",
        "UPDATE prompt SET positions = -1",
        "ALTER TABLE position DROP COLUMN neq",
        "ALTER TABLE side_position ALTER logsumexp TYPE VARCHAR",
        "DELETE FROM position WHERE position > 3",
        "ALTER TABLE position ALTER bit_identical TYPE VARCHAR",
        "ALTER TABLE position ALTER rms TYPE VARCHAR",
        "UPDATE pair SET pair = 5",
    ],
)
def test_tables_that_contradict_each_other_are_a_store_error_when_read(tampered, tmp_path):
    _changed(tampered)(tmp_path / "x.duckdb")
    list_runs(Store(tmp_path))
    with pytest.raises(StoreError, match=r"x\.duckdb: "):
        _read_all(tmp_path / "x.duckdb")


def test_a_flip_inside_the_logits_is_caught_by_the_blocks_checksum(tmp_path):
    header = header_of("float32", vocab=5000)
    sides = calm_sides(header)
    path = write_run(Store(tmp_path), header, sides)
    whole = path.read_bytes()
    # logits are stored uncompressed, so their bytes are found in the file
    place = whole.index(sides[1][5, 100:132].tobytes())
    flipped = bytearray(whole)
    flipped[place] ^= 1
    path.write_bytes(flipped)
    with RunReader(path) as run, pytest.raises(StoreError, match="checksum"):
        run.read_rows(1, 0, header.rows)
    path.write_bytes(whole)  # and it was that one bit
    with RunReader(path) as run:
        assert np.array_equal(run.read_rows(1, 0, header.rows), sides[1])


def test_a_link_to_a_run_is_a_run_and_a_hidden_file_is_not_listed(tmp_path):
    elsewhere = Store(tmp_path / "elsewhere")
    store = Store(tmp_path / "store")
    run = make_run(elsewhere)
    store.directory.mkdir()
    (store.directory / "link.duckdb").symlink_to(run)
    shutil.copy(run, store.directory / ".hidden.duckdb")
    cards, broken = list_runs(store)
    assert [card.run_id for card in cards] == ["link"]
    assert broken == []
    assert len(_read_all(store.path_of("link"))) > 0
    store.delete("link")
    assert run.exists()  # the link goes, not what it points to


# some are names of DuckDB's own databases, or of the one that a run file is attached as
ODD_NAMES = [
    "a run of mine",
    "it's",
    "日本",
    "temp",
    "system",
    "memory",
    "run",
    "main",
    "x.y",
    "run_file",
    "%41",
]


@pytest.mark.spread(4)
@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_renamed_run_is_listed_and_opened_whatever_its_name(name, store):
    copied(store.directory / f"{name}.duckdb")
    cards, broken = list_runs(store)
    assert [card.run_id for card in cards] == [name]
    assert broken == []
    assert len(_read_all(store.path_of(name))) > 0


def test_a_name_that_is_no_text_is_broken_and_can_be_printed(store):
    odd = make_run(store).rename(store.directory / os.fsdecode(b"\xff\xfe.duckdb"))
    make_run(store)
    cards, broken = list_runs(store)
    assert len(cards) == 1
    assert [found.path for found in broken] == [odd]
    broken[0].reason.encode()


def test_a_card_says_what_the_run_says(tmp_path):
    store = Store(tmp_path / "store", [tmp_path / "samples"])
    header = header_of(sides=4)
    a, b, *_ = calm_sides(header)
    sample = write_run(
        Store(tmp_path / "samples"),
        header,
        [a, b, a.copy(), b.copy()],
    )
    own = make_run(store)
    cards = {card.run_id: card for card in list_runs(store)[0]}
    card = cards[sample.stem]
    with RunReader(sample) as run:
        summaries = [pair.summary for pair in run.pairs]
        assert card.created == run.created
        assert card.sides == tuple(side.name for side in run.sides)
    assert card.name == header.name
    assert card.verdicts == ""
    assert card.prompts == 2
    assert card.positions == 8
    assert card.vocab == 300
    assert card.pairs == 3
    assert card.bit_identical_pairs == 1
    for name in ("flips", "max_ulps", "max_row_ulps", "rms_row_ulps"):
        assert getattr(card, name) == max(getattr(each, name) for each in summaries), name
    assert card.max_neq_share == max(each.neq_share for each in summaries)
    assert card.bytes == sample.stat().st_size
    assert card.is_read_only
    assert not cards[own.stem].is_read_only


def test_prompts_are_read_to_be_searched_the_beginning_of_each(tmp_path):
    long = Prompt(3000, tuple(range(3000)), tuple(f"{i % 10}" for i in range(3000)))
    untold = Prompt(4, (1, 2, 3, 4))
    last = Prompt(2, (1, 2), (" Ünder", "lined"))
    header = replace(header_of(vocab=16), prompts=(long, untold, last))
    path = write_run(Store(tmp_path), header)
    foreign = tmp_path / "foreign.duckdb"
    foreign.write_text("no run")
    texts = prompt_texts([path, foreign])
    # 2,000 characters of each prompt are searched
    assert texts[path] == "0123456789" * 200 + "\n Ünderlined"
    assert texts[foreign] == ""


def test_runs_are_counted_by_the_verdicts_of_their_pairs_the_most_frequent_first():
    (card, *_), _ = list_runs(Store(Path("nowhere"), [RUNS]))
    cards = [
        structs.replace(card, pair_verdicts=("rounding", "bug suspected")),
        structs.replace(card, pair_verdicts=("rounding", "a\x1b[31m later one")),
    ]
    assert r"1 a\x1b[31m later" in count_verdicts(cards)
    assert "2 pairs: 1 rounding, 1" in count_verdicts(cards[:1])
    assert count_verdicts([structs.replace(card, pair_verdicts=())]) == "1 run."
