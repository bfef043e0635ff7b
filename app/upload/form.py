"""The form of arrived files: what each was understood as, and what may be corrected before they are saved; one form a
run that they would make.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st

from app.shell import widgets
from app.upload.inspections import Look, looks
from app.uploads.partial_file import Upload
from core.errors import UlpscopeError
from core.runs.dumps.dump import LOGITS, PADDED
from core.text import plural, size

AS_FOUND = "as found"
HOLDS = {"": AS_FOUND, LOGITS: "logits of [positions, vocab]", PADDED: "padded vocabularies: compare the common part"}
_DTYPES = [AS_FOUND, "bfloat16", "float16", "float32"]
_TOKENS = {"ids and texts": "token ids and texts", "ids": "token ids", "none": "no tokens"}


@dataclass(frozen=True)
class Candidate:
    """One upload, two of one array each, or several of responses, that would make a run. refusal: why they do not."""

    uploads: tuple[Upload, ...]
    refusal: str = ""

    @property
    def key(self) -> str:
        return "_".join(upload.upload_id for upload in self.uploads)

    @property
    def paths(self) -> list[Path]:
        return [upload.path for upload in self.uploads]

    @property
    def title(self) -> str:
        return " + ".join(path.stem for path in self.paths)[:120]


def candidates(uploads: Sequence[Upload]) -> list[Candidate]:
    """Runs that the files would make: files of two or more sides and run files each a run, files of one array each two
    of them a pair, files of responses the sides of one run.
    """
    found: list[Candidate] = []
    arrays: list[Upload] = []
    responses: list[Upload] = []
    for upload in uploads:
        try:
            kind = looks().headers(upload.path).kind
            if kind == "array":
                arrays.append(upload)
            elif kind == "responses":
                responses.append(upload)
            else:
                found.append(Candidate((upload,)))
        except UlpscopeError as error:
            found.append(Candidate((upload,), str(error)))
    if responses:
        found.append(Candidate(tuple(responses)))
    if len(arrays) > 2:
        arrays = _two_of(arrays)
    if len(arrays) == 2:
        found.append(Candidate(tuple(arrays)))
    elif len(arrays) == 1:
        name = arrays[0].path.name
        found.append(
            Candidate(
                tuple(arrays),
                f"{name}: holds one array; add the file of the other side, or save both arrays in one npz.",
            )
        )
    return found


def _two_of(arrays: list[Upload]) -> list[Upload]:
    by_id = {upload.upload_id: upload for upload in arrays}
    chosen = st.multiselect(
        "Which two make a pair",
        list(by_id),
        default=list(by_id)[:2],
        max_selections=2,
        key="upload_pair",
        format_func=lambda upload_id: by_id[upload_id].path.name,
        help="files of one array each; the first is the reference",
    )
    return [by_id[upload_id] for upload_id in chosen]


def draw(candidate: Candidate) -> dict[str, Any] | None:
    """Draw what was understood, and the form; how to save it once it was asked to be saved, else None."""
    with st.container(border=True, key=f"candidate_{candidate.key}"):
        st.markdown(f"**{widgets.escaped(' + '.join(path.name for path in candidate.paths))}**")
        if candidate.refusal:
            st.error(widgets.escaped(candidate.refusal))
            return None
        draws = {"run": _run, "responses": _responses}
        return draws.get(looks().headers(candidate.paths[0]).kind, _dump)(candidate)


def _run(candidate: Candidate) -> dict[str, Any] | None:
    found = _looked(candidate, AS_FOUND, "")
    if found is None:
        return None
    st.subheader("Understood as a run file")
    sides = [f"`{widgets.code(side['name'])}`" for side in found["sides"]]
    more = f" and {len(sides) - 6} more" if len(sides) > 6 else ""
    st.markdown(
        f"Run **{widgets.escaped(found['name'])}** of `{widgets.code(found['model'] or 'a model that is not named')}`:"
        f" sides {', '.join(sides[:6])}{more}; **{plural(found['positions'], 'position')} x {found['vocab']:,}"
        f" tokens**, compute dtype **{widgets.escaped(found['compute_dtype'])}**."
    )
    st.caption(
        "It will be checked table by table against the schema, its figures against its logits, and copied into a new"
        " run file."
    )
    name = st.text_input("Name of the run", value=found["name"][:120], key=f"upload_run_name_{candidate.key}")
    return {"name": name.strip()} if _is_save_pressed(candidate, name) else None


def _responses(candidate: Candidate) -> dict[str, Any] | None:
    left, right = st.columns(2)
    name = left.text_input("Name of the run", value=candidate.title, key=f"upload_name_{candidate.key}")
    model = right.text_input("Model", placeholder="as the responses say, if empty", key=f"upload_model_{candidate.key}")
    found = _looked(candidate, AS_FOUND, "")
    if found is None:
        return None
    st.subheader("Understood as responses of an engine")
    st.dataframe(
        [
            {
                "side": side["name"],
                "role": "variant" if number else "reference",
                "format": ", ".join(side["formats"]),
                "values": f"{side['values']} by {side['keys'].replace('_', ' ')}",
                "rows": side["rows"],
                "values sent": side["listed"],
                "most a row": side["most_a_row"],
            }
            for number, side in enumerate(found["sides"])
        ],
        hide_index=True,
        key=f"understood_{candidate.key}",
    )
    st.markdown(
        f"**{plural(found['prompts'], 'prompt')}**, **{plural(found['positions'], 'position')}** that both sides have."
        f" {widgets.escaped(found['dtype_reason'])}"
    )
    for warning in found["warnings"]:
        st.warning(widgets.escaped(warning))
    return {"name": name.strip(), "model": model.strip()} if _is_save_pressed(candidate, name) else None


def _dump(candidate: Candidate) -> dict[str, Any] | None:
    left, middle, right, last = st.columns(4)
    name = left.text_input("Name of the run", value=candidate.title, key=f"upload_name_{candidate.key}")
    model = middle.text_input(
        "Model", placeholder="for the record, may stay empty", key=f"upload_model_{candidate.key}"
    )
    dtype = right.selectbox(
        "Compute dtype",
        _DTYPES,
        key=f"upload_dtype_{candidate.key}",
        help="ULPs are counted in the dtype the logits were computed in, even if they were saved as float32.",
    )
    holds = last.selectbox(
        "Holds",
        list(HOLDS),
        format_func=HOLDS.__getitem__,
        key=f"upload_holds_{candidate.key}",
        help="For logits that look like log-probabilities of chosen tokens, and for sides with a padded vocabulary.",
    )
    found = _looked(candidate, dtype, holds)
    if found is None:
        return None
    reference = _understood(candidate, found)
    if not _is_save_pressed(candidate, name):
        return None
    options = {"name": name.strip(), "model": model.strip(), "compute_dtype": "" if dtype == AS_FOUND else dtype}
    return options | {"reference": reference, "holds": holds, "known_dtype": found["compute_dtype"]}


def _is_save_pressed(candidate: Candidate, name: str) -> bool:
    return widgets.pressed(
        st.button, "Save as a run", f"save_{candidate.key}", type="primary", disabled=not name.strip()
    )


def _looked(candidate: Candidate, dtype: str, holds: str) -> dict[str, Any] | None:
    """Interpretation of the files, None where there is none: how far the look at them has come is drawn, or why they
    cannot be understood.
    """
    look = _look(candidate, dtype, holds)
    if not look.is_over:
        _awaited(candidate, dtype, holds)
    elif look.understood is None:
        st.error(widgets.escaped(look.refusal))
    return look.understood


def _look(candidate: Candidate, dtype: str, holds: str) -> Look:
    return looks().look(candidate.paths, compute_dtype=None if dtype == AS_FOUND else dtype, holds=holds or None)


def _understood(candidate: Candidate, found: dict[str, Any]) -> str:
    """Draw sides, dtype, shape and tokens; returns the reference."""
    st.subheader("Understood as")
    sides = [side["name"] for side in found["sides"]]
    names = sorted(sides)
    reference = st.selectbox(
        "Reference, which the others are compared with",
        names,
        index=names.index(sides[0]),
        key=f"upload_reference_{candidate.key}",
    )
    ordered = sorted(
        found["sides"], key=lambda side: side["name"] != reference
    )  # stable: the others stay in file order
    st.dataframe(
        [
            {"side": side["name"], "role": "variant" if number else "reference", "saved as": side["source_dtype"]}
            for number, side in enumerate(ordered)
        ],
        hide_index=True,
        key=f"understood_{candidate.key}",
    )
    prompts = f"{found['prompts']:,} prompts, " if found["prompts"] > 1 else ""
    emitted = ", and the tokens each side chose" if found["emitted"] else ""
    st.markdown(
        f"{prompts}**{plural(found['positions'], 'position')} x {found['vocab']:,} tokens**,"
        f" {_TOKENS[found['tokens']]}{emitted}; compute dtype **{found['compute_dtype']}**"
        f" ({widgets.escaped(found['dtype_reason'])}). The run takes about {size(found['logits_bytes'])}."
    )
    for warning in found["warnings"]:
        st.warning(widgets.escaped(warning))
    return reference


@st.fragment(run_every=0.5)
def _awaited(candidate: Candidate, dtype: str, holds: str) -> None:
    """Draw how far the look has come; the whole page is drawn again when it is over."""
    try:
        look = _look(candidate, dtype, holds)
    except UlpscopeError:  # removed meanwhile
        st.rerun()
    if look.is_over:
        st.rerun()
    read = f": {size(look.done)} of at most {size(look.total)}" if look.total else ""
    st.progress(look.done / look.total if look.total else 0.0, f"Reading it, to know what it is{read}")
