"""Parts of the Repeats page: the classes, their figures, and the comparison of every two, which may take reading."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import streamlit as st
from numpy.typing import NDArray

from app.repeats import charts, pairwise_job
from app.repeats.pairwise_job import Comparison
from app.shell import selection, widgets
from core.numerics.metrics import COUNTS, Summary
from core.runs.reader import RunReader
from core.runs.views.repeats import BitClass, Sweep, bytes_to_compare, comparisons, matrix, sentence
from core.text import plural, size, visible

MEASURES = {
    "neq": "differing logits",
    "max_abs": "largest difference",
    "max_row_ulps": "max row ULPs",
    "max_ulps": "max ULPs",
    "flips": "flips",
}
UNITS = {
    "neq": "",
    "max_abs": ", in logits of {dtype},",
    "max_row_ulps": ", in row ULPs of {dtype},",
    "max_ulps": ", in ULPs of {dtype},",
    "flips": "",
}
COLUMNS = {
    "share": st.column_config.NumberColumn("share", format="percent"),
    "differing logits": st.column_config.NumberColumn(format="localized"),
    "max ULPs": st.column_config.NumberColumn(format="localized"),
    "largest difference": st.column_config.NumberColumn(format="%.9g"),
    "max row ULPs": st.column_config.NumberColumn(format="%.4g"),
    "flips": st.column_config.NumberColumn(format="localized"),
}
WITHOUT_ASKING = 256 << 20  # bytes that are read without a click: about a second
PAIRS_WITHOUT_ASKING = 2016  # of classes that are compared without a click: those of 64


def draw_sentence(run: RunReader, groups: list[BitClass]) -> None:
    """Draw how many classes there are, in words, and what to do where there is nothing to repeat."""
    (st.success if len(groups) == 1 else st.markdown)(sentence(groups))
    if len(run.sides) == 2:
        st.caption(
            "More sides say more: `--repeat 6` calls each path six times, `--sweep batch=1,2,3,4,8` adds a side for"
            " each size."
        )


def members(run: RunReader, groups: list[BitClass]) -> pd.DataFrame:
    """Table of the classes: one row a class, figures against the reference's; None where it is that class."""
    of_side = {pair.index + 1: pair.summary for pair in run.pairs}
    rows = []
    for number, group in enumerate(groups):
        summary = of_side.get(group.index)
        elements = run.header.rows * run.header.vocab
        rows.append(
            {
                "class": number,
                "sides": ", ".join(visible(name) for name in group.members),
                "count": len(group.members),
                "differing logits": None if summary is None else summary.neq,
                "share": None if summary is None else summary.neq / elements,
                "largest difference": None if summary is None else summary.max_abs,
                "max ULPs": None if summary is None else summary.max_ulps,
                "max row ULPs": None if summary is None else summary.max_row_ulps,
                "flips": None if summary is None else summary.flips,
            }
        )
    integers = dict.fromkeys(("differing logits", "max ULPs", "flips"), "Int64")
    return pd.DataFrame(rows).astype(integers)


def choose(groups: list[BitClass]) -> Callable[[], None]:
    """Callback for a click on a class: it selects the first side in it that is a variant, if there is one."""

    def chosen() -> None:
        rows = st.session_state["classes"]["selection"]["rows"]
        if rows and rows[0] < len(groups):
            group = groups[rows[0]]
            name = group.members[0] if group.index else next(iter(group.members[1:]), None)
            if name is not None:
                selection.select(variant=name)

    return chosen


def swept(run: RunReader, sweep: Sweep) -> pd.DataFrame:
    """Table of the sweep: value, side, class, neq_share, max_abs, flips of every side, by value; those of the reference
    are 0.
    """
    of_side = {pair.index + 1: pair.summary for pair in run.pairs}
    rows = []
    for index, value in zip(sweep.sides, sweep.values, strict=True):
        summary = of_side.get(index)
        rows.append(
            {
                "value": value,
                "side": run.sides[index].name,
                "class": run.sides[index].bit_class,
                "neq_share": 0.0 if summary is None else summary.neq_share,
                "max_abs": 0.0 if summary is None else summary.max_abs,
                "flips": 0 if summary is None else summary.flips,
            }
        )
    return pd.DataFrame(rows).sort_values("value", kind="stable")


def every_two(run: RunReader, groups: list[BitClass]) -> dict[tuple[int, int], Summary] | None:
    """Summaries of every two classes; None while they are compared, and until the viewer has asked where that takes
    much reading.
    """
    total, is_quick = bytes_to_compare(run), comparisons(run) <= PAIRS_WITHOUT_ASKING
    asked: dict[str, Comparison] = st.session_state.setdefault("classes_asked", {})
    under_way = pairwise_job.comparison(run) if total <= WITHOUT_ASKING and is_quick else asked.get(run.run_id)
    found = None if under_way is None else under_way.wait(pairwise_job.AT_ONCE_SECONDS)
    if under_way is not None and not under_way.is_over:
        with widgets.room("class_matrix", charts.class_matrix_height(len(groups))):
            st.fragment(_progress, run_every=0.5)(under_way, can_stop=total > WITHOUT_ASKING or not is_quick)
    elif found is None:
        count = len(groups) * (len(groups) - 1) // 2
        st.markdown(f"Comparing {plural(count, 'pair')} of classes reads {size(total)}.")
        st.button("Compare every two", icon=":material/grid_on:", on_click=_ask, args=(run,))
    return found


def _ask(run: RunReader) -> None:
    st.session_state["classes_asked"][run.run_id] = pairwise_job.comparison(run)


def _progress(under_way: Comparison, *, can_stop: bool) -> None:
    """Draw how far the comparison is; draws the page anew when it is over."""
    if under_way.is_over:
        st.rerun()
    share = under_way.done / max(1, under_way.total)
    counted = f"{share:.0%} of the positions" if under_way.total else "after another run's"
    what, action = st.columns([5, 1], vertical_alignment="bottom")
    what.progress(share, f"Comparing every two classes: {counted}. It goes on if you leave this page.")
    if can_stop:
        action.button(
            "Stop", key="stop_classes", on_click=under_way.stop, help="Stops it for everybody who looks at this run."
        )


def grid(pairs: dict[tuple[int, int], Summary], count: int, measure: str) -> NDArray[np.float64]:
    """One measure of every two classes: [count, count], NaN on the diagonal."""
    values = matrix(pairs, count, measure)
    values[np.diag_indices(count)] = np.nan
    return values


def pair_table(pairs: dict[tuple[int, int], Summary], groups: list[BitClass], run: RunReader) -> pd.DataFrame:
    """Table of every figure of every two classes: one row two classes, each named by its first side."""
    rows = []
    for (first, second), summary in sorted(pairs.items()):
        names = {
            "class": first,
            "other_class": second,
            "side": groups[first].members[0],
            "other_side": groups[second].members[0],
        }
        figures = {
            "neq": summary.neq,
            "neq_share": summary.neq_share,
            "max_abs": summary.max_abs,
            "max_ulps": summary.max_ulps,
            "mean_ulps": summary.mean_ulps,
            "max_row_ulps": summary.max_row_ulps,
            "rms_row_ulps": summary.rms_row_ulps,
            "nonfinite_mismatch": summary.nonfinite_mismatch,
            "flips": summary.flips,
            "near_ties": summary.near_ties,
            "mean_kl": summary.mean_kl,
            **{name: getattr(summary, name) for name in COUNTS},
            "compute_dtype": run.header.compute_dtype,
        }
        rows.append(names | figures)
    return pd.DataFrame(rows)
