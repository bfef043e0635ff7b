"""The verdict at the head of the overview: a label, a sentence, the ladder with its evidence, the report to copy.

Everything it says is stored with the run; core.runs.views.verdicts turns rows into sentences.
"""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import streamlit as st

from app.components import plots
from app.shell import address, exports, selection, widgets, wording
from app.verdict import charts, panel_actions
from core.runs.file.evidence import (
    FAILED,
    FLOAT32,
    MISSING,
    NOTED,
    PASSED,
    RUNGS,
    AloneFigures,
    DrawnFigures,
    Evidence,
    ModulesFigures,
    PairFigures,
    StructureFigures,
)
from core.runs.file.records import (
    BUG_SUSPECTED,
    IDENTICAL,
    INVALID_DUMP,
    LIKELY_ROUNDING,
    LOWER_PRECISION,
    NONDETERMINISTIC,
    NOT_JUDGED,
    ROUNDING,
    UNDECIDED,
)
from core.runs.reports.issue_markdown import issue_text
from core.runs.views.verdicts import Finding, Rung, finding, ladder_in_words, position_ratios
from core.text import out_of, plural

_ICONS = {
    BUG_SUSPECTED: ":material/bug_report:",
    INVALID_DUMP: ":material/block:",
    NONDETERMINISTIC: ":material/shuffle:",
    UNDECIDED: ":material/help:",
    NOT_JUDGED: ":material/hourglass_empty:",
    LOWER_PRECISION: ":material/stairs:",
    LIKELY_ROUNDING: ":material/check_small:",
    ROUNDING: ":material/check:",
    IDENTICAL: ":material/drag_handle:",
}
_OUTCOMES = {
    PASSED: (":material/check_circle:", "green"),
    FAILED: (":material/cancel:", "red"),
    MISSING: (":material/help:", "orange"),
    NOTED: (":material/info:", "blue"),
}
_OF_MODULES = (
    "modules",
    "modules_beyond",
    "pair_rms",
    "floor_rms",
    "alone_rms",
    "own_rounding_rms",
)  # figures of a row, one value a module


def verdict(view: selection.View) -> None:
    """Draw label and sentence, what judges the run where nothing did, and the ladder in one line."""
    found = finding(view.run, view.pair, view.table)
    with st.container(border=True, key="verdict"):
        colour = wording.VERDICTS.get(found.name, "gray")
        st.badge(found.name, icon=_ICONS.get(found.name), color=colour)  # type: ignore[arg-type]
        st.markdown(widgets.marked(wording.opening(found.because), bold=True))
        st.markdown(" ".join(filter(None, [_differing(view), widgets.marked(found.more)])))
    is_upload = view.run.header.provenance.kind == "upload"
    if is_upload and found.name in (UNDECIDED, LIKELY_ROUNDING, NONDETERMINISTIC):
        panel_actions.controls_to_bring(view)
    elif not is_upload and not found.is_judged:
        panel_actions.how_to_judge(view)
    _ladder(view, found)


def _differing(view: selection.View) -> str:
    """Sentence on how much differs, which is no verdict, in markdown."""
    summary, header = view.pair.summary, view.run.header
    if summary.bit_identical:
        return (
            f"Bit-identical: all {header.rows * header.vocab:,} logits are the same on both sides, signs of zeros"
            " included."
        )
    change = "positions changes its" if summary.flips == 1 else "positions change their"
    flips = f"**{summary.flips:,} of {header.rows:,} {change} argmax**" if summary.flips else "no argmax changes"
    return f"{out_of(summary.neq, header.rows * header.vocab)} logits differ; {flips}."


def _ladder(view: selection.View, found: Finding) -> None:
    """Draw the ladder as one line that counts its rungs; opened, every rung in order: one with a row of evidence
    unfolds to its figures, one without says what would supply it.
    """
    label = f"Evidence · {ladder_in_words(found.rungs)}"
    folded = st.expander(label, icon=":material/stairs_2:", key="ladder_fold", on_change="rerun")
    if not folded.open:
        return
    with folded, st.container(key="ladder"):
        for rung in found.rungs:
            for number, row in enumerate(rung.rows):
                _row(view, rung, row, f"rung_{rung.name}_{number}".replace(" ", "_"))
            if not rung.rows:
                st.expander(
                    f":gray[**{RUNGS[rung.name]}** · not run · {rung.supply}]",
                    type="step",
                    icon=":material/radio_button_unchecked:",
                )


def evidence_table(view: selection.View) -> pd.DataFrame:
    """Every row of the ladder that was run: rung, check, side, control, outcome, says, and its figures as JSON."""
    rows = [
        {
            "rung": row.rung,
            "check": row.check.value,
            "side": row.side,
            "control": row.control,
            "outcome": row.outcome,
            "says": row.says,
            "figures": json.dumps(row.figures.to_json(), ensure_ascii=False),
        }
        for row in view.run.evidence(view.pair.index)
    ]
    return pd.DataFrame(rows, columns=["rung", "check", "side", "control", "outcome", "says", "figures"])


def _title(rung: Rung, row: Evidence) -> str:
    """Name of a rung; of several rows with what each checked, or whose each is where several checked that."""
    name = RUNGS[rung.name]
    if len(rung.rows) == 1:
        return name
    is_alone = [each.check for each in rung.rows].count(row.check) == 1
    what = row.check.value if is_alone else row.side
    return f"{name}: {widgets.escaped(what)}" if what else name


def _row(view: selection.View, rung: Rung, row: Evidence, key: str) -> None:
    icon, colour = _OUTCOMES[row.outcome]
    title = _title(rung, row)
    label = f"**{title}** · :{colour}[{row.outcome}] · {widgets.marked(row.says)}{_limit(row)}"
    step = st.expander(label, type="step", icon=icon, key=key, on_change="rerun")
    with step:
        st.caption(f"Control: {widgets.escaped(row.control)}")
        if step.open:  # charts that nobody sees are not sent
            _figures(row)
            _charts(view, row)


def _limit(row: Evidence) -> str:
    """Sentence on the limit that a passed ratio was held against: another dtype has another limit, and `4.87 times`
    beside `below 4` needs a word.
    """
    if row.outcome != PASSED or not isinstance(row.figures, PairFigures | DrawnFigures) or "below" in row.says:
        return ""
    return f" Rounding stays below {row.figures.largest_ratio_allowed:g}."


def _figures(row: Evidence) -> None:
    shown = {
        label: widgets.escaped(wording.figure(value))
        for key, label, value in row.figures.present()
        if key not in _OF_MODULES  # those are drawn
    }
    if shown:
        st.table(shown, border="horizontal")


def _charts(view: selection.View, row: Evidence) -> None:
    """Draw pair and floor by position for the pair, by module or in blocks for the structure."""
    if isinstance(row.figures, PairFigures):
        _beside_floor(view, row.rung, row.figures)
    elif isinstance(row.figures, ModulesFigures):
        _modules(row.figures)
    elif isinstance(row.figures, AloneFigures):
        _modules_alone(row.figures, str(row.side))
    elif isinstance(row.figures, StructureFigures):
        deciding = _deciding(view)
        if deciding is not None:
            _residues(view, row.figures, deciding)


def _floors_of(view: selection.View, dtype: str) -> tuple[pd.DataFrame, np.ndarray]:
    """The pair beside its floor at every position in this dtype, and their ratios; empty where there is no floor."""
    floors = view.run.floor_positions(view.pair.index)
    floors = floors[floors["compute_dtype"] == dtype]
    if floors.empty:
        return floors, np.empty(0)
    return floors, position_ratios(floors["pair_rms"].to_numpy(float), floors["floor_rms"].to_numpy(float), dtype)


def _beside_floor(view: selection.View, rung: str, figures: PairFigures) -> None:
    """Draw the pair beside its floor by position."""
    dtype = figures.compute_dtype
    of_dtype, ratios = _floors_of(view, dtype)
    if of_dtype.empty:
        return
    if figures.nonfinite_mismatch:  # over the finite logits alone a ratio would look small
        ratios = np.where(view.table["nonfinite_mismatch"].to_numpy(int) > 0, np.nan, ratios)
    here = (of_dtype["prompt"] == view.prompt).to_numpy()
    table = view.prompt_table
    flips = table.loc[table["is_flip"], "position"].to_numpy(int)
    which = f"prompt {view.prompt}" if len(view.run.header.prompts) > 1 else "the prompt"
    if rung == FLOAT32:
        floors = view.run.floor_positions(view.pair.index)
        shown = floors[floors["prompt"] == view.prompt]
        _clickable(charts.pair_and_floor(shown, view.position, view.dtype, flips), f"floor_pair_{dtype}")
        st.caption(f"rms of the difference at each position of {which}, logits, beside its rounding floor.")
    threshold = figures.position_ratio_allowed
    allowed = threshold if threshold is not None and threshold > 0 else None
    figure = charts.floor_ratio(
        of_dtype["position"].to_numpy(int)[here], ratios[here], allowed, view.position, dtype, flips
    )
    _clickable(figure, f"floor_ratio_{dtype}")
    beyond = int((ratios[~here] > allowed).sum()) if allowed is not None else 0
    st.caption(
        f"Pair over floor at each position of {which}, both in {dtype}"
        + (
            "; in a gap nothing differs, or a logit is NaN or infinite on one side."
            if figures.nonfinite_mismatch
            else "."
        )
        + ("" if allowed is not None else " In 16 bits positions are shown and not judged.")
        + (
            f" {plural(beyond, 'position')} of other prompts {'stands' if beyond == 1 else 'stand'} out too."
            if beyond
            else ""
        )
    )


def _modules(figures: ModulesFigures) -> None:
    """Draw pair and floor by module."""
    if not figures.modules:
        return
    figure = charts.over_modules(
        list(figures.modules),
        np.array(figures.pair_rms, float),
        np.array(figures.floor_rms, float),
        figures.first_module,
    )
    plots.draw(figure, key="over_modules", picture=_picture("over-modules"))
    st.caption(
        "rms of the difference at the output of every module, in units of that output, beside its rounding floor."
    )


def _modules_alone(figures: AloneFigures, side: str) -> None:
    """Draw each module of a side alone beside its own rounding."""
    if not figures.modules:
        return
    figure = charts.over_modules(
        list(figures.modules),
        np.array(figures.alone_rms, float),
        np.array(figures.own_rounding_rms, float),
        next(iter(figures.modules_beyond), None),
        ("this side", "own rounding"),
    )
    plots.draw(figure, key=f"modules_alone_{side}", picture=_picture("modules-alone"))
    st.caption(
        "rms to float64 of every module's output, given what ran before it on that side, beside the model's own"
        " rounding on the same input."
    )


def _deciding(view: selection.View) -> PairFigures | None:
    """Figures that the structure is read from: of the last row of the float32 rung that passed or failed."""
    rows = [
        row for row in view.run.evidence(view.pair.index) if row.rung == FLOAT32 and row.outcome in (PASSED, FAILED)
    ]
    return rows[-1].figures if rows and isinstance(rows[-1].figures, PairFigures) else None


def _residues(view: selection.View, figures: StructureFigures, deciding: PairFigures) -> None:
    """Draw the residues, only where the evidence names a block and the deciding rung its threshold."""
    block, threshold = figures.block, deciding.position_ratio_allowed
    if block is None or not 2 <= block <= 4096 or threshold is None:
        return
    floors, ratios = _floors_of(view, deciding.compute_dtype)
    beyond = floors.loc[ratios > threshold, ["prompt", "position"]].to_numpy(int)
    if not len(beyond):
        return
    is_start = np.ones(len(beyond), bool)
    is_start[1:] = (np.diff(beyond[:, 1]) != 1) | (np.diff(beyond[:, 0]) != 0)
    figure = charts.residues(beyond[:, 1], beyond[is_start, 1], block)
    plots.draw(figure, key="floor_residues", picture=_picture("residues"))
    st.caption(f"Positions of all prompts that stand out from the floor, by their place in blocks of {block}.")


def _picture(what: str) -> dict[str, object]:
    view = selection.current_view()
    return exports.picture_of(view, what) if isinstance(view, selection.View) else exports.picture(what, [])


def _clickable(figure: plots.Drawable, key: str) -> None:
    def pick() -> None:
        position = plots.chosen(key, 0)
        if position is not None:
            selection.select(position=position)

    plots.draw(figure, key=key, on_pick=pick, picture=_picture(key.replace("_", "-")))


def report(view: selection.View) -> None:
    """Draw the report for an issue thread, folded; the button at the right of its text copies it."""
    unfolded = st.expander(
        "Report for an issue thread", icon=":material/article:", key="copy_report", on_change="rerun"
    )
    if unfolded.open:
        with unfolded:
            widgets.code_block(issue_text(view.run, [view.pair], address.absolute(view)), wraps=True)
