"""The house keeps its rules (DESIGN, section 3): who may import whom, and what a viewer never loads."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement

from tests.said import SAID

ROOT = Path(__file__).resolve().parents[1]
PAGES = tuple(sorted(path.stem for path in (ROOT / "pages").glob("*.py")))
MOST_MODULES = 20  # of a folder
# Tests wait for something by asking for it (tests/waiting.py). A pause of a given length is what these are about.
SLEEPS = {
    "tests/faults/test_server_kills.py": 1,  # the moment at which a server is killed
    "tests/waiting.py": 3,
    "tests/core/runs/test_crash.py": 1,  # the moment at which a writer is killed
    "tests/faults/nursery.py": 3,  # such a moment, and two planted faults that take their time
    "tests/faults/test_processes.py": 1,  # the moment at which an app is killed
    "tests/faults/test_uploads.py": 2,  # the moments at which a sender goes and a server is killed
}

# A room and the only rooms of ours that it may import from; the first that fits a module is its room. A room may always
# use itself.
_RUN_FILE = ("core.command_name", "core.numerics", "core.runs.file")
_RUNS = (*_RUN_FILE, "core.runs.tables", "core.runs.dumps", "core.runs.figures", "core.runs.reader")
_STORED = (*_RUNS, "core.configuration", "core.runs.views", "core.runs.store")
_CORE_FOR_PAGES = (
    "core.command_name",
    "core.capture_request",
    "core.configuration",
    "core.hosting",
    "core.numerics",
    "core.packaged_models",
    "core.runs",
    "core.judging",
    "core.probing",
    "core.sweeps",
)  # not inference: a viewer never loads torch
_SHARED = (*_CORE_FOR_PAGES, "app.page", "app.navigation", "app.shell", "app.components", "app.hosting")
# Each declares its page in its `__init__`, which every other page loads: it may import next to nothing.
DECLARING = (*sorted({*PAGES, "gallery"} - {"runs"}),)
_OTHER_PAGES = {  # of which a page shows a part too
    "flips": ("app.near_ties",),
    "ops": ("app.capture",),
    "probe": ("app.capture",),
    "sparse": ("app.overview",),
    "verdict": ("app.capture",),
}
# Of use everywhere: every other room may import them.
_EVERYWHERE = ("core.errors", "core.text", "core.disk", "core.subprocess_json")
ROOMS = {
    "core.errors": (),
    "core.text": (),
    "core.disk": (),
    "core.subprocess_json": (),
    "core.command_name": (),
    "core.request_fields": (),
    "core.capture_request": ("core.command_name", "core.request_fields"),
    "core.packaged_models": ("core.command_name",),
    "core.configuration": (),
    "core.hosting": ("core.command_name", "core.configuration"),
    "core.numerics": (),
    "core.runs.file": ("core.numerics",),
    "core.runs.tables": _RUN_FILE,
    "core.runs.dumps": _RUN_FILE,
    "core.runs.figures": (*_RUN_FILE, "core.runs.tables"),
    "core.runs.reader": (*_RUN_FILE, "core.runs.tables", "core.runs.figures"),
    "core.runs.views": (*_RUNS, "core.capture_request", "core.runs.sparse"),
    "core.runs.store": (*_RUNS, "core.command_name", "core.configuration", "core.packaged_models", "core.runs.views"),
    "core.runs.reports": (
        *_STORED,
        "core.__version__",
        "core.packaged_models",
        "core.runs.ops_run",
        "core.runs.sparse",
        "core.runs.sparse_run",
    ),
    "core.runs.sparse": ("core.numerics", "core.runs.file"),
    "core.runs.importing": (*_STORED, "core.runs.ops_run", "core.runs.sparse_run", "core.runs.writer"),
    "core.runs.sparse_run": (*_STORED, "core.runs.sparse"),
    "core.runs.ops_run": _STORED,
    "core.runs.revision": _STORED,
    "core.runs.background": (),
    "core.runs.recent_rows": (),
    "core.runs.writer": (*_STORED, "core.runs.background", "core.runs.recent_rows"),
    "core.runs": (),
    "core.judging.ladder": ("core.numerics", "core.runs.file.evidence", "core.runs.file.records"),
    "core.judging.sixteen_bits": ("core.numerics", "core.runs.file.evidence", "core.judging.ladder"),
    "core.judging": ("core.command_name", "core.numerics", "core.runs"),
    "core.engines": ("core.configuration", "core.subprocess_json"),
    "core.inference": (
        "core.engines",
        "core.numerics",
        "core.runs",
        "core.judging",
        "core.capture_request",
        "core.packaged_models",
        "core.prompt_files",
    ),
    "core.prompt_files": ("core.capture_request",),
    "core.sweeps": (
        "core.__version__",
        "core.capture_request",
        "core.command_name",
        "core.engines",
        "core.prompt_files",
        "core.runs",
    ),
    "core.push": (),
    "core.probing.request": ("core.command_name", "core.request_fields", "core.probing.plan"),
    "core.probing": ("core.command_name", "core.configuration", "core.numerics", "core.runs", "core.judging"),
    "core.pytest_plugin": ("core.judging", "core.runs", "core.inference"),
    "core.commands": (
        *_CORE_FOR_PAGES,
        "core.engines",
        "core.inference",
        "core.prompt_files",
        "core.push",
        "core.probing",
        "core.request_fields",
    ),
    "core": ("core",),
    "app.page": ("core.runs.reader",),
    **{
        f"app.{page}.__init__": ("app.page", "app.shell.wording", "core.numerics", "core.runs", "core.sweeps")
        for page in DECLARING
    },
    "app.navigation": ("app.page", "core.runs.reader", *(f"app.{page}.PAGE" for page in DECLARING)),
    "app.hosting": _CORE_FOR_PAGES,
    "app.shell": _SHARED,
    "app.components": _SHARED,
    "app.uploads": (*_SHARED, "app.api.responses"),
    "app.api.responses": ("app.hosting", *_CORE_FOR_PAGES),
    "app.api": (*_SHARED, "app.uploads", "app.gallery"),
    "app.main": (*_SHARED, "app.uploads", "app.routes"),
    "app.routes": ("app",),
    **{
        f"app.{page}": (*_SHARED, "app.uploads", *_OTHER_PAGES.get(page, ()))
        for page in (*PAGES, "gallery", "sparse", "verdict")
    },
    "app": _SHARED,
    "pages": (*_CORE_FOR_PAGES, "app"),
}
# A library and the only places that may import it.
LIBRARIES = {
    "argon2": ("core/hosting/passwords.py",),
    "itsdangerous": ("app/hosting/live_settings.py",),
    "duckdb": ("core/runs/file/database.py",),
    "pytest": ("core/pytest_plugin.py",),
    "torch": ("core/inference/", "core/engines/adapters/"),  # an adapter runs in the engine's own environment
    "transformers": ("core/inference/", "core/engines/adapters/"),
    "triton": ("core/inference/invariant/cuda/",),
    "streamlit": ("app/", "pages/"),
    "plotly": (
        "app/components/",
        *(f"app/{page}/charts.py" for page in PAGES),
        "app/sparse/charts.py",
        "app/verdict/charts.py",
    ),
    "httpx2": ("core/probing/", "core/push/", "app/hosting/"),
    "fsspec": ("core/runs/store/objects.py",),
    "ray": ("core/sweeps/ray_cluster.py", "core/sweeps/ray_executor.py"),
    "submitit": ("core/sweeps/slurm_executor.py",),
    "s3fs": (),  # fsspec finds it
}


def _is_in(name: str, room: str) -> bool:
    return name == room or name.startswith(f"{room}.")


def imports_of(path: str, source: str) -> list[tuple[int, str]]:
    """(line, full dotted name) of everything a module imports, inside functions too, relative or by name at run
    time.
    """
    package = PurePosixPath(path).parent.parts
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            start = ".".join([*base, *([node.module] if node.module else [])])
            found += [(node.lineno, start if alias.name == "*" else f"{start}.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                found.append((node.lineno, node.args[0].value))
    return found


def faults_of(path: str, source: str) -> list[str]:
    """What a module imports that it may not, one sentence each. path: from the root, with slashes."""
    module = path.removesuffix(".py").replace("/", ".")
    room = next(room for room in ROOMS if _is_in(module, room))
    everywhere = () if room in _EVERYWHERE else _EVERYWHERE
    faults = []
    for line, name in imports_of(path, source):
        top = name.split(".")[0]
        if top in LIBRARIES and not path.startswith(LIBRARIES[top]):
            faults.append(f"{path}:{line} imports {top}, which belongs in {' and '.join(LIBRARIES[top])} only")
        is_ours = top in ("core", "app", "pages")
        if is_ours and not any(_is_in(name, allowed) for allowed in (room, *ROOMS[room], *everywhere)):
            allowed = ", ".join(ROOMS[room]) or "nothing of ours"
            faults.append(f"{path}:{line} imports {name}; {room} may import from {allowed} only")
    return faults


def _modules() -> list[Path]:
    return sorted(path for room in ("core", "app", "pages") for path in (ROOT / room).rglob("*.py"))


def test_every_module_imports_only_what_its_room_may() -> None:
    modules = _modules()
    assert len(modules) > 15
    faults = []
    for path in modules:
        faults += faults_of(path.relative_to(ROOT).as_posix(), path.read_text())
    assert faults == []


@pytest.mark.parametrize(
    ("path", "planted"),
    [
        ("core/numerics/kernel.py", "from core.runs.store.store import Store"),
        ("core/numerics/kernel.py", "from ..runs import store"),
        ("core/numerics/kernel.py", "from .. import runs"),
        ("core/runs/file/table.py", "from core.runs.tables import kernels"),
        ("core/runs/figures.py", "from core.runs.reader import RunReader"),
        ("core/runs/tables/kernels.py", "from core.runs.views.kernels import side_by_side"),
        ("core/runs/dumps/dump.py", "from core.runs.reader import RunReader"),
        ("core/runs/reader.py", "from core.runs.writer import RunWriter"),
        ("core/runs/views/flips.py", "from core.runs.store.store import Store"),
        ("core/runs/store/cards.py", "from core.runs.reports import gate"),
        ("core/runs/writer.py", "from core.runs.importing import adopt"),
        ("core/runs/reader.py", "import duckdb"),
        ("core/runs/store/store.py", "import duckdb"),
        ("core/runs/reader.py", "import duckdb.typing as t"),
        ("core/runs/reader.py", "import fsspec"),
        ("core/runs/store/mirror.py", "from fsspec.spec import AbstractFileSystem"),
        ("core/runs/store/objects.py", "import s3fs"),
        ("core/sweeps/workers.py", "import ray"),
        ("core/runs/reader.py", "def f():\n    from core.inference import capture"),
        ("core/runs/reader.py", "from core import inference"),
        ("core/runs/reader.py", "from core import judging"),
        ("core/runs/reader.py", "from core.judging import ingest"),
        ("core/judging/judge_dump.py", "from core.inference.controls import rounding_floor"),
        ("core/runs/__init__.py", "from ..inference import paths"),
        ("core/runs/reader.py", "if TYPE_CHECKING:\n    import torch"),
        ("core/runs/reader.py", "import importlib\nimportlib.import_module('torch.nn')"),
        ("core/runs/reader.py", "__import__('streamlit')"),
        ("core/judging/ladder/verdict.py", "import torch"),
        ("core/judging/sixteen_bits.py", "import torch"),
        ("core/judging/ladder/verdict.py", "from core.runs.store.store import Store"),
        ("core/commands/capturing.py", "def capture():\n    import torch"),
        ("core/commands/capturing.py", "import core.__main__"),
        ("core/inference/paths/paths.py", "from core.commands.terminal import console"),
        ("core/__main__.py", "import torch"),
        ("core/__main__.py", "import duckdb"),
        ("core/pytest_plugin.py", "from core.commands import comparing"),
        ("core/errors.py", "import pytest"),
        ("core/__main__.py", "from app import components"),
        ("core/errors.py", "from core.runs.file.records import Prompt"),
        ("core/text.py", "from core.disk import locked"),
        ("core/inference/paths/paths.py", "import streamlit as st"),
        ("core/inference/invariant/mode.py", "import triton"),
        ("core/inference/paths/paths.py", "from pages import runs"),
        ("core/inference/paths/paths.py", "import core.__main__"),
        ("app/shell/selection.py", "import plotly.graph_objects as go"),
        ("app/shell/selection.py", "from transformers import AutoTokenizer"),
        ("app/shell/selection.py", "from core.inference.paths.paths import parse_path"),
        ("app/near_ties/charts.py", "from pages import flips"),
        ("app/shell/widgets.py", "from app.flips import parts"),
        ("app/components/plots.py", "import app.overview.findings"),
        ("app/layers/parts.py", "from app.kernels import parts"),
        ("app/layers/__init__.py", "from app.layers import parts"),
        ("app/layers/__init__.py", "from app.shell import store_cache"),
        ("app/layers/__init__.py", "from app.kernels import PAGE"),
        ("app/navigation.py", "from app.layers import parts"),
        ("app/page.py", "from app.navigation import PAGES"),
        ("app/layers/parts.py", "import plotly.graph_objects as go"),
        ("pages/flips.py", "from plotly import express"),
        ("pages/flips.py", "import torch"),
    ],
)
def test_a_planted_import_across_the_rooms_is_caught(path: str, planted: str) -> None:
    assert len(faults_of(path, planted)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("core/runs/file/database.py", "import duckdb"),
        (
            "core/runs/writer.py",
            "from core.numerics import pyramid\nfrom . import store\nfrom .store.store import Store",
        ),
        (
            "core/inference/deep/paths.py",
            "import torch\nfrom core.runs.file.records import Prompt\nfrom ...errors import X",
        ),
        ("core/__main__.py", "from core.commands import capturing"),
        ("core/commands/capturing.py", "def capture():\n    from core.inference import capture"),
        ("core/judging/ladder/verdict.py", "from core.runs.file.records import Prompt\nimport json"),
        (
            "app/near_ties/charts.py",
            "import plotly.graph_objects as go\nimport streamlit as st\nfrom core.numerics import pyramid",
        ),
        (
            "pages/flips.py",
            "import streamlit as st\nfrom app.overview import charts\nfrom core.runs.reader import RunReader",
        ),
        ("core/runs/reader.py", "import torchish\nfrom numpy import core"),
    ],
)
def test_what_a_room_may_import_is_not_called_a_fault(path: str, source: str) -> None:
    assert faults_of(path, source) == []


def names_of_the_clone(path: str, source: str) -> list[str]:
    """Where a module of core/ says what only a clone calls the package, one sentence each: installed it is `ulpscope`.

    Imports are relative, and strings take the command from core/command_name.py; docstrings may say what they like.
    """
    tree = ast.parse(source)
    faults = []
    documented = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            documented.add(node.body[0].value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            faults += [f"{path}:{node.lineno} imports {one.name}" for one in node.names if _is_ours(one.name)]
        elif isinstance(node, ast.ImportFrom) and not node.level and _is_ours(node.module or ""):
            faults.append(f"{path}:{node.lineno} imports {node.module}, not relative to itself")
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node not in documented
            and re.search(r"(?<![\w./])core(\.[a-z_]|$)|-m core", node.value)
        ):
            faults.append(f"{path}:{node.lineno} says {node.value!r}")
    return faults


def _is_ours(name: str) -> bool:
    return name.split(".")[0] in ("core", "ulpscope", "app", "pages")


def test_nothing_in_core_depends_on_the_name_that_a_clone_gives_it() -> None:
    faults = []
    for path in (ROOT / "core").rglob("*.py"):
        faults += names_of_the_clone(path.relative_to(ROOT).as_posix(), path.read_text())
    assert faults == []


@pytest.mark.parametrize(
    "planted",
    [
        "from core.errors import UlpscopeError",
        "import core.errors",
        "def f():\n    from core import runs",
        "from ulpscope.errors import UlpscopeError",
        "command = [sys.executable, '-m', 'core.judging.inspect']",
        "command = [sys.executable, '-m', 'core', 'list']",
        "says = f'`python -m core verdict {run_id}` decides it'",
        "log = logging.getLogger('core.runs')",
    ],
)
def test_a_planted_name_of_the_clone_is_found(planted: str) -> None:
    assert len(names_of_the_clone("core/runs/reader.py", planted)) == 1


@pytest.mark.parametrize(
    "sound", ['"""For example: ulpscope list"""', "from ..errors import UlpscopeError", "note = 'a core of the score.'"]
)
def test_what_is_right_under_both_names_is_not_called_a_fault(sound: str) -> None:
    assert names_of_the_clone("core/runs/reader.py", sound) == []


def circles_of(imports: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules each of which imports all others of its group, directly or through others (Tarjan's
    components).

    imports: by module, what it imports, type checking included.
    """
    found: list[list[str]] = []
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for other in sorted(imports.get(module, ())):
            if other not in order:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], order[other])
        if lowest[module] == order[module]:
            group = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(group) > 1:
                found.append(sorted(group))

    for module in sorted(imports):
        if module not in order:
            visit(module)
    return found


def _imports_of_all() -> dict[str, set[str]]:
    paths = {path.relative_to(ROOT).as_posix(): path.read_text() for path in _modules()}
    names = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in paths}

    def module_of(name: str) -> str:
        while name and name not in names:
            name = name.rpartition(".")[0]
        return name

    return {
        module: {module_of(name) for _, name in imports_of(path, paths[path])} - {"", module}
        for module, path in names.items()
    }


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles_of(_imports_of_all()) == []


def test_a_planted_circle_is_found() -> None:
    imports = _imports_of_all()
    imports["core.numerics.kernel"] |= {"core.numerics.divergence"}  # which imports the kernel
    (circle,) = circles_of(imports)
    assert {"core.numerics.kernel", "core.numerics.divergence"} <= set(circle)


def classes_of(path: str, source: str) -> list[tuple[str, str]]:
    """(name, path:line) of every class of a module, those inside of functions and classes too."""
    nodes = ast.walk(ast.parse(source))
    return [(node.name, f"{path}:{node.lineno}") for node in nodes if isinstance(node, ast.ClassDef)]


def namesakes(classes: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Names that more than one class bears, and where they stand."""
    places: dict[str, list[str]] = {}
    for name, place in classes:
        places.setdefault(name, []).append(place)
    return {name: where for name, where in places.items() if len(where) > 1}


def _classes_of_all() -> list[tuple[str, str]]:
    paths = {path.relative_to(ROOT).as_posix(): path.read_text() for path in _modules()}
    return [one for path, source in paths.items() for one in classes_of(path, source)]


def test_no_two_classes_bear_one_name() -> None:
    assert namesakes(_classes_of_all()) == {}


@pytest.mark.parametrize(
    "planted", ["class Store:\n    pass", "def f():\n    class Store: ...", "class Outer:\n    class Store: ..."]
)
def test_a_planted_namesake_is_found(planted: str) -> None:
    found = namesakes([*_classes_of_all(), *classes_of("core/numerics/kernel.py", planted)])
    assert [place.split(":")[0] for place in found["Store"]] == ["core/runs/store/store.py", "core/numerics/kernel.py"]


# A first line has a subject and a verb, or names the thing: one that begins like this makes the reader guess.
RIDDLES = ("What", "How", "Whether", "Which", "Why", "Where", "When", "As", "The same")


def riddles_of(path: str, source: str) -> list[str]:
    """Docstrings of a module that begin as a question does, `path:line: first line` each."""
    begins = re.compile(rf"({'|'.join(RIDDLES)})\b")
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None and begins.match(text):
                found.append(f"{path}:{node.body[0].lineno}: {text.splitlines()[0]}")
    return found


def test_a_docstring_begins_with_what_it_is_about() -> None:
    assert [one for path in _modules() for one in riddles_of(path.relative_to(ROOT).as_posix(), path.read_text())] == []


@pytest.mark.parametrize(
    "planted",
    [
        *(f'"""{word} a run keeps of its logits."""' for word in RIDDLES),
        'class Rows:\n    """What an engine sent."""',
        'def f():\n    """Whether rows\n    are full.\n    """',
        'class A:\n    async def f():\n        """\n        The same at each position."""',
    ],
)
def test_a_planted_riddle_is_found(planted: str) -> None:
    assert len(riddles_of("core/runs/reader.py", planted)) == 1


@pytest.mark.parametrize(
    "sound", ['"""Whatever is left."""', '"""Ask what a server can do."""', "x = 'What a run keeps'"]
)
def test_what_is_no_riddle_is_not_called_one(sound: str) -> None:
    assert riddles_of("core/runs/reader.py", sound) == []


def crowded(paths: list[str]) -> dict[str, int]:
    """Folders of more than MOST_MODULES modules, and how many they have; `__init__` and `__main__` are no modules to
    look for.
    """
    folders = Counter(path.rpartition("/")[0] for path in paths if not path.endswith(("/__init__.py", "/__main__.py")))
    return {folder: count for folder, count in folders.items() if count > MOST_MODULES}


def test_no_folder_holds_more_modules_than_one_looks_through() -> None:
    kept = [path for room in ("core", "app", "pages", "tests", "benchmarks") for path in (ROOT / room).rglob("*.py")]
    assert crowded([path.relative_to(ROOT).as_posix() for path in kept]) == {}


def test_a_crowded_folder_would_be_seen() -> None:
    assert crowded([f"core/x/{number}.py" for number in range(21)]) == {"core/x": 21}


def sleeps_of(source: str) -> int:
    """How many calls of a `sleep` a module of tests has, in the programs that it starts too."""
    return len(re.findall(r"\bsleep\(", source))


def test_tests_wait_for_what_happens_and_not_for_a_time() -> None:
    found = {path.relative_to(ROOT).as_posix(): sleeps_of(path.read_text()) for path in (ROOT / "tests").rglob("*.py")}
    del found["tests/test_house.py"]  # its planted ones
    assert {path: count for path, count in found.items() if count} == SLEEPS


@pytest.mark.parametrize(
    "planted", ["time.sleep(0.1)", "await asyncio.sleep(1)", "from time import sleep\nsleep(2)", "X = 'time.sleep(3)'"]
)
def test_a_planted_sleep_is_counted(planted: str) -> None:
    assert sleeps_of(planted) == 1


MOST_WORDS = 9  # of a text in an assert; a longer one is a sentence, and stands in sentences.toml
PROSE = {
    "tests/core/inference/controls/test_reordering.py": 1  # a pattern around what is left out
}


def prose_of(source: str) -> list[str]:
    """Texts of more than MOST_WORDS words that a module of tests asserts, patterns of `raises(match=)` included."""
    checked: list[ast.AST] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assert):
            checked.append(node.test)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "raises":
            checked += [keyword.value for keyword in node.keywords if keyword.arg == "match"]
    texts = [node.value for one in checked for node in ast.walk(one) if isinstance(node, ast.Constant)]
    words = re.compile(r"\S*[A-Za-z]\S*")
    return [text for text in texts if isinstance(text, str) and len(words.findall(text)) > MOST_WORDS]


def _tests() -> dict[str, str]:
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "tests").rglob("*.py")}


def test_tests_hold_sentences_in_the_file_of_them_and_not_in_asserts() -> None:
    found = {path: len(prose_of(source)) for path, source in _tests().items()}
    assert {path: count for path, count in found.items() if count} == PROSE


LONG = "a sentence of ten words or more that somebody typed again"


@pytest.mark.parametrize(
    "planted",
    [
        f"assert '{LONG}' in said(app)",
        f"def f():\n    assert rows[0].says == ('a sentence of ten words '\n'{LONG[24:]}')",
        f"assert says == f'{LONG}, {{name}}'",
        f"with pytest.raises(ValueError, match='{LONG}'):\n    f()",
    ],
)
def test_a_planted_sentence_in_an_assert_is_found(planted: str) -> None:
    assert len(prose_of(planted)) == 1


def test_a_sentence_of_the_file_a_reason_and_a_short_text_are_not_called_prose() -> None:
    assert prose_of(f"assert SAID['its-name'] in page\nassert page.count('one flip') == 2, '{LONG}'") == []


def sentences_used(source: str) -> set[str]:
    """Names of sentences.toml that a module of tests asks for."""
    return set(re.findall(r'\bSAID\["([a-z0-9-]+)"\]', source))


def test_every_sentence_of_the_file_is_held_by_a_test_and_every_one_held_is_there() -> None:
    tests = {path: source for path, source in _tests().items() if path not in ("tests/said.py", "tests/test_house.py")}
    used = set().union(*map(sentences_used, tests.values()))
    assert sorted(used ^ set(SAID)) == []


def test_a_sentence_that_no_test_holds_any_more_would_be_seen() -> None:
    assert sentences_used('assert SAID["a-b"] in x\nf(check=SAID["c-2"].raised)\n# SAID[name], SAY["d"]') == {
        "a-b",
        "c-2",
    }


def test_the_parts_of_a_page_bear_its_name() -> None:
    rooms = {path.name for path in (ROOT / "app").iterdir() if (path / "__init__.py").exists()}
    assert rooms - set(PAGES) == {"api", "components", "gallery", "hosting", "shell", "sparse", "uploads", "verdict"}
    views = {path.stem for path in (ROOT / "core" / "runs" / "views").glob("*.py")} - {"__init__"}
    assert views - set(PAGES) == {"continuations", "elements", "headline", "request", "sparse", "verdicts"}


def _loaded_by(statements: str, names: tuple[str, ...]) -> str:
    """Which of `names` a fresh interpreter has loaded after `statements`."""
    code = f"{statements}\nimport sys\nprint(*sorted(set({names!r}) & set(sys.modules)))"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


HEAVY = ("torch", "transformers", "streamlit", "plotly", "fsspec", "s3fs")


def test_reading_and_writing_runs_loads_neither_torch_nor_streamlit() -> None:
    rooms = [
        path
        for path in _modules()
        if path.relative_to(ROOT).as_posix().startswith(("core/numerics/", "core/runs/", "core/judging/"))
    ]
    names = [
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__") for path in rooms
    ]
    assert len(names) > 10
    assert _loaded_by("\n".join(f"import {name}" for name in names), HEAVY) == ""


def test_a_library_that_was_loaded_would_be_seen() -> None:
    assert _loaded_by("import plotly", HEAVY) == "plotly"


UNTIL_USED = (
    "torch",
    "transformers",
    "numba",
    "scipy",
    "pandas",
    "duckdb",
    "streamlit",
    "fsspec",
    "s3fs",
    "ray",
    "submitit",
)


def test_the_command_line_and_the_pytest_plugin_start_without_what_is_heavy() -> None:
    assert _loaded_by("import core.__main__, core.pytest_plugin", UNTIL_USED) == ""
    assert _loaded_by("import core, core.pytest_plugin", (*UNTIL_USED, "numpy", "pyarrow", "typer")) == ""


def test_a_heavy_library_that_was_loaded_would_be_seen() -> None:
    assert "pandas" in _loaded_by("import core.__main__, pandas", UNTIL_USED)


COMPUTING = ("torch", "transformers", "numba", "scipy")


def test_the_dashboard_starts_without_what_only_computing_and_tables_need() -> None:
    """Tables' pandas is loaded while the first browser loads the page's code."""
    assert _loaded_by("import app.main", (*COMPUTING, "pandas")) == ""


def test_what_the_pages_declare_is_read_without_what_draws_or_opens_a_run() -> None:
    """Every page reads all declarations: those of the others may cost it nothing."""
    drawing = tuple(
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        for path in (ROOT / "app").glob("*/*.py")
        if path.stem not in ("__init__", "wording")
    )
    heavy = (*COMPUTING, "pandas", "duckdb", "streamlit", "plotly")
    assert _loaded_by("import app.navigation", (*heavy, *drawing)) == ""


def test_a_compiler_that_was_loaded_would_be_seen() -> None:
    assert "numba" in _loaded_by("import core.numerics.kernel", COMPUTING)


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def not_admitted(declared: list[str], pinned: list[str]) -> list[str]:
    """What the package declares that requirements.txt does not pin, or pins in a version outside the range."""
    pins = {requirement.name: requirement.specifier for requirement in map(Requirement, pinned)}
    faults = []
    for requirement in map(Requirement, declared):
        versions = [pin.version for pin in pins.get(requirement.name, ())]
        if not versions or not all(requirement.specifier.contains(version) for version in versions):
            faults.append(str(requirement))
    return faults


def test_what_the_package_declares_admits_what_a_clone_pins() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    declared = [*PROJECT["project"]["dependencies"], *(line for lines in extras.values() for line in lines)]
    files = ("requirements.txt", "requirements-dev.txt", "requirements-thorough.txt")  # extras come with the tests
    lines = [line for file in files for line in (ROOT / file).read_text().splitlines() if not line.startswith("-r")]
    assert not_admitted(declared, [line.split("  #")[0] for line in lines if not line.startswith("#")]) == []


def test_a_planted_range_without_its_pin_is_found() -> None:
    assert not_admitted(["numpy>=3", "numba>=0.6", "attrs>=1"], ["numpy==2.4.6", "numba==0.68.1"]) == [
        "numpy>=3",
        "attrs>=1",
    ]


def packages_of(modules: list[str]) -> list[str]:
    """The packages of core/ under the name that they are installed under, from the paths of its modules."""
    folders = {PurePosixPath(path).parent.parts[1:] for path in modules}
    return sorted(".".join(("ulpscope", *folder)) for folder in folders)


def test_every_room_of_core_is_a_package_that_is_installed() -> None:
    modules = [path.relative_to(ROOT).as_posix() for path in (ROOT / "core").rglob("*.py")]
    assert sorted(PROJECT["tool"]["setuptools"]["packages"]) == packages_of(modules)


def test_a_new_room_would_be_missed_by_its_name() -> None:
    assert packages_of(["core/errors.py", "core/new/room.py"]) == ["ulpscope", "ulpscope.new"]
