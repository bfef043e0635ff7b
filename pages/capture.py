"""Capture: choose model, prompts and paths; see what will run; watch, cancel, open the finished run."""

import time
from typing import Literal

import pandas as pd
import streamlit as st

from app.capture import PAGE, getting
from app.capture.form import CaptureForm, split_prompts
from app.capture.preview import Answer, previews
from app.capture.recent_models import SHIPPED, recent_models, remember_model
from app.components.code_block import code_block
from app.hosting import page_guard
from app.shell import store_cache, widgets
from app.shell.job_list import counted, job_list
from app.shell.jobs import ANY_DEVICE, GETTING, PromptFile
from app.shell.widgets import PAGES
from core.capture_request import CaptureRequest
from core.packaged_models import PACKAGED, is_here
from core.runs.file.kept import takes
from core.text import file_name, is_seen, plural, size

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
KEPT: dict[Literal["all", "flips", "figures"], str] = {
    "all": "all",
    "flips": "at flips, near ties and beside them",
    "figures": "none: figures only",
}
BESIDE = {  # what is run beside the sides: the label of its box and what it takes
    "layers": (
        "Compare what every module puts out (Layers)",
        (
            "embedding, norms, projections, attention, MLP and the stream after each block, beside their rounding"
            " floor: about twice the work"
        ),
    ),
    "kernels": ("Watch which kernels run (Kernels)", "every path once more on the first prompt, under the profiler"),
    "remedies": (
        "Try what would make the sides agree (Remedies)",
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
    "kept_logits": "all",
    "layers": False,
    "kernels": False,
    "remedies": False,
    "name": "",
}
jobs, looks = store_cache.jobs(), previews()


def remembered() -> None:
    """Restore what the widgets hold, which they forget when another page is opened: this page comes back as it was
    left.
    """
    if "capture_model" not in st.session_state:
        st.session_state["capture_shows_file"] = False
    kept = st.session_state.setdefault("capture_kept", dict(FIRST))
    for key, first in FIRST.items():
        st.session_state.setdefault(f"capture_{key}", kept.get(key, first))
    if st.session_state["capture_device"] not in (ANY_DEVICE, *looks.devices):
        st.session_state["capture_device"] = ANY_DEVICE


def models() -> list[str]:
    """Models to choose from: those tried here, those of stored runs but for names that cannot be seen, the one that is
    shipped, and those that a package brings.
    """
    cards, _ = store_cache.cards()
    stored = [card.model for card in cards if card.model and is_seen(card.model)]
    now = [st.session_state["capture_model"]] if st.session_state["capture_model"] else []
    return list(dict.fromkeys([*now, *recent_models(store_cache.store().directory), *stored, SHIPPED, *PACKAGED]))


def choose_prompts() -> tuple[tuple[str, ...], PromptFile | None]:
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


def choose() -> CaptureForm:
    """Draw the form and return its values."""
    left, right = st.columns(2, gap="medium")
    with left:
        model = st.selectbox(
            "Model",
            models(),
            accept_new_options=True,
            key="capture_model",
            help="a folder or .gguf file on this machine, or a hub id; type to add one",
        )
        if (packaged := PACKAGED.get((model or "").strip())) is not None and not is_here(packaged):
            getting.offer(packaged)
        prompts, file = choose_prompts()
        is_chat = st.toggle("As a chat, through the tokenizer's chat template", key="capture_chat")
        system = st.text_input("System message", key="capture_system", placeholder="none") if is_chat else ""
    with right:
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
        first, second, third = st.columns([3, 3, 4])
        dtype = first.selectbox("dtype", ["bfloat16", "float32", "float16"], key="capture_dtype")
        device = second.selectbox("Device", [ANY_DEVICE, *looks.devices], key="capture_device")
        kv = third.selectbox("Compare KV caches", list(KV), key="capture_kv", help="auto: where a path reads one")
    name_field, keep_field = st.columns(2, gap="medium", vertical_alignment="bottom")
    name = name_field.text_input("Name of the run", placeholder="model: reference against variants", key="capture_name")
    keeps = keep_field.checkbox(
        "If a side fails, keep the run of those before it",
        key="capture_keep",
        help="for instance where a large batch runs out of memory; at least two sides must have finished",
    )
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
        key: keep_field.checkbox(label, key=f"capture_{key}", disabled=mode == CONTINUE, help=what)
        for key, (label, what) in BESIDE.items()
    }
    st.session_state["capture_kept"] |= {
        key: st.session_state[f"capture_{key}"] for key in FIRST if f"capture_{key}" in st.session_state
    }
    request = CaptureRequest(
        model=(model or "").strip(),
        prompts=prompts,
        is_chat=is_chat,
        system=system.strip() or None,
        reference=reference or "",
        variants=tuple(variants),
        sweeps=(sweep.strip(),) if sweep.strip() else (),
        repeat=repeat,
        tokens=tokens,
        kv=KV[kv],
        layers=beside["layers"] and not tokens,
        kernels=beside["kernels"] and not tokens,
        remedies=beside["remedies"] and not tokens,
        keep=kept,
        dtype=dtype,
        device=None if device == ANY_DEVICE else device,
        keeps_finished=keeps,
        name=name.strip() or None,
    )
    return CaptureForm(request, file)


def look_up(form: CaptureForm) -> Answer | None:
    carried = looks.file(form.carried) if form.carried else None
    return looks.look(widgets.viewer(), form.arguments(carried))


def draw_costs(form: CaptureForm, answer: Answer) -> None:
    """Draw what will run, side by side, and what it takes."""
    if answer.refusal:
        st.warning(widgets.escaped(answer.refusal), icon=":material/block:")
        return
    costs = answer.costs
    sides = pd.DataFrame(costs["sides"])
    caches = [None if held is None else size(held) if held else "none" for held in sides["kv_bytes"].astype(object)]
    shown = {
        "side": sides["name"],
        "forwards": sides["forwards"],
        "positions": sides["positions"],
        "tokens computed": sides["tokens"],
        "key/value cache": caches,
    }
    st.dataframe(
        pd.DataFrame(shown),
        hide_index=True,
        column_config={
            name: st.column_config.NumberColumn(format="localized")
            for name in ("forwards", "positions", "tokens computed")
        },
    )
    free = f", {size(costs['free_bytes'])} free beside them" if costs["free_bytes"] is not None else ""
    lines = [
        (
            f"{plural(costs['prompts'], 'prompt')}, {plural(len(sides), 'side')}: {costs['forwards']:,}"
            f" forwards of {costs['tokens']:,} tokens in all, in {costs['dtype']}."
        ),
        (
            f"{takes(costs['kept'], costs['file_bytes'])}; the weights take"
            f" {size(costs['weight_bytes'])} on {costs['device']}"
            f" ({widgets.escaped(costs['device_name'])}){free}."
        ),
        *map(widgets.escaped, costs.get("in_words", ())),
    ]
    if form.request.tokens:
        lines.append(
            "At most: no side parts, none ends its text early, and each token is computed once to choose it and once to"
            " keep its logits."
        )
    st.caption(" ".join(lines))


def foreseen(form: CaptureForm) -> None:
    """Draw the preview, again until its dry run has answered."""
    answer = look_up(form)
    if answer is not None:
        draw_costs(form, answer)
    if answer is None or not answer.is_fresh:
        st.session_state["capture_awaits"] = True
        if answer is None:
            st.caption(":material/hourglass_empty: Looking at the model and counting what this would run …")
    elif st.session_state.pop("capture_awaits", False):
        # the whole page: what is offered depends on the devices there are, and there is nothing more to wait for
        st.rerun()


def stand() -> None:
    """Draw how many captures there are and how they stand."""
    st.markdown(counted([job for job in jobs.all() if job.device != GETTING], "capture"))


widgets.title(PAGE)
st.fragment(stand, run_every=2.0)()
if st.session_state.get("opened"):
    st.switch_page(PAGES / "overview.py")
if not page_guard.may_edit():
    job_list(jobs)
page_guard.only_editors("capture runs")
remembered()
# Each part has its place from the start of a run: a list that draws itself again must not move by what is above it,
# or Streamlit writes it where no place is yet, which breaks the page.
form_place, start_place, costs_place, typed_place, jobs_place = (st.container() for _ in range(5))
with form_place:
    form = choose()
start, shown = start_place.columns([1, 4], vertical_alignment="center")
if widgets.pressed(
    start.button, "Capture", "capture_start", type="primary", disabled=form.missing is not None, width="stretch"
):
    answer = look_up(form)
    device = str(answer.costs["device"]) if answer is not None and answer.costs else form.request.device or ANY_DEVICE
    store_cache.submit(form.arguments(), title=form.title, device=device, prompts=form.carried)
    remember_model(store_cache.store().directory, form.request.model)
    time.sleep(0.1)  # so that the list below shows it started
shown.caption(form.missing or "What it will run and cost is below.")
if form.missing is None:
    awaited = look_up(form)
    with costs_place:
        st.fragment(foreseen, run_every=None if awaited is not None and awaited.is_fresh else 0.5)(form)
with typed_place.expander("The same on the command line"):
    code_block(form.typed, key="typed", wraps=True)
with jobs_place:
    job_list(jobs)
