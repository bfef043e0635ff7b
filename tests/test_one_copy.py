"""`ulpscope` and `core` are one package: a process never has two copies of a module."""

import subprocess
import sys
import sysconfig

import pytest

from tests.places import ROOT

SAME = """
import sys
from pathlib import Path
{imports}
import core.errors, core.runs.store.store, ulpscope.errors
from ulpscope.runs.store.store import Store
assert ulpscope is core
assert ulpscope.errors.StoreError is core.errors.StoreError
assert Store is core.runs.store.store.Store
modules = {{id(one): one for one in sys.modules.values()}}.values()
names = [getattr(module, "__file__", None) for module in modules]
files = [Path(name).resolve() for name in names if name]
ours = [file for file in files if Path({root!r}, "core") in file.parents]
assert len(ours) == len(set(ours)) > 9
"""


@pytest.fixture
def installed(tmp_path):
    """A folder in which the clone's package is called `ulpscope`, as an editable installation has
    it.
    """
    (tmp_path / "ulpscope").symlink_to(ROOT / "core")
    return tmp_path


def run(installed, *arguments, has_clone=True):
    paths = f"{installed}:{ROOT if has_clone else sysconfig.get_path('purelib')}"
    # -S: no .pth file names the clone
    command = [sys.executable, "-P", *([] if has_clone else ["-S"]), *arguments]
    done = subprocess.run(
        command,
        env={"PYTHONPATH": paths, "PATH": ""},
        cwd=installed,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "imports",
    ["import ulpscope, core", "import core, ulpscope"],
)
def test_a_clone_has_one_copy_of_every_module_under_both_names(imports, installed):
    run(installed, "-c", SAME.format(imports=imports, root=str(ROOT)))


def test_the_dashboard_of_the_wheel_has_one_copy_as_well(installed):
    imports = "import ulpscope; ulpscope.OneCopy('core', 'ulpscope'); import core"
    run(installed, "-c", SAME.format(imports=imports, root=str(ROOT)), has_clone=False)


def test_the_module_runs_by_either_name(installed):
    assert run(installed, "-m", "ulpscope", "--help") == run(installed, "-m", "core", "--help")


def test_a_package_called_core_of_somebody_else_is_left_alone(installed):
    (installed / "core").mkdir()
    (installed / "core" / "__init__.py").write_text("theirs = 1")
    code = "import ulpscope.errors, core; print(ulpscope.errors.__name__, core.theirs)"
    assert run(installed, "-c", code) == "ulpscope.errors 1\n"
