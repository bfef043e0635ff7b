"""The jobs of this server as a list that keeps itself up to date."""

from collections.abc import Sequence

import streamlit as st

from app.hosting import members
from app.shell import store_changes, widgets
from app.shell.jobs import GETTING, PROBING, Job


def how_it_stands(job: Job) -> str:
    """Words on the state of a job."""
    if job.state == "waiting":
        return job.stage
    if job.state == "running" and job.rows_total:
        of_kind = "probes" if job.kind == "ops" else "positions"
        unit = {GETTING: "MB", PROBING: "requests"}.get(job.device, of_kind)
        if job.stage.endswith(" writes"):
            unit = "prompts"
        return f"{job.stage}: {job.rows_done:,} of {job.rows_total:,} {unit}, {job.seconds:.0f} s"
    if job.state in ("running", "done"):
        return f"{job.stage if job.state == 'running' else 'done'}, {job.seconds:.0f} s"
    return job.message or job.state


def running() -> None:
    """Draw each running job with how far it is, for the sidebar of every page."""

    def lines() -> None:
        for job in jobs.running():
            st.progress(job.share, widgets.escape(f"{job.title}: {how_it_stands(job)}"))

    # run_every only while something runs: a timer of every viewer costs the server a rerun each.
    jobs = store_changes.jobs()
    st.fragment(lines, run_every=2.0 if jobs.running() else None)()


@st.fragment(run_every=1.0)
def job_list(kind: str, past: Sequence[Job]) -> None:
    """Draw every job of a kind with its state, again every second; buttons to cancel, open and
    dismiss.

    past: the jobs that the page is drawn with; it is drawn anew when one of them ends or another
    comes.
    """
    # A fragment cannot change what is drawn outside of it, so an end draws the page anew.
    items = store_changes.jobs().all(kind)
    is_changed = [(a.number, a.is_over) for a in items] != [(b.number, b.is_over) for b in past]
    # A click while the page is drawn again reaches its callback alone.
    if is_changed or st.session_state.get("opened"):
        st.rerun()
    for job in items:
        with st.container(border=True, key=f"job_{job.number}"):
            what, action = st.columns([5, 1], vertical_alignment="center")
            what.markdown(f"**{widgets.escape(job.title)}** — {job.state}")
            draw = {"failed": what.error, "done": what.warning if job.message else what.caption}
            text = job.message if job.is_over and job.message else how_it_stands(job)
            draw.get(job.state, what.caption)(widgets.escape(text))
            if job.state == "running":
                what.progress(job.share)
            if job.state == "done" and job.run_id:
                opening = {"open_next": job.run_id, "opened": "overview"}
                # the page that lists the job shows probes of operations itself
                if kind == "ops":
                    opening = {"ops_run": job.run_id}
                action.button(
                    "Open run",
                    key=f"open_{job.number}",
                    on_click=st.session_state.update,
                    args=(opening,),
                    type="primary",
                    width="stretch",
                )
            if job.state != "cancelling" and members.may_change():
                label = "Dismiss" if job.is_over else "Cancel"
                action.button(
                    label,
                    key=f"{label.lower()}_{job.number}",
                    on_click=store_changes.forget if job.is_over else store_changes.cancel,
                    args=(job.number,),
                    width="stretch",
                )
    finished = [job.number for job in items if job.is_over]
    if len(finished) > 1 and members.may_change():
        label = f"Dismiss all {len(finished)} finished"
        st.button(label, "dismiss_all", on_click=store_changes.forget, args=finished)
