"""The form of the Probe page: which server, which prompts, which tests; what it would take; the button."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import streamlit as st

from app.capture.form import split_prompts
from app.shell import store_changes, widgets
from app.shell.jobs import PROBING, PromptFile
from core.errors import UlpscopeError
from core.probing.plan import DEFAULT_TESTS, LOAD, MEANINGS, MOST_LOAD, parsed_tests, told
from core.probing.request import KEY_VARIABLE, ProbeRequest
from core.text import shown

SAMPLE = "def merge(left, right):  # merges two sorted lists into one that is sorted"
_TESTS, _LOAD = parsed_tests(DEFAULT_TESTS)
FIRST: dict[str, Any] = {
    "probe_url": "",
    "probe_against": "",
    "probe_prompts": SAMPLE,
    "probe_tests": list(_TESTS),
    "probe_load": _LOAD,
    "probe_tokens": ProbeRequest.tokens,
    "probe_top": ProbeRequest.top,
    "probe_model": ProbeRequest.model,
    "probe_name": "",
}


def draw() -> None:
    """Draw the form, what it would take, and the button that lines it up."""
    request, key, plan = None, "", None
    try:
        request, key = _ask()
        plan = None if request is None else request.plan(request.prompts)
    except UlpscopeError as error:
        st.warning(widgets.escaped(str(error)))
    is_pressed = widgets.pressed(st.button, "Probe", "probe_start", type="primary", disabled=plan is None)
    if request is None or plan is None:
        return
    lines = told(plan)
    st.caption("Nothing is sent before. " + lines[-1])
    with st.expander("What is asked"):
        st.markdown("\n".join(f"- {widgets.escaped(line.strip())}" for line in lines[:-1]))
    if is_pressed:
        _submit(request, key)
        time.sleep(0.1)  # so that the list below shows it started


def _ask() -> tuple[ProbeRequest | None, str]:
    kept = st.session_state.setdefault("probe_kept", dict(FIRST))  # the widgets' own values go with the page
    for name, value in kept.items():
        st.session_state.setdefault(name, value)
    try:
        return _fields()
    finally:
        kept.update({name: st.session_state[name] for name in FIRST})


def _fields() -> tuple[ProbeRequest | None, str]:
    """Draw the fields and return the request, None without an address, and the key, which goes to the job's process
    alone. UsageError for an address that is none.
    """
    left, right = st.columns(2)
    url = left.text_input("Server", key="probe_url", placeholder="http://127.0.0.1:8000").strip()
    against = right.text_input(
        "Against a second server", key="probe_against", placeholder="none", help="the same prompts: after an upgrade"
    ).strip()
    text = st.text_area(
        "Prompts", height=140, key="probe_prompts", help="a line of three dashes (---) separates prompts"
    )
    with st.container(horizontal=True, vertical_alignment="bottom"):
        tests = st.multiselect("Tests", list(MEANINGS), key="probe_tests", width=330)
        load = int(st.number_input("In flight beside", 1, MOST_LOAD, key="probe_load", width=130))
        tokens = int(st.number_input("Tokens to generate", 1, 4096, key="probe_tokens", width=150))
        top = int(st.number_input("Values a position", 1, 1 << 18, key="probe_top", width=140))
    left, middle, right = st.columns(3)
    model = left.text_input("Model", key="probe_model", placeholder="the one that it serves").strip()
    key = middle.text_input(
        "Key", type="password", key="probe_key", placeholder="none", help="sent as Bearer, and never stored"
    )
    name = right.text_input("Name of the run", key="probe_name", placeholder="the server and its model").strip()
    if not url:
        st.caption("Give the address of a server: vLLM, SGLang, llama.cpp, Ollama, TGI, or one of OpenAI's form.")
        return None, key
    chosen = ",".join(f"{LOAD}:{load}" if test == LOAD else test for test in MEANINGS if test in tests)
    request = ProbeRequest(
        url=url,
        prompts=split_prompts(text),
        model=model,
        tests=chosen,
        against=against or None,
        top=top,
        tokens=tokens,
        name=name or None,
    )
    return request, key


def _submit(request: ProbeRequest, key: str) -> None:
    arguments = replace(request, prompts=()).arguments()
    lines = "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in request.prompts)
    with widgets.said():
        store_changes.submit(
            arguments,
            title=f"Probe of {shown(request.url, 100)}",
            device=PROBING,
            prompts=PromptFile("prompts.jsonl", lines.encode()),
            secrets={KEY_VARIABLE: key},  # an empty one too: the server's own is not for its viewers
        )
