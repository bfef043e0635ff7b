"""Capture: choose model, prompts and paths; watch, cancel, open the finished run."""

from dataclasses import dataclass, replace

import streamlit as st

from app.shell import selection, store_cache, store_changes, widgets, wording
from app.shell.job_list import job_list
from app.shell.jobs import ANY_DEVICE, DEVICES, GETTING, PromptFile, queue_of
from core.capture_request import CaptureRequest
from core.errors import UsageError
from core.numerics.arrays import Record
from core.packaged_models import EXAMPLE, PACKAGED, PackagedModel, is_here
from core.text import file_name, is_seen, size

# docs/reference/paths.md has all
BASES = ["prefill", "decode", "blocks:16", "reuse:16", "chunked:16", "static"]
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
KV = {"auto": None, "always": True, "never": False}
KEPT: Record = {"all": "all", "figures": "none: figures only"}
# what can run with the sides: the label of its box, and what it costs
MORE = {
    "judge": ("Run the checks: rounding, or a bug?", "several times the work of the capture"),
    "layers": (
        "Record module outputs (Internals)",
        "embedding, norms, projections, attention, MLP and residual stream, with their noise"
        " floor: twice the work",
    ),
    "kernels": (
        "Profile kernels (Internals)",
        "runs every path once more on the first prompt, under the profiler",
    ),
    "mitigations": (
        "Test mitigations (Internals)",
        "every pair again in float32, with other attention kernels and so on, timed: many times"
        " the work",
    ),
}
_FIELD: Record = {"persist_state": "session"}  # the form comes back as it was left
# a command line can carry this in its arguments, with room to spare
PROMPT_BYTES = 100_000


@dataclass(frozen=True)
class CaptureForm:
    """One state of the form: the request, and the file of prompts that replaces its texts."""

    request: CaptureRequest
    file: PromptFile | None = None

    @property
    def prompt_file(self) -> PromptFile | None:
        """The file in which the prompts reach the capture; None if they fit into its arguments."""
        prompts = self.request.prompts
        size = sum(len(prompt.encode("utf-8", "replace")) for prompt in prompts)
        if self.file is not None or size <= PROMPT_BYTES:
            return self.file
        return PromptFile.of_texts(prompts)

    @property
    def missing(self) -> str | None:
        """Sentence on the first field that is empty or wrong; None if there is none."""
        request = self.request
        if not request.model:
            return "Choose a model."
        if (packaged := PACKAGED.get(request.model)) is not None and not is_here(packaged):
            return f"Get {packaged.title} first."
        if self.file is None and not request.prompts:
            return "Write at least one prompt, or drop a prompt file."
        if not request.reference:
            return "Choose a reference path."
        if not request.variants and not request.sweeps and request.repeat == 1:
            return "Choose at least one variant or a sweep, or repeat the reference."
        try:
            queue_of(request.device)
        except UsageError as error:
            return str(error)
        return None

    @property
    def title(self) -> str:
        """Title of the job in the list."""
        request = self.request
        title = f"{wording.model_name(request.model)}: {request.reference}"
        if against := ", ".join([*request.variants, *request.sweeps]):
            title += f" vs {against}"
        if request.repeat > 1:
            title += f", {request.repeat} calls"
        if request.tokens:
            title += f", {request.tokens} tokens generated"
        return request.name or title

    @property
    def typed(self) -> str:
        """The command a person would type, with a file of their own."""
        if (file := self.prompt_file) is None:
            return self.request.typed()
        return replace(self.request, prompts=(), prompt_lists=(file.name,)).typed()


def split_prompts(text: str) -> tuple[str, ...]:
    """Split a text into prompts at lines of three dashes; those of blanks alone are none."""
    lines = text.replace("\r\n", "\n")
    parts = [part.strip("\n") for part in f"\n{lines}\n".split("\n---\n")]
    return tuple(part for part in parts if part.strip())


def draw(_: selection.View | None) -> None:
    """Draw the tab."""
    # Each part has its place from the start of a run: a list that draws itself again must not move
    # by what is above it, or Streamlit writes it before its container exists, which breaks the
    # page.
    form_place, start_place, typed_place, jobs_place = (st.container() for _ in range(4))
    with form_place:
        form = _choose()
    start, missing = start_place.columns([1, 4], vertical_alignment="center")
    if widgets.button(
        "Capture",
        "capture_start",
        start.button,
        disabled=form.missing is not None,
        type="primary",
        width="stretch",
    ):
        store_changes.submit(
            form.request,
            title=form.title,
            device=queue_of(form.request.device),
            prompts=form.prompt_file,
        )
    missing.caption(form.missing or "")
    with typed_place.expander("CLI command"):
        widgets.code_block(form.typed, wraps=True)
        st.caption("With `--dry-run` it prints forwards, bytes and memory, and runs nothing.")
    with jobs_place:
        job_list("capture", store_changes.jobs().all())


def _choose() -> CaptureForm:
    """Draw the form and return its values."""
    left, right = st.columns(2, gap="medium")
    with left:
        # The chosen one, those of stored runs, the example, those of packages.
        own_models = [
            card.model for card in store_cache.cards()[0] if card.model and is_seen(card.model)
        ]
        current = st.session_state.get("capture_model") or EXAMPLE
        models = list(dict.fromkeys([current, *own_models, EXAMPLE, *PACKAGED]))
        model = st.selectbox(
            "Model",
            models,
            models.index(EXAMPLE),
            key="capture_model",
            accept_new_options=True,
            help="a folder or .gguf file on this machine, or a hub id; type to add one",
            **_FIELD,
        )
        model = (model or "").strip()
        if (packaged := PACKAGED.get(model)) is not None and not is_here(packaged):
            _offer(packaged)
        prompts, file = _choose_prompts()
        is_chat = st.toggle(
            "As a chat, through the tokenizer's chat template",
            key="capture_chat",
            **_FIELD,
        )
        system = st.text_input("System message", key="capture_system", **_FIELD) if is_chat else ""
    request = CaptureRequest(
        model=model,
        prompts=prompts,
        is_chat=is_chat,
        system=system.strip() or None,
    )
    with right:
        request = _choose_paths(request)
    return CaptureForm(_choose_more(request), file)


def _offer(model: PackagedModel) -> None:
    """Draw the button that gets a model which is not here."""
    jobs = [job for job in store_changes.jobs().all() if job.arguments == ("model", model.name)]
    if jobs and not jobs[0].is_over:
        st.caption("Downloading; see below.")
        return
    label = f"Get {model.title} ({size(model.wheel_bytes)})"
    if widgets.button(label, "capture_get", icon=":material/download:"):
        store_changes.submit(["model", model.name], title=f"Get {model.title}", device=GETTING)
        st.rerun()
    st.caption(f"Not on this machine yet. pip installs it as `{model.package}=={model.version}`.")


def _choose_prompts() -> tuple[tuple[str, ...], PromptFile | None]:
    """Draw the choice of prompts and return what was typed, or what was dropped."""
    source = st.segmented_control(
        "Prompts",
        ["typed", "a file"],
        default="typed",
        required=True,
        key="capture_source",
    )
    if source == "typed":
        text = st.text_area(
            "Prompts",
            SAMPLE,
            height=196,
            key="capture_prompts",
            help="a line of three dashes (---) separates prompts",
            label_visibility="collapsed",
            **_FIELD,
        )
        return split_prompts(text), None
    file = st.file_uploader(
        "Prompt file",
        ["txt", "jsonl"],
        max_upload_size=50,
        key="capture_file",
        help=".jsonl with `prompt`, `text`, `token_ids` or `messages` in each line; any other file:"
        " one prompt per line.",
    )
    return (), None if file is None else PromptFile(file_name(file.name), file.getvalue())


def _choose_paths(request: CaptureRequest) -> CaptureRequest:
    """Draw which paths run, how often and where. Return the request with them."""
    reference = st.selectbox(
        "Reference path",
        BASES,
        accept_new_options=True,
        key="capture_reference",
        **_FIELD,
    )
    paths = list(dict.fromkeys([*SUGGESTED, *st.session_state.get("capture_variants", ())]))
    variants = st.multiselect(
        "Variant paths",
        paths,
        ["decode"],
        key="capture_variants",
        accept_new_options=True,
        help="base+modifier. prefill: one forward of the whole prompt. decode: token by token with"
        " a KV cache. batch:N: N-1 other prompts in the batch. Type any other path of"
        " docs/reference/paths.md (decode+threads:1, prefill+attn:eager) or of an engine"
        " (llamacpp:decode).",
        **_FIELD,
    )
    sweep = st.text_input(
        "Sweep of the reference",
        key="capture_sweep",
        placeholder="batch=1,2,3,4,8",
        help="a variant for each value: batch=1,2,3,4,8 puts the reference into batches of each"
        " size",
        **_FIELD,
    )
    left, right = st.columns([3, 2], vertical_alignment="bottom")
    mode = left.selectbox(
        "Mode",
        [SCORE, CONTINUE],
        key="capture_mode",
        help="score: logits at every position of the prompts. continue: each side continues by its"
        " own argmax. Both texts and the logits up to where they diverge are stored.",
        **_FIELD,
    )
    tokens, repeat = 0, 1
    if mode == CONTINUE:
        tokens = right.number_input("Max tokens", 1, 4096, 64, key="capture_tokens", **_FIELD)
    else:
        repeat = right.number_input(
            "Repeats",
            1,
            64,
            key="capture_repeat",
            help="with reuse:N or blocks:N the first call is fresh and the later ones read its"
            " cache",
            **_FIELD,
        )
    first, second, third = st.columns([3, 3, 4])
    dtype = first.selectbox(
        "dtype",
        ["bfloat16", "float32", "float16"],
        key="capture_dtype",
        **_FIELD,
    )
    device = second.selectbox(
        "Device",
        DEVICES,
        key="capture_device",
        accept_new_options=True,
        **_FIELD,
    )
    kv = third.selectbox(
        "Compare KV caches",
        KV,
        key="capture_kv",
        help="auto: if a path reads one",
        **_FIELD,
    )
    return replace(
        request,
        reference=reference or "",
        variants=tuple(variants),
        sweeps=(sweep.strip(),) if sweep.strip() else (),
        tokens=tokens,
        repeat=repeat,
        dtype=dtype,
        device=None if device == ANY_DEVICE else device,
        kv=KV[kv],
    )


def _choose_more(request: CaptureRequest) -> CaptureRequest:
    """Draw name, stored logits and measurements of the run: only a verdict if it generates tokens.
    Return the request with them.
    """
    left, right = st.columns(2, gap="medium", vertical_alignment="bottom")
    name = left.text_input(
        "Name of the run",
        key="capture_name",
        placeholder="model: reference vs variants",
        **_FIELD,
    )
    with left:
        keep = widgets.select(
            "Logits to store",
            KEPT,
            "capture_kept_logits",
            help="figures and digests always cover all logits; without stored logits, single ones"
            " cannot be looked up later",
            **_FIELD,
        )
    more: Record = {}
    for key, (label, about) in MORE.items():
        is_off = bool(request.tokens) and key != "judge"
        is_on = right.checkbox(
            label,
            key == "judge",
            key=f"capture_{key}",
            disabled=is_off,
            help=about,
            **_FIELD,
        )
        more[key] = is_on and not is_off
    return replace(request, name=name.strip() or None, keep=keep, **more)
