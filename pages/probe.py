"""Probe: ask a live server the same in several ways; watch, cancel, open what it sent."""

import streamlit as st

from app.hosting import members
from app.probe import PAGE, form
from app.shell import store_changes, widgets
from app.shell.job_list import counted, job_list
from app.shell.widgets import PAGES

jobs = store_changes.jobs()
widgets.title(PAGE)
st.markdown(counted(jobs.all("probe"), "probe"))
if st.session_state.get("opened"):
    st.switch_page(PAGES / "overview.py")
if not members.may_change():
    job_list(jobs, "probe")
members.stop_if_read_only()
form.draw()
job_list(jobs, "probe")
