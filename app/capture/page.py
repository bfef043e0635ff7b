"""Capture: choose model, prompts and paths; see what will run; watch, cancel, open the finished run."""

import time

import streamlit as st

from app.capture import parts
from app.shell import selection, store_changes, widgets
from app.shell.job_list import job_list
from app.shell.jobs import ANY_DEVICE


def draw(_: selection.View | None) -> None:
    """Draw the tab."""
    jobs = store_changes.jobs()
    # Each part has its place from the start of a run: a list that draws itself again must not move by what is above it,
    # or Streamlit writes it where no place is yet, which breaks the page.
    form_place, start_place, costs_place, typed_place, jobs_place = (st.container() for _ in range(5))
    with form_place:
        form = parts.choose()
    answer = parts.look_up(form) if form.missing is None else None
    start, shown = start_place.columns([1, 4], vertical_alignment="center")
    if widgets.pressed(
        start.button, "Capture", "capture_start", type="primary", disabled=form.missing is not None, width="stretch"
    ):
        costs = answer.costs if answer is not None else None
        device = str(costs["device"]) if costs else form.request.device or ANY_DEVICE
        store_changes.submit(form.arguments(), title=form.title, device=device, prompts=form.carried)
        time.sleep(0.1)  # so that the list below shows it started
    shown.caption(form.missing or "What it will run and cost is below.")
    if form.missing is None:
        with costs_place:
            st.fragment(parts.costs, run_every=None if answer is not None and answer.is_fresh else 0.5)(form)
    with typed_place.expander("The same on the command line"):
        widgets.code_block(form.typed, wraps=True)
    with jobs_place:
        job_list(jobs, seen=jobs.all())
