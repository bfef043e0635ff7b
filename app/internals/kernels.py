"""Kernels: what each side launched, side by side: what only one side did, what it did more often,
in which module.
"""

import streamlit as st

from app.components import tables
from app.internals import parts
from app.shell import exports, selection, store_cache, widgets
from core.runs.queries.kernels import find_start, in_words, place_in_words, side_by_side

_COLUMNS = [
    "name",
    "library",
    "reference_launches",
    "variant_launches",
    "ratio",
    "only",
    "reference_microseconds",
    "variant_microseconds",
    "places",
    "reference_details",
    "variant_details",
]
SHOWN = {"all": "all", "differ": "launch counts differ", "products": "matmuls and reductions"}


def draw(view: selection.View) -> None:
    """Draw the tab."""
    run, pair = view.run, view.pair.index
    names = view.pair.reference, view.pair.variant
    start = store_cache.cached(run, find_start, pair)
    # what is drawn can be downloaded, and only that
    files = {}
    if start is not None:
        st.subheader("Where it starts")
        st.markdown(place_in_words(start, names, names_prompt=len(run.header.prompts) > 1))
        if len(start.kernels):
            columns = ["name", "library", "reference_details", "variant_details", "only", "modules"]
            tables.draw(parts.kernel_texts(start.kernels)[columns], "kernels_there", 8)
            st.caption("Every op and kernel there. Shapes are those of all profiled forwards.")
            files["where it starts"] = start.kernels
    elif pair in run.pairs_with_layers:
        st.success("No compared module differs, so there is no first kernel.")
    else:
        st.info(
            "Capture with `--layers` and `--kernels` to see what ran in the first module whose"
            " output differs.",
        )
        widgets.same_capture_with(run.header.provenance, "layers")
    st.subheader("All ops and kernels")
    every = store_cache.cached(run, side_by_side, pair)
    st.markdown(in_words(every, names))
    watched = run.query("SELECT * FROM kernel_side WHERE side IN (0, ?) ORDER BY side", pair + 1)
    counts = [
        f"{row.forwards:,} of {row.forwards_of:,} (`{widgets.code(name)}`)"
        for row, name in zip(watched.itertuples(), names, strict=True)
    ]
    st.caption(
        f"Profiled forwards of prompt 0: {', '.join(counts)}. Launches and µs: per forward; µs"
        " include the profiler.",
    )
    libraries = ["any", *every["library"].unique()]
    with st.container(
        horizontal=True,
        horizontal_alignment="distribute",
        vertical_alignment="bottom",
    ):
        choice = widgets.choice("Show", SHOWN, "kernels_shown")
        library = widgets.choice("Library", {name: name for name in libraries}, "kernels_library")
        if st.toggle("Split by module", key="kernels_split"):
            every = side_by_side(run, pair, "place")
    is_listed = {
        "all": every["name"].notna(),
        "differ": (every["only"] != "") | every["is_multiplied"],
        "products": every["is_reducing"],
    }
    table = every[is_listed[choice] & ((library == "any") | (every["library"] == library))]
    if table.empty:
        st.success("No kernel of that kind ran, or none differs.")
        return
    picked = tables.draw(
        parts.kernel_texts(table)[_COLUMNS],
        "kernels_table",
        on_select="rerun",
        selection_mode="single-row",
    )
    order = "Order: launch counts that differ, reductions, time"
    st.caption(f"{len(table):,} of {len(every):,}. {order}. Click a row for its call sites.")
    # Lists as they were recorded; the table above has them by name.
    lists = "SELECT * EXCLUDE (side, ordinal) FROM kernel WHERE side = ? ORDER BY ordinal"
    files |= {
        "side by side": every,
        "reference": run.query(lists, 0),
        "variant": run.query(lists, pair + 1),
    }
    # A selection outlives the filters, so its row may be gone.
    if (rows := picked["selection"]["rows"]) and rows[0] < len(table):
        kernel = table.iloc[rows[0]]
        st.subheader(widgets.escape(kernel["name"]))
        files["places"] = run.query(
            """
            SELECT if(side = 0, 'reference', 'variant') AS side, module, detail, launches,
                microseconds
            FROM kernel WHERE side IN (0, ?) AND library = ? AND name = ? ORDER BY side, ordinal""",
            *(pair + 1, kernel["library"], kernel["name"]),
        )
        tables.draw(files["places"], "kernel_places", 12)
    exports.download(files, exports.file_stem(view, "kernels"), "kernels")
