"""Write the tables of the reference that the code declares: `python -m docs.reference.generate`."""

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
    # an empty cell has one blank
    first, *rest = (line.replace("|  |", "| |") for line in lines)
    return "\n".join([first, "|---" * len(heads) + "|", *rest])


def commands(_: str) -> str:
    from core.__main__ import app, load

    def job(text: str) -> str:
        """Return the first clause of a command's help, and links to the pages that it names."""
        flat = text.replace("\n", " ")
        first = re.split(r"[.?:] ", flat)[0].rstrip(".")
        words = [re.sub(r" \(docs/\S+\)", "", first)]
        # a page that is named twice has one link
        links = re.findall(r"docs/((?:guides|explanation)/(\w+)\.md)", text)
        pages = dict.fromkeys(links)
        words += [f"[{name}](../{path})" for path, name in pages]
        return " ".join(words)

    rows = []
    for name in sorted(app.commands):
        if not app.get_command(None, name).hidden:
            rows.append((f"`{name}`", job(load(name).help)))
    return table(("command", "job"), rows)


def tables_of_a_run(_: str) -> str:
    from core.runs.tables.schema import TABLES

    rows = []
    for name, one in TABLES.items():
        # what follows a semicolon is for whoever reads the table itself
        rows.append((f"`{name}`", one.help.partition(";")[0]))
    return table(("table", "content"), rows)


def steps(heads: tuple[str, ...], registry: Mapping[str, Iterable[Any]], text: str) -> str:
    """Return the table of a registry of path steps.

    The page has the words on each; KeyError if it has none.
    """
    start = text.index(f"\n| {' | '.join(heads)} |")
    old = text[start:].partition("\n\n")[0]
    lines = re.findall(r"^\| `(\w+)[^`]*` \| (.*) \|$", old, re.M)
    words = dict(lines)
    rows = []
    for name, arguments in registry.items():
        parts = [each.syntax for each in arguments]
        written = ":".join([name, *parts])
        # a bar would end the cell
        step = written.replace("|", "\\|")
        rows.append((f"`{step}`", *words[name].split(" | ")))
    return table(heads, rows)


def bases(text: str) -> str:
    from core.inference.paths.grammar import BASE_ARGUMENTS

    return steps(
        ("base", "what is computed", "in an engine", "refused"),
        BASE_ARGUMENTS,
        text,
    )


def modifiers(text: str) -> str:
    from core.inference.paths.grammar import MODIFIER_ARGUMENTS

    return steps(
        ("modifier", "what changes", "in an engine", "refused"),
        MODIFIER_ARGUMENTS,
        text,
    )


def routes(_: str) -> str:
    from app.routes import ROUTES

    rows = []
    for one in ROUTES:
        if "/api/" in one.path:
            # GET also answers HEAD
            method = min(one.methods - {"HEAD"})
            first = one.endpoint.__doc__.partition("\n\n")[0]
            rows.append((f"`{method} {one.path}`", " ".join(first.split())))
    return table(("request", "what it does"), rows)


def metrics(_: str) -> str:
    from core.numerics.metrics import METRICS

    rows = []
    for one in METRICS:
        rows.append((f"`{one.name}`", one.unit, one.help))
    return table(("name", "unit", "definition"), rows)


def totals(_: str) -> str:
    from core.numerics.metrics import Summary

    rows = []
    for one in fields(Summary):
        about = one.metadata
        rows.append((f"`{one.name}`", about["unit"], about["help"]))
    return table(("name", "unit", "definition"), rows)


def checks(_: str) -> str:
    """Return the figures of every check, and each label once, if it says more than the name."""
    from core.checks import CHECKS
    from core.evidence import labels_of

    def words(text: str) -> set[str]:
        return set(re.findall("[a-z0-9]+", text.lower())) - {"of", "the"}

    rows = []
    labeled: set[tuple[str, str]] = set()
    records = dict.fromkeys(check.record for check in CHECKS.values())
    for record in records:
        figures = labels_of(record).items()
        names = []
        for key, label in figures:
            is_told = (key, label) in labeled or words(label) <= words(key)
            names.append(f"`{key}`" if is_told else f"`{key}`: {label}")
        same = []
        for check in CHECKS.values():
            if check.record is record:
                same.append(f"`{check.group}`: {check}")
        rows.append(("; ".join(same), "; ".join(names)))
        # only now: two figures of one record may share a label
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
        heads = new.partition("\n")[0]
        start = text.index(f"\n{heads}", end) + 1
        stop = text.index("\n\n", start)
        rest = text[stop:]
        text = text[:start] + new + rest
        end = start + len(new)
    return text


if __name__ == "__main__":
    for page in PAGES:
        path = FOLDER / f"{page}.md"
        path.write_text(
            generated(page, path.read_text(encoding="utf-8")),
            encoding="utf-8",
        )
        sys.stdout.write(f"{path.name}\n")
