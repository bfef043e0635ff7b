"""Two models over a corpus on a terminal: `compare` of two files of llama.cpp's `--kl-divergence-base`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..numerics.corpus import statistics
from ..runs.dumps.corpus import by_position, score_logs
from ..runs.reports.report_json import plain_number
from ..text import number, plural
from .terminal.console import out, print_records, table_of


def corpus_json(files: Sequence[Path], on_progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Return the statistics of two files, the first one the base, with null for what is undefined."""
    tokens = score_logs(files, on_progress)
    tables = {"figures": statistics(tokens), "by_position": by_position(tokens)}
    names = {"reference": files[0].stem, "variant": files[1].stem}
    return plain_json(names | {"positions": len(tokens.kl), "chunks": int(tokens.document[-1]) + 1} | tables)


def plain_json(value: Any) -> Any:
    """Return a value with null for what is undefined."""
    if isinstance(value, dict):
        return {key: plain_json(each) for key, each in value.items()}
    return [plain_json(each) for each in value] if isinstance(value, list) else plain_number(value)


def print_corpus(corpus: dict[str, Any]) -> None:
    """Print the statistics as llama-perplexity names them, and by position."""
    rows = []
    for figure in corpus["figures"]:
        low, high, error = figure["low"], figure["high"], figure["uncertainty"]
        interval = "" if low is None else f"{number(low)} to {number(high)}"
        spread = "" if error is None else number(error, 3)
        rows.append((figure["name"], number(figure["value"], 6), spread, interval, figure["unit"]))
    of = f"{plural(corpus['positions'], 'position')} of {plural(corpus['chunks'], 'chunk')}"
    title = f"Q: {corpus['variant']}, base: {corpus['reference']}: {of}"
    columns = ("figure", "value", "±", "95 % interval over chunks", "unit")
    out.print(table_of(columns, rows, title=title, text=("figure", "unit")))
    print_records(corpus["by_position"], "by position in the context")
