"""Write the tables of the reference that the code declares: `python -m docs.reference.generate`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = ("| " + " | ".join(cells) + " |" for cells in (heads, *rows))
    first, *rest = (line.replace("|  |", "| |") for line in lines)
    return "\n".join([first, "|---" * len(heads) + "|", *rest])


def commands(_: str) -> str:
    from core.__main__ import app, load

    def job(text: str) -> str:
        """Return the first clause of a command's help, and links to the pages that it names."""
        first = re.split(r"[.?:] ", text.replace("\n", " "))[0].rstrip(".")
        pages = dict.fromkeys(re.findall(r"docs/((?:guides|explanation)/(\w+)\.md)", text))
        return " ".join(
            [
                re.sub(r" \(docs/\S+\)", "", first),
                *(f"[{name}](../{path})" for path, name in pages),
            ],
        )

    every = [app.get_command(None, name) for name in sorted(app.commands)]
    shown = [command for command in every if not command.hidden]
    return table(
        ("command", "job"),
        ((f"`{command.name}`", job(load(command.name).help)) for command in shown),
    )


def tables_of_a_run(_: str) -> str:
    from core.runs.tables.schema import TABLES

    return table(
        ("table", "content"),
        ((f"`{name}`", one.help.partition(";")[0]) for name, one in TABLES.items()),
    )


def steps(heads: tuple[str, ...], registry: Mapping[str, Iterable[Any]], text: str) -> str:
    """Return the table of a registry of path steps.

    The page has the words on each; KeyError if it has none.
    """
    old = text[text.index(f"\n| {' | '.join(heads)} |") :].partition("\n\n")[0]
    words = {
        name: rest.split(" | ")
        for name, rest in re.findall(r"^\| `(\w+)[^`]*` \| (.*) \|$", old, re.M)
    }
    written = {
        name: ":".join([name, *(each.syntax for each in arguments)])
        for name, arguments in registry.items()
    }
    return table(
        heads,
        ((f"`{written[name]}`".replace("|", "\\|"), *words[name]) for name in registry),
    )


def bases(text: str) -> str:
    from core.inference.paths.grammar import BASE_ARGUMENTS

    return steps(("base", "what is computed", "in an engine", "refused"), BASE_ARGUMENTS, text)


def modifiers(text: str) -> str:
    from core.inference.paths.grammar import MODIFIER_ARGUMENTS

    return steps(("modifier", "what changes", "in an engine", "refused"), MODIFIER_ARGUMENTS, text)


def routes(_: str) -> str:
    from app.routes import ROUTES

    listed = [
        (min(one.methods - {"HEAD"}), one.path, one.endpoint.__doc__)
        for one in ROUTES
        if "/api/" in one.path
    ]
    return table(
        ("request", "what it does"),
        ((f"`{m} {path}`", " ".join(doc.partition("\n\n")[0].split())) for m, path, doc in listed),
    )


def metrics(_: str) -> str:
    from core.numerics.metrics import METRICS

    return table(
        ("name", "unit", "definition"),
        ((f"`{one.name}`", one.unit, one.help) for one in METRICS),
    )


def totals(_: str) -> str:
    from core.numerics.metrics import Summary

    rows = (
        (f"`{one.name}`", one.metadata["unit"], one.metadata["help"]) for one in fields(Summary)
    )
    return table(("name", "unit", "definition"), rows)


def checks(_: str) -> str:
    """Return the figures of every check, and each label once, if it says more than the name."""
    from core.checks import CHECKS
    from core.evidence import labels_of

    def words(text: str) -> set[str]:
        return set(re.findall("[a-z0-9]+", text.lower())) - {"of", "the"}

    rows, labeled = [], set()
    for record in dict.fromkeys(check.record for check in CHECKS.values()):
        figures = labels_of(record).items()
        told = labeled | {(key, label) for key, label in figures if words(label) <= words(key)}
        names = [
            f"`{key}`" if (key, label) in told else f"`{key}`: {label}" for key, label in figures
        ]
        same = [f"`{check.group}`: {check}" for check in CHECKS.values() if check.record is record]
        rows.append(("; ".join(same), "; ".join(names)))
        labeled |= figures
    return table(("group: check", "figures"), rows)


PAGES: dict[str, tuple[Callable[[str], str], ...]] = {
    "api": (routes,),
    "checks": (checks,),
    "cli": (commands,),
    "metrics": (metrics, totals),
    "paths": (bases, modifiers),
    "run_file": (tables_of_a_run,),
}


def generated(page: str, text: str) -> str:
    """Return the text of a page with its first tables as the code declares them."""
    end = 0
    for new in (make(text) for make in PAGES[page]):
        start = text.index("\n" + new.partition("\n")[0], end) + 1
        text = text[:start] + new + text[text.index("\n\n", start) :]
        end = start + len(new)
    return text


if __name__ == "__main__":
    for page in PAGES:
        path = FOLDER / f"{page}.md"
        path.write_text(generated(page, path.read_text(encoding="utf-8")), encoding="utf-8")
        sys.stdout.write(f"{path.name}\n")
