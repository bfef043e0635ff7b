"""The captures of this server as a list that keeps itself up to date."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.hosting import members
from app.shell import store_changes, widgets
from app.shell.jobs import GETTING, PROBING, Job, Jobs
from core.text import plural


def how_it_stands(job: Job) -> str:
    """Words on the state of a job."""
    if job.state == "waiting":
        return "waiting for those before it"
    if job.state == "running" and job.rows_total:
        units = {GETTING: "MB", PROBING: "requests"}
        unit = "prompts" if job.stage.endswith(" writes") else units.get(job.device, "positions")
        unit = "probes" if job.arguments[:1] == ("ops",) else unit
        return f"{job.stage}: {job.rows_done:,} of {job.rows_total:,} {unit}, {job.seconds:.0f} s"
    if job.state == "done" and job.device in (GETTING, PROBING):
        return f"in {job.seconds:.0f} s"
    if job.state == "done":
        return f"done in {job.seconds:.0f} s"
    return f"{job.stage}, {job.seconds:.0f} s" if job.state == "running" else job.message or job.state


def counted(jobs: Sequence[Job], what: str) -> str:
    """Say how many jobs there are since the server started, and how they stand, in markdown: `**3 captures**: 1
    running, 2 done.`
    """
    if not jobs:
        return f"**No {what}** since this dashboard started."
    states = [job.state for job in jobs]
    stand = ", ".join(f"{states.count(state):,} {state}" for state in dict.fromkeys(states))
    return f"**{plural(len(jobs), what)}** since this dashboard started: {stand}."


def _open_run(job: Job) -> None:
    st.session_state["open_next"] = job.run_id
    st.session_state["opened"] = True


@st.fragment(run_every=1.0)
def job_list(jobs: Jobs, *, of_uploads: bool = False, of: str = "") -> None:
    """Draw every capture (or every upload that is being saved, or the jobs `of` another command) with how it stands,
    again every second; buttons to cancel, open and dismiss.
    """
    if st.session_state.get(
        "opened"
    ):  # by a click that came while the page was being drawn again, which reaches its callback alone
        st.rerun()
    listed = jobs.ingests() if of_uploads else jobs.all(of)
    for job in listed:
        with st.container(border=True, key=f"job_{job.number}"):
            what, action = st.columns([5, 1], vertical_alignment="center")
            what.markdown(f"**{widgets.escaped(job.title)}** — {job.state}")
            if job.state == "failed":
                what.error(widgets.escaped(job.message))
            elif job.state == "done" and job.message:
                what.warning(widgets.escaped(job.message))
            else:
                what.caption(widgets.escaped(how_it_stands(job)))
            if job.state == "running":
                what.progress(job.share)
            if job.state == "done" and job.run_id:
                action.button(
                    "Open run",
                    key=f"open_{job.number}",
                    type="primary",
                    width="stretch",
                    on_click=_open_run,
                    args=(job,),
                )
            if job.state == "cancelling":
                action.caption("cancelling")
            elif not members.may_change():
                continue
            elif job.is_over:
                action.button(
                    "Dismiss",
                    key=f"forget_{job.number}",
                    on_click=store_changes.forget,
                    args=(job.number,),
                    width="stretch",
                )
            else:
                action.button(
                    "Cancel",
                    key=f"cancel_{job.number}",
                    on_click=store_changes.cancel,
                    args=(job.number,),
                    width="stretch",
                )
