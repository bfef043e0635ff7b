"""The verdict at the head of the overview: a label, a sentence, the checks with their figures, the report to copy.

Everything it says is stored with the run; core.runs.queries.verdicts turns rows into sentences.
"""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pandas as pd
import streamlit as st

from app.components import plots
from app.shell import address, exports, selection, widgets, wording
from app.verdict import charts, panel_actions
from core.runs.file.evidence import (
    FAILED,
    MISSING,
    NOTED,
    PASSED,
    RUNGS,
    AloneFigures,
    DrawnFigures,
    Evidence,
    PairFigures,
)
from core.runs.file.records import LIKELY_ROUNDING, NONDETERMINISTIC, UNDECIDED
from core.runs.queries.verdicts import Finding, Rung, finding, ladder_in_words, position_ratios
from core.runs.reports.issue_markdown import issue_text
from core.text import out_of, plural

_OUTCOMES = {
    PASSED: (":material/check_circle:", "green"),
    FAILED: (":material/cancel:", "red"),
    MISSING: (":material/help:", "orange"),
    NOTED: (":material/info:", "blue"),
}
_DRAWN = ("modules", "modules_beyond", "pair_rms", "floor_rms", "alone_rms", "own_rounding_rms")  # a value a module
_EVIDENCE = ("rung", "check", "side", "control", "outcome", "says", "figures")


def verdict(view: selection.View) -> None:
    """Draw label and sentence, what would judge the run if nothing did, and the checks in one line."""
    found = finding(view.run, view.pair, view.table)
    with st.container(border=True, key="verdict"):
        st.badge(found.name, color=wording.VERDICTS.get(found.name, "gray"))  # type: ignore[arg-type]
        st.markdown(widgets.marked(wording.opening(found.because), bold=True))
        st.markdown(" ".join(filter(None, [_differing(view), widgets.marked(found.more)])))
    is_upload = view.run.header.provenance.kind == "upload"
    could_decide = found.name in (UNDECIDED, LIKELY_ROUNDING, NONDETERMINISTIC)
    if is_upload and could_decide and not view.is_list:  # the verdict on lists names what would decide
        panel_actions.controls_to_bring(view)
    elif not is_upload and not found.is_judged:
        panel_actions.how_to_judge(view)
    _checks(view, found)


def _differing(view: selection.View) -> str:
    """Sentence on how much differs, in markdown."""
    summary, header, rows = view.pair.summary, view.run.header, view.compared
    logits = summary.finite if view.is_list else header.rows * header.vocab
    if summary.bit_identical:
        return f"Bit-identical: all {logits:,} logits are the same on both sides, signs of zeros included."
    change = "positions changes its" if summary.flips == 1 else "positions change their"
    if summary.same_top1 is None and view.is_list:
        return f"{out_of(summary.neq, logits)} values differ; no side sent its best tokens, so flips are unknown."
    flips = f"**{summary.flips:,} of {rows:,} {change} argmax**" if summary.flips else "no argmax changes"
    return f"{out_of(summary.neq, logits)} {'values' if view.is_list else 'logits'} differ; {flips}."


def _checks(view: selection.View, found: Finding) -> None:
    """Draw one line that counts the checks; opened, every check in order with its figures or what would supply it."""
    label = f"Evidence · {ladder_in_words(found.rungs)}"
    folded = st.expander(label, icon=":material/stairs_2:", key="ladder_fold", on_change="rerun")
    if not folded.open:
        return
    with folded, st.container(key="ladder"):
        for rung in found.rungs:
            for number, row in enumerate(rung.rows):
                _check(view, rung, row, f"rung_{rung.name}_{number}".replace(" ", "_"))
            if not rung.rows:
                text = f":gray[**{RUNGS[rung.name]}** · not run · {rung.supply}]"
                st.expander(text, type="step", icon=":material/radio_button_unchecked:")


def _check(view: selection.View, rung: Rung, row: Evidence, key: str) -> None:
    """Draw one check: its outcome and sentence; opened, its figures and its chart."""
    icon, colour = _OUTCOMES[row.outcome]
    figures = row.figures
    title, says = RUNGS[rung.name], widgets.marked(row.says)
    if len(rung.rows) > 1:  # told apart by what they checked, else by the side
        is_alone = [each.check for each in rung.rows].count(row.check) == 1
        title += f": {widgets.escaped(what)}" if (what := row.check.value if is_alone else row.side) else ""
    if row.outcome == PASSED and isinstance(figures, PairFigures | DrawnFigures) and "below" not in row.says:
        says += f" Rounding stays below {figures.largest_ratio_allowed:g}."
    label = f"**{title}** · :{colour}[{row.outcome}] · {says}"
    step = st.expander(label, type="step", icon=icon, key=key, on_change="rerun")
    with step:
        st.caption(f"Control: {widgets.escaped(row.control)}")
        if not step.open:  # charts that are not shown are not sent
            return
        shown = {
            name: widgets.escaped(wording.figure(value))
            for of, name, value in figures.present()
            if of not in _DRAWN or not isinstance(value, tuple)
        }
        if shown:
            st.table(shown, border="horizontal")
        if isinstance(figures, PairFigures):
            _over_floor(view, figures)
        elif isinstance(figures, AloneFigures) and figures.modules:
            alone, own, first = figures.alone_rms, figures.own_rounding_rms, next(iter(figures.modules_beyond), None)
            _over_modules(view, figures.modules, alone, own, first, f"modules_alone_{row.side}")
            st.caption("RMS error of every module to float64 on the same input, and the rounding of the model itself.")


def _over_modules(view: selection.View, names: tuple, rms: tuple, floor: tuple, first: str | None, key: str) -> None:
    figure = charts.over_modules(list(names), np.array(rms, float), np.array(floor, float), first)
    plots.draw(figure, key=key, picture=exports.picture_of(view, key.replace("_", "-")))


def evidence_table(view: selection.View) -> pd.DataFrame:
    """Every check that was run, its figures as JSON."""
    rows = [
        {
            **{name: getattr(row, name) for name in _EVIDENCE},
            "check": row.check.value,
            "figures": json.dumps(row.figures.to_json(), ensure_ascii=False),
        }
        for row in view.run.evidence(view.pair.index)
    ]
    return pd.DataFrame(rows, columns=list(_EVIDENCE))


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
    here = (floors["prompt"] == view.prompt).to_numpy()
    table = view.prompt_table
    flips = table.loc[table["is_flip"], "position"].to_numpy(int)
    positions = floors["position"].to_numpy(int)[here]
    figure = charts.floor_ratio(positions, ratios[here], allowed, view.position, dtype, flips)
    key = f"floor_ratio_{dtype}"
    picture = exports.picture_of(view, key.replace("_", "-"), of_prompt=True)
    plots.draw(figure, key=key, on_pick=partial(plots.select_position, key), picture=picture)
    gaps = "; in a gap nothing differs, or a logit is NaN or infinite on one side" if figures.nonfinite_mismatch else ""
    beyond = int((ratios[~here] > allowed).sum()) if allowed else 0
    st.caption(
        f"RMS difference over the noise floor by position of prompt {view.prompt}, {dtype}{gaps}."
        + ("" if allowed else " In 16 bits positions are shown and not judged.")
        + (f" {plural(beyond, 'position')} of other prompts exceed the limit too." if beyond else "")
    )


def report(view: selection.View) -> None:
    """Draw the report for an issue thread, folded; the button at the right of its text copies it. None of a long run,
    which would be read whole.
    """
    if view.run.header.is_long:
        return
    folded = st.expander("Report for an issue thread", icon=":material/article:", key="copy_report", on_change="rerun")
    if folded.open:
        with folded:
            widgets.code_block(issue_text(view.run, [view.pair], address.absolute(view)), wraps=True)
