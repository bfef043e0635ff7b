"""Pages of docs/explanation/bugs: each reproduction shows a difference far beyond rounding, and
rounding once the page's diff is applied.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import transformers

from tests.places import ROOT
from tests.test_documented_commands import blocks

PAGES = {path.stem: path.read_text() for path in (ROOT / "docs/explanation/bugs").glob("*.md")}
MODELS = Path(transformers.__file__).parent / "models"
# of logits of about 1, which rounding in float32 moves by 1e-6
BUG = 5e-3
# Installed files stay as they are: a patched module's source runs in the module, in one process.
RUN = """
import contextlib, importlib, io, json, sys
sources, codes = json.load(sys.stdin)
for name, source in sources.items():
    module = importlib.import_module(name)
    exec(compile(source, module.__file__, "exec"), module.__dict__)
outputs = {}
for page, code in codes.items():
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(code, {})
    outputs[page] = output.getvalue()
print(json.dumps(outputs))
"""
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        not transformers.__version__.startswith("5.23."),
        reason="the pages are about transformers 5.23",
    ),
]


def patched(source, diff):
    """Return a source with each hunk of a diff applied; a hunk fits exactly once."""
    for hunk in re.split(r"^@@.*\n", diff, flags=re.M)[1:]:
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] != "+")
        after = "".join(line[1:] for line in lines if line[0] != "-")
        assert source.count(before) == 1, before
        source = source.replace(before, after)
    return source


def patched_modules(page):
    """Return the patched source of each module that the diffs of a page name."""
    sources = {}
    for diff in blocks(page, "diff"):
        families = re.search(r"models/(\S+)/modeling", diff)[1].strip("{}").split(",")
        for family in families:
            source = (MODELS / family / f"modeling_{family}.py").read_text()
            sources[f"transformers.models.{family}.modeling_{family}"] = patched(source, diff)
    return sources


def differences(output):
    """Return the last number of each line."""
    return [float(line.split()[-1]) for line in output.splitlines()]


def differences_of_all(sources):
    """Run every page's reproduction with some modules' sources replaced."""
    codes = {name: blocks(page, "python")[0] for name, page in PAGES.items()}
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps([sources, codes]),
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    outputs = json.loads(done.stdout.splitlines()[-1])
    return {name: differences(output) for name, output in outputs.items()}


@pytest.fixture(scope="module")
def as_installed():
    return differences_of_all({})


@pytest.fixture(scope="module")
def with_patches():
    sources = {}
    for page in PAGES.values():
        sources |= patched_modules(page)
    return differences_of_all(sources)


@pytest.mark.parametrize("name", PAGES)
def test_a_reproduction_prints_the_bug_that_its_page_shows(name, as_installed):
    shown = differences(blocks(PAGES[name], "text")[-1])
    assert as_installed[name] == pytest.approx(shown, rel=0.01)
    assert min(shown) > BUG


@pytest.mark.parametrize("name", PAGES)
def test_the_patch_of_a_page_leaves_rounding(name, as_installed, with_patches):
    assert max(with_patches[name]) < min(as_installed[name]) / 1000
