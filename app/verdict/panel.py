"""The verdict at the head of the overview: a label, a sentence, the ladder with its evidence, the report to copy.

Everything it says is stored with the run; core.runs.views.verdicts turns rows into sentences.
"""

from __future__ import annotations

import json
import re
from urllib.parse import urlencode

import numpy as np
import pandas as pd
import streamlit as st

from app.components import plots
from app.components.code_block import code_block
from app.shell import address, exports, selection, widgets, wording
from app.verdict import charts, panel_actions
from core.runs.file.records import (
    BUG_SUSPECTED,
    FAILED,
    FLOAT32,
    IDENTICAL,
    INVALID_DUMP,
    LOWER_PRECISION,
    MISSING,
    MODULES,
    NONDETERMINISTIC,
    NOT_JUDGED,
    NOTED,
    ONE_ORDER,
    OWN_DTYPE,
    PASSED,
    ROUNDING,
    STRUCTURE,
    UNDECIDED,
    Evidence,
)
from core.runs.reports.issue_markdown import issue_text
from core.runs.views.verdicts import Finding, Rung, finding, position_ratios
from core.text import out_of, plural

_ICONS = {
    BUG_SUSPECTED: ":material/bug_report:",
    INVALID_DUMP: ":material/block:",
    NONDETERMINISTIC: ":material/shuffle:",
    UNDECIDED: ":material/help:",
    NOT_JUDGED: ":material/hourglass_empty:",
    LOWER_PRECISION: ":material/stairs:",
    ROUNDING: ":material/check:",
    IDENTICAL: ":material/drag_handle:",
}
_OUTCOMES = {
    PASSED: (":material/check_circle:", "green"),
    FAILED: (":material/cancel:", "red"),
    MISSING: (":material/help:", "orange"),
    NOTED: (":material/info:", "blue"),
}
_OF_MODULES = ("modules", "pair_rms", "floor_rms")  # figures of a row, one value a module
_QUOTED = re.compile(r"'([^']{1,60})'")


def verdict(view: selection.View) -> None:
    """Draw label and sentence, the evidence, and what judges the run where nothing did."""
    found = finding(view.run, view.pair, view.table)
    with st.container(border=True, key="verdict"):
        st.badge(found.name, icon=_ICONS.get(found.name), color=wording.VERDICTS.get(found.name, "gray"))  # type: ignore[arg-type]
        st.markdown(_marked(wording.opening(found.sentence), bold=True))
        _differing(view)
    is_upload = view.run.header.provenance.kind == "upload"
    if is_upload and found.name in (UNDECIDED, NONDETERMINISTIC):
        panel_actions.controls_to_bring(view)
    elif not is_upload and not found.is_judged:
        panel_actions.how_to_judge(view)
    _ladder(view, found)
    _report(view)


def _marked(text: str, *, bold: bool = False) -> str:
    """A stored sentence as markdown: what stands between backticks is code, the rest is text, whatever it holds."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a backtick that stands alone
        parts = [text.replace("`", "'")]
    return "".join(
        (f"`{widgets.code(part)}`" if part else "") if place % 2 else _text(part, bold)
        for place, part in enumerate(parts)
    )


def _text(part: str, bold: bool) -> str:
    """Escaped text; bold between its outer blanks, for markdown takes no bold that begins with one."""
    core = part.strip()
    if not core or not bold:
        return widgets.escaped(part)
    start = part.index(core)
    return f"{part[:start]}**{widgets.escaped(core)}**{part[start + len(core) :]}"


def _differing(view: selection.View) -> None:
    """Draw how much differs, which is no verdict."""
    summary, header = view.pair.summary, view.run.header
    if summary.bit_identical:
        st.markdown(
            f"Bit-identical: all {header.rows * header.vocab:,} logits are the same on both sides, signs of zeros"
            " included."
        )
        return
    change = "positions changes its" if summary.flips == 1 else "positions change their"
    flips = f"**{summary.flips:,} of {header.rows:,} {change} argmax**" if summary.flips else "no argmax changes"
    st.markdown(f"{out_of(summary.neq, header.rows * header.vocab)} logits differ; {flips}.")


def _ladder(view: selection.View, found: Finding) -> None:
    """Draw every rung in order; one with a row of evidence unfolds to its figures, one without says what would supply
    it.
    """
    with st.container(key="ladder"):
        for rung in found.rungs:
            for number, row in enumerate(rung.rows):
                _row(view, rung, row, f"rung_{rung.name}_{number}".replace(" ", "_"))
            if not rung.rows:
                title = wording.RUNGS.get(rung.name, rung.name)
                st.expander(
                    f":gray[**{title}** · not run · {rung.supply}]",
                    type="step",
                    icon=":material/radio_button_unchecked:",
                )


def evidence_table(view: selection.View) -> pd.DataFrame:
    """Every row of the ladder that was run: rung, control, outcome, says, and its figures as JSON."""
    rows = [
        {
            "rung": row.rung,
            "control": row.control,
            "outcome": row.outcome,
            "says": row.says,
            "figures": json.dumps(row.figures, ensure_ascii=False),
        }
        for row in view.run.evidence(view.pair.index)
    ]
    return pd.DataFrame(rows, columns=["rung", "control", "outcome", "says", "figures"])


def _title(rung: Rung, row: Evidence) -> str:
    """Name of a rung; where it has several rows, with what each of them checked, or whose it is."""
    name = wording.RUNGS.get(rung.name, rung.name)
    if len(rung.rows) == 1:
        return name
    checks = [wording.checked(each.rung, each.figures) for each in rung.rows]
    if len(set(checks)) < len(checks):  # one row a side, as of the sampler: the control begins with its name
        checks = [quoted[1] if (quoted := _QUOTED.search(each.control)) else "" for each in rung.rows]
    check = checks[rung.rows.index(row)]
    return f"{name}: {widgets.escaped(check)}" if check and len(set(checks)) == len(checks) else name


def _row(view: selection.View, rung: Rung, row: Evidence, key: str) -> None:
    icon, colour = _OUTCOMES[row.outcome]
    title = _title(rung, row)
    label = f"**{title}** · :{colour}[{row.outcome}] · {_marked(row.says)}{_limit(row)}"
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
    limit = row.figures.get("largest_ratio_allowed")
    if row.outcome != PASSED or not isinstance(limit, int | float) or "below" in row.says:
        return ""
    return f" Rounding stays below {limit:g}."


def _figures(row: Evidence) -> None:
    figures = {key: value for key, value in row.figures.items() if key not in _OF_MODULES}  # those are drawn
    if figures:
        shown = {wording.figure_name(key): widgets.escaped(wording.figure(value)) for key, value in figures.items()}
        st.table(shown, border="horizontal")


def _charts(view: selection.View, row: Evidence) -> None:
    """Draw pair and floor by position for the rungs that have one, by module or in blocks for the structure."""
    if row.rung == MODULES:
        _modules(row)
    if row.rung in (MODULES, ONE_ORDER) or not row.figures:  # without figures: a control that was left aside
        return
    floors = view.run.floor_positions(view.pair.index)
    deciding = row if row.rung != STRUCTURE else _deciding(view)
    dtype = _dtype(view, deciding) if deciding is not None else ""
    of_dtype = floors[floors["compute_dtype"] == dtype]
    if of_dtype.empty or deciding is None:
        return
    ratios = position_ratios(of_dtype["pair_rms"].to_numpy(float), of_dtype["floor_rms"].to_numpy(float), dtype)
    if row.rung == STRUCTURE:
        _residues(row, deciding, of_dtype, ratios)
        return
    if row.figures.get("nonfinite_mismatch"):  # over the finite logits alone a ratio would look small
        ratios = np.where(view.table["nonfinite_mismatch"].to_numpy(int) > 0, np.nan, ratios)
    here = (of_dtype["prompt"] == view.prompt).to_numpy()
    table = view.prompt_table
    flips = table.loc[table["is_flip"], "position"].to_numpy(int)
    which = f"prompt {view.prompt}" if len(view.run.header.prompts) > 1 else "the prompt"
    if row.rung == FLOAT32:
        shown = floors[floors["prompt"] == view.prompt]
        _clickable(charts.pair_and_floor(shown, view.position, view.dtype, flips), f"floor_pair_{dtype}")
        st.caption(
            f"Root mean square of the difference at each position of {which}, in logits: this pair, and the rounding"
            " floor, which is the mean of the reorderings. Where a line has a gap, nothing differs. A click selects"
            " the position."
        )
    threshold = row.figures.get("position_ratio_allowed")
    is_number = isinstance(threshold, int | float) and not isinstance(threshold, bool) and threshold > 0
    allowed = float(threshold) if is_number else None  # type: ignore[arg-type]
    figure = charts.floor_ratio(
        of_dtype["position"].to_numpy(int)[here], ratios[here], allowed, view.position, dtype, flips
    )
    _clickable(figure, f"floor_ratio_{dtype}")
    beyond = int((ratios[~here] > allowed).sum()) if allowed is not None else 0
    st.caption(
        f"Pair over floor at each position of {which}, both in {dtype}; the dotted line is the floor itself, in a gap"
        " nothing differs"
        + (", or a logit is NaN or infinite on one side." if row.figures.get("nonfinite_mismatch") else ".")
        + (
            ""
            if allowed is not None
            else (
                " In 16 bits positions are shown and not judged: what one moved element becomes varies by orders of"
                " magnitude."
            )
        )
        + (
            f" {plural(beyond, 'position')} of other prompts {'stands' if beyond == 1 else 'stand'} out too."
            if beyond
            else ""
        )
    )


def _modules(row: Evidence) -> None:
    """Draw pair and floor by module; nothing where the three lists are not of one length: a run file may come from
    anybody.
    """
    names, pair, floor = (row.figures.get(key) for key in _OF_MODULES)
    if not (
        isinstance(names, list)
        and isinstance(pair, list)
        and isinstance(floor, list)
        and len(names) == len(pair) == len(floor) > 0
    ):
        return
    if not all(value is None or isinstance(value, int | float) for value in (*pair, *floor)):
        return
    first = row.figures.get("first_module")
    figure = charts.over_modules(
        [str(name) for name in names],
        np.array(pair, float),
        np.array(floor, float),
        first if isinstance(first, str) else None,
    )
    plots.draw(figure, key="over_modules", picture=_picture("over-modules"))
    st.caption(
        "Root mean square of the difference at the output of every module, over the positions looked at, in units of"
        " that output: this pair, and the rounding floor. Where a line has a gap, nothing differs."
    )


def _dtype(view: selection.View, row: Evidence) -> str:
    """Dtype in which a row of a ratio was measured; rows name it since there are several on one rung."""
    named = {OWN_DTYPE: view.dtype, FLOAT32: "float32"}.get(row.rung, "")
    return str(row.figures.get("compute_dtype", named))


def _deciding(view: selection.View) -> Evidence | None:
    """The row that the structure is read from: the last of the float32 rung that passed or failed."""
    rows = [
        row for row in view.run.evidence(view.pair.index) if row.rung == FLOAT32 and row.outcome in (PASSED, FAILED)
    ]
    return rows[-1] if rows else None


def _residues(row: Evidence, deciding: Evidence, floors: pd.DataFrame, ratios: np.ndarray) -> None:
    """Draw the residues, only where the evidence names a block and the deciding rung its threshold."""
    block, threshold = row.figures.get("block"), deciding.figures.get("position_ratio_allowed")
    if not isinstance(block, int) or not 2 <= block <= 4096 or not isinstance(threshold, int | float):
        return
    beyond = floors.loc[ratios > threshold, ["prompt", "position"]].to_numpy(int)
    if not len(beyond):
        return
    is_start = np.ones(len(beyond), bool)
    is_start[1:] = (np.diff(beyond[:, 1]) != 1) | (np.diff(beyond[:, 0]) != 0)
    figure = charts.residues(beyond[:, 1], beyond[is_start, 1], block)
    plots.draw(figure, key="floor_residues", picture=_picture("residues"))
    st.caption(
        f"Positions of all prompts that stand out from the floor, by their place in blocks of {block}. Rounding knows"
        " no blocks; a cache made of them does."
    )


def _picture(what: str) -> dict[str, object]:
    view = selection.current_view()
    return exports.picture(what, []) if view is None else exports.picture_of(view, what)


def _clickable(figure: plots.Drawable, key: str) -> None:
    def pick() -> None:
        position = plots.chosen(key, 0)
        if position is not None:
            selection.select(position=position)

    plots.draw(figure, key=key, on_pick=pick, picture=_picture(key.replace("_", "-")))


def _report(view: selection.View) -> None:
    report = st.expander("Report for an issue thread", icon=":material/article:", key="copy_report", on_change="rerun")
    if report.open:
        report.caption("Markdown. The button at the right of the text copies it.")
        with report:
            code_block(issue_text(view.run, [view.pair], link(view)), wraps=True)


def link(view: selection.View) -> str:
    """The address of this view."""
    return f"{(st.context.url or '/overview').split('?')[0]}?{urlencode(address.of(view))}"
