"""Lines of the overview on what other pages show of the pair: caches, modules, kernels, remedies, continuations. Only
of what the run holds.
"""

from __future__ import annotations

import streamlit as st

from app.flips import continuations
from app.shell import selection, store_cache, widgets
from core.runs.tables.remedies import advice
from core.runs.views.kernels import in_words, place_in_words, side_by_side
from core.runs.views.kv_cache import sentence, summarize
from core.runs.views.layers import kernels_where_it_starts
from core.runs.views.layers import sentence as sentence_of_modules
from core.runs.views.layers import summarize as summarize_layers


def lines(view: selection.View) -> None:
    """Draw the lines, each with a link that keeps the selection."""
    for said, page, label in _found(store_cache.stamp_of(view.run), view.pair.index, view):
        widgets.finding(said, page, label, view)
    if view.run.generations:
        widgets.finding("Continuations: " + continuations.outcome(view), "flips", "Flips →", view)


@st.cache_resource(max_entries=32, show_spinner=False)
def _found(file: tuple[str, int, int], pair: int, _view: selection.View) -> list[tuple[str, str, str]]:  # noqa: ARG001  (a key of the cache)
    run, found = _view.run, []
    modules = summarize_layers(run.layers(pair))
    if modules is not None:
        found.append(("Modules: " + sentence_of_modules(modules, len(run.header.prompts) > 1), "layers", "Layers →"))
    held = summarize(run.kv(pair))
    if held is not None:
        found.append(("Key/value caches: " + sentence(held), "kv_cache", "KV cache →"))
    listed = run.kernels.get(0), run.kernels.get(pair + 1)
    if listed[0] is not None and listed[1] is not None:
        names = run.pairs[pair].reference, run.pairs[pair].variant
        place = kernels_where_it_starts(run, pair)
        said = (
            in_words(side_by_side(listed[0], listed[1]), names)
            if place is None
            else place_in_words(place, names, is_one_prompt=len(run.header.prompts) == 1)
        )
        found.append((f"Kernels: {said}", "kernels", "Kernels →"))
    if tried := run.remedies.get(pair):
        found.append((f"Remedies: {advice(tried)}", "remedies", "Remedies →"))
    return found
