"""Probe: ask a live server the same in several ways; watch, cancel, open what it sent."""

from dataclasses import replace

import streamlit as st

from app.capture.tab import split_prompts
from app.shell import selection, store_changes, widgets
from app.shell.job_list import job_list
from app.shell.jobs import PROBING, PromptFile
from core.errors import UlpscopeError
from core.numerics.arrays import Record
from core.probing.plan import (
    DEFAULT_TESTS,
    KEY_VARIABLE,
    LOAD,
    MEANINGS,
    MOST_LOAD,
    ProbeRequest,
    costs,
    parsed_tests,
)
from core.text import clean

SAMPLE = "def merge(left, right):  # merges two sorted lists into one that is sorted"
_TESTS, _LOAD = parsed_tests(DEFAULT_TESTS)
_FIELD: Record = {"persist_state": "session"}  # the form comes back as it was left


def draw(_: selection.View | None) -> None:
    """Draw the tab."""
    _form()
    job_list("probe", store_changes.jobs().all("probe"))


def _form() -> None:
    """Draw the form, what it would take, and the button that lines it up."""
    request, key, plan = None, "", None
    try:
        request, key = _ask()
        plan = None if request is None else request.plan(request.prompts)
    except UlpscopeError as error:
        st.warning(widgets.escape(str(error)))
    is_pressed = widgets.button(
        "Probe",
        "probe_start",
        type="primary",
        disabled=plan is None,
    )
    if request is None or plan is None:
        return
    *requests, total = costs(plan)
    st.caption("Nothing is sent before you click Probe. " + total)
    with st.expander("Requests"):
        st.markdown("\n".join(f"- {widgets.escape(line.strip())}" for line in requests))
    if is_pressed:
        with widgets.report_errors():
            store_changes.submit(
                replace(request, prompts=()).arguments(),
                title=f"Probe of {clean(request.url, 100)}",
                device=PROBING,
                # by a file: a command line cannot carry long ones
                prompts=PromptFile.of_texts(request.prompts),
                # an empty one too: the server's own is not for its viewers
                secrets={KEY_VARIABLE: key},
            )


def _ask() -> tuple[ProbeRequest | None, str]:
    """Draw the fields; return the request, None without an address, and the key for the job's
    process alone.
    """
    left, right = st.columns(2)
    url = left.text_input(
        "Server",
        key="probe_url",
        placeholder="http://127.0.0.1:8000",
        **_FIELD,
    ).strip()
    against = right.text_input(
        "Compare with a second server",
        key="probe_against",
        placeholder="none",
        help="the same prompts: after an upgrade",
        **_FIELD,
    ).strip()
    text = st.text_area(
        "Prompts",
        SAMPLE,
        height=140,
        key="probe_prompts",
        help="a line of three dashes (---) separates prompts",
        **_FIELD,
    )
    with st.container(horizontal=True, vertical_alignment="bottom"):
        tests = st.multiselect(
            "Tests",
            MEANINGS,
            _TESTS,
            key="probe_tests",
            width=330,
            help="\n".join(f"- *{test}*: {meaning}" for test, meaning in MEANINGS.items()),
            **_FIELD,
        )
        load, tokens, top = (
            int(st.number_input(label, 1, most, first, key=f"probe_{key}", width=width, **_FIELD))
            for key, label, most, first, width in (
                ("load", "Requests in flight", MOST_LOAD, _LOAD, 150),
                ("tokens", "Tokens to generate", 4096, ProbeRequest.tokens, 150),
                ("top", "Top log-probabilities", 1 << 18, ProbeRequest.top, 160),
            )
        )
    left, middle, right = st.columns(3)
    model = left.text_input(
        "Model",
        ProbeRequest.model,
        key="probe_model",
        placeholder="the one it serves",
        **_FIELD,
    )
    # Without _FIELD: a key does not come back, the session keeps none.
    key = middle.text_input(
        "Key",
        type="password",
        key="probe_key",
        placeholder="none",
        help="sent as Bearer, and never stored",
    )
    name = right.text_input(
        "Name of the run",
        key="probe_name",
        placeholder="the server and its model",
        **_FIELD,
    )
    if not url:
        st.caption(
            "Give a server's address: vLLM, SGLang, llama.cpp, Ollama, or any OpenAI-compatible"
            " one.",
        )
        return None, key
    chosen = [f"{LOAD}:{load}" if test == LOAD else test for test in MEANINGS if test in tests]
    request = ProbeRequest(
        url=url,
        prompts=split_prompts(text),
        tests=",".join(chosen),
        top=top,
        tokens=tokens,
        model=model.strip(),
        against=against or None,
        name=name.strip() or None,
    )
    return request, key
