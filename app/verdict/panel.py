"""The verdict at the head of the overview: name, sentence, first divergence, size, checks, a report to copy."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial

import numpy as np
import pandas as pd
import streamlit as st

from app.components import plots
from app.shell import address, exports, selection, widgets, wording
from app.verdict import charts, panel_actions
from core.runs.file.evidence import EXPLAINED, FAILED, MISSING, NOTED, PASSED, AloneFigures, Evidence, PairFigures
from core.runs.queries.verdicts import Answer, answer_of, position_ratios
from core.runs.reports.issue_markdown import issue_text
from core.text import opening, plural

_OUTCOMES = {
    PASSED: (":material/check_circle:", "green"),
    EXPLAINED: (":material/check_circle:", "orange"),
    FAILED: (":material/cancel:", "red"),
    MISSING: (":material/help:", "orange"),
    NOTED: (":material/info:", "blue"),
}
_MOST_VALUES = 12  # of a figure in a table; longer ones, such as one value per module, are drawn
_EVIDENCE = ("group", "check", "side", "control", "outcome", "says", "figures")


def verdict(view: selection.View) -> Answer:
    """Draw the answer and return it: name, sentence, first divergence, size."""
    answer = answer_of(view.run, view.pair)
    with st.container(border=True, key="verdict"):
        badge = f":{wording.VERDICTS.get(answer.name, 'gray')}-badge[{widgets.escape(answer.name)}]"
        st.markdown(f"{badge} {widgets.to_markdown(opening(answer.sentence), bold=True)}")
        if any(part not in answer.sentence for part in answer.place.split(", ")):
            st.markdown(f"First divergence: **{widgets.escape(answer.place)}**")
    return answer


def checks(view: selection.View, answer: Answer) -> None:
    """Draw what would decide or judge, and every check as a line: open if it failed; checks that need no action are
    folded.
    """
    panel_actions.next_step(view, answer)
    every = answer.titled_checks
    rest = [check for check in every if not _is_to_act_on(check[1])]
    for number, (title, row) in enumerate(every):
        if _is_to_act_on(row):
            _check(view, title, row, f"open_check_{number}", is_open=row.outcome == FAILED)
    if rest:
        counts = Counter(row.outcome for _, row in rest)
        label = ", ".join(f"{counts[outcome]} {outcome}" for outcome in _OUTCOMES if counts[outcome])
        folded = st.expander(
            f"Other checks: {label}", icon=":material/checklist:", key="other_checks", on_change="rerun"
        )
        if folded.open:
            with folded:
                for number, (title, row) in enumerate(rest):
                    _check(view, title, row, f"check_{number}", is_open=False)
    if answer.not_run:
        st.caption(answer.not_run_line)


def _is_to_act_on(row: Evidence) -> bool:
    """Return whether a check needs action: it failed, a control is missing, or it names modules."""
    return row.outcome in (FAILED, MISSING) or bool(getattr(row.figures, "modules_beyond", ()))


def _check(view: selection.View, title: str, row: Evidence, key: str, *, is_open: bool) -> None:
    """Draw one check: outcome, title and line; opened, its chart, what was run and its figures."""
    icon, colour = _OUTCOMES[row.outcome]
    label = f":{colour}[{row.outcome}] · **{widgets.escape(title)}** · {widgets.to_markdown(row.says)}"
    step = st.expander(label, is_open, type="step", icon=icon, key=key, on_change="rerun")
    if not step.open:  # charts that are not shown are not sent
        return
    with step:
        figures = row.figures
        if isinstance(figures, PairFigures):
            _over_floor(view, figures)
        elif isinstance(figures, AloneFigures) and figures.modules:
            side, own, first = figures.alone_rms, figures.own_rounding_rms, next(iter(figures.modules_beyond), None)
            chart = charts.over_modules(list(figures.modules), np.array(side, float), np.array(own, float), first)
            plots.draw(chart, key=f"modules_{key}", picture=exports.picture_of(view, f"modules-{row.side}"))
            st.caption(
                "RMS error vs. float64 on the same input: of each module of the side, and of the model in float32."
            )
        table = {
            name: widgets.escape(wording.figure(value))
            for _, name, value in figures.present()
            if (not isinstance(value, tuple) or len(value) <= _MOST_VALUES) and not name.endswith("old runs")
        }
        with st.expander("Method and numbers", type="compact", key=f"figures_{key}"):
            st.caption(widgets.escape(row.control))
            if table:
                st.table(table, border="horizontal")


def evidence_table(view: selection.View) -> pd.DataFrame:
    """Every check that was run, its figures as JSON."""
    rows = [row.to_json() for row in view.run.evidence(view.pair.index)]
    figures = [json.dumps(row["figures"], ensure_ascii=False) for row in rows]
    return pd.DataFrame(rows, columns=list(_EVIDENCE)).assign(figures=figures)


def _over_floor(view: selection.View, figures: PairFigures) -> None:
    """Draw the pair over its noise floor by position."""
    dtype, allowed = figures.compute_dtype, figures.position_ratio_allowed or None
    floors = view.run.rows("floor_position", pair=view.pair.index)
    floors = floors[floors["compute_dtype"] == dtype]
    if floors.empty:
        return
    ratios = position_ratios(floors["pair_rms"].to_numpy(float), floors["floor_rms"].to_numpy(float))
    if figures.nonfinite_mismatch:  # over the finite logits alone a ratio would look small
        ratios = np.where(view.table["nonfinite_mismatch"].to_numpy(int) > 0, np.nan, ratios)
    mask = (floors["prompt"] == view.prompt).to_numpy()
    flips = view.prompt_table.query("is_flip")["position"].to_numpy(int)
    positions = floors["position"].to_numpy(int)[mask]
    figure = charts.floor_ratio(positions, ratios[mask], allowed, view.position, dtype, flips)
    key = f"floor_ratio_{dtype}"
    picture = exports.picture_of(view, key.replace("_", "-"), of_prompt=True)
    plots.draw(figure, key=key, on_pick=partial(plots.select_position, key), picture=picture)
    gaps = "; in a gap nothing differs, or a logit is NaN or infinite on one side" if figures.nonfinite_mismatch else ""
    exceeding = int((ratios[~mask] > allowed).sum()) if allowed else 0
    st.caption(
        f"RMS difference / noise floor by position of prompt {view.prompt}, {dtype}{gaps}."
        f" Limit {figures.largest_ratio_allowed:g} overall{f', dashed: {allowed:.3g} per position' if allowed else ''}."
        + (f" {plural(exceeding, 'position')} of other prompts exceed the limit too." if exceeding else "")
    )


def report(view: selection.View) -> None:
    """Draw the report for an issue thread, folded; none of a long run, which would be read whole."""
    if view.run.header.is_long:
        return
    folded = st.expander("Report for an issue thread", icon=":material/article:", key="copy_report", on_change="rerun")
    if folded.open:
        with folded:
            widgets.code_block(issue_text(view.run, [view.pair], address.absolute(view)), wraps=True)
