"""The form of the Ops page that probes this machine, and the list of its probes."""

from __future__ import annotations

import time
from collections.abc import Sequence

import streamlit as st

from app.capture.preview import previews
from app.hosting import page_guard
from app.hosting.error_details import for_page
from app.shell import store_changes, widgets, wording
from app.shell.jobs import ANY_DEVICE, Job, Jobs
from core.numerics.formats import LOGIT_FORMATS
from core.text import plural


def start(jobs: Jobs) -> None:
    """Draw what to probe on this machine, and the button that does it in a process of its own."""
    if not page_guard.may_edit():
        st.caption("Signed in as a viewer; editors probe this machine.")
        job_list(jobs)
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        device = st.selectbox("Device", [ANY_DEVICE, *previews().devices], key="ops_device", width=150)
        dtypes = st.multiselect(
            "dtypes", list(LOGIT_FORMATS), default=["float32", "bfloat16"], key="ops_dtypes", width=260
        )
        scope = st.selectbox(
            "Sizes", ["quick", "all"], key="ops_scope", width=110, help="quick: seconds; all: minutes on a CPU"
        )
        model = st.text_input(
            "Shapes of a model",
            key="ops_model",
            placeholder="none",
            width=220,
            help="folder, .gguf file, hub id or smollm2: linear is probed at its own shapes too; no weights are read",
        )
        if widgets.pressed(st.button, "Probe this machine", "ops_start", type="primary", disabled=not dtypes):
            store_changes.submit(
                _arguments(device, dtypes, scope, model), title=_title(scope, dtypes, model), device=device
            )
            time.sleep(0.1)  # so that the list below shows it started
    job_list(jobs)


def _arguments(device: str, dtypes: Sequence[str], scope: str, model: str) -> list[str]:
    found = ["ops", *([] if device == ANY_DEVICE else ["--device", device])]
    found += [part for dtype in dtypes for part in ("--dtype", dtype)]
    found += ["--quick"] if scope == "quick" else []
    return found + ([f"--model={model.strip()}"] if model.strip() else [])


def _title(scope: str, dtypes: Sequence[str], model: str) -> str:
    of_model = f", shapes of {wording.model_name(model.strip())}" if model.strip() else ""
    return f"Operations in {', '.join(dtypes)}, {scope} sizes{of_model}"


@st.fragment(run_every=1.0)
def job_list(jobs: Jobs) -> None:
    """Draw the probes of this server with how they stand; one that has just finished is shown by the page."""
    awaited = st.session_state.setdefault("ops_awaited", set())
    for job in jobs.all("ops"):
        if job.state == "done":
            if job.number in awaited:
                awaited.discard(job.number)
                st.session_state["ops_runs"] = job.run_id
                st.rerun()
            continue
        if not job.is_over:
            awaited.add(job.number)
        with st.container(border=True):
            what, action = st.columns([5, 1], vertical_alignment="center")
            what.markdown(f"**{widgets.escaped(job.title)}** — {job.state}")
            (what.error if job.state == "failed" else what.caption)(widgets.escaped(_how_it_stands(job)))
            if job.state == "running":
                what.progress(job.share)
            if not page_guard.may_edit():
                continue
            if job.state in ("waiting", "running"):
                action.button(
                    "Cancel",
                    key=f"ops_cancel_{job.number}",
                    on_click=store_changes.cancel,
                    args=(job.number,),
                    width="stretch",
                )
            elif job.is_over:
                action.button(
                    "Dismiss",
                    key=f"ops_forget_{job.number}",
                    on_click=store_changes.forget,
                    args=(job.number,),
                    width="stretch",
                )


def _how_it_stands(job: Job) -> str:
    if job.state == "waiting":
        return "waiting for what runs on the device before it"
    if job.state == "running" and job.rows_total:
        return f"{job.stage}: {job.rows_done:,} of {plural(job.rows_total, 'probe')}, {job.seconds:.0f} s"
    return f"{job.stage}, {job.seconds:.0f} s" if job.state == "running" else for_page(job.message) or job.state
