"""Probe: ask a live server the same in several ways; watch, cancel, open what it sent."""

import streamlit as st

from app.probe import form
from app.shell import selection, store_changes
from app.shell.job_list import counted, job_list


def draw(_: selection.View | None) -> None:
    """Draw the tab."""
    jobs = store_changes.jobs()
    st.markdown(counted(jobs.all("probe"), "probe"))
    form.draw()
    job_list(jobs, "probe")
