"""The form of the Probe page: which server, which prompts, which tests; what it would take; the button."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import streamlit as st

from app.capture.form import split_prompts
from app.hosting import identity
from app.shell import store_cache, widgets
from app.shell.jobs import PROBING, PromptFile
from core.configuration import configuration
from core.errors import UlpscopeError
from core.probing.plan import LOAD, MEANINGS, MOST_LOAD, Plan, base_of, check_allowed, told
from core.text import shown

SAMPLE = "def merge(left, right):  # merges two sorted lists into one that is sorted"
DEFAULTS: dict[str, Any] = {
    "probe_url": "",
    "probe_against": "",
    "probe_prompts": SAMPLE,
    "probe_tests": ["rerun", "warm", "load"],
    "probe_load": 8,
    "probe_tokens": 32,
    "probe_top": 20,
    "probe_model": "",
    "probe_name": "",
}
KEY_VARIABLE = "ULPSCOPE_PROBE_KEY"


@dataclass(frozen=True)
class Asked:
    """Values of the form. key: goes to the job's process alone, in no argument."""

    url: str
    against: str
    model: str
    name: str
    key: str
    plan: Plan


def draw() -> None:
    """Draw the form, what it would take, and the button that lines it up."""
    asked = _ask()
    if asked is None:
        widgets.pressed(st.button, "Probe", "probe_start", type="primary", disabled=True)
        return
    try:
        _check(asked)
    except UlpscopeError as error:
        st.warning(widgets.escaped(str(error)))
        widgets.pressed(st.button, "Probe", "probe_start", type="primary", disabled=True)
        return
    is_pressed = widgets.pressed(st.button, "Probe", "probe_start", type="primary")
    lines = told(asked.plan)
    st.caption("Nothing is sent before. " + lines[-1])
    with st.expander("What is asked"):
        st.markdown("\n".join(f"- {widgets.escaped(line.strip())}" for line in lines[:-1]))
    if is_pressed:
        _submit(asked)
        time.sleep(0.1)  # so that the list below shows it started


def _ask() -> Asked | None:
    kept = st.session_state.setdefault("probe_kept", dict(DEFAULTS))  # the widgets' own values go with the page
    for key, value in kept.items():
        st.session_state.setdefault(key, value)
    asked = _fields()
    kept.update({key: st.session_state[key] for key in DEFAULTS})
    return asked


def _fields() -> Asked | None:
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
        return None
    try:
        chosen = tuple(test for test in MEANINGS if test in tests)
        plan = Plan(split_prompts(text), chosen, load, tokens, top, is_against=bool(against))
    except UlpscopeError as error:
        st.warning(widgets.escaped(str(error)))
        return None
    return Asked(url, against, model, name, key, plan)


def _check(asked: Asked) -> None:
    """UlpscopeError for an address that is none, or that this server may not ask."""
    for address in filter(None, (asked.url, asked.against)):
        base_of(address)
        if not identity.current().is_local:
            check_allowed(address, configuration().probing.servers)


def _submit(asked: Asked) -> None:
    plan = asked.plan
    tests = ",".join(f"{LOAD}:{plan.load}" if test == LOAD else test for test in plan.tests)
    arguments = ["probe", base_of(asked.url), f"--tests={tests}", f"--tokens={plan.tokens}", f"--top={plan.top}"]
    for option, value in (("against", asked.against), ("model", asked.model), ("name", asked.name)):
        if value:
            arguments.append(f"--{option}={base_of(value) if option == 'against' else value}")
    if not identity.current().is_local:
        arguments.append("--guarded")
    lines = "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in plan.prompts)
    with widgets.said():
        store_cache.submit(
            arguments,
            title=f"Probe of {shown(base_of(asked.url), 100)}",
            device=PROBING,
            prompts=PromptFile("prompts.jsonl", lines.encode()),
            secrets={KEY_VARIABLE: asked.key},  # an empty one too: the server's own is not for its viewers
        )
