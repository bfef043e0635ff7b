"""What Flips and Internals say of a pair on its Overview, a line each."""

from app.internals.recorded import RECORDED
from core.runs.queries import caches, flips, kernels, layers
from core.runs.reader import RunReader


def lines(run: RunReader, pair: int) -> dict[str, str]:
    """Line of each page or tab that has something to say of a pair, by its name."""
    texts = {}
    continued = flips.continuations(run)
    if len(continued):
        outcome = flips.outcome(continued[continued["pair"] == pair])
        texts["flips"] = f"Continuations: {outcome}"
    modules = layers.modules(run, pair)
    if len(modules):
        texts["layers"] = f"Modules: {layers.sentence(run, pair, modules)}"
    summaries = caches.summaries(run, pair)
    if summaries:
        texts["kv_cache"] = f"KV cache: {caches.sentence(run.header, summaries[None])}"
    if pair in RECORDED["kernels"].pairs(run):
        counts = kernels.counts_in_words(
            kernels.side_by_side(run, pair), (run.pairs[pair].reference, run.pairs[pair].variant)
        )
        texts["kernels"] = f"Kernels: {counts}"
    return texts
