"""The Internals page, on what a capture records inside the model: tabs Layers, KV cache, Kernels,
Mitigations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.page import Page, PageSetting, words
from core.runs.tables.kernels import LIBRARIES
from core.runs.tables.kv_cache import KINDS

if TYPE_CHECKING:
    from core.runs.reader import RunReader, StoredPair

SCOPES = ("this prompt", "all prompts")
CAPTURED = {  # by option of `capture`: what it records, and which pairs of a run have it
    "layers": "module outputs",
    "kv": "KV caches",
    "kernels": "kernels",
    "mitigations": "mitigations",
}


def has(extra: str, run: RunReader, pair: int) -> bool:
    """Return whether a pair has what this option of `capture` records."""
    if extra == "kernels":
        return run.sides_with_kernels >= {0, pair + 1}
    if extra == "mitigations":
        return pair in run.mitigations
    return pair in (run.pairs_with_layers if extra == "layers" else run.pairs_with_kv)


def _layers_line(run: RunReader, pair: StoredPair) -> str | None:
    from core.runs.queries.layers import modules, sentence

    table = modules(run, pair.index)
    names_prompt = len(run.header.prompts) > 1
    return (
        None
        if table.empty
        else "Modules: " + sentence(run, pair.index, table, names_prompt=names_prompt)
    )


def _caches_line(run: RunReader, pair: StoredPair) -> str | None:
    from core.runs.queries.caches import sentence, summaries

    caches = summaries(run, pair.index)
    return (
        "KV cache: " + sentence(caches[None], names_prompt=len(run.header.prompts) > 1)
        if caches
        else None
    )


def _kernels_line(run: RunReader, pair: StoredPair) -> str | None:
    from core.runs.queries.kernels import find_start, in_words, ops_in_words, side_by_side

    if not has("kernels", run, pair.index):
        return None
    names, place = (pair.reference, pair.variant), find_start(run, pair.index)
    if place is None:
        return "Kernels: " + in_words(side_by_side(run, pair.index), names)
    return "Kernels: " + ops_in_words(place)


LAYERS = Page(
    "layers",
    "Layers",
    "run",
    (
        PageSetting("of", "layers_scope", SCOPES[0], words(SCOPES)),
        PageSetting(
            "measure",
            "layers_measure",
            "ratio",
            words(["ratio", "neq_share", "max_row_ulps", "max_ulps"]),
        ),
        PageSetting("module", "layers_module", ""),
    ),
    absent=lambda run, pair: "" if has("layers", run, pair.index) else "not captured",
    line=_layers_line,
)
KV_CACHE = Page(
    "kv_cache",
    "KV cache",
    "run",
    (
        PageSetting("of", "kv_scope", SCOPES[0], words(SCOPES)),
        PageSetting(
            "measure",
            "kv_measure",
            "rms",
            words(["neq_share", "max_row_ulps", "max_ulps", "rms"]),
        ),
        PageSetting("kind", "kv_kind", "key", words(KINDS)),
    ),
    absent=lambda run, pair: "" if has("kv", run, pair.index) else "not captured",
    line=_caches_line,
)
KERNELS = Page(
    "kernels",
    "Kernels",
    "run",
    (
        PageSetting("list", "kernels_shown", "all", words(["all", "differ", "products"])),
        PageSetting("library", "kernels_library", "any", words(["any", *LIBRARIES])),
        PageSetting("modules", "kernels_split", False, {"apart": True, "together": False}),
    ),
    absent=lambda run, pair: "" if has("kernels", run, pair.index) else "not captured",
    line=_kernels_line,
)
MITIGATIONS = Page(
    "mitigations",
    "Mitigations",
    "run",
    absent=lambda run, pair: "" if has("mitigations", run, pair.index) else "not captured",
)
EXTRAS = {
    LAYERS.name: "layers",
    KV_CACHE.name: "kv",
    KERNELS.name: "kernels",
    MITIGATIONS.name: "mitigations",
}
PAGE = Page("internals", "Internals", "run", tabs=(LAYERS, KV_CACHE, KERNELS, MITIGATIONS))
