"""Upload: files arrive in parts and continue after a break; what they hold is shown, and they are saved as runs."""

import streamlit as st

from app.hosting import members
from app.shell import selection, store_cache, store_changes, widgets
from app.shell.job_list import job_list
from app.upload import form, panel
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


def draw(_: selection.View | None) -> None:
    """Draw the tab."""
    jobs = store_changes.jobs()
    st.caption(
        "npz, npy, safetensors, responses of an engine (JSON, JSONL) or a run file. Nothing is saved until you"
        " click Save."
    )
    files, current = [], jobs.all("upload")
    for upload_id in panel.draw_panel(str([(job.number, job.is_over) for job in current])):
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
