"""Capture: choose model, prompts and paths; watch, cancel, open the finished run."""

import shlex
import time

import streamlit as st

from app import state, widgets, words
from app.jobs import Job
from app.widgets import PAGES

PROMPT_BYTES = 100_000  # what a command line can carry in one argument, with room to spare
BASES = ["prefill", "decode", "blocks:16", "reuse:16", "chunked:16", "static"]  # type to give another; docs/paths.md has all
SUGGESTED = [
    "decode",
    "prefill+batch:8",
    "decode+batch:2",
    "decode+batch:8",
    "chunked:16",
    "reuse:16",
    "blocks:16",
    "static",
    "prefill",
]

st.title("Capture")
st.caption(
    "Runs a causal language model down two or more paths that are equal in exact arithmetic, on the same tokens, and keeps every logit of each. "
    "It runs in a process of its own: leave this page, or close it, and it goes on."
)
jobs = state.jobs()
cards, _ = state.cards()
models = list(dict.fromkeys(["sample_runs/model", *(card.model for card in cards if card.model)]))

left, right = st.columns(2)
with left:
    model = st.selectbox(
        "Model",
        models,
        accept_new_options=True,
        key="capture_model",
        help="a folder on this machine, or a hub id; type to add one",
    )
    text = st.text_area(
        "Prompts", height=220, key="capture_prompts", value="def __init__(self, name, parent=None):\n    self.name = name\n    self.parent =",
        help="a line of three dashes (---) separates prompts",
    )  # fmt: skip
with right:
    reference = st.selectbox("Reference path", BASES, accept_new_options=True, key="capture_reference")
    variants = st.multiselect(
        "Variant paths", SUGGESTED, default=["decode"], accept_new_options=True, key="capture_variants",
        help="base+modifier: prefill is one forward of the whole prompt, decode goes token by token with a KV cache, batch:N puts N-1 other "
        "prompts beside yours; type any other path of docs/paths.md, such as decode+threads:1 or prefill+attn:eager",
    )  # fmt: skip
    first, second = st.columns(2)
    dtype = first.selectbox("dtype", ["bfloat16", "float32", "float16"], key="capture_dtype")
    device = second.selectbox("Device", ["best there is", "cpu", "cuda"], key="capture_device")
    name_field, repeat_field = st.columns([2, 1])
    name = name_field.text_input("Name of the run", placeholder="model: reference against variants", key="capture_name")
    repeat = int(
        repeat_field.number_input(
            "Calls of each path", 1, 64, key="capture_repeat",
            help="separate calls, one after another: with reuse:N or blocks:N the first is fresh and the later ones read its cache",
        )
    )  # fmt: skip

prompts = [part.strip("\n") for part in ("\n" + text + "\n").split("\n---\n")]
prompts = [part for part in prompts if part.strip()]
arguments = ["capture", "--model", model or "", *(f"--prompt={prompt}" for prompt in prompts), "--reference", reference or ""]
arguments += [part for variant in variants for part in ("--variant", variant)]
if repeat > 1:
    arguments += ["--repeat", str(repeat)]
arguments += ["--dtype", dtype]
if device != "best there is":
    arguments += ["--device", device]
if name.strip():
    arguments.append(f"--name={name.strip()}")

missing = (
    "Choose a model." if not model
    else "Write at least one prompt." if not prompts
    else "Choose at least one variant, or call the reference several times." if not variants and repeat == 1
    else "That is too long for a command line; put it into a file and use --prompt-file on the command line."
    if max(len(prompt.encode()) for prompt in prompts) > PROMPT_BYTES
    else None
)  # fmt: skip
start, shown = st.columns([1, 4], vertical_alignment="center")
if start.button("Capture", type="primary", disabled=missing is not None, key="capture_start", width="stretch"):
    others = f" against {', '.join(variants)}" if variants else ""
    title = name.strip() or f"{words.model_name(model or '')}: {reference}{others}{f', {repeat} calls' if repeat > 1 else ''}"
    jobs.submit(arguments, title=title, device=device)
    time.sleep(0.1)  # so that the list below shows it started
shown.caption(
    missing or f"{len(prompts)} prompt{'s' if len(prompts) > 1 else ''}, {(1 + len(variants)) * repeat} sides each, in {dtype}."
)
with st.expander("The same on the command line"):
    st.code("python -m core " + shlex.join(arguments), language="bash", wrap_lines=True)


def how_it_stands(job: Job) -> str:
    """One line on a job."""
    if job.state == "waiting":
        return "waiting for the captures before it"
    if job.state == "running" and job.rows_total:
        rest = f", about {job.seconds_left:.0f} s left" if job.seconds_left is not None and job.rows_done < job.rows_total else ""
        return f"{job.stage}: {job.rows_done:,} of {job.rows_total:,} positions, {job.seconds:.0f} s{rest}"
    return f"{job.stage}, {job.seconds:.0f} s" if job.state == "running" else job.message or job.state


def open_run(job: Job) -> None:
    st.session_state["open_next"] = job.run_id
    st.session_state["opened"] = True


@st.fragment(run_every=1.0)
def job_list() -> None:
    listed = jobs.all()
    if not listed:
        st.caption("No captures yet since this dashboard started.")
    for job in listed:
        with st.container(border=True):
            what, action = st.columns([5, 1], vertical_alignment="center")
            what.markdown(f"**{widgets.escaped(job.title)}** — {job.state}")
            if job.state == "failed":
                what.error(job.message)
            else:
                what.caption(widgets.escaped(how_it_stands(job)))
            if job.state == "running":
                what.progress(job.share)
            if job.state == "done":
                if action.button("Open run", key=f"open_{job.number}", type="primary", width="stretch"):
                    open_run(job)
                    st.rerun()
            elif job.state == "cancelling":
                action.caption("cancelling")
            elif job.is_over:
                action.button("Dismiss", key=f"forget_{job.number}", on_click=jobs.forget, args=(job.number,), width="stretch")
            else:
                action.button("Cancel", key=f"cancel_{job.number}", on_click=jobs.cancel, args=(job.number,), width="stretch")


st.subheader("Captures")
if st.session_state.pop("opened", False):
    st.switch_page(PAGES / "overview.py")
job_list()
