"""What README and docs tell people to type: it parses, it runs in a fresh shell, page by page, and the first example
shows what it is said to show; Python too.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer

from core.__main__ import app
from core.runs.reader import RunReader
from tests.core.conftest import cli, environment  # noqa: F401  (a fixture)

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
# Lines that the tests below leave out: they set up the environment that the tests run in.
NOT_RUN = ("make",)
# Pages whose blocks are not pasted here, and why.
NOT_PASTED = {
    "docs/api.md": "needs a server; tests/app/api/test_document.py runs every line of it against one",
    "docs/hosting.md": "sets up a server as root, with nginx and certbot; tests/deploy holds it against the code",
}
THOROUGH = (pytest.mark.thorough, pytest.mark.model)  # half a minute to some minutes a page
STRICT = "set -u; trap 'code=$?; [ $code = 1 ] || exit $code' ERR"
QUICKER = ("docs/gates.md",)  # no model is loaded


def blocks(text: str) -> list[str]:
    """The bash blocks of a page."""
    return re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S)


def commands(block: str) -> list[list[str]]:
    """Every call of ours in a block, as a shell splits it; what is assigned from one is `RUN=$(...)`."""
    found = []
    for line in block.replace("\\\n", " ").splitlines():
        bare = re.sub(r"^\w+=\$\((.*)\)", r"\1", line.strip())
        lexer = shlex.shlex(bare, posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        parts: list[list[str]] = [[]]
        for part in lexer:
            if part in (";", "&&", "|"):
                parts.append([])
            elif parts[-1] or not re.match(r"[A-Z_]+=", part):  # a variable for this command
                parts[-1].append(part)
        found += [part for part in parts if part[:1] == ["ulpscope"] or part[1:3] == ["-m", "core"]]
    return found


# Commands in other fences than bash stand beside what other machines are told. What needs none of it is run:
RUN_ELSEWHERE = ("docs/gates.md", "--dry-run")  # a page, or what a command has
# The others are parsed only, and why.
ONLY_PARSED = {
    "README.md": "asks a server; tests/core/probing has one",
    "docs/probe.md": "asks servers; tests/core/probing has them",
    "docs/engines.md": "takes what an SGLang server left",
    "docs/executors.md": "takes a cluster; tests/core/sweeps has small ones",
    "docs/object_storage.md": "takes a bucket; tests/core/runs/store has one",
    "docs/sweeps.md": "a whole sweep, which docs/sweeps.md runs in its bash blocks too",
    "docs/upload.md": "takes answers of a server; tests/core/commands/test_sparse_commands.py has them",
    "docs/reports/d-live-server.md": "asks llama.cpp and vLLM",
    "docs/reports/e-one-checkpoint-five-engines.md": "takes a model and the engines of `make engines`",
    "docs/reports/ops-two-cpus.md": "minutes on each of two processors",
}


def commands_elsewhere(text: str) -> list[list[str]]:
    """Calls of ours in fences that are not bash: bare, after a prompt or a key of YAML, or in `RUN=$()`."""
    found = []
    for language, block in re.findall(r"^ *```(\S*)\n(.*?)^ *```", text, re.M | re.S):
        if language == "bash":
            continue
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            bare = re.sub(r"^\s*(- )?([$>] |run: |\w+=\$\()?", "", line)
            if re.match(r"(ulpscope|python3? -m (core|ulpscope)) \S", bare):
                call = shlex.split(bare, comments=True)
                found.append([*call[:-1], call[-1].removesuffix(")")])
    return found


def parsed(command: list[str]) -> None:
    """Refuses what the command line would: a command of it or of a group, an option or a value that it does not
    know.
    """
    rest = command[3:] if "-m" in command[:3] else command[1:]
    made = typer.main.get_command(app)
    name: str | None = "ulpscope"
    with contextlib.ExitStack() as contexts:
        context = None
        while made is not None:
            context = contexts.enter_context(made.make_context(name, list(rest), parent=context))
            if not hasattr(made, "resolve_command"):
                return
            name, made, rest = made.resolve_command(context, [*context._protected_args, *context.args])


DOCUMENTED = [
    pytest.param(command, id=f"{path.relative_to(ROOT)}: {' '.join(command)[:60]}")
    for path in PAGES
    for block in blocks(path.read_text(encoding="utf-8"))
    for command in commands(block)
]


ELSEWHERE = [
    pytest.param(str(path.relative_to(ROOT)), command, id=f"{path.relative_to(ROOT)}: {' '.join(command)[:60]}")
    for path in PAGES
    for command in commands_elsewhere(path.read_text(encoding="utf-8"))
]


def is_run(page: str, command: list[str]) -> bool:
    return page in RUN_ELSEWHERE or not set(command).isdisjoint(RUN_ELSEWHERE)


@pytest.mark.parametrize(("page", "command"), ELSEWHERE)
def test_a_command_in_any_other_fence_is_one_that_the_command_line_takes(page, command):
    parsed(command)
    assert is_run(page, command) or ONLY_PARSED[page]


def test_pages_whose_commands_are_only_parsed_have_some():
    assert set(ONLY_PARSED) == {one.values[0] for one in ELSEWHERE if not is_run(*one.values)}
    assert sum(is_run(*one.values) for one in ELSEWHERE) == 3


@pytest.mark.parametrize(
    "fence",
    [
        "```text\n$ ulpscope probe http://h --promts p.txt\n```\n",
        "```\n> ulpscope captur --model m\n```\n",
        "1. so:\n   ```console\n   ulpscope compare a.npz \\\n     --fail-onn verdict\n   ```\n",
        "```yaml\n- run: python -m ulpscope trash delet one\n```\n",
        "```text\nRUN=$(ulpscope ingest before.json --nam x)\n```\n",
    ],
)
def test_a_wrong_command_in_another_fence_would_be_found(fence):
    (command,) = commands_elsewhere(fence)
    with pytest.raises(Exception, match=r"(?i)no such"):
        parsed(command)


def test_what_a_fence_says_about_our_command_is_no_call_of_it():
    assert commands_elsewhere("```\nulpscope        the command line\ncore/  ulpscope x\n```\nulpscope list\n") == []


@pytest.mark.parametrize("command", DOCUMENTED)
def test_every_documented_command_is_one_that_the_command_line_takes(command):
    parsed(command)


@pytest.mark.parametrize("command", ["ulpscope capture --modell m", "ulpscope captur", "ulpscope throughput m --batch"])
def test_a_documented_command_that_is_wrong_would_be_found(command):
    with pytest.raises(Exception, match=r"(?i)no such|requires an argument|missing"):
        parsed(shlex.split(command))


def test_blocks_are_read_as_a_shell_reads_them():
    block = (
        'A="x y"\nRUN=$(ulpscope capture --prompt "a; b" \\\n    --layers)   # why\nulpscope list; ulpscope show'
        ' "$RUN"  # it\'s\n'
    )
    assert commands(block) == [
        ["ulpscope", "capture", "--prompt", "a; b", "--layers"],
        ["ulpscope", "list"],
        ["ulpscope", "show", "$RUN"],
    ]
    assert len(DOCUMENTED) > 60


@pytest.mark.parametrize("path", [path for path in PAGES if "decisions" not in path.parts], ids=lambda path: path.name)
def test_no_documented_command_needs_an_environment_to_be_active(path):
    for block in blocks(path.read_text(encoding="utf-8")):
        assert not re.search(r"^\s*(python|python3 (?!-m venv)|pip|streamlit) ", block, re.M), block


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The top of a clone whose `.venv` is the Python of these tests."""
    top = tmp_path / "clone"
    (top / ".venv" / "bin").mkdir(parents=True)
    for name in ("core", "sample_runs", "benchmarks", "tests", "pyproject.toml", "Makefile", "requirements.txt"):
        (top / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "ulpscope", top / "ulpscope")
    python = top / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    (top / ".venv" / ".runtime").touch()
    return top


def in_a_fresh_shell(text: str, where: Path, store: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """As pasted into a terminal that was opened a moment ago, with the clone's launcher on its path."""
    variables = {"PATH": f"{where}:/usr/local/bin:/usr/bin:/bin", "HOME": str(where), **environment(store), **variables}
    return subprocess.run(["bash", "-c", text], cwd=where, env=variables, capture_output=True, text=True, timeout=1800)


def test_the_command_line_runs_in_a_fresh_shell_from_any_directory_and_by_a_link(clone, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ulp").symlink_to(clone / "ulpscope")
    (tmp_path / "core.py").write_text("raise SystemExit('not ours')\n")  # of a person's own
    done = in_a_fresh_shell("bin/ulp list --store clone/sample_runs --json", tmp_path, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "fresh-against-cached" in [run["run_id"] for run in json.loads(done.stdout)]


def test_the_exit_code_and_the_arguments_pass_as_they_are_and_help_says_how_it_was_called(clone, tmp_path):
    done = in_a_fresh_shell('ulpscope show "no such  run"; echo $?; ulpscope --help', clone, tmp_path)
    assert "'no such  run'" in done.stderr
    assert done.stdout.startswith("2\n")
    assert "Usage: ulpscope " in done.stdout


def test_what_it_says_to_type_next_works_in_that_shell_too(clone, tmp_path):
    """The way out of a verdict is a sentence of the run; a bare Python could not run it."""
    gate = "ulpscope compare sample_runs/dumps/fresh_and_cached_upcast.npz --fail-on verdict"
    layers = "ulpscope layers fresh-against-cached --store sample_runs"
    done = in_a_fresh_shell(f"{gate}; ulpscope compare --help; {layers}", clone, tmp_path)
    assert "`ulpscope verdict RUN --float32" in done.stdout
    assert "--layers: ulpscope judge --model smollm2" in " ".join(done.stderr.split())
    assert "ulpscope compare golden.npz today.npz" in done.stdout


def test_commands_in_other_fences_run_where_they_need_nothing_else(clone, tmp_path):
    """1 is an answer of a gate. CI gives its summary a file; a Python of CI is the one of these tests."""
    (clone / "prompts.txt").write_text("one prompt\n")
    calls = [one.values[1] for one in ELSEWHERE if is_run(*one.values)]
    text = "\n".join(shlex.join(["ulpscope", *(call[3:] if "-m" in call[:3] else call[1:])]) for call in calls)
    text = text.replace("'$GITHUB_STEP_SUMMARY'", '"$GITHUB_STEP_SUMMARY"')
    done = in_a_fresh_shell(f"{STRICT}\n{text}", clone, tmp_path, GITHUB_STEP_SUMMARY=str(tmp_path / "summary.md"))
    assert complaints(done.stderr) == [], text
    assert done.returncode in (0, 1), (text, done.stdout, done.stderr)
    assert (clone / "bounds.json").exists()
    assert (tmp_path / "summary.md").exists()


@pytest.mark.parametrize("made", [0, 1])
def test_where_nothing_is_installed_it_is_set_up_first_and_a_failure_ends_it(clone, tmp_path, made):
    """make is a stand-in that says how it was called; the real one would install for minutes."""
    (clone / ".venv" / ".runtime").unlink()
    (tmp_path / "make").write_text(f'#!/bin/sh\necho "make $*"\nexit {made}\n')
    (tmp_path / "make").chmod(0o755)
    done = in_a_fresh_shell("./ulpscope list --json", clone, tmp_path, PATH=f"{tmp_path}:/usr/bin:/bin")
    assert done.returncode == (2 if made else 0)
    assert done.stderr == f"make -C {clone} .venv/.runtime\n"  # stdout is the command's
    assert done.stdout == ("" if made else "[]\n")


def test_a_python_without_our_packages_names_the_way_that_works(tmp_path):
    """`-S` leaves installed packages out, as a system's own Python does."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", "core", "list"], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "has no typer" in done.stderr


@pytest.mark.model
def test_the_first_example_shows_argmax_flips(cli):  # noqa: F811
    """Near ties may fall another way on another processor, so there are many: 729 positions, of which 2 to 4 flipped
    wherever it was tried.
    """
    first = commands(blocks((ROOT / "README.md").read_text(encoding="utf-8"))[1])[0]
    assert first[:2] == ["ulpscope", "capture"]
    done = cli(*first[1:])
    assert done.returncode == 0, done.stderr
    with RunReader(Path(os.environ["ULPSCOPE_STORE"]) / f"{done.stdout.strip()}.duckdb") as run:
        assert run.header.rows == 729
        assert run.pairs[0].summary.flips >= 1
    assert "next: " in done.stderr


def pasted(page: str) -> list[str]:
    """The bash blocks of a page, without the lines that are not run here."""
    return [
        "\n".join(line for line in block.replace("\\\n", " ").splitlines() if not line.startswith(NOT_RUN))
        for block in blocks((ROOT / page).read_text(encoding="utf-8"))
    ]


def complaints(stderr: str) -> list[str]:
    """What a person would take for a failure."""
    signs = ("Traceback", "bash: ", "ERROR:", " failed")
    return [line for line in stderr.splitlines() if line.startswith("error: ") or any(sign in line for sign in signs)]


def pages_with_blocks() -> list[str]:
    found = [str(path.relative_to(ROOT)) for path in PAGES if blocks(path.read_text(encoding="utf-8"))]
    return [page for page in found if page not in NOT_PASTED]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=() if page in QUICKER else THOROUGH) for page in pages_with_blocks()]
)
def test_a_page_works_as_pasted_block_by_block(page, clone, tmp_path):
    """Each block in a shell of its own, as a reader would. 1 is an answer (a search that found no flip here, which is
    the processor's affair); any other exit code ends the block, and fails.
    """
    for text in pasted(page):
        done = in_a_fresh_shell(f"{STRICT}\n{text}", clone, tmp_path)
        assert complaints(done.stderr) == [], text
        assert done.returncode in (0, 1), (text, done.stdout, done.stderr)


def test_a_command_that_fails_would_be_found(clone, tmp_path):
    done = in_a_fresh_shell(f"{STRICT}\nulpscope show none\nulpscope list", clone, tmp_path)
    assert complaints(done.stderr) == [next(line for line in done.stderr.splitlines() if line.startswith("error: "))]
    assert done.returncode == 2


def test_pages_that_are_not_pasted_are_there_and_have_a_reason():
    assert all((ROOT / page).exists() and reason for page, reason in NOT_PASTED.items())
    assert {"README.md", "CONTRIBUTING.md", "docs/capture.md", "docs/upload.md"} <= set(pages_with_blocks())


def python_blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.model
@pytest.mark.parametrize("page", ["docs/verdict.md", "docs/upload.md", "docs/extend.md", "docs/gates.md"])
def test_documented_python_runs_as_it_stands(page, tmp_path, monkeypatch):
    """With what the text around it names: a model, prompts, two arrays, a run file."""
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
        "path": ROOT / "tests" / "runs" / "fresh-against-cached.duckdb",
        "fresh_logits": logits,
        "cached_logits": logits,
        "ids": np.arange(3),
    }
    found = python_blocks(page)
    assert found
    for text in found:
        exec(text.replace("from ulpscope.", "from core."), known)  # whether or not the clone is installed


def test_every_page_with_python_has_its_python_run():
    run = {"docs/verdict.md", "docs/upload.md", "docs/extend.md", "docs/gates.md", "CONTRIBUTING.md"}
    run.add("docs/engines.md")  # core/engines/test_process.py starts its adapter
    run.add("docs/install.md")  # its examples take an installed package: test_wheel.py has their like
    assert {str(path.relative_to(ROOT)) for path in PAGES if python_blocks(str(path.relative_to(ROOT)))} == run


def test_the_worked_example_of_contributing_is_a_modifier_that_puts_everything_back(monkeypatch):
    """The two functions and the entry as they stand there, in the module that they are written for."""
    import torch

    from core.errors import UsageError
    from core.inference.paths import modifiers
    from core.inference.paths.paths import parse_path

    (functions,) = python_blocks("CONTRIBUTING.md")
    (entry,) = re.findall(r'^    "deterministic": (Modifier\(.+\)),$', (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    known = dict(vars(modifiers))
    exec(functions, known)
    monkeypatch.setitem(modifiers.MODIFIERS, "deterministic", eval(entry, known))
    path = parse_path("decode+deterministic")
    assert str(path) == "decode+deterministic"
    with pytest.raises(UsageError, match="leave one of them out"):
        parse_path("prefill+deterministic+compile")

    def broken() -> None:
        with modifiers.MODIFIERS["deterministic"].change(None):
            assert torch.are_deterministic_algorithms_enabled()
            raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        broken()
    assert not torch.are_deterministic_algorithms_enabled()
