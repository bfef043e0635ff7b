"""KV cache: which keys, values and running states differ after the whole prompt, by layer and head,
by layer and position.
"""

from functools import partial

import numpy as np
import streamlit as st

from app.components import plots, tables
from app.internals import parts
from app.shell import exports, selection, store_cache, widgets
from core.plots import layers as charts
from core.runs.queries.caches import MEASURES, cells, merge, sentence, summaries
from core.runs.tables.kv_cache import BY_POSITION
from core.text import number, percent, plural


def draw(view: selection.View) -> None:
    """Draw the tab."""
    run = view.run
    pair = view.pair.index
    lead = st.container()
    controls = st.container(horizontal=True, horizontal_alignment="distribute")
    with controls:
        prompt = parts.prompt_in_scope(view, "kv_scope")
    caches = store_cache.cached(run, summaries, pair).get(prompt)
    if caches is None:
        st.info(f"Prompt {view.prompt} has no caches to compare; choose all prompts above.")
        return
    together = caches["together"]
    logits = view.table
    of_prompt = ""
    if prompt is not None:
        logits = view.prompt_table
        of_prompt = view.of_prompt
    text = sentence(run.header, caches, of_prompt)
    if not together["neq"]:
        if logits["neq"].any():
            text += " The logits do differ: see Layers for where that begins."
        lead.success(text)
        return
    lead.markdown(text)
    if together["nonfinite_mismatch"]:
        st.error(
            "NaN or infinity on one side only in"
            f" {plural(together['nonfinite_mismatch'], 'element')} of the caches. Unless the dtype"
            " overflows (float16 beyond 65,504), rounding cannot produce it.",
        )
    options = ("max_row_ulps", "max_ulps", "neq_share", "rms")
    names = {name: charts.MEASURES[name] for name in options}
    with controls:
        measure = widgets.choice("Measure", names, "kv_measure")
        heads = store_cache.cached(run, merge, pair, prompt, "layer", "kind", "head")
        stored = {kind: f"{kind}s" for kind in BY_POSITION if kind in set(heads["kind"])}
        kind = ""
        if stored:
            kind = widgets.choice("By position", stored, "kv_kind")
    figures: dict[str, tuple[str, str]] = {}
    for part in ("keys", "values", "states"):
        if one := caches[part]:
            of = f"{one['neq']:,} of {one['elements']:,}"
            figures[f"{part.capitalize()} that differ"] = (percent(one["neq_share"]), of)
    figures["RMS row ULPs"] = (number(together["rms_row_ulps"]), "")
    figures["Max row ULPs"] = (number(together["max_row_ulps"]), "")
    widgets.metrics(figures, len(figures))
    judged = "Not judged: caches have no noise floor"
    if pair in run.pairs_with_layers:
        judged += "; Layers compares the projections"
    largest = float(logits["max_row_ulps"].max())
    of_logits = f" Logits differ by at most {number(largest)} row ULPs." if largest > 0 else ""
    st.caption(f"{judged}.{of_logits}")

    # states and latents have no positions
    by_head, *by_position = st.columns([3, 2] if stored else 1)
    # the run has no RMS by position
    by = measure if measure in MEASURES else "neq_share"
    content = (pair, view.prompt, kind, by)
    grid = store_cache.cached(run, cells, *content)
    every = np.append(heads[by], grid["value"])
    with by_head:
        shared = every if by == measure else heads[measure].to_numpy(float)
        figure = plots.cached(
            run,
            (*content, prompt, measure),
            charts.head_maps,
            heads,
            measure,
            shared,
        )
        plots.draw(figure, "kv_heads", f"kv-heads-{measure}")
        note = ""
        if caches["states"] is not None and view.dtype != "float32":
            note = " States that the model keeps in float32 count ULPs of float32."
        st.caption(
            f"Layers x heads: {charts.MEASURES[measure]} ({view.dtype}). Gray: equal.{note}",
        )
    for place in by_position:
        if grid.empty:
            continue
        ticks = {layer: str(layer) for layer in grid["row"]}
        rows = {layer: f"layer {layer}" for layer in grid["row"]}
        figure = plots.cached(
            run,
            (*content, prompt, view.position),
            charts.position_map,
            grid,
            rows,
            ticks,
            by,
            view.position,
            every,
        )
        with place:
            name = f"kv-{kind}s-{by}"
            plots.draw(figure, "kv_map", name, plots.select_position, scope="prompt")
            of = f"{view.of_prompt}, {kind}s: {charts.MEASURES[by]}"
            st.caption(f"Layers x positions{of}. ▼: selected.")

    layers = merge(run, pair, prompt, "layer", "kind")
    hidden = [] if together["nonfinite_mismatch"] else ["nonfinite_mismatch"]
    files: dict = {
        "by layer": layers,
        "by prompt, layer and head": partial(run.rows, "kv", pair=pair),
        "by position": partial(run.rows, "kv_position", pair=pair, prompt=view.prompt),
    }
    with st.expander("By layer, download"):
        tables.draw(layers.drop(columns=hidden), "kv_table")
        exports.download(files, exports.file_stem(view, "kv"), "kv")
