"""Golden outputs: figures, verdicts, bits and exit codes that a refactoring must not move.

`python -m tests.test_golden` writes tests/golden anew. A commit that does so says which entries
changed and why.
"""

import copy
import hashlib
import io
import json
import math
import os
import shlex
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest

from core.__main__ import main
from core.runs.dumps.export import export_npz
from core.runs.queries.heatmap import (
    MEASURES,
    ORDERS,
    TILE_COLUMNS,
    Tile,
    View,
    largest_level,
    tile_cells,
)
from core.runs.store.store import Store
from tests.core.runs.made_runs import ingested
from tests.places import CASES, ROOT, RUNS
from tests.shell import ran

GOLDEN = ROOT / "tests" / "golden"
DUMPS = sorted(
    [*CASES.glob("*.npz"), *(ROOT / "sample_runs" / "dumps").glob("*.npz")],
)
LISTS = "tests/core/responses/payloads"
TOP_K = {
    "one answer": f"{LISTS}/vllm_completions.json {LISTS}/vllm_completions.json",
    "chat": f"{LISTS}/llamacpp_chat.json {LISTS}/llamacpp_chat.json",
    "rounded": "tests/golden/lists/reference.json tests/golden/lists/rounded.json",
    "temperature": "tests/golden/lists/reference.json tests/golden/lists/temperature.json",
    "other token": "tests/golden/lists/reference.json tests/golden/lists/other_token.json",
}
# The bits of a forward depend on the processor unless its kernels are the portable ones.
PORTABLE = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1"}


def planted(golden, path):
    """Return a copy with one value moved by as little as must be seen."""
    changed = copy.deepcopy(golden)
    owner = changed
    for key in path[:-1]:
        owner = owner[key]
    value = owner[path[-1]]
    if value is None or isinstance(value, bool):
        owner[path[-1]] = 1 if value is None else not value
    elif isinstance(value, float):
        # ten times the tolerance of `differences`
        owner[path[-1]] = value * (1 + 1e-8) + math.copysign(1e-11, value)
    else:
        owner[path[-1]] = value + 1 if isinstance(value, int) else f"{value}."
    return changed


def leaves(value, path=()):
    if isinstance(value, list):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        yield path
        return
    for key, each in value.items():
        yield from leaves(each, (*path, key))


def differences(got, want, place=""):
    """Return the places where an output is not the golden one: floats to 1e-9 relative or 1e-12,
    all else exactly.
    """
    if type(got) is type(want) is list:
        got, want = (dict(enumerate(each)) for each in (got, want))
    if type(got) is type(want) is dict:
        found = [f"{place}/{key}: only on one side" for key in got.keys() ^ want.keys()]
        for key in want.keys() & got.keys():
            found += differences(got[key], want[key], f"{place}/{key}")
        return found
    is_same = type(got) is type(want) and got == want
    if type(got) is type(want) is float:
        is_same = math.isclose(got, want, rel_tol=1e-9, abs_tol=1e-12)
    return [] if is_same else [f"{place}: {got!r}, not {want!r}"]


def run(line):
    """(exit code, stdout) of `ulpscope LINE` in this process."""
    before, sys.argv = sys.argv, ["ulpscope", *shlex.split(line)]
    out = io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(io.StringIO()):
            main()
    except SystemExit as ended:
        return int(ended.code or 0), out.getvalue()
    finally:
        sys.argv = before
    raise AssertionError("main returned")


def digest(array):
    return (
        f"{array.dtype} {list(array.shape)}"
        f" {hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()}"
    )


def compared_dumps():
    """`compare --json --positions` of every dump."""
    return {dump.stem: json.loads(run(f"compare {dump} --json --positions")[1]) for dump in DUMPS}


def compared_lists():
    """`compare --json --positions` of top-k responses."""
    return {
        name: json.loads(run(f"compare {files} --json --positions")[1])
        for name, files in TOP_K.items()
    }


def exported_arrays():
    """Digests of every array that a dump is exported as, after it was stored as a run."""
    outputs = {}
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "runs")
        for dump in DUMPS:
            out = Path(folder) / dump.name
            with ingested(store, dump) as stored:
                export_npz(stored, out)
            with np.load(out) as arrays:
                outputs[dump.stem] = {name: digest(arrays[name]) for name in sorted(arrays.files)}
    return outputs


def heatmap_tiles():
    """Digests of the bytes of heatmap tiles, in every order and measure, fine and coarse."""
    outputs = {}
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "runs")
        for dump in DUMPS:
            with ingested(store, dump) as stored:
                outputs[dump.stem] = {
                    f"{order}, {measure}, level {level}": digest(
                        tile_cells(
                            View(stored, 0, order, measure),
                            Tile(0, level, 0, 0),
                            lambda _, make: make(),
                        ),
                    )
                    for order in ORDERS
                    for measure in MEASURES
                    for level in sorted({0, largest_level(stored.header.vocab, TILE_COLUMNS)})
                }
    return outputs


def judged_paths():
    """Verdicts over 40 faults and 40 harmless paths of the trial, computed with portable
    kernels.
    """
    command = [sys.executable, "-m", "tests.golden.judged_paths"]
    done = ran(command, cwd=ROOT, env={**os.environ, **PORTABLE})
    return json.loads(done.stdout)


def exit_codes():
    """Exit codes of every command on good and bad input, one after the other in one new store."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ULPSCOPE_STORE", f"{folder}/runs")
        patch.setenv("HF_HUB_OFFLINE", "1")
        return {command: run(command.format(tmp=folder))[0] for command in golden("exit_codes")}


OUTPUTS = {
    "compared_dumps": compared_dumps,
    "compared_lists": compared_lists,
    "exported_arrays": exported_arrays,
    "heatmap_tiles": heatmap_tiles,
    "judged_paths": judged_paths,
    "exit_codes": exit_codes,
}


def golden(name):
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", OUTPUTS)
def test_output_is_golden(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert differences(OUTPUTS[name](), golden(name)) == []


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_planted_change_is_seen(name):
    want = golden(name)
    places = list(leaves(want))
    for place in places[:: max(1, len(places) // 40)]:
        assert len(differences(planted(want, place), want)) == 1


if __name__ == "__main__":
    os.chdir(ROOT)
    os.environ["ULPSCOPE_SAMPLES"] = str(RUNS)
    for name, output in OUTPUTS.items():
        (GOLDEN / f"{name}.json").write_text(
            json.dumps(output(), indent=0) + "\n",
            encoding="utf-8",
        )
