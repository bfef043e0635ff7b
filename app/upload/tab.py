"""Upload: files arrive in parts and continue after a break; what they hold is shown, and they are
saved as runs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import streamlit as st

from app.components import component
from app.hosting import members
from app.shell import selection, store_cache, store_changes, widgets
from app.shell.job_list import job_list
from app.upload.importing import start_import
from app.upload.spool import FAILED, RECEIVED, Upload
from core.errors import UlpscopeError
from core.judging.ingest import headers_of
from core.rl.formats import are_tokens
from core.runs.dumps.shapes import LOGITS, PADDED, VALUES

KEYS = """
- **Keys are side names**, each `[..., vocab]`: axes of size 1 are dropped; three axes left are
  prompts, positions, vocabulary. A side called `reference` is the reference, else the first.
- **bfloat16** may come as uint16 bits with `compute_dtype`, as numpy's 2-byte void, or upcast to
  float32: that is detected.
- Reserved keys: `token_ids`, `tokens` (texts), `compute_dtype`, `reference_side`, `meta` (any
  text). Also `prompt_lengths` (prompts one after another), `emitted:SIDE` (the token each side
  chose, -1 if it was given), `exact` and `trusted:NAME` (the exact result of 16-bit sides, and
  trusted ones).
- **Responses of servers** (JSON or JSON Lines with log-probabilities): one file per side.
- **Trainer and rollout** (JSON Lines or Parquet): one row per sequence with lists
  `token_ids`, `rollout` and `trainer`; or the files that a framework saves.
- A clone has two to try: `fresh_and_cached_upcast.npz` and `six_calls.npz` in `sample_runs/dumps`.
"""
# Not st.file_uploader: it holds a file in memory (2.1 GB for 1 GiB) and cannot resume.
_panel = component("ulpscope_uploads", Path(__file__).with_name("upload"))

DETECTED = "detected when saved"
HOLDS = {
    "": DETECTED,
    LOGITS: "logits of [positions, vocab]",
    PADDED: "padded vocabularies: compare the common part",
    VALUES: "values that are no logits: embeddings, hidden states, scores",
}
_DTYPES = {"": DETECTED, **{name: name for name in ("bfloat16", "float16", "float32")}}
_COLUMNS = {"run": 1, "responses": 3}  # of the form; of dumps 4


class Arrived(NamedTuple):
    """A file that has arrived. kind, sides: of its headers; refusal: why it cannot become a run."""

    upload: Upload
    path: Path
    kind: str
    sides: dict[str, str]
    refusal: str


# mtime is part of the cache's key: another file may come under the same name.
@st.cache_data(show_spinner=False, max_entries=200)
def _headers(path: Path, mtime: int) -> tuple[str, dict[str, str], str]:  # noqa: ARG001
    try:
        return (*headers_of(path), "")
    except UlpscopeError as error:
        return "", {}, str(error)


def candidates(files: Sequence[Arrived]) -> list[tuple[Arrived, ...]]:
    """Group files into runs: two files of one array are a pair, those of responses one run, others
    each a run.
    """
    arrays = [file for file in files if file.kind == "array"]
    if len(arrays) > 2:
        by_id = {file.upload.upload_id: file for file in arrays}
        chosen = st.multiselect(
            "Which two make a pair",
            by_id,
            list(by_id)[:2],
            format_func=lambda upload_id: by_id[upload_id].path.name,
            max_selections=2,
            key="upload_pair",
            help="files of one array each; the first is the reference",
        )
        arrays = [by_id[upload_id] for upload_id in chosen]
    responses = [file for file in files if file.kind == "responses"]
    others = [(file,) for file in files if file.kind not in ("array", "responses")]
    return others + [tuple(group) for group in (responses, arrays) if group]


def key_of(files: tuple[Arrived, ...]) -> str:
    """Return a key of the widgets of one run."""
    return "_".join(file.upload.upload_id for file in files)


def exact_key(files: tuple[Arrived, ...]) -> str:
    """Return the key of the widget that has the file of the exact result, by its upload's id."""
    return f"upload_exact_{key_of(files)}"


def draw_form(files: tuple[Arrived, ...], others: Sequence[Arrived]) -> dict[str, str] | None:
    """Draw the form of one run; return its options when it is to be saved, else None. others: files
    that may hold the exact result.
    """
    key, kind = key_of(files), files[0].kind
    with st.container(border=True, key=f"candidate_{key}"):
        st.markdown(f"**{widgets.escape(' + '.join(file.path.name for file in files))}**")
        refusal = next((file.refusal for file in files if file.refusal), "")
        if kind == "array" and len(files) == 1:
            refusal = (
                f"{files[0].path.name}: one array. Add the file of the other side, or put both into"
                " one npz."
            )
        if refusal:
            st.error(widgets.escape(refusal))
            return None
        columns = st.columns(_COLUMNS.get(kind, 4))
        name = "" if kind == "run" else " + ".join(file.path.stem for file in files)[:120]
        options = {
            "name": columns[0].text_input(
                "Name of the run",
                name,
                placeholder="from the file",
                key=f"upload_name_{key}",
            ),
        }
        if kind != "run":
            options["model"] = columns[1].text_input(
                "Model",
                placeholder="optional",
                key=f"upload_model_{key}",
            )
        if kind == "responses" and are_tokens([file.path for file in files]):
            options["tokenizer"] = columns[2].text_input(
                "Tokenizer",
                placeholder="optional: a folder on this machine",
                key=f"upload_tokenizer_{key}",
                help="folder with tokenizer.json, for the texts of the sampled tokens",
            )
        if kind in ("dump", "array"):
            options["compute_dtype"] = columns[2].selectbox(
                "Compute dtype",
                _DTYPES,
                format_func=_DTYPES.__getitem__,
                key=f"upload_dtype_{key}",
                help="ULPs are counted in the dtype the logits were computed in, even if they were"
                " saved as float32.",
            )
            options["holds"] = columns[3].selectbox(
                "Holds",
                HOLDS,
                format_func=HOLDS.__getitem__,
                key=f"upload_holds_{key}",
                help="For logits that look like log-probabilities of chosen tokens, and for padded"
                " vocabularies.",
            )
            sides = files[0].sides
            # each file holds an array that has no name of its own
            if len(files) > 1:
                sides = {file.path.stem: array for file in files for array in file.sides.values()}
            st.dataframe(
                {"side": list(sides), "array": list(sides.values())},
                hide_index=True,
                key=f"sides_{key}",
            )
            first = "the side called reference, else the first"
            options["reference"] = st.selectbox(
                "Reference",
                ["", *sides],
                format_func=lambda name: name or first,
                key=f"upload_reference_{key}",
            )
            if others:
                names = {"": "none", **{each.upload.upload_id: each.path.name for each in others}}
                widgets.select(
                    "Exact result",
                    names,
                    exact_key(files),
                    help="What the 16-bit sides compute, in float32 or float64. Trusted 16-bit"
                    " results in its file are the measure of rounding.",
                )
        is_saved = widgets.button("Save as a run", f"save_{key}", type="primary")
        return options if is_saved else None


def draw_panel(serial: str) -> list[str]:
    """Draw the files that upload.js sends; return the ids of those that arrived, anew if `serial`
    changes.
    """
    state = _panel(
        key="upload_panel",
        data={"address": "/api/uploads", "serial": serial},
        default={"arrived": []},
        on_arrived_change=lambda: None,
    )
    # What a browser sends may be anything.
    ids = state.arrived if isinstance(state.arrived, list) else []
    return [each for each in ids if isinstance(each, str)]


def draw(_: selection.View | None) -> None:
    """Draw the tab."""
    jobs = store_changes.jobs()
    st.caption("Nothing is saved until you click Save.")
    files, current = [], jobs.all("upload")
    for upload_id in draw_panel(str([(job.number, job.is_over) for job in current])):
        upload = Upload(store_cache.store(), upload_id)
        record = upload.record()
        if record and record.state in (RECEIVED, FAILED):
            path = upload.path(record)
            files.append(Arrived(upload, path, *_headers(path, path.stat().st_mtime_ns)))
    # Each in a place of its own: a click on a part that has moved meanwhile, as the list does when
    # a form above it goes, is not heard.
    forms, heading, below = st.container(), st.container(), st.container()
    # To load the libraries takes longer than most imports.
    if files:
        jobs.warm()
    with forms:
        if not files and not current:
            with st.expander("Dump format", expanded=True):
                st.markdown(KEYS)
                widgets.code_block(
                    'np.savez("dump.npz", reference=fresh_logits, variant=cached_logits,'
                    " token_ids=ids)",
                )
        try:
            groups = candidates(files)
            exact = [st.session_state.get(exact_key(group), "") for group in groups]
            for group, exact_id in zip(groups, exact, strict=True):
                # it is part of another run
                if group[0].upload.upload_id in exact:
                    continue
                others = [
                    file for file in files if file.kind in ("array", "dump") and file not in group
                ]
                options = draw_form(group, others)
                if options is not None:
                    start_import(
                        jobs,
                        [file.upload for file in group],
                        options,
                        members.current_member(),
                        Upload(store_cache.store(), exact_id) if exact_id else None,
                    )
                    st.rerun()
        except UlpscopeError as error:
            st.error(widgets.escape(str(error)))
    if current:
        heading.subheader("Jobs")
    with below:
        job_list("upload", current)
