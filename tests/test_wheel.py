"""The package as others install it: the wheel in a virtual environment of its own, used from a
folder that is no clone.

The environment gets its libraries without a network and in a second: folders of links to those
installed here, one with what the wheel's metadata asks for without extras (and pytest), one with
what each of two extras adds. A library that is used and not declared is missing there, as it would
be elsewhere.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from dataclasses import dataclass
from importlib.metadata import distribution, distributions
from pathlib import Path

import httpx2
import numpy as np
import pytest
from packaging.requirements import Requirement
from playwright.sync_api import expect, sync_playwright

import core
from tests.browser.driving import chromium
from tests.places import ROOT
from tests.serving import answers, free_port
from tests.waiting import until


@dataclass(frozen=True)
class Installed:
    """The wheel, the virtual environment it is installed in, and the parent of a folder of what
    each extra brings.
    """

    wheel: Path
    environment: Path
    extras: Path

    def start(self, folder, *command, extra=""):
        """A command of the environment's bin/, from `folder`, with what an extra brings or
        without.
        """
        program, *arguments = map(str, command)
        ours = ("ULPSCOPE_", "PYTEST_", "PYTHON", "OMP_")  # of the caller of these tests
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(ours)
        }
        environment |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"} | (
            {"PYTHONPATH": str(self.extras / extra)} if extra else {}
        )
        words = [self.environment / "bin" / program, *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            words,
            cwd=folder,
            env=environment,
            stdout=pipe,
            stderr=pipe,
            text=True,
        )

    def run(self, folder, *command, extra=""):
        process = self.start(folder, *command, extra=extra)
        printed, errors = process.communicate()
        return subprocess.CompletedProcess(command, process.returncode, printed, errors)


def closure(asked, extra=""):
    """What is installed here of the requirements `asked`, and all that those require themselves, by
    name.
    """
    found = {}
    waiting = [(Requirement(line), extra) for line in asked]
    while waiting:
        requirement, extra_of_it = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate(
            {"extra": extra_of_it},
        ):
            continue
        name = re.sub("[-_.]+", "-", requirement.name).lower()
        there = distribution(name)
        assert requirement.specifier.contains(there.version, prereleases=True), (
            f"{requirement} admits no {there.version}"
        )
        if name not in found:
            found[name] = there
            waiting += [
                (Requirement(line), one)
                for line in there.requires or ()
                for one in requirement.extras or ("",)
            ]
    return found


def link(distributions, folder):
    """Links in `folder` to all files of these distributions."""
    folder.mkdir(parents=True)
    for one in distributions:
        # scripts lie in ../../../bin
        for name in {Path(file).parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            place = Path(str(one.locate_file(name)))
            if place.exists() and not (folder / name).exists():
                (folder / name).symlink_to(place)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # a build leaves folders behind
    for name in ("core", "app", "pages", ".streamlit", "docs/reference"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [
        "wheel",
        source,
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--wheel-dir",
        folder,
    ]
    subprocess.run([*pip, *build], check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    environment = folder / "environment"
    venv.create(environment, symlinks=True)
    python = ["--python", environment / "bin" / "python"]
    install = ["install", wheel, "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*pip, *python, *install], check=True, capture_output=True)
    (ours,) = distributions(path=[str(wheel)])
    asked = ours.requires or []
    bare = closure([*asked, "pytest"])
    link(bare.values(), folder / "bare")
    # Streamlit takes itself for its own clone in a folder of another name
    extras = folder / "site-packages"
    for extra in ("capture", "hosting"):
        link(
            (one for name, one in closure(asked, extra).items() if name not in bare),
            extras / extra,
        )
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(f"{folder / 'bare'}\n")
    return Installed(wheel, environment, extras)


@pytest.fixture
def dumps(tmp_path):
    """A folder with two dumps of one side each, of which the second has a different argmax at
    position 2.
    """
    golden = np.random.default_rng(1).standard_normal((4, 40)).astype(np.float32)
    today = golden.copy()
    today[2, (golden[2].argmax() + 1) % 40] = golden[2].max() + 1
    np.savez(tmp_path / "golden.npz", golden=golden)
    np.savez(tmp_path / "today.npz", today=today)
    return tmp_path


def test_the_wheel_holds_every_file_of_core_and_the_dashboard_the_licence_and_the_readme(installed):
    def files(folder, pattern="*"):
        return {
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / folder).rglob(pattern)
            if path.is_file()
        }

    dashboard = (
        files("app") | files("pages") | files("docs/reference", "*.md") | files(".streamlit")
    )
    kept = {name.removeprefix("core/") for name in files("core")} | {
        f"dashboard/{name}" for name in dashboard
    }
    with zipfile.ZipFile(installed.wheel) as archive:
        names = [
            name
            for name in archive.namelist()
            if not name.startswith(f"ulpscope-{core.__version__}.dist-info/")
        ]
        assert f"ulpscope-{core.__version__}.dist-info/licenses/LICENSE" in archive.namelist()
    assert set(names) == {f"ulpscope/{name}" for name in kept if "__pycache__" not in name}
    (about,) = (each.metadata for each in distributions(path=[str(installed.wheel)]))
    assert (about["Name"], about["Version"], about["License-Expression"]) == (
        "ulpscope",
        core.__version__,
        "Apache-2.0 AND MIT",  # Plotly's
    )
    assert about.get_payload().startswith("# ULPscope")


@pytest.mark.thorough
def test_without_extras_the_command_compares_stores_reads_and_exports(installed, dumps):
    def ulpscope(*arguments, code=0):
        done = installed.run(dumps, "ulpscope", *arguments)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    assert installed.run(dumps, "python", "-c", "import torch").returncode == 1
    assert (
        "gate failed: flips"
        in ulpscope("compare", "golden.npz", "today.npz", "--fail-on", "flips", code=1).stderr
    )
    run_id = json.loads(ulpscope("ingest", "golden.npz", "today.npz", "--json").stdout)["run_id"]
    listed = json.loads(ulpscope("list", "--json").stdout)
    assert [run["run_id"] for run in listed] == [run_id]  # and no sample runs, which a clone has
    ulpscope("export", run_id, "back.npz")
    with np.load(dumps / "back.npz") as back, np.load(dumps / "golden.npz") as golden:
        assert back["golden"].tobytes() == golden["golden"].tobytes()
    assert (
        json.loads(ulpscope("inspect", dumps / "runs" / f"{run_id}.duckdb", "--json").stdout)[
            "kind"
        ]
        == "run"
    )
    capture = ["capture", "--model", "m", "--prompt", "x", "--variant", "decode"]
    assert "pip install '.[capture]'" in " ".join(ulpscope(*capture, code=2).stderr.split())


@pytest.mark.thorough
def test_with_the_extra_hosting_it_serves_pages_and_takes_an_upload(installed, dumps):
    def ulpscope(*arguments):
        return installed.run(dumps, "ulpscope", *arguments, extra="hosting").stdout

    assert "ulpscope[hosting]" in " ".join(installed.run(dumps, "ulpscope", "serve").stderr.split())
    first = json.loads(ulpscope("ingest", "golden.npz", "today.npz", "--json"))["run_id"]
    url = f"http://127.0.0.1:{(port := free_port())}"
    server = installed.start(dumps, "ulpscope", "serve", "--port", port, extra="hosting")
    try:
        until(lambda: server.poll() is not None or answers(url))
        assert server.poll() is None, server.communicate()
        ulpscope("export", first, "both.npz")
        second = ulpscope("push", "both.npz", "--to", url).rpartition("run=")[2].strip()
        assert {run["run_id"] for run in httpx2.get(f"{url}/api/runs").json()["runs"]} == {
            first,
            second,
        }
        with sync_playwright() as playwright:
            page = playwright.chromium.launch(
                executable_path=chromium(),
                args=["--no-sandbox"],
            ).new_page()
            for name in ("overview", "flips", "heatmap", "new_run?tab=capture"):
                page.goto(f"{url}/{name}{'&' if '?' in name else '?'}run={second}")
                expect(page.get_by_role("heading", level=1)).to_be_visible(timeout=120_000)
                expect(page.locator("[data-test-script-state=notRunning]")).to_be_visible(
                    timeout=120_000,
                )
                assert page.get_by_test_id("stException").count() == 0
            expect(page.get_by_role("combobox", name="Model")).to_have_value("smollm2")
    finally:
        server.terminate()
        server.communicate()


MODEL = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
MODEL = LlamaForCausalLM(LlamaConfig(**SHAPE)).eval()
PROMPTS = [range(1, 13)]

def sound(model, ids):
    return model(input_ids=ids[None]).logits[0]

def broken(model, ids):
    logits = sound(model, ids).clone()
    logits[7] += torch.arange(64) / 64
    return logits
"""


def of_pytest(installed, folder, tests, *, extra=""):
    """What pytest prints about `tests`, and how each of them came out.

    The plugin is found by its entry point.
    """
    (folder / "test_mine.py").write_text(tests)
    done = installed.run(
        folder,
        "python",
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-rA",
        "test_mine.py",
        extra=extra,
    )
    outcomes = re.findall(r"^(PASSED|FAILED|ERROR) test_mine\.py::(\w+)", done.stdout, re.MULTILINE)
    return done.stdout, {name: outcome for outcome, name in outcomes}


JUDGING = f"""{MODEL}
from ulpscope.inference import judge as judge_pair

def test_imported():
    assert judge_pair(MODEL, PROMPTS, variant=broken).is_bug_suspected

def test_sound(judge):
    assert judge(MODEL, PROMPTS, variant=sound).check().name == "identical"

def test_checked(judge):
    judge(MODEL, PROMPTS, variant=broken).check()

def test_plain(judge):
    assert judge(MODEL, PROMPTS, variant=broken).name == "rounding"
"""


@pytest.mark.thorough
@pytest.mark.model
def test_a_test_that_judges_passes_or_fails_with_the_evidence(installed, tmp_path):
    printed, outcomes = of_pytest(installed, tmp_path, JUDGING, extra="capture")
    wanted = {
        "test_imported": "PASSED",
        "test_sound": "PASSED",
        "test_checked": "FAILED",
        "test_plain": "FAILED",
    }
    assert outcomes == wanted, printed
    _, checked, plain = re.split(r"^_+ test_\w+ _+$", printed, flags=re.MULTILINE)
    assert re.search(r"^E +float32 +failed ", checked, re.MULTILINE)  # the message of `check`
    assert re.search(r"^ +float32 +failed ", plain, re.MULTILINE)  # a section below the traceback
    assert "- evidence -" not in checked


COMPARING = """
def test_same(compare):
    compare("golden.npz", "golden.npz", fail_on="bits").check()

def test_checked(compare):
    compare("golden.npz", "today.npz", fail_on="flips,kl>1").check()

def test_plain(compare):
    assert compare("golden.npz", "today.npz", fail_on="flips").outcome == "passed"

def test_judged(judge):
    pass
"""


@pytest.mark.thorough
def test_without_extras_a_test_compares_dumps_and_fails_with_the_worst_position(installed, dumps):
    printed, outcomes = of_pytest(installed, dumps, COMPARING)
    wanted = {
        "test_same": "PASSED",
        "test_checked": "FAILED",
        "test_plain": "FAILED",
        "test_judged": "ERROR",
    }
    assert outcomes == wanted, printed
    assert re.search(r"^E +failed: flips: .* Worst: position 2", printed, re.MULTILINE)
    assert re.search(r"^failed: flips: .* Worst: position 2", printed, re.MULTILINE)
    assert "ulpscope[capture]" in printed
