"""The captures of this server as a list that keeps itself up to date."""

from __future__ import annotations

import streamlit as st

from app import widgets
from app.jobs import Job, Jobs


def _how_it_stands(job: Job) -> str:
    """One line on a job."""
    if job.state == "waiting":
        return "waiting for the captures before it"
    if job.state == "running" and job.rows_total:
        rest = f", about {job.seconds_left:.0f} s left" if job.seconds_left is not None and job.rows_done < job.rows_total else ""
        unit = "prompts" if job.stage.endswith(" writes") else "positions"
        return f"{job.stage}: {job.rows_done:,} of {job.rows_total:,} {unit}, {job.seconds:.0f} s{rest}"
    if job.state == "done":
        return f"{job.rows_total:,} positions over all sides in {job.seconds:.0f} s"
    return f"{job.stage}, {job.seconds:.0f} s" if job.state == "running" else job.message or job.state


def _open_run(job: Job) -> None:
    st.session_state["open_next"] = job.run_id
    st.session_state["opened"] = True


@st.fragment(run_every=1.0)
def job_list(jobs: Jobs) -> None:
    """Every job with how it stands, drawn again every second; buttons to cancel, open and dismiss."""
    listed = jobs.all()
    if not listed:
        st.caption("No captures yet since this dashboard started.")
    for job in listed:
        with st.container(border=True):
            what, action = st.columns([5, 1], vertical_alignment="center")
            what.markdown(f"**{widgets.escaped(job.title)}** — {job.state}")
            if job.state == "failed":
                what.error(widgets.escaped(job.message))
            elif job.state == "done" and job.message:
                what.warning(widgets.escaped(job.message))
            else:
                what.caption(widgets.escaped(_how_it_stands(job)))
            if job.state == "running":
                what.progress(job.share)
            if job.state == "done" and action.button("Open run", key=f"open_{job.number}", type="primary", width="stretch"):
                _open_run(job)
                st.rerun()
            if job.state == "cancelling":
                action.caption("cancelling")
            elif job.is_over:
                action.button("Dismiss", key=f"forget_{job.number}", on_click=jobs.forget, args=(job.number,), width="stretch")
            else:
                action.button("Cancel", key=f"cancel_{job.number}", on_click=jobs.cancel, args=(job.number,), width="stretch")
