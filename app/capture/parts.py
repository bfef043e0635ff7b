"""Parts of the Capture page: its form, which comes back as it was left."""

from __future__ import annotations

from typing import Any, Literal

import streamlit as st

from app.capture import getting
from app.capture.form import CaptureForm, is_small, split_prompts
from app.capture.preview import previews
from app.capture.recent_models import SHIPPED, recent_models
from app.shell import store_cache, widgets
from app.shell.jobs import ANY_DEVICE, PromptFile
from core.capture_request import CaptureRequest
from core.packaged_models import PACKAGED, is_here
from core.text import file_name, is_seen, size

BASES = [
    "prefill",
    "decode",
    "blocks:16",
    "reuse:16",
    "chunked:16",
    "static",
]  # type to give another; docs/paths.md has all
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
SAMPLE = "def __init__(self, name, parent=None):\n    self.name = name\n    self.parent ="
SCORE, CONTINUE = "score the prompts", "continue the prompts"
FILE_MB = 50  # of prompts; a viewer's file is held in memory
KV = {"auto": None, "always": True, "never": False}
KEPT: dict[Literal["all", "figures"], str] = {"all": "all", "figures": "none: figures only"}
BESIDE = {  # what is run beside the sides: the label of its box and what it takes
    "judge": (
        "Judge it: rounding, or a bug?",
        "runs the checks of the verdict too: several times the work of the capture",
    ),
    "layers": (
        "Compare what every module puts out (Layers)",
        (
            "embedding, norms, projections, attention, MLP and the stream after each block, beside their rounding"
            " floor: about twice the work"
        ),
    ),
    "kernels": ("Watch which kernels run (Kernels)", "every path once more on the first prompt, under the profiler"),
    "remedies": (
        "Test fixes (Overview, Remedies)",
        (
            "every pair again in float32, with math attention, with sums in one order and so on, and timed: many times"
            " the work"
        ),
    ),
}
FIRST = {
    "model": SHIPPED,
    "source": "typed",
    "prompts": SAMPLE,
    "chat": False,
    "system": "",
    "reference": "prefill",
    "variants": ["decode"],
    "sweep": "",
    "mode": SCORE,
    "tokens": 64,
    "repeat": 1,
    "kv": "auto",
    "dtype": "bfloat16",
    "device": ANY_DEVICE,
    "keep": False,
    "judge": True,
    "kept_logits": "all",
    "layers": False,
    "kernels": False,
    "remedies": False,
    "name": "",
}


def remembered() -> None:
    """Restore what the widgets hold, which they forget when another page is opened: this page comes back as it was
    left.
    """
    if "capture_model" not in st.session_state:
        st.session_state["capture_shows_file"] = False
    kept = st.session_state.setdefault("capture_kept", dict(FIRST))
    for key, first in FIRST.items():
        st.session_state.setdefault(f"capture_{key}", kept.get(key, first))
    if st.session_state["capture_device"] not in (ANY_DEVICE, *previews().devices):
        st.session_state["capture_device"] = ANY_DEVICE


def choose() -> CaptureForm:
    """Draw the form and return its values."""
    left, right = st.columns(2, gap="medium")
    with left:
        given, file = _choose_model()
    with right:
        paths, work, machine = _choose_paths(), _choose_work(), _choose_machine()
    kept = _choose_kept(work["tokens"])
    st.session_state["capture_kept"] |= {
        key: st.session_state[f"capture_{key}"] for key in FIRST if f"capture_{key}" in st.session_state
    }
    return CaptureForm(CaptureRequest(**given, **paths, **work, **machine, **kept), file)


def _models() -> list[str]:
    """Models to choose from: those tried here, those of stored runs but for names that cannot be seen, the one that is
    shipped, and those that a package brings.
    """
    cards, _ = store_cache.cards()
    stored = [card.model for card in cards if card.model and is_seen(card.model)]
    now = [st.session_state["capture_model"]] if st.session_state["capture_model"] else []
    return list(dict.fromkeys([*now, *recent_models(store_cache.store().directory), *stored, SHIPPED, *PACKAGED]))


def _choose_model() -> tuple[dict[str, Any], PromptFile | None]:
    """Draw the choice of a model and of prompts; return the request's fields of it, and what was dropped."""
    model = st.selectbox(
        "Model",
        _models(),
        accept_new_options=True,
        key="capture_model",
        on_change=_judge_if_small,
        help="a folder or .gguf file on this machine, or a hub id; type to add one",
    )
    if (packaged := PACKAGED.get((model or "").strip())) is not None and not is_here(packaged):
        getting.offer(packaged)
    prompts, file = _choose_prompts()
    is_chat = st.toggle("As a chat, through the tokenizer's chat template", key="capture_chat")
    system = st.text_input("System message", key="capture_system", placeholder="none") if is_chat else ""
    return {
        "model": (model or "").strip(),
        "prompts": prompts,
        "is_chat": is_chat,
        "system": system.strip() or None,
    }, file


def _judge_if_small() -> None:
    st.session_state["capture_judge"] = is_small((st.session_state["capture_model"] or "").strip())


def _choose_prompts() -> tuple[tuple[str, ...], PromptFile | None]:
    """Draw the choice of prompts and return what was typed, or what was dropped."""
    source = st.segmented_control("Prompts", ["typed", "a file"], key="capture_source", required=True)
    if source == "typed":
        text = st.text_area(
            "Prompts",
            height=196,
            key="capture_prompts",
            label_visibility="collapsed",
            help="a line of three dashes (---) separates prompts",
        )
        return split_prompts(text), None
    dropped = st.file_uploader(
        "A file of prompts",
        type=["txt", "jsonl"],
        max_upload_size=FILE_MB,
        key="capture_file",
        label_visibility="collapsed",
        help=".jsonl: an object a line with prompt, text, token_ids or messages; any other file: one prompt a line",
    )
    if dropped is not None:
        st.session_state["capture_dropped"] = PromptFile(file_name(dropped.name), dropped.getvalue())
    elif st.session_state.get("capture_shows_file"):  # it was there a moment ago, so somebody took it away
        st.session_state.pop("capture_dropped", None)
    st.session_state["capture_shows_file"] = dropped is not None
    file = st.session_state.get("capture_dropped")
    if file is None:
        st.caption(
            ".jsonl with `prompt`, `text`, `token_ids` or `messages` in each line; any other file: one prompt a line."
        )
    elif dropped is None:
        st.caption(
            f"{widgets.escaped(file.name)}, {size(len(file.content))}, as dropped before; drop another to replace it."
        )
    return (), file


def _choose_paths() -> dict[str, Any]:
    reference = st.selectbox("Reference path", BASES, accept_new_options=True, key="capture_reference")
    variants = st.multiselect(
        "Variant paths",
        list(dict.fromkeys([*SUGGESTED, *st.session_state["capture_variants"]])),
        accept_new_options=True,
        key="capture_variants",
        help=(
            "base+modifier: prefill is one forward of the whole prompt, decode goes token by token with a KV cache,"
            " batch:N puts N-1 other prompts beside yours; type any other path of docs/paths.md, such as"
            " decode+threads:1 or prefill+attn:eager, or one of another engine, such as llamacpp:decode"
            " (docs/engines.md)"
        ),
    )
    sweep = st.text_input(
        "Sweep of the reference",
        key="capture_sweep",
        placeholder="batch=1,2,3,4,8",
        help="a variant for each value: batch=1,2,3,4,8 puts the reference into batches of each size",
    )
    return {
        "reference": reference or "",
        "variants": tuple(variants),
        "sweeps": (sweep.strip(),) if sweep.strip() else (),
    }


def _choose_work() -> dict[str, Any]:
    mode_field, count_field = st.columns([3, 2], vertical_alignment="bottom")
    mode = mode_field.selectbox(
        "What to do",
        [SCORE, CONTINUE],
        key="capture_mode",
        help=(
            "score: logits at every position of the prompts. continue: each side goes on by its own argmax; where"
            " two sides part, both texts and the logits that parted them are kept"
        ),
    )
    if mode == CONTINUE:
        tokens = int(count_field.number_input("by tokens, at most", 1, 4096, key="capture_tokens"))
        repeat = 1
    else:
        tokens = 0
        repeat = int(
            count_field.number_input(
                "Calls of each path",
                1,
                64,
                key="capture_repeat",
                help=(
                    "separate calls, one after another: with reuse:N or blocks:N the first is fresh and the later"
                    " ones read its cache"
                ),
            )
        )
    return {"tokens": tokens, "repeat": repeat}


def _choose_machine() -> dict[str, Any]:
    first, second, third = st.columns([3, 3, 4])
    dtype = first.selectbox("dtype", ["bfloat16", "float32", "float16"], key="capture_dtype")
    device = second.selectbox("Device", [ANY_DEVICE, *previews().devices], key="capture_device")
    kv = third.selectbox("Compare KV caches", list(KV), key="capture_kv", help="auto: where a path reads one")
    return {"dtype": dtype, "device": None if device == ANY_DEVICE else device, "kv": KV[kv]}


def _choose_kept(tokens: int) -> dict[str, Any]:
    """Draw what the run is called, keeps and has beside its sides: nothing where it generates `tokens`."""
    name_field, keep_field = st.columns(2, gap="medium", vertical_alignment="bottom")
    name = name_field.text_input("Name of the run", placeholder="model: reference against variants", key="capture_name")
    kept = name_field.selectbox(
        "Logits to keep",
        list(KEPT),
        format_func=KEPT.__getitem__,
        key="capture_kept_logits",
        help=(
            "figures and digests are always of all logits; without them no differences, ranks or causes can be looked"
            " up later, and the run cannot be taken in by another store"
        ),
    )
    beside = {
        key: keep_field.checkbox(label, key=f"capture_{key}", disabled=bool(tokens) and key != "judge", help=what)
        for key, (label, what) in BESIDE.items()
    }
    return {
        "name": name.strip() or None,
        "keep": kept,
        **{key: is_asked and (not tokens or key == "judge") for key, is_asked in beside.items()},
    }
