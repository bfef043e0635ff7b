"""Upload: files arrive in parts and continue after a break; what they hold is shown, and they are saved as runs."""

from pathlib import Path

import streamlit as st

from app.hosting import members
from app.shell import selection, store_cache, store_changes, widgets
from app.shell.job_list import job_list
from app.upload import form
from app.uploads.importing import start_import
from app.uploads.spool import FAILED, RECEIVED, Upload
from core.errors import UlpscopeError

KEYS = """
- **Keys are side names**, each `[..., vocab]`: axes of size 1 are dropped; three axes left are prompts, positions,
  vocabulary. A side called `reference` is the reference, else the first.
- **bfloat16** may come as uint16 bits with `compute_dtype`, as numpy's 2-byte void, or upcast to float32: that is
  detected.
- Reserved keys: `token_ids`, `tokens` (texts), `compute_dtype`, `reference_side`, `meta` (any text). Also
  `prompt_lengths` (prompts one after another) and `emitted:SIDE` (the token each side chose, -1 if it was given).
- To try it: `sample_runs/dumps/fresh_and_cached_upcast.npz` and `six_calls.npz`.
"""
_HTML = """
<div class="root">
  <div class="zone">
    <button type="button" class="choose">Choose files</button>
    <span>or drop them anywhere on this page: npz, npy, safetensors, torch.save (.pt), responses (JSON),
      chosen tokens (Parquet) or a run file (duckdb)</span>
    <input type="file" multiple hidden aria-label="Files to upload">
  </div>
  <ul aria-label="Files" hidden></ul>
  <div class="status" role="status"></div>
</div>
"""
_CSS, _JS = (Path(__file__).with_name(f"upload.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
_panel = st.components.v2.component("ulpscope_uploads", html=_HTML, css=_CSS, js=_JS)


def draw_panel(serial: str) -> list[str]:
    """Draw the files that upload.js sends; return the ids of those that arrived, anew if `serial` changes."""
    data = {"address": "/api/uploads", "serial": serial}
    state = _panel(key="upload_panel", data=data, default={"arrived": []}, on_arrived_change=lambda: None)
    ids = state.arrived if isinstance(state.arrived, list) else []
    return [each for each in ids if isinstance(each, str)]


def draw(_: selection.View | None) -> None:
    """Draw the tab."""
    jobs = store_changes.jobs()
    st.caption(
        "npz, npy, safetensors, responses of an engine (JSON, JSONL) or a run file. Nothing is saved until you"
        " click Save."
    )
    files, current = [], jobs.all("upload")
    for upload_id in draw_panel(str([(job.number, job.is_over) for job in current])):
        upload = Upload(store_cache.store(), upload_id)
        record = upload.record()
        if record is not None and record.state in (RECEIVED, FAILED):
            files.append(form.read_file(upload, upload.path(record)))
    # Each in a place of its own: a click on a part that has moved meanwhile, as the list does when a form above it
    # goes, is not heard.
    forms, heading, below = st.container(), st.container(), st.container()
    if files:
        jobs.warm()
    with forms:
        if not files and not current:
            with st.expander("Dump format", expanded=True):
                st.markdown(KEYS)
                widgets.code_block('np.savez("dump.npz", reference=fresh_logits, variant=cached_logits, token_ids=ids)')
        try:
            for group in form.candidates(files):
                options = form.draw(group)
                if options is not None:
                    start_import(jobs, [file.upload for file in group], options, members.current_member())
                    st.rerun()
        except UlpscopeError as error:
            st.error(widgets.escape(str(error)))
    if current:
        heading.subheader("Jobs")
    with below:
        job_list(jobs, "upload", current)
