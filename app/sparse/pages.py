"""The Overview, Flips, Near ties and Heatmap pages of a run of sparse sides."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.components import plots
from app.overview.charts import over_positions
from app.shell import address, selection, widgets, wording
from app.shell.glossary import meanings
from app.sparse import charts, parts
from core.runs.reports.sparse_json import side_json, summary_json
from core.runs.reports.sparse_markdown import sparse_markdown
from core.runs.reports.sparse_wording import (
    grid_lines,
    low_of,
    meeting_lines,
    opening,
    placeholder_words,
    sentence,
    told,
    told_count,
)
from core.runs.sparse_run import SparseVerdict
from core.runs.views.sparse import changes_by_rank
from core.text import legible, number, out_of, percent, plural, visible


def overview(view: selection.SparseView) -> None:
    """Draw what was sent and what follows from it: figures, where texts part, the grid, the lists of the position."""
    pair, said = view.pair, summary_json(view.pair)
    verdict = next((one for one in view.run.verdicts if one.variant == pair.variant), None)
    words = placeholder_words(pair)
    if words and (verdict is None or words not in verdict.because):
        st.warning(widgets.escaped(opening(words)))
    if verdict is not None:
        _verdict(verdict)
    if verdict is None or pair.differing:
        st.markdown(f"**{widgets.escaped(sentence(pair))}**")
    figures = st.columns(4)
    figures[0].metric(
        "Flips", told_count(said["flips"]), help=f"{meanings()['flip']}; of {plural(len(pair.positions), 'position')}"
    )
    figures[1].metric(
        "Could flip",
        told_count(said["could_flip"]),
        help=f"{meanings()['could flip']}; bounds, because tokens that were not sent may have changed by more",
    )
    listed = said["listed"]
    figures[2].metric(
        "Sent values that differ",
        percent(said["listed_that_differ"] / listed) if listed else "none sent by both",
        help=out_of(said["listed_that_differ"], listed),
    )
    figures[3].metric(
        "Largest difference sent",
        number(low_of(said["max_abs"]), 6) if listed else "unknown",
        help=f"{parts.unit(view)}, over tokens both sides sent",
    )
    _ways(view)
    if pair.differing:
        widgets.causes(view)
    for line in (*grid_lines(pair), *meeting_lines(pair)):
        st.markdown(f"- {widgets.escaped(line)}")
    for note in pair.notes:
        st.caption(widgets.escaped(note))
    _texts(view)
    if pair.differing:
        _over_positions(view)
    parts.lists(view)
    _folded(view)


def _over_positions(view: selection.SparseView) -> None:
    plots.draw(
        over_positions(view.prompt_table, "max_abs", f"largest change sent, {parts.unit(view)}", view.position),
        key="sparse_over_positions",
        picture=parts.picture(view, "changes"),
    )
    st.caption(f"Largest change of a token that both sides sent, by position{_of_prompt(view)}.")


def _folded(view: selection.SparseView) -> None:
    """Bounds, the report and the provenance, which are looked at now and then."""
    said = summary_json(view.pair)
    with st.expander("Bounds", icon=":material/straighten:"):
        st.caption("What follows of the complete rows, of which some tokens were sent.")
        st.table(
            {
                "largest change of a value": told(said["max_abs"], 6),
                "largest change of a probability": told(said["max_probability_change"], 6),
                "largest KL, nats": told(said["max_kl"], 6),
                "mean KL, nats": told(said["mean_kl"], 6),
                "smallest margin": told(said["min_margin"], 6),
                "ties": told_count(said["ties"]),
            },
            border="horizontal",
        )
    folded = st.expander(
        "Report for an issue thread", icon=":material/article:", key="sparse_report", on_change="rerun"
    )
    if folded.open:
        with folded:
            widgets.code_block(sparse_markdown(view.run, view.pair.variant, address.absolute(view)), wraps=True)
    _provenance(view)


def _verdict(found: SparseVerdict) -> None:
    """Draw the verdict on the pair, in its colour, and why."""
    with st.container(border=True, key="verdict"):
        st.badge(found.name, color=wording.VERDICTS.get(found.name, "gray"))  # type: ignore[arg-type]
        st.markdown(widgets.marked(wording.opening(found.because), bold=True))


def _ways(view: selection.SparseView) -> None:
    """Draw a line a side of the run, where there are several; a click selects it."""
    pairs = view.run.pairs
    if len(pairs) < 2:
        return
    verdicts = {found.variant: found.name for found in view.run.verdicts}
    rows = []
    for pair in pairs:
        said = summary_json(pair)
        rows.append(
            {
                "variant": pair.variant,
                "verdict": [verdicts.get(pair.variant, "not judged")],
                "sent by both": said["listed"],
                "that differ": said["listed_that_differ"],
                f"largest, {parts.unit(view)}": low_of(said["max_abs"]),
                "flips": told_count(said["flips"]),
                "could flip": told_count(said["could_flip"]),
            }
        )

    def choose() -> None:
        said = st.session_state["sparse_ways"]["selection"]
        chosen = [*said.get("rows", []), *(cell[0] for cell in said.get("cells", []))]
        if chosen:
            selection.select(variant=pairs[chosen[0]].variant)

    st.dataframe(
        pd.DataFrame(rows),
        hide_index=True,
        key="sparse_ways",
        on_select=choose,
        selection_mode=["single-row", "single-cell"],
        column_config={
            "verdict": st.column_config.MultiselectColumn(
                options=list(wording.VERDICTS), color=list(wording.VERDICTS.values())
            ),
            f"largest, {parts.unit(view)}": parts.VALUE,
            "sent by both": parts.WHOLE,
            "that differ": parts.WHOLE,
        },
        height=widgets.table_height(len(rows), 10),
    )


def _of_prompt(view: selection.SparseView) -> str:
    return f" of prompt {view.prompt}" if view.prompts > 1 else ""


def _texts(view: selection.SparseView) -> None:
    """Draw both generated texts around the place where they part."""
    meeting = next(one for one in view.pair.meetings if one.prompt == view.prompt)
    variant = view.run.pairs.index(view.pair) + 1
    sides = view.run.sides[0], view.run.sides[variant]
    texts = [side.responses[view.prompt].text for side in sides]
    if meeting.parting is None or not all(texts) or texts[0] == texts[1]:
        return
    shared = next((i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
    st.subheader("Where the texts part")
    for column, side, text in zip(st.columns(2), sides, texts, strict=True):
        column.caption(f"`{widgets.code(side.name)}`")
        with column:
            start = max(0, shared - 200)
            shown = visible(text[start:shared]) + "▸" + visible(text[shared : shared + 200])
            widgets.code_block(("…" if start else "") + shown, wraps=True)


def _provenance(view: selection.SparseView) -> None:
    folded = st.expander("Provenance and sides", key="sparse_provenance", on_change="rerun")
    if not folded.open:
        return
    with folded:
        about = view.run.header
        facts = {
            "run": view.run.run_id,
            "created (UTC)": "" if about.created is None else f"{about.created:%Y-%m-%d %H:%M:%S}",
            "model": about.model,
            "command, as the file states it": legible(about.command),
            "note": about.note,
            **about.versions,
        }
        st.table({name: widgets.escaped(str(value)) for name, value in facts.items() if value}, border="horizontal")
        st.dataframe([_side(side_json(side)) for side in view.run.sides], hide_index=True)


def _side(said: dict) -> dict[str, object]:
    processed = {True: "yes", False: "no", None: "not said"}[said["processed"]]
    return {
        "side": said["name"],
        "format": ", ".join(said["formats"]),
        "values": f"{said['values']} by {said['keys'].replace('_', ' ')}",
        "prompts": said["prompts"],
        "rows": said["rows"],
        "values sent": said["listed"],
        "most a row": said["most_a_row"],
        "placeholders": said["missing"],
        "processed": processed,
    }


def flips(view: selection.SparseView) -> None:
    """Draw every flip, with the margins by which each side chose, and the lists of the selected position."""
    table = view.table
    found = table[table["is_flip"]]
    unknown = int(table["is_flip_open"].sum())
    said = f"{plural(len(found), 'flip')} at {plural(len(table), 'position')} that both sides have"
    if unknown:
        said += f"; at {unknown:,} a side did not send its best token, so whether it flips is not known"
    st.markdown(said + ".")
    if found.empty:
        smallest = table[["reference_margin", "variant_margin"]].min(axis=1).min()
        if not pd.isna(smallest):
            st.info(f"The smallest margin that was sent is {wording.logit(float(smallest))} {parts.unit(view)}.")
    else:
        parts.positions_table(view, found, "sparse_flips")
    parts.lists(view)


def near_ties(view: selection.SparseView) -> None:
    """Draw margins against changes, and the positions with the smallest margins."""
    table = view.table
    known = table[["reference_margin", "variant_margin"]].min(axis=1)
    if known.notna().sum() == 0:
        st.info(
            "No margin is known: the two best tokens of a row were not sent. Ask the server for two or more"
            " log-probabilities a token."
        )
        return
    plots.draw(
        charts.margins(table, (view.prompt, view.position), parts.unit(view)),
        key="sparse_margins",
        on_pick=lambda: parts.follow("sparse_margins"),
        picture=parts.picture(view, "margins"),
    )
    undrawn = int(known.isna().sum())
    st.caption(
        "A position could flip if its margin is at most twice the largest change. Tokens that were not sent may have"
        " changed by more, so a gray point can still flip."
        + (f" {plural(undrawn, 'position')} without a margin cannot be drawn." if undrawn else "")
    )
    closest = table.assign(smaller=known).dropna(subset=["smaller"]).sort_values(["smaller", "position"]).head(50)
    st.markdown(f"**The smallest margins**, {plural(len(closest), 'position')}")
    parts.positions_table(view, closest, "sparse_closest")
    parts.lists(view)


def heatmap(view: selection.SparseView) -> None:
    """Draw the change of each rank's token over the positions of the prompt."""
    positions, changes = changes_by_rank(view.pair, view.prompt)
    if not changes.size:
        st.info("The reference sent no best tokens of this prompt, so there are no ranks to show.")
        return
    sent = int((changes == changes).sum())
    if not sent:
        st.info("The variant sent none of the reference's top tokens of this prompt, so no change is known.")
        parts.lists(view)
        return
    moved = int((changes[changes == changes] != 0).sum())
    st.markdown(
        f"{out_of(moved, sent)} of the reference's best tokens that the variant sent too have another value; blank"
        " cells were not sent."
    )
    plots.draw(
        charts.by_rank(positions, changes, view.position, parts.unit(view)),
        key="sparse_heatmap",
        picture=parts.picture(view, "heatmap"),
    )
    st.caption(
        f"Variant minus reference, {parts.unit(view)}, of the token at each rank of the reference{_of_prompt(view)}."
        " Token ids have no place here: a server sends the best tokens of a row, not the row."
    )
    parts.lists(view)
