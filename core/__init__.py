"""ULPscope's core: numerics, run files, captures and the command line. No user interface is
imported here.

`open`, `compare`, `judge`, `judge_op`, `close`, `compare_errors` and `log` are the functions of
Python; their modules load on first use.
"""

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .closeness.comparison import close as close
    from .closeness.comparison import compare_errors as compare_errors
    from .closeness.operation import judge_op as judge_op
    from .inference import judge as judge
    from .notebook import Run as Run
    from .notebook import compare as compare
    from .notebook import open as open
    from .trackers import log as log

__version__ = "1.0.0"
_PUBLIC = {
    "open": "notebook",
    "compare": "notebook",
    "Run": "notebook",
    "judge": "inference",
    "log": "trackers",
    "close": "closeness.comparison",
    "compare_errors": "closeness.comparison",
    "judge_op": "closeness.operation",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f".{_PUBLIC[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*_PUBLIC, "__version__"]


class OneCopy(MetaPathFinder, Loader):
    """Finder by which `alias.x` is the module `package.x`.

    The folder is called core, and app, pages and tests import it by that name; the wheel and its
    users say ulpscope. Without this a process that says both has every module twice, and an error
    of one copy is not caught as that of the other. In a clone `ulpscope` is `core`; in the wheel's
    dashboard `core` is `ulpscope`.
    """

    def __init__(self, alias: str, package: str) -> None:
        self._alias = alias
        self._package = package
        sys.meta_path.insert(0, self)
        sys.modules[alias] = import_module(package)

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        is_ours = name.startswith(f"{self._alias}.") and name != f"{self._alias}.__main__"
        return ModuleSpec(name, self) if is_ours else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(f"{self._package}{spec.name.removeprefix(self._alias)}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has given the module the alias's spec; relative imports need its own.
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state


if __name__ == "ulpscope":
    folder = Path(__file__).parent
    # an editable installation, whose clone need not be on the path
    if folder.name == "core":
        sys.path.append(str(folder.parent))
    # it may be another package of that name
    core = find_spec("core")
    if core is not None and core.origin and Path(core.origin).resolve() == Path(__file__).resolve():
        OneCopy("ulpscope", "core")
