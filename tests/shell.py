"""A command as a shell reads it, and ours on a shell's path."""

import os
import shlex
import subprocess
import sys

import yaml

from tests.core.conftest import environment
from tests.places import ROOT


def python(code, **variables):
    """Run code in a process of its own, in the clone."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )


def ran(command, **options):
    """A command that ended well, with what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr[-2000:]
    return done


def words_of(command):
    """Words that bash makes of a command, without running it, in the locale that knows ASCII
    alone.
    """
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {command}"],
        capture_output=True,
        check=True,
        env={"LC_ALL": "C"},
    )
    return done.stdout.decode().split("\0")[:-1]


def command_in(folder):
    """Put `ulpscope` into a folder: this clone's, by the Python of these tests."""
    folder.mkdir(exist_ok=True)
    path = folder / "ulpscope"
    path.write_text(
        f"#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)} -P -m"
        ' core "$@"\n',
    )
    path.chmod(0o755)


def steps_in(page):
    """Steps of the one job of a workflow in a guide."""
    text = (ROOT / "docs" / "guides" / page).read_text()
    workflow = text.partition("```yaml\n")[2].partition("```")[0]
    (job,) = yaml.safe_load(workflow)["jobs"].values()
    return job["steps"]


def run_workflow(page, folder, **variables):
    """Run every `run` step of a documented workflow that calls ULPscope, in a folder with the
    sample runs.
    """
    steps = [step["run"] for step in steps_in(page) if "ulpscope " in step.get("run", "")]
    assert steps
    if not (folder / "sample_runs").exists():
        (folder / "sample_runs").symlink_to(ROOT / "sample_runs")
    command_in(folder)
    summary = {
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        "PATH": f"{folder}:{os.environ['PATH']}",
    }
    given = {**os.environ, **environment(folder), **summary, **variables}
    for step in steps:
        ran(["bash", "-e", "-c", step], cwd=folder, env=given)
