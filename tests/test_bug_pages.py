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
ENGINES = Path(os.environ.get("ULPSCOPE_ENGINES", ROOT / ".engines"))
MLX = next(ENGINES.glob("lib/python3.*/site-packages/mlx_lm"), None)
OF_ENGINES = {
    name for name, page in PAGES.items() if re.search("(import|from) (mlx|onnxruntime_genai)", page)
}
# of the packages that diffs are of; those of engines come last, so that torch and transformers are
# this environment's
PACKAGES = [Path(transformers.__file__).parents[1]]
# GenAI's model builder imports its modules from its own folder
PACKAGES += [MLX.parent, MLX.parent / "onnxruntime_genai" / "models"] if MLX else []
# of logits of about 1: an exact GELU for one by tanh moves them by 1e-3, rounding by 1e-6
BUG, ROUNDING = 5e-4, 1e-5
# Installed files stay as they are: a patched module's source runs in the module, in one process.
RUN = """
import contextlib, importlib, io, json, sys
packages, sources, codes = json.load(sys.stdin)
sys.path += packages
for name, source in sources.items():
    module = importlib.import_module(name)
    before = dict(module.__dict__)
    exec(compile(source, module.__file__, "exec"), module.__dict__)
    # other modules have imported the classes that were there before
    after = module.__dict__
    classes = {key for key, one in before.items() if isinstance(one, type) and after[key] != one}
    for other in list(sys.modules.values()):
        for key in classes & vars(other).keys():
            if vars(other)[key] is before[key]:
                setattr(other, key, after[key])
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
NOT_HERE = pytest.mark.skipif(MLX is None, reason="an engine is not installed: make engines")
each_page = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=NOT_HERE if name in OF_ENGINES else ()) for name in PAGES],
)


def here():
    """Return the pages whose packages are installed."""
    return {name: page for name, page in PAGES.items() if MLX or name not in OF_ENGINES}


def patched(source, diff):
    """Return a source with each hunk of a diff applied; a hunk fits exactly once."""
    for hunk in re.split(r"^@@.*\n", diff, flags=re.M)[1:]:
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] != "+")
        after = "".join(line[1:] for line in lines if line[0] != "-")
        assert source.count(before) == 1, before
        source = source.replace(before, after)
    return source


def patch_modules(page, sources):
    """Patch the source of each module that the diffs of a page name; another page may have."""
    for diff in blocks(page, "diff"):
        file = re.search(r"^--- a/(?:src/python/py/models/|src/|python/)?(\S+)", diff, flags=re.M)[
            1
        ]
        several = re.search(r"{(.*)}", file)
        for family in several[1].split(",") if several else [""]:
            of_family = re.sub(r"{.*}", family, file).replace("*", family)
            path = next(each for each in PACKAGES if (each / of_family).exists()) / of_family
            name = of_family.removesuffix(".py").replace("/", ".")
            sources[name] = patched(sources.get(name) or path.read_text(), diff)


def differences(output):
    """Return the last number of each line."""
    return [float(line.split()[-1]) for line in output.splitlines()]


def differences_of_all(sources):
    """Run every page's reproduction with some modules' sources replaced."""
    codes = {name: blocks(page, "python")[0] for name, page in here().items()}
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps([[str(package) for package in PACKAGES], sources, codes]),
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
    for page in here().values():
        patch_modules(page, sources)
    return differences_of_all(sources)


@each_page
def test_a_reproduction_prints_the_bug_that_its_page_shows(name, as_installed):
    shown = differences(blocks(PAGES[name], "text")[-1])
    assert as_installed[name] == pytest.approx(shown, rel=0.01)
    assert min(shown) > BUG


@each_page
def test_the_patch_of_a_page_leaves_rounding(name, as_installed, with_patches):
    assert max(with_patches[name]) < min(ROUNDING, min(as_installed[name]) / 100)
