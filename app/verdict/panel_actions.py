"""Actions where nothing was judged, or not enough: the controls and commands that would judge it, and judging a capture
here in a process of its own.
"""

from __future__ import annotations

import re
from pathlib import Path

import streamlit as st

from app.components.code_block import code_block
from app.hosting import page_guard
from app.shell import selection, store_cache, widgets, wording
from app.shell.jobs import ANY_DEVICE, Job, PromptFile
from core.capture_request import CaptureRequest
from core.runs.views.request import judged_again, typed_with
from core.runs.views.verdicts import tried_of
from core.subprocess_json import ROOT

_HUB_ID = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?", re.ASCII)


def controls_to_bring(view: selection.View) -> None:
    """Draw what would decide about an upload: the commands, with this run's id in them."""
    run = view.run
    command = f"python -m core verdict {run.run_id}"
    is_wide = run.header.compute_dtype == "float32"
    tried = tried_of(run.evidence(view.pair.index))
    beside = "" if is_wide else "--float32 PAIR_IN_FLOAT32.npz "  # of a control its figures are kept, not its logits
    ways = (
        []
        if is_wide or "float32" in tried
        else [
            (
                "the same two sides, computed in float32 with the same weights and tokens",
                "--float32 PAIR_IN_FLOAT32.npz",
            )
        ]
    )
    if "floor" not in tried:
        ways.append(
            (
                "and "
                * bool(ways)
                + "a rounding floor: the reference in float32 computed in three or more ways that are equal in exact"
                " arithmetic (batch sizes, kernels), where the pair alone is not clear",
                f"{beside}--floor WAYS_IN_FLOAT32.npz",
            )
        )
    if "model" not in tried and all(prompt.token_ids for prompt in run.header.prompts):
        ways.append(
            ("or " * bool(ways) + "the model, which measures its floor on this dump's tokens", f"{beside}--model MODEL")
        )
    if "rerun" not in tried:
        ways.append(("whether a kernel is nondeterministic: each side called once more", "--rerun AGAIN.npz"))
    if not ways:
        return
    with st.expander("Controls that would decide it", icon=":material/rule:", key="controls_to_bring"):
        for what, option in ways:
            st.caption(wording.opening(what))
            code_block(f"{command} {option}", wraps=True)
        st.caption(
            "The judged run is a new one, of the same bits; options may be combined. docs/upload.md has the controls."
        )


def how_to_judge(view: selection.View) -> None:
    """Draw the command that judges this capture, and a button for it."""
    about = view.run.header.provenance
    command = typed_with(about, "judge")
    if command is not None:
        st.markdown(
            "This captures the pairs again and runs every control beside them, several times the work of the capture:"
        )
        code_block(command, wraps=True)
    _judge_here(view)


def _judge_here(view: selection.View) -> None:
    """Draw a button that judges the run's own tokens in a process of its own, and how that stands."""
    run, model = view.run, view.run.header.provenance.model
    name = f"{run.header.name}, judged"
    found = judged_again(run, name)
    if found is None:
        return
    request, tokens = found
    if not is_loadable(model):
        st.caption(f"The model's folder `{widgets.code(model)}` is not on this machine; run the command where it is.")
        return
    title = f"Judge {run.header.name} ({run.run_id})"
    last = _job(title)
    if not page_guard.may_edit():
        st.caption("Signed in as a viewer; editors can judge it here.")
    elif last is None or last.is_over:
        st.button(
            "Judge it here" if last is None else "Judge it again",
            icon=":material/gavel:",
            key="judge",
            help=(
                "captures the same tokens again, with every control, in a process of its own; the result is a new run"
                " beside this one"
            ),
            on_click=_start,
            args=(request, title, tokens),
        )
    if last is not None:
        st.fragment(_progress, run_every=None if last.is_over else 1.0)(title)


def _start(request: CaptureRequest, title: str, tokens: bytes) -> None:
    file = PromptFile("tokens.jsonl", tokens)
    store_cache.submit(request.arguments(), title=title, device=request.device or ANY_DEVICE, prompts=file)


def _job(title: str) -> Job | None:
    return next((job for job in store_cache.jobs().all() if job.title == title), None)


def _progress(title: str) -> None:
    """Draw how the judging stands; draws the page anew when it is over."""
    job = _job(title)
    if job is None:
        return
    if not job.is_over:
        st.session_state["judge_awaits"] = title
        counted = f", {job.rows_done:,} of {job.rows_total:,} positions" if job.rows_total else ""
        stage = widgets.escaped(job.stage) if job.state == "running" else job.state
        st.caption(
            f":material/hourglass_empty: {stage}{counted}, {job.seconds:.0f} s. It goes on if you leave this page."
        )
        return
    if st.session_state.pop("judge_awaits", None) == title:
        st.rerun()
    if job.state == "failed":
        st.error(widgets.escaped(job.message))
    elif job.state == "done":
        if job.message:
            st.warning(widgets.escaped(job.message))
        if widgets.pressed(st.button, "Open the judged run", "open_judged", type="primary"):
            st.session_state["open_next"] = job.run_id
            st.rerun()
    else:
        st.caption(widgets.escaped(job.message or job.state))


def is_loadable(model: str) -> bool:
    """Return whether a model may be loaded: a folder that is there, or what may be a hub id. Relative folders are those
    of the directory that jobs run in.
    """
    try:
        return (ROOT / Path(model).expanduser()).is_dir() or (_HUB_ID.fullmatch(model) is not None)
    except (OSError, ValueError, RuntimeError):
        return False
