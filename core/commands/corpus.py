"""Two models over a corpus on a terminal: two files of llama.cpp's `--kl-divergence-base`, or the pairs of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..numerics.corpus import ScoredTokens, statistics
from ..runs.dumps.corpus import by_position, score_logs
from ..runs.queries.corpus import score_pair
from ..runs.reader import RunReader
from ..runs.reports.report_json import plain_number
from ..text import number, plural
from .terminal.console import out, print_records, table_of


def corpus_of_logs(files: Sequence[Path], on_progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Return the statistics of two files, the first one the base."""
    return _statistics(score_logs(files, on_progress), files[0].stem, files[1].stem, "chunk")


def corpora_of(run: RunReader, variant: str | None) -> list[dict[str, Any]]:
    """Return the statistics of every pair of a run, or of one."""
    pairs = [pair for pair in run.pairs if variant in (None, pair.variant)]
    return [_statistics(score_pair(run, pair.index), pair.reference, pair.variant, "prompt") for pair in pairs]


def _statistics(tokens: ScoredTokens, reference: str, variant: str, document: str) -> dict[str, Any]:
    """Return statistics with null for what is undefined. document: what a text of the corpus is called."""
    names = {"reference": reference, "variant": variant, "positions": len(tokens.kl)}
    counts = {f"{document}s": len(np.unique(tokens.document))}
    return plain_json(names | counts | {"figures": statistics(tokens), "by_position": by_position(tokens)})


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
    document = "chunk" if "chunks" in corpus else "prompt"
    of = f"{plural(corpus['positions'], 'position')} of {plural(corpus[f'{document}s'], document)}"
    title = f"Q: {corpus['variant']}, base: {corpus['reference']}: {of}"
    columns = ("figure", "value", "±", f"95 % interval over {document}s", "unit")
    out.print(table_of(columns, rows, title=title, text=("figure", "unit")))
    print_records(corpus["by_position"], "by position in the context")
