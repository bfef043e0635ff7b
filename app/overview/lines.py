"""What Flips and Internals say of a pair on its Overview, a line each."""

from app.internals.recorded import RECORDED
from core.runs.queries import caches, flips, kernels, layers
from core.runs.reader import RunReader


def _flips(run: RunReader, pair: int) -> str:
    table = flips.continuations(run)
    if table.empty:
        return ""
    return "Continuations: " + flips.outcome(table[table["pair"] == pair])


def _layers(run: RunReader, pair: int) -> str:
    table = layers.modules(run, pair)
    if table.empty:
        return ""
    return "Modules: " + layers.sentence(run, pair, table)


def _kv_cache(run: RunReader, pair: int) -> str:
    summaries = caches.summaries(run, pair)
    if not summaries:
        return ""
    return "KV cache: " + caches.sentence(run.header, summaries[None])


def _kernels(run: RunReader, pair: int) -> str:
    if pair not in RECORDED["kernels"].pairs(run):
        return ""
    names = (run.pairs[pair].reference, run.pairs[pair].variant)
    return "Kernels: " + kernels.counts_in_words(kernels.side_by_side(run, pair), names)


_LINES = {"flips": _flips, "layers": _layers, "kv_cache": _kv_cache, "kernels": _kernels}


def lines(run: RunReader, pair: int) -> dict[str, str]:
    """Line of each page or tab that has something to say of a pair, by its name."""
    texts = {part: line(run, pair) for part, line in _LINES.items()}
    return {part: text for part, text in texts.items() if text}
