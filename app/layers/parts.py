"""Parts of the Layers page."""

from __future__ import annotations

from typing import NoReturn

import pandas as pd
import streamlit as st

from app.shell import selection, widgets
from core.runs.views.layers import NARROW, RESIDUAL, LayerSummary, ModuleFigures, says_little
from core.runs.views.request import asks_for
from core.text import number, out_of, percent, plural, visible

MEASURES = {
    "ratio": "rms over floor",
    "neq_share": "share that differs",
    "max_row_ulps": "max row ULPs",
    "max_ulps": "max ULPs",
}
MEANINGS = {
    "ratio": "rms over the rounding floor in the whole prompt, log scale",
    "neq_share": "the share of the output's elements that differ",
    "max_row_ulps": "max row ULPs of the output's own dtype",
    "max_ulps": "max ULPs of the output's own dtype, log scale",
}
COLUMNS = {name: st.column_config.NumberColumn(format="localized") for name in ("elements", "differ", "max ULPs")} | {
    "share": st.column_config.NumberColumn(format="percent"),
    **{
        name: st.column_config.NumberColumn(format="%.4g")
        for name in ("rms", "floor", "rms / floor", "largest", "mean ULPs", "max row ULPs", "rms row ULPs")
    },
}


def nothing_to_compare(view: selection.View) -> NoReturn:
    """Say why there are no module outputs of this pair and what to do, and stop."""
    run = view.run
    others = [run.pairs[pair].variant for pair in sorted(run.pairs_with_layers)]
    about = run.header.provenance
    if others:
        names = ", ".join(f"`{widgets.code(name)}`" for name in others)
        st.info(
            "A compiler makes this variant's kernels, so its modules cannot be watched. These variants have module"
            f" outputs: {names}."
        )
        st.button(
            f"Show {widgets.escaped(visible(others[0]))}", on_click=selection.select, kwargs={"variant": others[0]}
        )
    elif about.kind == "upload":
        st.info(
            "This run was uploaded, and a dump of logits holds no outputs of modules. Capture the pair from its model"
            " with `--layers`."
        )
    elif asks_for(about, "layers"):
        st.info("A compiler makes the kernels of this run's variants, so their modules cannot be watched.")
        st.stop()
    else:
        st.info("This run holds no outputs of modules: they are compared when `--layers` asks for it.")
        widgets.same_capture_with("layers", about)
    st.stop()


def against_floor(found: LayerSummary, modules: list[ModuleFigures]) -> str:
    """Sentences on the pair against its floor, in markdown."""
    if not found.has_floor:
        return "No rounding floor was run for the modules; capture with `--layer-floor 2` to have one."
    beyond = [each for each in modules if each.ratio == float("inf")]
    said = ""
    if found.largest is not None:
        said = (
            f"Highest ratio to the noise floor: `{widgets.code(found.largest.module)}`,"
            f" {number(found.largest.ratio, 3)}x."
        )
    if found.largest is not None and (found.largest.ratio or 0) > 1 and found.largest.dtype in NARROW:
        said += f" {says_little(found.largest.dtype)}"
    if beyond:
        said += (
            f" In {plural(len(beyond), 'module')} the pair differs and no reordering does, the first is"
            f" `{widgets.code(beyond[0].module)}`."
        )
    return said.strip()


def short_name(each: ModuleFigures) -> str:
    """Short name of a module: `block 3` for the stream after a block, else the last part of the name."""
    return f"block {each.block}" if each.kind == RESIDUAL else visible(each.module.rpartition(".")[2])


def figures(found: LayerSummary, total: int) -> None:
    """Draw the headline figures."""
    first, last, largest = found.first, found.last, found.largest
    columns = st.columns(5)
    columns[0].metric(
        "First module",
        "none" if first is None else short_name(first),
        help=None if first is None else f"`{widgets.code(first.module)}`",
    )
    columns[1].metric(
        "First block", "none" if first is None else "outside" if first.block is None else f"{first.block}"
    )
    columns[2].metric("Logits that differ", percent(last.neq_share), help=f"{last.neq:,} of {last.elements:,} elements")
    columns[3].metric(
        "Max ratio to floor",
        (
            "no floor"
            if not found.has_floor
            else (
                number(largest.ratio, 3)
                if largest is not None
                else "NaN"
                if first is not None and first.max_ulps is None
                else "floor is 0"
                if first is not None and first.ratio
                else "0"
            )
        ),
        help="max over modules of rms difference over rms of the noise floor",
    )
    columns[4].metric("Positions", f"{found.positions:,} of {total:,}" if found.positions < total else f"all {total:,}")


def rows(modules: list[ModuleFigures], names_prompt: bool) -> pd.DataFrame:
    """The table of modules under names people read."""
    ratios = [each.ratio for each in modules]
    table = {
        "module": [visible(each.module) for each in modules],
        "kind": [each.kind for each in modules],
        "differ": [each.neq for each in modules],
        "share": [each.neq_share for each in modules],
        "rms": [each.rms for each in modules],
        "floor": [each.floor_rms for each in modules],
        "rms / floor": [None if ratio is None or ratio == float("inf") else ratio for ratio in ratios],
        "max ULPs": pd.array([each.max_ulps for each in modules], pd.Int64Dtype()),
        "mean ULPs": [each.mean_ulps for each in modules],
        "max row ULPs": [each.max_row_ulps for each in modules],
        "rms row ULPs": [each.rms_row_ulps for each in modules],
        "largest": [each.max_abs for each in modules],
        "dtype": [each.dtype for each in modules],
        "elements": [each.elements for each in modules],
        "first position": pd.array([each.first_position for each in modules], pd.Int64Dtype()),
    }
    if names_prompt:
        table["in prompt"] = pd.array([each.first_prompt for each in modules], pd.Int64Dtype())
    if any(each.nonfinite_mismatch for each in modules):
        table["NaN or infinity on one side"] = [each.nonfinite_mismatch for each in modules]
    return pd.DataFrame(table)


def module_figures(each: ModuleFigures) -> str:
    """Figures of one module, in a line of markdown."""
    floor = "no floor was run" if each.floor_rms is None else f"its floor {number(each.floor_rms, 3)}"
    differ = (
        f"`{widgets.code(each.module)}`,"
        f" {widgets.escaped(each.kind)}{'' if each.block is None else f' of block {each.block}'}:"
        f" {out_of(each.neq, each.elements)} of its elements differ,"
    )
    if each.max_ulps is None:
        return f"{differ} rms NaN, {floor}: no element is finite on both sides."
    return (
        f"{differ} rms {number(each.rms, 3)}, {floor};"
        f" largest difference {number(each.max_abs, 4)}, at most {each.max_ulps:,} ULPs of"
        f" {widgets.escaped(each.dtype)}, {number(each.mean_ulps, 3)} in the mean"
        + ("." if each.max_row_ulps is None else f"; at most {number(each.max_row_ulps, 3)} row ULPs.")
    )
