"""A run file grows by addition: this build reads the files of 1.0.0, of older builds and of newer
ones.
"""

import gzip
import json

import duckdb
import numpy as np
import pytest

from core.errors import StoreError
from core.judging.stored import stored_verdict
from core.runs.importing import import_run
from core.runs.new_run import revise
from core.runs.ops_run import ops_of
from core.runs.reader import RunReader
from core.runs.tables.schema import TABLES
from tests.core.runs.damaging import damaged
from tests.core.runs.made_runs import opened
from tests.places import CASES, ROOT

FILES = CASES / "files_of_1_0_0"
CORPUS = ROOT / "tests" / "fuzz" / "corpus"
EXPECTED = json.loads((FILES / "expected.json").read_text())


def file_of_1_0_0(kind, folder):
    path = folder / f"{kind}.duckdb"
    path.write_bytes(gzip.decompress((FILES / f"{kind}.duckdb.gz").read_bytes()))
    return path


def figures_of(path):
    """What `expected.json` has of a run."""
    with RunReader(path) as run:
        records = run.records(0)
        summary = run.pairs[0].summary
        return {
            "sha256": [side.sha256 for side in run.sides],
            # a capture is not judged if all bits are equal
            "verdict": run.pairs[0].verdict or "identical",
            "summary": {name: getattr(summary, name) for name in EXPECTED["dump"]["summary"]},
            "max_abs": [record["max_abs"] for record in records][:8],
        }


@pytest.mark.parametrize("kind", EXPECTED)
def test_a_file_of_1_0_0_shows_what_1_0_0_showed(kind, tmp_path):
    assert figures_of(file_of_1_0_0(kind, tmp_path)) == EXPECTED[kind]


def test_probes_of_1_0_0_are_read(tmp_path):
    assert {row["dtype"] for row in ops_of(file_of_1_0_0("ops", tmp_path)).rows} == {"bfloat16"}


def test_a_file_of_1_0_0_is_compared_judged_and_exported(cli, store, tmp_path):
    path = file_of_1_0_0("dump", tmp_path)
    assert cli("ingest", path).returncode == 0
    (card,) = cli("list", "--json").json
    run_id = card["run_id"]
    assert cli("compare", run_id, "--json").json["summary"]["neq"] == 32
    rerun = tmp_path / "rerun.npz"
    assert cli("export", run_id, rerun).returncode == 0
    with np.load(rerun) as exported, np.load(CORPUS / "prompts.npz") as given:
        for side in ("reference", "variant"):
            assert exported[side].tobytes() == given[side].tobytes()
    judged = cli("verdict", run_id, "--rerun", rerun, "--json").succeeded()
    with opened(store, judged.json["run_id"]) as run:
        assert "rerun" in {row.group for row in run.evidence(0)}


def test_an_older_file_reads_null_and_empty_where_it_lacks_a_column_or_a_table(tmp_path):
    """All nullable columns at once, and the tables of what a run may do without."""
    path = file_of_1_0_0("judged", tmp_path)
    whole = figures_of(path)
    statements = [
        f"ALTER TABLE IF EXISTS {table.name} DROP COLUMN IF EXISTS {column.name}"
        for table in TABLES.values()
        for column in table.columns
        if column.is_nullable and (table.name, column.name) != ("run", "kept")
    ]
    newer = "remedy kernel kernel_side layer layer_position generation op"
    damaged(path, *statements, *(f"DROP TABLE {table}" for table in newer.split()))
    figures = figures_of(path)
    assert figures["sha256"] == whole["sha256"]
    assert figures["summary"]["neq"] == whole["summary"]["neq"]
    assert set(figures["max_abs"]) == {None}
    with RunReader(path) as run:
        assert run.positions(0)["kl"].isna().all()
        assert run.pairs_with_layers == frozenset()
        assert run.pairs_with_choices == frozenset()
        assert run.mitigations == {}
        assert run.generations == {}
        assert run.query("SELECT * FROM layer").columns.tolist() == TABLES["layer"].names


def test_a_judged_copy_of_an_older_file_gets_the_column(store, tmp_path):
    path = file_of_1_0_0("dump", tmp_path)
    damaged(path, "ALTER TABLE pair DROP COLUMN noise_ratio", "DROP TABLE floor_position")
    run_id = import_run(store, path)
    with opened(store, run_id) as run:
        verdict = stored_verdict(run, run.pairs[0])
        judged = revise(store, run, "judged", [verdict], "")
    with duckdb.connect(str(store.path_of(judged)), read_only=True) as shell:
        assert shell.sql("SELECT noise_ratio FROM pair").fetchall() == [(None,)]
        assert shell.sql("SELECT count(*) FROM floor_position").fetchall() == [(0,)]


NEWER = {
    "column": "ALTER TABLE position ADD COLUMN logsumexp_change DOUBLE",
    "column of the run": "ALTER TABLE run ADD COLUMN cluster VARCHAR",
    "table": "CREATE TABLE expert_choice (pair INTEGER, expert INTEGER)",
    "check": (
        "INSERT INTO evidence SELECT pair, rung, 'a check to come', side_name, control, figures,"
        " outcome, says FROM evidence LIMIT 1"
    ),
    "outcome": (
        "INSERT INTO evidence SELECT pair, rung, checked, side_name, control, figures,"
        " 'deferred', says FROM evidence LIMIT 1"
    ),
    "figure of a check": (
        "UPDATE evidence SET figures = json_merge_patch(figures, '{\"new_ratio\": 2.5}')"
        " WHERE figures <> '{}'"
    ),
}


@pytest.mark.parametrize("addition", NEWER)
def test_what_a_newer_build_added_is_left_alone(addition, store, tmp_path):
    path = file_of_1_0_0("judged", tmp_path)
    with RunReader(path) as run:
        checks = [row.check for row in run.evidence(0)]
    whole = figures_of(path)
    damaged(path, NEWER[addition])
    assert figures_of(path) == whole
    run_id = import_run(store, path)
    with opened(store, run_id) as run:
        assert [row.check for row in run.evidence(0)] == checks
        assert run.query("SELECT * FROM position").columns.tolist() == TABLES["position"].names
        is_noted = addition != "figure of a check"
        assert ("newer ULPscope" in run.header.provenance.note) == is_noted
        judged = revise(store, run, "judged", [stored_verdict(run, run.pairs[0])], "")
    with duckdb.connect(str(store.path_of(judged)), read_only=True) as shell:
        stored_note = shell.sql("SELECT note FROM run").fetchall()[0][0]
        assert "newer" not in stored_note
        if addition == "column":
            assert shell.sql("SELECT count(logsumexp_change) FROM position").fetchall() == [(0,)]


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE run SET file_version = 4", "version 4; this ULPscope reads version 7"),
        ("ALTER TABLE position DROP COLUMN neq", "its table 'position' lacks the column 'neq'"),
        ("ALTER TABLE run DROP COLUMN vocab", "its table 'run' lacks the column 'vocab'"),
        ("DROP TABLE run", "without the table 'run'"),
        ("DROP TABLE logits", "damaged"),
        ("DROP TABLE side", "damaged"),
    ],
)
def test_a_file_of_another_form_is_refused(statement, words, tmp_path):
    path = file_of_1_0_0("judged", tmp_path)
    damaged(path, statement)
    with pytest.raises(StoreError, match=words), RunReader(path):
        pass
