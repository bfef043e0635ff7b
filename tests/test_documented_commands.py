"""README and docs: what they tell people to type parses and runs, and what they link to is
there.
"""

import contextlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from core.__main__ import app
from tests.core.conftest import environment
from tests.places import ROOT
from tests.shell import ran

INSTALLED = Path(sys.prefix) / "bin" / "ulpscope"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
# Pages that are not pasted: they need a server, root, a cluster, a bucket or other engines.
NOT_PASTED = ("api", "hosting", "object_storage", "engines")


def blocks(text, language):
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", text, re.M | re.S)


def commands(text):
    """Calls of ours in the fences of a page: bare, after a prompt, a variable or a key of YAML, or
    in `RUN=$()`.
    """
    lines = "\n".join(re.sub(r"\\\n\s*", "", block) for block in blocks(text, r"\S*")).splitlines()
    bare = [re.sub(r"^\s*(- )?([$>] |run: |\w+=\$\(|[A-Z_]+=\S+ )?", "", line) for line in lines]
    return [
        line for line in bare if re.match(r"(ulpscope|python3? -m (core|ulpscope)) [\w-]", line)
    ]


def parse(command):
    """Raise what the command line would: it knows no such command, option or value."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=";&|)>")
    lexer.whitespace_split = True
    words = list(lexer)
    words = words[
        : next((n for n, word in enumerate(words) if set(word) <= set(";&|)>")), len(words))
    ]
    rest = words[3:] if words[1] == "-m" else words[1:]
    made = app
    name = "ulpscope"
    context = None
    with contextlib.ExitStack() as contexts:
        while made is not None:
            context = contexts.enter_context(made.make_context(name, list(rest), parent=context))
            if not hasattr(made, "resolve_command"):
                return
            name, made, rest = made.resolve_command(
                context,
                [*context._protected_args, *context.args],
            )


DOCUMENTED = [
    pytest.param(command, id=f"{path.stem}: {command[:60]}")
    for path in PAGES
    for command in commands(path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("command", DOCUMENTED)
def test_a_documented_command_is_one_that_the_command_line_takes(command):
    parse(command)


@pytest.mark.parametrize(
    "command",
    [
        "ulpscope capture --modell m",
        "ulpscope captur",
        "$ ulpscope compare a.npz --fail-onn verdict | cat",
    ],
)
def test_a_wrong_command_is_found(command):
    (found,) = commands(f"```text\n{command}\n```\n")
    with pytest.raises(Exception, match=r"(?i)no such"):
        parse(found)


def without_code(page):
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def is_there(place, anchor):
    """Whether a file exists, with a heading of that anchor as GitHub and the site derive it."""
    headings = (
        re.findall(r"^#+ (.+)$", without_code(place), re.M) if anchor and place.exists() else []
    )
    anchors = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    return place.exists() and anchor in ["", *anchors]


@pytest.mark.parametrize(
    "page",
    [*PAGES, ROOT / "CHANGELOG.md"],
    ids=lambda path: path.stem,
)
def test_links_anchors_and_named_files_are_there(page):
    text = without_code(page)
    links = [
        link.partition("#")[::2]
        for link in re.findall(r"\]\(([^)\s]+)\)", text)
        if "://" not in link
    ]
    places = [((page.parent / name).resolve() if name else page, anchor) for name, anchor in links]
    assert [place for place in places if not is_there(*place)] == []
    if ROOT / "docs" in page.parents:  # which is all that the site has
        assert [place for place, _ in places if ROOT / "docs" not in place.parents] == []
    named = re.findall(
        r"`((?:core|app|pages|tests|benchmarks|deploy|docs|sample_runs)/[\w./-]*)`",
        text,
    )
    if page.stem != "CHANGELOG":  # whose files may be gone
        assert [
            name for name in named if not re.search("/x|NAME", name) and not (ROOT / name).exists()
        ] == []


def test_docs_that_the_code_names_are_there():
    patterns = ("core/**/*.py", "app/**/*.py", "pages/*.py", "deploy/*.*", "action.yml")
    texts = [
        path.read_text(encoding="utf-8") for pattern in patterns for path in ROOT.glob(pattern)
    ]
    named = [
        name
        for text in texts
        for name in re.findall(r"(?<!Ollama's )(docs/[\w/-]+\.md)#?([\w-]*)", text)
    ]
    assert len(named) > 50
    assert [name for name in named if not is_there(ROOT / name[0], name[1])] == []


def test_the_site_lists_every_page_but_decisions():
    listed = re.findall(r'"([\w/-]+\.md)"', (ROOT / "zensical.toml").read_text(encoding="utf-8"))
    pages = [
        path.relative_to(ROOT / "docs").as_posix()
        for path in PAGES
        if ROOT / "docs" in path.parents
    ]
    assert sorted(listed) == sorted(page for page in pages if "decisions/" not in page)


@pytest.fixture
def clone(tmp_path):
    """The top of a clone whose `.venv` is the Python of these tests."""
    top = tmp_path / "clone"
    (top / ".venv" / "bin").mkdir(parents=True)
    for name in (
        "core",
        "sample_runs",
        "benchmarks",
        "tests",
        "pyproject.toml",
        "Makefile",
        "requirements.txt",
    ):
        (top / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "ulpscope", top / "ulpscope")
    python = top / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    (top / ".venv" / ".compiled").touch()
    return top


def in_a_fresh_shell(text, where, store, **variables):
    variables = {
        "PATH": f"{where}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(where),
        **environment(store),
        **variables,
    }
    return subprocess.run(
        ["bash", "-c", text],
        cwd=where,
        env=variables,
        capture_output=True,
        text=True,
        timeout=1800,
    )


def test_the_launcher_runs_from_any_directory_and_passes_arguments_and_exit_codes(clone, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ulp").symlink_to(clone / "ulpscope")
    (tmp_path / "core.py").write_text("raise SystemExit('not ours')\n")  # of a person's own
    done = in_a_fresh_shell(
        "bin/ulp list --store clone/sample_runs; bin/ulp show 'no such  run'",
        tmp_path,
        tmp_path,
    )
    assert done.returncode == 2
    assert "fresh-against-cached" in done.stdout
    assert "'no such  run'" in done.stderr


@pytest.mark.skipif(not INSTALLED.exists(), reason="this environment has no clone installed")
def test_the_installed_command_takes_over_what_core_has_compiled(tmp_path):
    """numba keeps the name of the module that compiled: `core` for the dashboard, `ulpscope` for
    the command.
    """
    dump = ROOT / "sample_runs" / "dumps" / "fresh_and_cached_upcast.npz"
    for command in ([sys.executable, "-m", "core"], [INSTALLED]):
        where = ROOT if len(command) > 1 else tmp_path
        done = ran([*command, "compare", dump, "--json"], cwd=where)
        assert json.loads(done.stdout)["verdict"] == "likely rounding"


@pytest.mark.parametrize("made", [0, 1])
def test_the_launcher_installs_first_if_nothing_is_installed(clone, tmp_path, made):
    """make is a stand-in that prints how it was called."""
    (clone / ".venv" / ".compiled").unlink()
    (tmp_path / "make").write_text(f'#!/bin/sh\necho "make $*"\nexit {made}\n')
    (tmp_path / "make").chmod(0o755)
    done = in_a_fresh_shell(
        "./ulpscope list --json",
        clone,
        tmp_path,
        PATH=f"{tmp_path}:/usr/bin:/bin",
    )
    assert (done.returncode, done.stdout) == ((2, "") if made else (0, "[]\n"))
    assert done.stderr == f"make -C {clone} .venv/.compiled\n"


@pytest.mark.parametrize("installed", [True, False])
def test_the_launcher_runs_an_environment_that_pip_made_where_there_is_no_make(
    clone,
    tmp_path,
    installed,
):
    (clone / ".venv" / ".compiled").unlink()
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "readlink"):
        (tools / name).symlink_to(shutil.which(name))
    if not installed:
        (clone / ".venv" / "bin" / "python").unlink()
    done = in_a_fresh_shell("./ulpscope list --json", clone, tmp_path, PATH=str(tools))
    assert (done.returncode, done.stdout) == ((0, "[]\n") if installed else (2, ""))
    assert ("no make" in done.stderr) is not installed


PASTED = [
    page
    for page in PAGES
    if page.stem not in NOT_PASTED and blocks(page.read_text(encoding="utf-8"), "bash")
]


@pytest.mark.thorough
@pytest.mark.model
@pytest.mark.parametrize("page", PASTED, ids=lambda path: path.stem)
def test_a_page_works_as_pasted_block_by_block(page, clone, tmp_path):
    """Exit code 1 is an answer of a gate or a search; any other ends the block and fails."""
    for block in blocks(page.read_text(encoding="utf-8"), "bash"):
        text = "\n".join(line for line in block.splitlines() if not line.startswith("make"))
        strict = "set -u; trap 'code=$?; [ $code = 1 ] || exit $code' ERR"
        done = in_a_fresh_shell(
            f"{strict}\n{text}",
            clone,
            tmp_path,
            ULPSCOPE_SAMPLES=str(ROOT / "sample_runs"),
        )
        assert done.returncode in (0, 1), (text, done.stdout, done.stderr)
        assert not re.search(r"^error: |Traceback|^bash: ", done.stderr, re.M), (text, done.stderr)


@pytest.mark.model
@pytest.mark.parametrize("page", ["verdict", "upload", "test_suite"])
def test_documented_python_runs(page, tmp_path, monkeypatch):
    import torch

    from benchmarks.verdicts.tiny_models import tiny_model, tiny_prompts

    monkeypatch.chdir(tmp_path)
    loaded = tiny_model("llama")
    logits = np.zeros((3, 8), np.float32)
    known = {
        "np": np,
        "torch": torch,
        "model": loaded.model,
        "prompts": tiny_prompts(loaded),
        "ids": np.arange(3),
    }
    known |= {
        "path": ROOT / "tests/runs/fresh-against-cached.duckdb",
        "fresh_logits": logits,
        "cached_logits": logits,
        "alone": logits,
        "together": logits,
    }
    (path_of_page,) = (ROOT / "docs").rglob(f"{page}.md")
    for text in blocks(path_of_page.read_text(encoding="utf-8"), "python"):
        exec(text.replace("from ulpscope", "from core"), known)
