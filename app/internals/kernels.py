"""Kernels: what each side launched, side by side: what only one side did, what it did more often,
in which module.
"""

import streamlit as st

from app.components import tables
from app.internals import parts
from app.shell import exports, selection, store_cache, widgets
from core.runs.queries.kernels import counts_in_words, find_start, place_in_words, side_by_side
from core.text import opening

_COLUMNS = [
    "name",
    "only",
    "reference_launches",
    "variant_launches",
    "reference_microseconds",
    "variant_microseconds",
    "library",
    "ratio",
    "places",
    "reference_details",
    "variant_details",
]
_COLUMNS_OF_START = ["name", "only", "reference_details", "variant_details", "library", "modules"]
SHOWN = {
    "start": "where it starts",
    "all": "all",
    "differ": "launch counts differ",
    "products": "matmuls and reductions",
}


def draw(view: selection.View) -> None:
    """Draw the tab."""
    run = view.run
    pair = view.pair.index
    names = view.pair.reference, view.pair.variant
    start = store_cache.cached(run, find_start, pair)
    every = store_cache.cached(run, side_by_side, pair)
    # what is drawn can be downloaded, and only that
    files = {}
    shown = dict(SHOWN)
    if start is not None:
        st.markdown(place_in_words(run.header, start, names))
        files["where it starts"] = start.kernels
    elif pair in run.pairs_with_layers:
        st.success("No compared module differs, so there is no first kernel.")
    else:
        st.info(
            "Capture with `--layers` and `--kernels` to see what ran in the first module whose"
            " output differs.",
        )
        widgets.same_capture_with(run.header.provenance, "layers")
    if start is None or start.kernels.empty:
        del shown["start"]
    st.markdown(opening(counts_in_words(every, names)))
    libraries = ["any", *every["library"].unique()]
    with st.container(
        horizontal=True,
        horizontal_alignment="distribute",
        vertical_alignment="bottom",
    ):
        choice = widgets.choice("Show", shown, "kernels_shown")
        library = widgets.choice("Library", libraries, "kernels_library")
        if st.toggle("Split by module", key="kernels_split", disabled=choice == "start"):
            every = side_by_side(run, pair, "place")
    table = every
    columns = _COLUMNS
    if choice == "start" and start is not None:
        table = start.kernels
        columns = _COLUMNS_OF_START
    elif choice == "differ":
        table = every[(every["only"] != "") | every["is_multiplied"]]
    elif choice == "products":
        table = every[every["is_reducing"]]
    table = table[(library == "any") | (table["library"] == library)]
    if table.empty:
        st.success("No kernel of that kind ran, or none differs.")
        return
    picked = tables.draw(
        parts.kernel_texts(table)[columns],
        "kernels_table",
        9,
        on_select="rerun",
        selection_mode="single-row",
    )
    watched = run.query("SELECT * FROM kernel_side WHERE side IN (0, ?) ORDER BY side", pair + 1)
    counts = [
        f"{row.forwards:,} of {row.forwards_of:,} (`{widgets.code(name)}`)"
        for row, name in zip(watched.itertuples(), names, strict=True)
    ]
    st.caption(
        f"{len(table):,} of {len(every):,}. Click a row for its call sites. Profiled forwards of"
        f" prompt 0: {', '.join(counts)}; launches and µs are per forward, with the profiler's.",
    )
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
