"""Pages of docs/explanation/bugs: their reproduction shows a difference far beyond rounding, and
none with the page's diff.
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
# Float32 rounding of logits near 1 is 1e-6; the smallest bug moves them by 0.01.
ROUNDING, BUG = 1e-5, 5e-3
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
pytestmark = pytest.mark.skipif(
    not transformers.__version__.startswith("5.23."),
    reason="the pages are of transformers 5.23",
)


def patched(source, diff):
    """Return a source with each hunk of a diff applied; a hunk fits exactly once."""
    for hunk in re.split(r"^@@.*\n", diff, flags=re.M)[1:]:
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] != "+")
        after = "".join(line[1:] for line in lines if line[0] != "-")
        assert source.count(before) == 1, before
        source = source.replace(before, after)
    return source


def patched_sources(page):
    """The patched modules of a page: each family's, if the page names several."""
    sources = {}
    for diff in blocks(page, "diff"):
        for family in re.search(r"models/(\S+)/modeling", diff)[1].strip("{}").split(","):
            path = MODELS / family / f"modeling_{family}.py"
            name = f"transformers.models.{family}.modeling_{family}"
            sources[name] = patched(path.read_text(), diff)
    return sources


def outputs(sources):
    """What each page's reproduction prints in one process, with some modules replaced."""
    codes = {name: blocks(page, "python")[0] for name, page in PAGES.items()}
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps([sources, codes]),
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def differences(output):
    """The last number of each line."""
    return [float(line.split()[-1]) for line in output.splitlines()]


@pytest.fixture(scope="module")
def now():
    return outputs({})


@pytest.fixture(scope="module")
def after_the_patches():
    sources = {}
    for page in PAGES.values():
        sources |= patched_sources(page)
    return outputs(sources)


@pytest.mark.parametrize("name", PAGES)
def test_a_reproduction_shows_its_bug(name, now):
    assert min(differences(now[name])) > BUG


@pytest.mark.parametrize("name", PAGES)
def test_the_patch_of_a_page_leaves_rounding(name, after_the_patches):
    assert max(differences(after_the_patches[name])) < ROUNDING


@pytest.mark.parametrize("name", PAGES)
def test_a_page_prints_what_its_reproduction_prints(name, now):
    printed = blocks(PAGES[name], "text")[-1]
    assert differences(printed) == pytest.approx(differences(now[name]), rel=0.01)
