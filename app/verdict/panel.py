"""The verdict at the head of the overview: name, sentence, first divergence, checks, a report to
copy.

What would judge a run that was not judged, or not enough: controls to bring, or judging it on this
server.
"""

import json
import re
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import pandas as pd
import streamlit as st

from app import navigation
from app.components import plots
from app.hosting import members
from app.internals.recorded import RECORDED
from app.rl import section
from app.shell import address, exports, store_cache, store_changes, widgets, wording
from app.shell.job_list import how_it_stands
from app.shell.jobs import Job, PromptFile, queue_of
from app.shell.selection import View
from app.shell.widgets import PAGES
from core.capture_request import CaptureRequest
from core.checks.modules_alone import AloneFigures
from core.command_name import shell_command
from core.document.drawing import png_file
from core.evidence import EXPLAINED, FAILED, MISSING, NOTED, PASSED, Evidence
from core.packaged_models import PACKAGED, is_here
from core.plots import pairs as charts
from core.runs.queries.verdicts import Answer, answer_of, deciding_controls
from core.runs.reports.issue_markdown import issue_text
from core.runs.requests import rejudge_request
from core.subprocess_json import ROOT
from core.text import clean, is_seen, opening, plural, printable
from core.verdict import (
    BUG_SUSPECTED,
    IDENTICAL,
    INVALID_DUMP,
    LIKELY_ROUNDING,
    LOWER_PRECISION,
    NONDETERMINISTIC,
    UNDECIDED,
)

_HUB_ID = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?", re.ASCII)
_OUTCOMES = {
    PASSED: (":material/check_circle:", "green"),
    EXPLAINED: (":material/check_circle:", "orange"),
    FAILED: (":material/cancel:", "red"),
    MISSING: (":material/help:", "orange"),
    NOTED: (":material/info:", "blue"),
}
# longer figures, such as one value per module, are drawn
_MOST_VALUES = 12
_EVIDENCE = ("group", "check", "side", "control", "outcome", "says", "figures")


def verdict(view: View) -> Answer:
    """Draw the answer and return it: name, sentence, first divergence, next step."""
    answer = answer_of(view.run, view.pair)
    color = wording.VERDICTS.get(answer.name, "gray")
    with st.container(border=True, key="verdict"):
        st.header(f":{color}[{widgets.escape(opening(answer.name))}]", anchor=False)
        st.markdown(widgets.to_markdown(opening(answer.sentence), bold=True))
        if any(part not in answer.sentence for part in answer.place.split(", ")):
            st.markdown(f"First divergence: **{widgets.escape(answer.place)}**")
        _next_step(view, answer)
    return answer


def checks(answer: Answer) -> None:
    """Draw every check as a line with its figure: open if it failed."""
    st.subheader("Checks")
    for number, (title, row) in enumerate(answer.titled_checks):
        _check(title, row, f"check_{number}", is_open=row.outcome == FAILED)
    if answer.not_run:
        st.caption(answer.not_run_line)


def _next_step(view: View, answer: Answer) -> None:
    """Draw what to do next as a button: judge the run, bring a control, or open the page that says
    more; nothing if no page does.
    """
    if view.header.provenance.kind != "upload" and not answer.is_judged:
        _how_to_judge(view)
        return
    is_rollout = view.run.has_rollouts
    is_open = answer.name in (UNDECIDED, LIKELY_ROUNDING, NONDETERMINISTIC)
    controls = deciding_controls(view.run, answer.checks) if is_open and not is_rollout else {}
    lines = [
        f"# {what}\n{shell_command(['verdict', view.run.run_id])} {options}"
        for options, what in controls.items()
    ]
    if is_rollout and answer.next_command:
        lines = [f"# which checkpoint either side agrees with\n{answer.next_command}"]
    if lines:
        with st.popover("What would decide", icon=":material/gavel:", type="primary"):
            if controls:
                st.caption("The first decides best. Each stores a new run with its verdict.")
            widgets.code_block("\n".join(lines), wraps=True)
        return
    if is_rollout and answer.name != IDENTICAL:
        section.next_step(view)
        return
    label, part = _next_page(view, answer)
    if part:
        with st.container(key="next_step"):
            page = PAGES / f"{navigation.PAGE_OF[part].name}.py"
            place = answer.first_place or (view.prompt, view.position)
            is_flip = view.table["is_flip"].eq(True)
            flips = view.table.loc[is_flip, ["prompt", "position"]].to_numpy().tolist()
            if part == "flips" and flips and [*place] not in flips:
                # the first of its prompt, if there is one
                place = min(flips, key=lambda flip: flip[0] != place[0])
            there = replace(view, prompt=place[0], position=place[1])
            st.page_link(page, label=f"{label} →", query_params=address.of(there, part))


def _next_page(view: View, answer: Answer) -> tuple[str, str]:
    """Return what to look at next and its page or tab, ('', '') if nothing is left."""
    summary = view.pair.summary
    if answer.name == INVALID_DUMP:
        return "Upload a corrected dump", "upload"
    if answer.name in (BUG_SUSPECTED, NONDETERMINISTIC, LOWER_PRECISION):
        if view.pair.index in RECORDED["layers"].pairs(view.run):
            return "See which module differs first", "layers"
        if answer.first_place is not None and not view.is_list:
            return f"See position {answer.first_place[1]:,} in the heatmap", "heatmap"
    if summary.flips:
        return f"See {plural(summary.flips, 'flip')}", "flips"
    if summary.near_ties and not summary.bit_identical:
        return f"See {plural(summary.near_ties, 'near tie')}", "near_ties"
    return "", ""


def _how_to_judge(view: View) -> None:
    """Draw the link to the run that judges this capture; if there is none, a button that judges it
    here, or the state of that job, with the command for it folded.
    """
    title = f"Judge {view.header.name} ({view.run.run_id})"
    judged_id = store_cache.judged_run(view.run.run_id)
    if judged_id:
        # It ended while the viewer was on another page or run.
        if st.session_state.pop("judge_awaits", None) == title:
            _open(judged_id)
        (card,) = store_cache.cards_of([judged_id])
        label = f"Judged: **{widgets.escape(', '.join(wording.verdicts(card)))}** →"
        st.page_link(
            PAGES / "overview.py",
            label=label,
            query_params={"run": judged_id},
            icon=":material/gavel:",
        )
        return
    if request := rejudge_request(view.run, f"{printable(view.header.name)}, judged"):
        _judge_here(view, title, *request)
    with st.expander("CLI command", icon=":material/terminal:", key="judge_command"):
        widgets.same_capture_with(view.header.provenance, "judge")


def _open(run_id: str) -> NoReturn:
    st.session_state["open_next"] = run_id
    st.rerun()


def _judge_here(view: View, title: str, request: CaptureRequest, tokens: bytes) -> None:
    """Draw a button that judges the run's own tokens in a process of its own, or the state of that
    job.
    """
    job = _job(title)
    # The button's callback has returned long before the job ends; the session keeps what to open.
    if job is not None and not job.is_over:
        st.session_state["judge_awaits"] = title
        st.fragment(_progress, run_every=1.0)(title)
        return
    if job is not None:
        is_done = job.state == "done" and not job.message
        if st.session_state.pop("judge_awaits", None) == title and is_done:
            _open(job.run_id)
        if not is_done:
            say = {"failed": st.error, "done": st.warning}.get(job.state, st.caption)
            say(widgets.escape(job.message or job.state))
    refusal = refusal_of(request) if members.may_change() else members.READ_ONLY
    if refusal:
        st.caption(widgets.escape(refusal))
        return

    def start() -> None:
        with widgets.report_errors():
            store_changes.submit(
                request,
                title=title,
                device=queue_of(request.device),
                prompts=PromptFile("tokens.jsonl", tokens),
                judges=view.run.run_id,
            )

    st.button(
        "Run checks" if job is None else "Run checks again",
        "judge",
        "Captures the same tokens again with every check; the judged run replaces this one in"
        " lists.",
        start,
        icon=":material/gavel:",
        type="primary",
    )
    revision = f" at revision `{widgets.code(request.revision)}`" if request.revision else ""
    st.caption(
        f"Loads `{widgets.code(request.model)}`{revision}: several times the work of the capture.",
    )


def refusal_of(request: CaptureRequest) -> str:
    """Sentence on why this server cannot load the model that a run names, '' if it can try.
    Relative folders are those of the directory that jobs run in.
    """
    model = request.model
    if not is_seen(model + (request.revision or "")):
        return "The name of the model has characters that cannot be seen, so it is not loaded."
    if packaged := PACKAGED.get(model):
        missing = f"{packaged.title} is not here; New run, Capture gets it."
        return "" if is_here(packaged) else missing
    # A name with a null byte, and ~ of an unknown user, are no paths.
    with suppress(OSError, ValueError, RuntimeError):
        if _HUB_ID.fullmatch(model) or (ROOT / Path(model).expanduser()).exists():
            return ""
    return (
        f"The model's folder '{clean(model, 200)}' is not on this machine; run the command where"
        " it is."
    )


def _job(title: str) -> Job | None:
    return next((job for job in store_changes.jobs().all() if job.title == title), None)


def _progress(title: str) -> None:
    job = _job(title)
    if job is None or job.is_over:
        st.rerun()
    st.caption(
        f":material/hourglass_empty: {widgets.escape(how_it_stands(job))}. It continues if you"
        " leave this page.",
    )


def _check(title: str, row: Evidence, key: str, *, is_open: bool) -> None:
    """Draw one check: outcome, title and line; opened, its chart, what was run and its figures."""
    icon, colour = _OUTCOMES[row.outcome]
    step = st.expander(
        f":{colour}[{row.outcome}] · **{widgets.escape(title)}** · {widgets.to_markdown(row.says)}",
        is_open,
        type="step",
        icon=icon,
        key=key,
        on_change="rerun",
    )
    # a step without content cannot be opened
    with step:
        figures = row.figures
        # charts that are not shown are not sent
        if step.open and isinstance(figures, AloneFigures) and figures.modules:
            plots.draw(charts.over_modules(figures), f"modules_{key}", f"modules-{row.side}")
            st.caption(
                "RMS error vs. float64 on the same input: of each module of the side, and of the"
                " model in float32.",
            )
        table = {}
        for _, name, value in figures.present():
            is_drawn = isinstance(value, tuple) and len(value) > _MOST_VALUES
            if not is_drawn and not name.endswith("old runs"):
                table[name] = widgets.escape(wording.figure(value))
        with st.expander("Method and numbers", type="compact", key=f"figures_{key}"):
            st.caption(widgets.escape(row.control))
            if table:
                st.table(table, border="horizontal")


def evidence_table(view: View) -> pd.DataFrame:
    """Every check that was run, its figures as JSON."""
    rows = [row.to_json() for row in view.run.evidence(view.pair.index)]
    figures = [json.dumps(row["figures"], ensure_ascii=False) for row in rows]
    return pd.DataFrame(rows, columns=list(_EVIDENCE)).assign(figures=figures)


def report(view: View) -> None:
    """Draw the report for an issue thread, folded; none of a long run, which would be read
    whole.
    """
    if view.header.is_long:
        return
    folded = st.expander(
        "Issue report (Markdown)",
        icon=":material/article:",
        key="copy_report",
        on_change="rerun",
    )
    if folded.open:
        with folded:
            # written when it is opened: it has the tables of the whole pair
            widgets.code_block(
                issue_text(view.run, [view.pair], address.absolute(view)), wraps=True
            )
            st.download_button(
                "Picture (PNG)",
                partial(png_file, view.run, view.pair),
                f"{exports.file_stem(view, 'report')}.png",
                "image/png",
                on_click="ignore",
                icon=":material/image:",
            )
