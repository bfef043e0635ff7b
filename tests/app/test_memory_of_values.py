"""Memory of pages and routes goes by the shape of a run, never by the values in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_MIB = 400  # over the same pages of a tame run of that shape; the grid of one flip took 17 GB

# A tame run loads and compiles everything, then the limit is set and the hostile run of the same shape is opened.
PROBE = textwrap.dedent("""
    import json, resource, sys, warnings
    from pathlib import Path
    from starlette.applications import Starlette
    from starlette.testclient import TestClient
    from app import navigation
    from app.routes import ROUTES
    from core.judging.ingest import ingest
    from core.runs.store.store import open_store
    from tests.app.opening import followed

    client = TestClient(Starlette(routes=ROUTES))
    failures = []

    def mib(name):
        return next(int(line.split()[1]) >> 10 for line in open("/proc/self/status") if line.startswith(name))

    def look(name, files):
        run_id = ingest(open_store(None), [Path(file) for file in files], run_id=name)
        for page in navigation.PAGES:
            for position in ("0", "5"):
                app = followed(page.name, run=run_id, position=position).run()
                failures.extend(f"{page.name} {name}: {one.message}" for one in app.exception)
        addresses = [f"/api/runs/{run_id}?positions=1", f"/api/runs/{run_id}/npz"]
        pair = f"/tiles/{run_id}/0"
        for order in ("id", "rank"):
            for measure in ("ulps", "row_ulps"):
                view = f"order={order}&measure={measure}"
                addresses += [f"{pair}?{view}&level=0,{level}&tile=0,0" for level in range(3)]
                addresses.append(f"{pair}/largest?{view}&rows=0:6&columns=0:64")
        answers = {address: client.get(address).status_code for address in addresses}
        failures.extend(f"{address}: {status}" for address, status in answers.items() if status >= 500)

    warnings.simplefilter("error", RuntimeWarning)
    for name in ("tame", "hostile"):
        look(name, json.loads(sys.argv[1])[name])
        if name == "tame":
            before, size = mib("VmHWM"), mib("VmSize") << 20
            resource.setrlimit(resource.RLIMIT_AS, (size + (2 << 30), size + (2 << 30)))
    print(json.dumps({"mib": mib("VmHWM") - before, "failures": failures}))
    """)


def hostile_rows() -> np.ndarray:
    """float32 pairs whose candidates lie as far from each other as float32 has values. [sides, positions, vocab]"""
    rows = np.zeros((2, 8, 64), np.float32)
    rows[:, :, 2:] = -np.linspace(1, 5, 62)
    largest = np.finfo(np.float32).max
    pairs = [
        ((largest, -largest), (-largest, largest)),
        ((1e38, -1e38), (-1e38, 1e38)),
        ((1.0, -1.0), (-1.0, 1.0)),
        ((0.0, -0.0), (-0.0, 0.0)),
        ((1e-45, -1e-45), (-1e-45, 1e-45)),
        ((np.nan, 3.0), (3.0, np.nan)),
        ((np.inf, -np.inf), (-np.inf, np.inf)),
        ((largest, 1e-45), (1e-45, largest)),
    ]
    rows[:, :, :2] = np.array(pairs, np.float32).swapaxes(0, 1)
    return rows


def payload(logprobs: list[list[float]], ids: list[int]) -> dict:
    """An answer in vLLM's form, top-2 by token id."""
    rows = [{f"token_id:{token}": value for token, value in zip(ids, values, strict=True)} for values in logprobs]
    listed = {"tokens": [next(iter(row)) for row in rows], "token_logprobs": [row[0] for row in logprobs]}
    return {"model": "m", "choices": [{"text": "t", "logprobs": {**listed, "top_logprobs": rows}}]}


def probed(tmp_path: Path, files: dict[str, list[str]]) -> dict:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ULPSCOPE_")}
    environment |= {"ULPSCOPE_STORE": str(tmp_path / "runs"), "ULPSCOPE_SAMPLES": "", "PYTHONPATH": str(ROOT)}
    environment |= {"OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(files)], capture_output=True, text=True, cwd=ROOT, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", ["dump", "lists"])
def test_no_page_or_route_takes_memory_by_the_size_of_values(kind, tmp_path):
    files: dict[str, list[str]] = {"tame": [], "hostile": []}
    if kind == "dump":
        for name, rows in {"tame": np.random.default_rng(0).normal(size=(2, 8, 64)), "hostile": hostile_rows()}.items():
            path = tmp_path / f"{name}.npz"
            np.savez(path, a=rows[0].astype(np.float32), b=rows[1].astype(np.float32))
            files[name] = [str(path)]
    else:
        for name, low, ids in (("tame", -3.5, [5, 6]), ("hostile", -1e38, [0, 2**31 - 1])):
            for side, values in (("a", [[-0.25, low]] * 8), ("b", [[-0.5, low / 2]] * 8)):
                path = tmp_path / f"{name}_{side}.json"
                path.write_text(json.dumps(payload(values, ids)))
                files[name].append(str(path))
    found = probed(tmp_path, files)
    assert found["failures"] == []
    assert found["mib"] < MOST_MIB
