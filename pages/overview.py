"""Overview: the verdict, the headline figures of a pair and the prompt as a strip of tokens."""

from functools import partial

import pandas as pd
import streamlit as st

from app import navigation
from app.components import best_tokens, plots
from app.mismatch import section
from app.navigation import OVERVIEW
from app.overview import lines, token_strip
from app.shell import address, exports, selection, store_cache, widgets
from app.verdict import panel
from core.plots import pairs as charts
from core.runs.queries.verdicts import multiple, size_of, ulp_percentile
from core.runs.reader import RunReader
from core.runs.reports.report_json import over_logits, over_margins, over_positions
from core.runs.requests import repeat_command
from core.text import known, legible, number, out_of, percent, plural

view = widgets.head(OVERVIEW, selection.current_view())
summary, header = view.pair.summary, view.run.header
answer = panel.verdict(view)
if summary.nonfinite_mismatch:
    about = (
        "NaN or infinite on one side only. Rounding cannot produce it without overflow (float16"
        " beyond 65,504)."
    )
    if view.run.is_only_masked(view.pair.index):
        about = "at -inf on one side only: masked or cut there. None is NaN."
    st.error(f"{plural(summary.nonfinite_mismatch, 'logit')} {about}")

elements = summary.finite if view.is_list else header.rows * header.vocab
is_rollout = section.tiles(view)
if not is_rollout:
    figures = st.columns(4)
    about = "at no position both sides sent their top tokens"
    if summary.same_top1 is not None:
        same = out_of(view.compared_positions - summary.flips, view.compared_positions)
        about = f"it is the same at {same} positions"
    figures[0].metric("Flips", known(summary.flips), help=f"{widgets.meanings()['flip']}; {about}")
    if view.is_list:
        figures[1].metric(
            "Could flip",
            known(summary.could_flip),
            help=widgets.meanings()["could flip"],
        )
    else:
        figures[1].metric(
            "Near ties",
            f"{summary.near_ties:,}",
            help=widgets.meanings()["near tie"],
        )
    differ = percent(summary.neq / elements) if elements else "none sent by both"
    figures[2].metric(
        f"{'Values' if view.is_list else 'Logits'} that differ",
        differ,
        help=out_of(summary.neq, elements),
    )
    in_row_ulps = f"{number(summary.rms_row_ulps, 3)} row ULPs"
    if view.is_list:
        figures[3].metric("Largest difference", number(summary.max_abs), help=header.quantity)
    elif view.pair.noise_ratio is not None and summary.neq:
        size = (
            f"{size_of(view.pair, view.run.evidence(view.pair.index))}; RMS in {view.dtype}:"
            f" {in_row_ulps}"
        )
        figures[3].metric("RMS / noise floor", multiple(view.pair.noise_ratio), help=size)
    else:
        figures[3].metric("RMS difference", in_row_ulps, help=widgets.meanings()["row ULP"])

strip, tokens = st.columns([3, 2], gap="medium")
with strip:
    left, right = st.columns([3, 2], vertical_alignment="bottom")
    left.subheader(
        f"{'Sequence' if is_rollout else 'Prompt'}{f' {view.prompt}' if len(header.prompts) > 1 else ''},"
        f" {plural(len(view.prompt_table), 'position')}",
    )
    colour = right.selectbox(
        "Color by",
        token_strip.colours(view),
        key="strip_colour",
        label_visibility="collapsed",
    )
    token_strip.token_strip(view, colour)
    if not view.texts:
        substitute = (
            "token ids" if is_rollout or header.prompts[view.prompt].token_ids else "positions"
        )
        st.caption(f"This dump brought no token texts: {substitute} are shown.")
with tokens:
    st.subheader(f"{'Token' if is_rollout else 'Top tokens'} at position {view.position}")
    best_tokens.short(view)
panel.checks(view, answer)
section.draw(view)

# what other pages show of the pair
for part, line in store_cache.cached(view.run, lines.lines, view.pair.index).items():
    left, right = st.columns([5, 1], vertical_alignment="center")
    left.markdown(line)
    script = widgets.PAGES / f"{navigation.PAGE_OF[part].name}.py"
    label = f"{navigation.PARTS[part].title} →"
    right.page_link(script, label=label, query_params=address.of(view, part))
if len(view.run.sides) > 2:
    groups = "  ".join(
        "{ " + ", ".join(f"`{widgets.code(side)}`" for side in group) + " }"
        for group in view.run.classes
    )
    st.markdown(f"**Bit-identical classes** of the {len(view.run.sides)} sides: {groups}")
if not summary.bit_identical:
    widgets.causes(view)
panel.report(view)

# The content of these is read when they are opened.
if not view.is_list:
    folded = st.expander(
        "More metrics",
        icon=":material/bar_chart:",
        key="more_figures",
        on_change="rerun",
    )
    if folded.open:
        with folded:
            histogram = store_cache.cached(view.run, RunReader.histogram, view.pair.index)
            more = st.columns(5)
            largest = (
                f"{header.unit}, over elements finite on both sides:"
                f" {number(summary.max_row_ulps, 3)} row ULPs"
            )
            more[0].metric("Largest difference", number(summary.max_abs), help=largest)
            kl = (
                "KL(reference || variant), nats per position with a defined KL; max"
                f" {number(summary.max_kl, 3)}"
            )
            more[1].metric("Mean KL", number(summary.mean_kl, 3), help=kl)
            of_ulps = (
                f"ULPs of {view.dtype}, over all logits; large ones belong to logits near 0, where"
                " steps are tiny"
            )
            more[2].metric("Median ULPs", number(ulp_percentile(histogram, 0.5)), help=of_ulps)
            more[3].metric(
                "99th percentile ULPs",
                number(ulp_percentile(histogram, 0.99)),
                help=of_ulps,
            )
            more[4].metric("Exact ties", f"{summary.ties:,}", help=widgets.meanings()["tie"])
            limits = {
                "Differences and ULPs are": over_logits(summary, elements),
                "KL is": over_positions(summary, header.rows),
                "Margins are": over_margins(summary, header.rows),
            }
            if any(limits.values()):
                st.caption(" ".join(f"{what} {scope}." for what, scope in limits.items() if scope))
            chart = plots.cached(
                view.run,
                (view.pair.index,),
                charts.ulp_histogram,
                histogram,
                view.dtype,
            )
            plots.draw(chart, key="ulp_histogram", picture=exports.picture_of(view, "ulps"))
            st.caption(f"Logits by ULP distance ({view.dtype}), log counts.")
sides = pd.DataFrame([vars(side) for side in view.run.sides])
provenance = st.expander("Provenance and sides", key="provenance", on_change="rerun")
if provenance.open:
    with provenance:
        origin, command = header.provenance, repeat_command(header.provenance)
        facts = {
            "run": view.run.run_id,
            "created (UTC)": f"{view.run.created:%Y-%m-%d %H:%M:%S}",
            "kind": origin.kind,
            "model": origin.model,
            "revision": origin.revision,
            "device": f"{origin.device} {origin.device_name}".strip(),
            "command": command,
            "recorded command (unverified)": "" if command else legible(origin.command),
            "note": origin.note,
            **origin.versions,
        }
        st.table(
            {name: widgets.escape(str(value)) for name, value in facts.items() if value},
            border="horizontal",
        )
        titles = {
            "source_dtype": "saved as",
            "bit_class": "bit-identical class",
            "sha256": "sha256",
        }
        titles = {"name": "side", **titles, "sha256_dtype": "dtype"}
        st.dataframe(sides, hide_index=True, column_order=list(titles), column_config=titles)
        exports.whole_run(view)
distances = ["distance_ulps", "elements"]
files = {
    "figures by position": view.table,
    "distances in ULPs": lambda: pd.DataFrame(
        view.run.histogram(view.pair.index).items(),
        columns=distances,
    ),
    "evidence": partial(panel.evidence_table, view),
    "pair and floor by position": partial(view.run.rows, "floor_position", pair=view.pair.index),
    "sides": sides,
}
exports.download(files, exports.file_stem(view, "overview"), "overview")
