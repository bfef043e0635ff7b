"""Parts of the Kernels page: the table of two lists side by side, and the sentences and tables on a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import pandas as pd
import streamlit as st

from app.shell import selection, widgets
from core.runs.tables.kernels import KernelList
from core.runs.views.kernels import KernelPair, KernelPlace, is_multiplied, is_reducing, shape_in_words

SHOWN = {"all": "all", "differ": "what differs", "products": "products and reductions"}
COLUMNS = {
    "kernel": st.column_config.TextColumn(width=230),
    "by": st.column_config.TextColumn(width=70),
    "reference": st.column_config.NumberColumn("reference", format="%.4g", help="launches a forward"),
    "variant": st.column_config.NumberColumn("variant", format="%.4g", help="launches a forward"),
    "ratio": st.column_config.NumberColumn(format="%.3g×"),
    "only in": st.column_config.TextColumn(width=90),
    "µs, reference": st.column_config.NumberColumn(format="%.0f", help="a forward, while watched"),
    "µs, variant": st.column_config.NumberColumn(format="%.0f", help="a forward, while watched"),
    "launches": st.column_config.NumberColumn(format="localized"),
    "µs": st.column_config.NumberColumn(format="%.1f"),
}


def nothing_to_compare(view: selection.View) -> NoReturn:
    """Say why there are no kernels in this run and what to do, and stop."""
    about = view.run.header.provenance
    lists = view.run.kernels
    others = [pair.variant for pair in view.run.pairs if pair.index + 1 in lists and 0 in lists]
    if lists:
        st.info(
            "The kernels of one of these two sides could not be watched. "
            + (f"{widgets.escaped(about.note)} " if about.note else "")
            + (
                f"These variants have theirs: {', '.join(f'`{widgets.code(name)}`' for name in others)}."
                if others
                else ""
            )
        )
        st.stop()
    if about.kind == "upload":
        st.info(
            "This run was uploaded, and a dump of logits does not say which kernels made it. Capture the pair from its"
            " model."
        )
    else:
        st.info(
            "This run was captured without watching kernels: that runs every path once more, under the profiler."
            " `--kernels` asks for it."
        )
        widgets.same_capture_with("kernels", about)
    st.stop()


def no_place(view: selection.View) -> None:
    """Say why the page does not begin where the sides begin to differ, and what would bring that."""
    if view.run.layers(view.pair.index).empty:
        st.info(
            "Where the two sides begin to differ is not in this run: it holds no outputs of modules. With `--layers`"
            " beside `--kernels` this page begins with the first module that differs and what ran there on both sides."
        )
        widgets.same_capture_with("layers", view.run.header.provenance)
    else:
        st.success("No module that was compared differs, so no kernel is where it starts.")


def at_place(place: KernelPlace) -> pd.DataFrame:
    """Table of the kernels that ran where the sides begin to differ: a row a kernel, with every shape it had."""
    return pd.DataFrame(
        {
            "kernel": [pair.name for pair in place.pairs],
            "by": [pair.library for pair in place.pairs],
            "shapes, reference": [_shapes(pair.reference_details) for pair in place.pairs],
            "shapes, variant": [_shapes(pair.variant_details) for pair in place.pairs],
            "reference": [pair.reference_launches for pair in place.pairs],
            "variant": [pair.variant_launches for pair in place.pairs],
            "only in": [pair.only for pair in place.pairs],
            "in": ["; ".join(pair.modules) for pair in place.pairs],
        }
    )


def _shapes(details: Sequence[str]) -> str:
    return _some([shape_in_words(detail).strip("`") for detail in details])


def chosen(pairs: Sequence[KernelPair], shown: str, library: str) -> list[KernelPair]:
    """Kernels of a library ("any": of all) that the page lists."""
    kept = [pair for pair in pairs if library in ("any", pair.library)]
    if shown == "differ":
        return [pair for pair in kept if pair.only or is_multiplied(pair)]
    return [pair for pair in kept if is_reducing(pair)] if shown == "products" else kept


def rows(pairs: Sequence[KernelPair]) -> pd.DataFrame:
    """Table of the kernels under names people read."""
    return pd.DataFrame(
        {
            "kernel": [pair.name for pair in pairs],
            "by": [pair.library for pair in pairs],
            "reference": [pair.reference_launches for pair in pairs],
            "variant": [pair.variant_launches for pair in pairs],
            "ratio": [pair.ratio for pair in pairs],
            "only in": [pair.only for pair in pairs],
            "µs, reference": [pair.reference_microseconds for pair in pairs],
            "µs, variant": [pair.variant_microseconds for pair in pairs],
            "in": [_some(pair.places) for pair in pairs],
            "shapes, reference": [_some(pair.reference_details) for pair in pairs],
            "shapes, variant": [_some(pair.variant_details) for pair in pairs],
        }
    )


def of_kernel(listed: KernelList, side: str, pair: KernelPair) -> pd.DataFrame:
    """Table of where one side launched a kernel, in what shapes: a row a module and shape, layers apart."""
    found = [row for row in listed.rows if (row.library, row.name) == (pair.library, pair.name)]
    return pd.DataFrame(
        {
            "side": [side] * len(found),
            "module": [row.module or "(the model itself)" for row in found],
            "shapes": [row.detail for row in found],
            "launches": [row.launches for row in found],
            "µs": [row.microseconds for row in found],
        }
    )


def looked_at(listed: KernelList, side: str) -> str:
    """Number of forwards looked at, in words: `all 8 forwards of decode`, or how many of how many."""
    which = (
        f"all {listed.of:,}"
        if listed.forwards == listed.of and listed.of > 1
        else f"{listed.forwards:,} of {listed.of:,}"
    )
    return f"{'the one forward' if listed.of == 1 else which + ' forwards'} of `{widgets.code(side)}`"


def _some(names: Sequence[str]) -> str:
    shown = [name or "(the model itself)" for name in names]
    return "; ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")
