"""Figures of a pair on the Overview: the headline, more metrics when unfolded, and provenance."""

import pandas as pd
import streamlit as st

from app.components import plots
from app.shell import exports, store_cache, widgets
from app.shell.selection import View
from core.checks.state import axes_of, axis_texts, scale_of
from core.plots import pairs as charts
from core.runs.queries.verdicts import figures_of_ratio, multiple, size_of, ulp_percentile
from core.runs.reader import RunReader
from core.runs.reports.issue_markdown import order_facts
from core.runs.reports.report_json import over_positions, over_some
from core.runs.requests import repeat_command
from core.text import known, legible, number, opening, out_of, percent, plural

_SIDE_COLUMNS = {
    "name": "side",
    "source_dtype": "saved as",
    "bit_class": "bit-identical class",
    "sha256": "sha256",
    "sha256_dtype": "dtype",
}


def elements_of(view: View) -> int:
    """Logits of the pair that were compared; of lists the values that both sides sent."""
    header = view.header
    return view.pair.summary.finite if view.is_list else header.rows * header.vocab


def server_state(view: View) -> None:
    """Draw a table of the axes of a probe of a server's state, nothing for a run without them."""
    axes = axes_of(row for pair in view.run.pairs for row in view.run.evidence(pair.index))
    if not axes:
        return
    st.subheader("Server state")
    st.caption(scale_of(axes))
    st.dataframe(pd.DataFrame(map(axis_texts, axes)), hide_index=True, height="content")


def nonfinite(view: View) -> None:
    """Draw what is NaN or infinite on one side only."""
    count = view.pair.summary.nonfinite_mismatch
    if not count:
        return
    about = (
        "NaN or infinite on one side only. Rounding cannot produce it without overflow (float16"
        " beyond 65,504)."
    )
    if view.run.is_only_masked(view.pair.index):
        about = "at -inf on one side only: masked or cut there. None is NaN."
    element = view.header.elements.removesuffix("s")
    st.error(f"{plural(count, element)} {about}")


def headline(view: View) -> None:
    """Draw the four headline figures."""
    summary = view.pair.summary
    meanings = widgets.meanings()
    elements = elements_of(view)
    share = percent(summary.neq / elements) if elements else "none sent by both"
    differ = (share, out_of(summary.neq, elements))
    largest = number(summary.max_abs)
    figures: dict[str, tuple[str, str]] = {}
    if not view.header.has_tokens:
        order = order_facts(view.run.evidence(view.pair.index))
        figures |= {"Values that differ": differ, **_size(view)}
        figures |= {opening(name): (text, "") for name, text in order.items()}
        figures["Largest difference"] = (largest, "")
        widgets.metrics(figures, 4)
        return
    about = "at no position both sides sent their top tokens"
    if summary.same_top1 is not None:
        same = out_of(view.compared_positions - summary.flips, view.compared_positions)
        about = f"it is the same at {same} positions"
    figures["Flips"] = (known(summary.flips), f"{meanings['flip']}; {about}")
    if view.is_list:
        figures |= {
            "Could flip": (known(summary.could_flip), meanings["could flip"]),
            "Values that differ": differ,
            "Largest difference": (largest, view.header.quantity),
        }
    else:
        near_ties = (f"{summary.near_ties:,}", meanings["near tie"])
        figures |= {
            "Near ties": near_ties,
            "Logits that differ": differ,
            **_size(view),
        }
    widgets.metrics(figures, 4)


def _size(view: View) -> dict[str, tuple[str, str]]:
    """Return the RMS difference, over the noise floor if there is one."""
    summary = view.pair.summary
    in_row_ulps = f"{number(summary.rms_row_ulps)} row ULPs"
    # a pair that was not judged has no noise floor, an equal one no difference to compare with it
    if view.pair.noise_ratio is None or not summary.neq:
        return {"RMS difference": (in_row_ulps, widgets.meanings()["row ULP"])}
    evidence = view.run.evidence(view.pair.index)
    of_floor = f"{size_of(view.pair, evidence)}; RMS in {view.dtype}: {in_row_ulps}"
    # the chart below is of the run's own dtype
    dtype = getattr(figures_of_ratio(view.pair, evidence), "compute_dtype", None)
    title = f"RMS / noise floor, {dtype}" if dtype else "RMS / noise floor"
    return {title: (multiple(view.pair.noise_ratio), of_floor)}


def more(view: View) -> None:
    """Draw the other figures and the histogram of ULPs, read when unfolded."""
    folded = st.expander(
        "More metrics",
        icon=":material/bar_chart:",
        key="more_figures",
        on_change="rerun",
    )
    if not folded.open:
        return
    summary = view.pair.summary
    header = view.header
    histogram = store_cache.cached(view.run, RunReader.histogram, view.pair.index)
    of_ulps = (
        f"ULPs of {view.dtype}, over all {header.elements}; large ones belong to those near 0,"
        " where steps are tiny"
    )
    figures = {
        "Largest difference": (
            number(summary.max_abs),
            f"{header.unit}, over elements finite on both sides:"
            f" {number(summary.max_row_ulps)} row ULPs",
        ),
        "Mean KL": (
            number(summary.mean_kl),
            "KL(reference || variant), nats per position with a defined KL; max"
            f" {number(summary.max_kl)}",
        ),
        "Median ULPs": (number(ulp_percentile(histogram, 0.5)), of_ulps),
        "99th percentile ULPs": (number(ulp_percentile(histogram, 0.99)), of_ulps),
        "Exact ties": (known(summary.ties), widgets.meanings()["tie"]),
    }
    limits = {
        "Differences and ULPs are": over_some(summary.finite, elements_of(view), header.elements),
        "KL is": over_positions(summary, header.rows),
        "Margins are": over_some(summary.margin_positions, header.rows, "positions"),
    }
    if not header.has_tokens:
        del figures["Mean KL"], figures["Exact ties"]
        del limits["KL is"], limits["Margins are"]
    limited = " ".join(f"{what} {scope}." for what, scope in limits.items() if scope)
    with folded:
        widgets.metrics(figures, len(figures))
        if limited:
            st.caption(limited)
        chart = plots.cached(
            view.run, (view.pair.index,), charts.ulp_histogram, histogram, view.dtype
        )
        plots.draw(chart, "ulp_histogram", "ulps")
        st.caption(f"{opening(header.elements)} by ULP distance ({view.dtype}), log counts.")


def provenance(view: View, sides: pd.DataFrame) -> None:
    """Draw where the run and its sides come from, and links to its files, when unfolded."""
    folded = st.expander("Provenance and sides", key="provenance", on_change="rerun")
    if not folded.open:
        return
    origin = view.header.provenance
    command = repeat_command(origin)
    facts = {
        "run": view.run.run_id,
        "created (UTC)": f"{view.run.created:%Y-%m-%d %H:%M:%S}",
        "kind": origin.kind,
        "model": origin.model,
        "revision": origin.revision,
        "device": f"{origin.device} {origin.device_name}".strip(),
        "command": command,
        # a run from elsewhere may say anything
        "recorded command (unverified)": "" if command else legible(origin.command),
        "note": origin.note,
        **origin.versions,
    }
    texts = {name: widgets.escape(str(value)) for name, value in facts.items() if value}
    with folded:
        st.table(texts, border="horizontal")
        st.dataframe(
            sides,
            hide_index=True,
            column_order=list(_SIDE_COLUMNS),
            column_config=_SIDE_COLUMNS,
        )
        exports.whole_run(view)
