"""The form of arrived files: one for each run that they would make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from app.shell import widgets
from app.uploads.spool import Upload
from core.errors import UlpscopeError
from core.judging.inspect import Headers, headers_of
from core.runs.dumps.dump import LOGITS, PADDED

AS_FOUND = "as found"
HOLDS = {"": AS_FOUND, LOGITS: "logits of [positions, vocab]", PADDED: "padded vocabularies: compare the common part"}
_DTYPES = [AS_FOUND, "bfloat16", "float16", "float32"]


@dataclass(frozen=True)
class Arrived:
    """A file that has arrived. refusal: why it can become no run."""

    upload: Upload
    path: Path
    headers: Headers | None
    refusal: str = ""


def arrived(upload: Upload, path: Path) -> Arrived:
    """Read the headers of a file."""
    try:
        status = path.stat()
        return Arrived(upload, path, _headers(path, status.st_mtime_ns, status.st_size))
    except UlpscopeError as error:
        return Arrived(upload, path, None, str(error))


@st.cache_data(show_spinner=False, max_entries=200)
def _headers(path: Path, _changed: int, _size: int) -> Headers:
    return headers_of(path)


def candidates(files: Sequence[Arrived]) -> list[tuple[Arrived, ...]]:
    """Group files into the runs that they would make.

    A dump and a run file make a run each. Two files of one array each are a pair; files of responses are the sides of
    one run.
    """
    by_kind: dict[str, list[Arrived]] = {"array": [], "responses": []}
    groups: list[tuple[Arrived, ...]] = []
    for file in files:
        kind = file.headers.kind if file.headers else ""
        if kind in by_kind:
            by_kind[kind].append(file)
        else:
            groups.append((file,))
    arrays = by_kind["array"]
    if len(arrays) > 2:
        by_id = {file.upload.upload_id: file for file in arrays}
        chosen = st.multiselect(
            "Which two make a pair",
            list(by_id),
            default=list(by_id)[:2],
            max_selections=2,
            key="upload_pair",
            format_func=lambda upload_id: by_id[upload_id].path.name,
            help="files of one array each; the first is the reference",
        )
        arrays = [by_id[upload_id] for upload_id in chosen]
    return groups + [tuple(group) for group in (by_kind["responses"], arrays) if group]


def draw(files: tuple[Arrived, ...]) -> dict[str, str] | None:
    """Draw the form of one run. Returns the options when it is to be saved, else None."""
    key = "_".join(file.upload.upload_id for file in files)
    title = " + ".join(file.path.stem for file in files)[:120]
    with st.container(border=True, key=f"candidate_{key}"):
        st.markdown(f"**{widgets.escaped(' + '.join(file.path.name for file in files))}**")
        refusal = next((file.refusal for file in files if file.refusal), "")
        kind = files[0].headers.kind if files[0].headers else ""
        if kind == "array" and len(files) == 1:
            refusal = f"{files[0].path.name}: one array. Add the file of the other side, or put both into one npz."
        if refusal:
            st.error(widgets.escaped(refusal))
            return None
        columns = st.columns(1 if kind == "run" else 2 if kind == "responses" else 4)
        name = "" if kind == "run" else title
        options = {
            "name": columns[0].text_input(
                "Name of the run", name, placeholder="as the file says", key=f"upload_name_{key}"
            )
        }
        if kind != "run":
            options["model"] = columns[1].text_input("Model", placeholder="optional", key=f"upload_model_{key}")
        if kind in ("dump", "array"):
            dtype = columns[2].selectbox(
                "Compute dtype",
                _DTYPES,
                key=f"upload_dtype_{key}",
                help="ULPs are counted in the dtype the logits were computed in, even if they were saved as float32.",
            )
            options["compute_dtype"] = "" if dtype == AS_FOUND else dtype
            options["holds"] = columns[3].selectbox(
                "Holds",
                list(HOLDS),
                format_func=HOLDS.__getitem__,
                key=f"upload_holds_{key}",
                help="For logits that look like log-probabilities of chosen tokens, and for padded vocabularies.",
            )
            options["reference"] = _reference(files, key)
        return options if widgets.pressed(st.button, "Save as a run", f"save_{key}", type="primary") else None


def _reference(files: tuple[Arrived, ...], key: str) -> str:
    """Draw the sides of arrays and choose the reference, '' for the default."""
    sides = {
        name if len(files) == 1 else file.path.stem: described
        for file in files
        if file.headers
        for name, described in file.headers.sides.items()
    }
    st.dataframe(
        [{"side": name, "array": described} for name, described in sides.items()], hide_index=True, key=f"sides_{key}"
    )
    return st.selectbox(
        "Reference",
        ["", *sides],
        format_func=lambda name: name or "the side called reference, else the first",
        key=f"upload_reference_{key}",
    )
