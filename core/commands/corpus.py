"""Files that `compare` sums up without a run: two of llama.cpp's `--kl-divergence-base`, or of lm-eval's samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..evals import compare_samples
from ..numerics.corpus import statistics
from ..runs.dumps.corpus import by_position, score_logs
from ..runs.reports.report_json import plain_number
from ..text import number, plural
from .terminal.console import err, out, print_records, print_text, table_of

_MOST_ANSWERS = 20


def corpus_json(files: Sequence[Path], on_progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Return the statistics of two files, the first one the base, with null for what is undefined."""
    tokens = score_logs(files, on_progress)
    tables = {"figures": statistics(tokens), "by_position": by_position(tokens)}
    names = {"reference": files[0].stem, "variant": files[1].stem}
    return _plain(names | {"positions": len(tokens.kl), "chunks": int(tokens.document[-1]) + 1} | tables)


def _plain(value: Any) -> Any:
    """Return a value with null for what is undefined."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else plain_number(value)


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


def samples_json(files: Sequence[Path]) -> dict[str, Any]:
    """Return what changed between two files of lm-eval's samples, with null for what is undefined."""
    return _plain(compare_samples(files))


def print_samples(changes: dict[str, Any]) -> None:
    """Print scores, and the answers that changed."""
    title = f"{changes['variant']} vs {changes['reference']}: {plural(changes['samples'], 'sample')}"
    print_records(changes["scores"], title)
    print_records(changes["changed"], "changed answers", most=_MOST_ANSWERS)
    if changes["other_prompts"]:
        print_text(f"note: the prompt differs at {plural(changes['other_prompts'], 'sample')}.", err)
    if changes["left_out"]:
        print_text(f"note: {plural(changes['left_out'], 'sample')} of one file alone left out.", err)
