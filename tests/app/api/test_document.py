"""docs/reference/api.md: every example is run as it stands, against a server."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.serving import ROOT, serving
from tests.shell import command_in

DOCUMENT = ROOT / "docs" / "reference" / "api.md"


@pytest.mark.thorough
@pytest.mark.skipif(
    not all(map(shutil.which, ("curl", "openssl", "bash"))),
    reason="the examples need curl and openssl",
)
def test_every_example_does_what_it_says(tmp_path):
    (tmp_path / "sample_runs").symlink_to(ROOT / "sample_runs")
    (tmp_path / "bin").mkdir()
    for name in ("python", "python3"):
        (tmp_path / "bin" / name).write_text(
            f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} "$@"\n',
        )
        (tmp_path / "bin" / name).chmod(0o755)
    command_in(tmp_path / "bin")
    with serving(tmp_path / "runs", samples="") as server:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith("ULPSCOPE_")
        }
        environment = kept | {
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "ULPSCOPE_STORE": str(tmp_path / "own"),
        }
        # in order, as a reader would paste them; the first that fails ends them
        examples = re.findall(r"^```bash\n(.*?)^```$", DOCUMENT.read_text(), re.S | re.M)
        script = "\n".join(["set -eu -o pipefail", *examples])
        done = subprocess.run(
            ["bash", "-c", script.replace("http://127.0.0.1:8501", server.url)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert '"error"' not in done.stdout, done.stdout
    assert done.stdout.splitlines()[0].startswith(f"{server.url}/overview?run=")
    assert (tmp_path / "run.npz").read_bytes() == (tmp_path / "part.npz").read_bytes()
    assert len(list((tmp_path / "runs").glob("*.duckdb"))) == 3
