"""Upload: drop a dump, see what it was understood as, correct it, save it as a run."""

import tempfile
from pathlib import Path

import streamlit as st

from app import reading, uploading, words
from app.widgets import PAGES
from core.errors import UlpscopeError
from core.runs.dumps import open_dump
from core.uploads.ingest import store_dump

st.title("Upload")
st.caption(
    "One npz or safetensors file with two or more sides, or two files (npy, npz, safetensors) of one array each. A side is [positions, vocab] logits; "
    "every bit is kept. Nothing is stored before you save it."
)
files = uploading.chosen()
if not files:
    with st.expander("What may be in a dump", expanded=True):
        st.markdown(
            "- **Keys are side names**, each `[..., vocab]`: axes of size 1 are dropped; three axes left are prompts, positions, vocabulary. "
            "A side called `reference` is the reference, else the first.\n"
            "- **bfloat16** may come as uint16 bits with `compute_dtype`, as numpy's 2-byte void, or upcast to float32: that is detected.\n"
            "- Reserved keys: `token_ids`, `tokens` (texts), `compute_dtype`, `meta` (a JSON string), `prompt_lengths` (prompts one after another), and "
            "`emitted:SIDE` (the token each side chose, -1 where it was given).\n"
            "- To try it: `sample_runs/dumps/fresh_and_cached_upcast.npz` and `six_calls.npz`."
        )
        st.code('np.savez("dump.npz", reference=fresh_logits, variant=cached_logits, token_ids=ids)', language="python")
    st.stop()

left, middle, right = st.columns(3)
name = left.text_input("Name of the run", value=" + ".join(Path(f.name).stem for f in files)[:120], key="upload_name")
model = middle.text_input("Model", placeholder="for the record, may stay empty", key="upload_model")
asked = right.selectbox(
    "Compute dtype",
    ["as found", "bfloat16", "float16", "float32"],
    key="upload_dtype",
    help="ULPs are counted in the dtype the logits were computed in, even if they were saved as float32.",
)

try:
    with tempfile.TemporaryDirectory(prefix="ulpscope-") as folder:
        paths = []
        for number, file in enumerate(files):
            # A folder each: the names of a pair of files become the names of its sides, and may be equal.
            place = Path(folder) / str(number)
            place.mkdir()
            path = place / (words.file_name(file.name) or "dump")
            path.write_bytes(file.getbuffer())
            paths.append(path)
        reference_key = "upload_reference " + " ".join(file.file_id for file in files)  # a choice belongs to these files
        with open_dump(
            paths,
            compute_dtype=None if asked == "as found" else asked,
            reference=st.session_state.get(reference_key),
        ) as dump:
            st.subheader("Understood as")
            names = sorted(side.name for side in dump.sides)
            st.selectbox(
                "Reference, which the others are compared with", names, index=names.index(dump.sides[0].name), key=reference_key
            )
            st.dataframe(
                [
                    {"side": side.name, "role": "variant" if number else "reference", "saved as": side.source_dtype}
                    for number, side in enumerate(dump.sides)
                ],
                hide_index=True, key="understood",
            )  # fmt: skip
            prompts = f"{len(dump.prompts)} prompts, " if len(dump.prompts) > 1 else ""
            tokens = (
                "token ids and texts"
                if dump.prompts[0].token_texts
                else "token ids"
                if dump.prompts[0].token_ids
                else "no tokens"
            )
            st.markdown(
                f"{prompts}**{words.plural(dump.rows, 'position')} x {dump.vocab:,} tokens**, {tokens}; compute dtype **{dump.compute_dtype}** ({dump.dtype_reason})."
            )
            for warning in dump.warnings:
                st.warning(warning)
            if st.button("Save as a run", type="primary", key="save", disabled=not name.strip()):
                bar = st.progress(0.0, "Storing and comparing")

                def tick(done: int, total: int) -> None:
                    bar.progress(done / total, f"Storing and comparing: {done:,} of {total:,} positions")

                run_id = store_dump(reading.store(), dump, name=name.strip(), model=model.strip(), on_progress=tick)
                st.session_state["uploaded"] = run_id
except UlpscopeError as error:
    st.error(str(error))

if run_id := st.session_state.pop("uploaded", None):
    uploading.finished()
    st.session_state.pop("handed_over", None)
    st.session_state["open_next"] = run_id
    st.switch_page(PAGES / "overview.py")
