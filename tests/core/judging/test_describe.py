"""What files are understood as before they are stored: run files, dumps, single arrays, and what is
none of them.
"""

import json
import os
import shutil

import numpy as np
import pytest

from core.errors import DumpError, StoreError
from core.judging.ingest import describe, headers_of
from tests.places import ROOT, RUNS

RUN = RUNS / "injected-bug.duckdb"
UPCAST = ROOT / "sample_runs" / "dumps" / "fresh_and_cached_upcast.npz"


def test_a_file_is_what_it_holds_whatever_it_is_called(tmp_path):
    logits = np.ones((2, 4), np.float32)
    np.save(tmp_path / "one.npy", logits)
    np.savez(tmp_path / "one.npz", only=logits, token_ids=np.arange(2))
    np.savez(tmp_path / "two.npz", a=logits, b=logits)
    kinds = {
        "one.npy": "array",
        "one.npz": "array",
        "two.npz": "dump",
    }
    assert {name: headers_of(tmp_path / name)[0] for name in kinds} == kinds
    assert headers_of(shutil.copy(RUN, tmp_path / "run.npz"))[0] == "run"
    assert headers_of(shutil.copy(tmp_path / "two.npz", tmp_path / "two.duckdb"))[0] == "dump"


def test_reserved_keys_alone_are_no_logits(tmp_path):
    np.savez(tmp_path / "d.npz", token_ids=np.arange(3))
    with pytest.raises(DumpError, match="0 arrays of logits"):
        headers_of(tmp_path / "d.npz")


def test_a_dump_says_its_sides_shape_dtype_and_tokens():
    found = describe([UPCAST])
    assert [side["name"] for side in found["sides"]] == ["fresh", "cached"]
    assert found["positions"] == 152
    assert found["vocab"] == 4096
    # 152 rows on two sides, two bytes a logit
    assert found["logits_bytes"] == 152 * 4096 * 2 * 2
    assert found["compute_dtype"] == "bfloat16"
    assert found["tokens"] == "ids and texts"
    assert describe([UPCAST], reference="cached")["sides"][0]["name"] == "cached"
    json.dumps(found, allow_nan=False)


def test_a_damaged_run_file_is_refused(tmp_path):
    (tmp_path / "cut.duckdb").write_bytes(RUN.read_bytes()[:5000])
    assert headers_of(tmp_path / "cut.duckdb")[0] == "run"
    with pytest.raises(StoreError):
        describe([tmp_path / "cut.duckdb"])


def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(DumpError):
        describe([tmp_path / "pipe.npz"])


def test_inspect_prints_it_and_stores_nothing(cli, tmp_path):
    assert cli("inspect", UPCAST, "--json").json == describe([UPCAST])
    assert not list(tmp_path.rglob("*.duckdb"))
    assert cli("inspect", ROOT / "README.md").returncode == 2
