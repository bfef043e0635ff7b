"""What would judge a run that was not judged, or not enough: controls to bring, or judging it on this server."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import streamlit as st

from app.hosting import members
from app.shell import selection, store_changes, widgets
from app.shell.job_list import how_it_stands
from app.shell.jobs import Job, PromptFile, queue_of
from core.capture_request import CaptureRequest
from core.command_name import COMMAND, shell_command
from core.packaged_models import PACKAGED, is_here
from core.runs.file.records import LIKELY_ROUNDING, NONDETERMINISTIC, UNDECIDED
from core.runs.queries.verdicts import Answer, deciding_controls
from core.runs.requests import rejudge_request
from core.subprocess_json import ROOT
from core.text import clean, is_seen, printable

_HUB_ID = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?", re.ASCII)


def next_step(view: selection.View, answer: Answer) -> None:
    """Draw the commands that would decide; of a capture that was not judged, a button that judges it."""
    is_upload = view.run.header.provenance.kind == "upload"
    if not is_upload and not answer.is_judged:
        _how_to_judge(view)
    elif is_upload and answer.name in (UNDECIDED, LIKELY_ROUNDING, NONDETERMINISTIC):
        command = f"{COMMAND} {shell_command(['verdict', view.run.run_id])}"
        if controls := deciding_controls(view.run, answer.checks):
            st.caption("Next: run one of these; the first decides best. Each stores a new run with its verdict.")
            lines = [f"# {what}\n{command} {options}" for options, what in controls.items()]
            widgets.code_block("\n".join(lines), wraps=True)


def _how_to_judge(view: selection.View) -> None:
    """Draw a button that judges this capture here, or the state of that job; the command for it is folded."""
    if request := rejudge_request(view.run, f"{printable(view.run.header.name)}, judged"):
        _judge_here(view, *request)
    with st.expander("CLI command", icon=":material/terminal:", key="judge_command"):
        widgets.same_capture_with(view.run.header.provenance, "judge")


def _judge_here(view: selection.View, request: CaptureRequest, tokens: bytes) -> None:
    """Draw a button that judges the run's own tokens in a process of its own, or the state of that job."""
    title = f"Judge {view.run.header.name} ({view.run.run_id})"
    job = _job(title)
    if job is not None and not job.is_over:
        st.session_state["judge_awaits"] = title
        st.fragment(_progress, run_every=1.0)(title)
        return
    if job is not None:
        is_done = job.state == "done" and not job.message
        if st.session_state.pop("judge_awaits", None) == title and is_done:
            st.session_state["open_next"] = job.run_id
            st.rerun()
        if not is_done:
            say = {"failed": st.error, "done": st.warning}.get(job.state, st.caption)
            say(widgets.escape(job.message or job.state))
    if refusal := refusal_of(request) if members.may_change() else members.READ_ONLY:
        st.caption(widgets.escape(refusal))
        return

    def start() -> None:
        prompts, device = PromptFile("tokens.jsonl", tokens), queue_of(request.device)
        with widgets.report_errors():
            store_changes.submit(
                request.arguments(), title=title, device=device, prompts=prompts, judges=view.run.run_id
            )

    st.button(
        "Run checks" if job is None else "Run checks again",
        icon=":material/gavel:",
        key="judge",
        type="primary",
        help="Captures the same tokens again with every check; the judged run replaces this one in lists.",
        on_click=start,
    )
    revision = f" at revision `{widgets.code(request.revision)}`" if request.revision else ""
    st.caption(f"Loads `{widgets.code(request.model)}`{revision}: several times the work of the capture.")


def refusal_of(request: CaptureRequest) -> str:
    """Sentence on why this server cannot load the model that a run names, '' if it can try. Relative folders are those
    of the directory that jobs run in.
    """
    model = request.model
    if not is_seen(model + (request.revision or "")):
        return "The name of the model has characters that cannot be seen, so it is not loaded."
    if model in PACKAGED:
        return "" if is_here(PACKAGED[model]) else f"{PACKAGED[model].title} is not here; New run, Capture gets it."
    with suppress(OSError, ValueError, RuntimeError):
        if _HUB_ID.fullmatch(model) or (ROOT / Path(model).expanduser()).exists():
            return ""
    return f"The model's folder '{clean(model, 200)}' is not on this machine; run the command where it is."


def _job(title: str) -> Job | None:
    return next((job for job in store_changes.jobs().all() if job.title == title), None)


def _progress(title: str) -> None:
    job = _job(title)
    if job is None or job.is_over:
        st.rerun()
    st.caption(f":material/hourglass_empty: {widgets.escape(how_it_stands(job))}. It continues if you leave this page.")
