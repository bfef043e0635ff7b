"""Files chosen or dropped on the upload page, on their way to the server: app/upload/upload.js sends them with
tus-js-client, nothing of them passes through here.
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from app.components import vendored
from app.uploads.tus import ADDRESS

LIBRARY = vendored.FOLDER / "tus-js-client-4.3.1.min.js"
ZONE_CSS = """
.root { font-family: var(--st-font); font-size: 0.9rem; color: var(--st-text-color); }
.zone { display: flex; flex-wrap: wrap; gap: 0.4rem 0.9rem; align-items: center; padding: 0.85rem 1rem;
  border-radius: var(--st-base-radius);
  border: 1px dashed var(--st-border-color); background-color: var(--st-secondary-background-color);
    box-sizing: border-box; min-height: 4.6rem; }
.zone.over { border: 2px solid var(--st-primary-color); }
button { font: inherit; font-size: 0.85rem; color: inherit; background-color: var(--st-background-color);
  border: 1px solid var(--st-border-color);
  cursor: pointer; border-radius: var(--st-button-radius); padding: 0.3rem 0.7rem; min-height: 2rem; }
button:hover { border-color: var(--st-primary-color); }
button:focus-visible, input:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: 1px; }
button[hidden], input[hidden], [hidden] { display: none; }
"""
_CSS = (
    ZONE_CSS
    + """
ul { list-style: none; margin: 0.6rem 0 0; padding: 0; display: flex; flex-direction: column; gap: 0.45rem; }
.row { border: 1px solid var(--st-border-color); border-radius: var(--st-base-radius); padding: 0.5rem 0.8rem; }
.top { display: flex; flex-wrap: wrap; gap: 0.3rem 0.8rem; align-items: center; justify-content: space-between; }
.use { display: flex; gap: 0.5rem; align-items: center; min-width: 0; flex: 1 1 12rem; }
.use input { accent-color: #0072B2; width: 1.05rem; height: 1.05rem; flex: none; }
.name { font-weight: 600; overflow-wrap: anywhere; }
.actions { display: flex; gap: 0.4rem; }
.bar { height: 0.45rem; border-radius: 999px; overflow: hidden; margin-top: 0.45rem;
  background-color: var(--st-border-color); }
.bar i { display: block; height: 100%; background-color: var(--st-primary-color); transition: width 0.2s linear; }
.line { margin-top: 0.3rem; font-size: 0.82rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.row[data-state=failed] { border-color: currentcolor; }
.says { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
@media (prefers-reduced-motion: reduce) { .bar i { transition: none; } }
"""
)
_HTML = """
<div class="root">
  <div class="zone">
    <button type="button" class="choose">Choose files</button>
    <span>or drop them anywhere on this page: npz, npy, safetensors, torch.save (.pt), responses (JSON),
      or a run file (duckdb)</span>
    <input type="file" multiple hidden aria-label="Files to upload">
  </div>
  <ul aria-label="Files" hidden></ul>
  <div class="says" role="status"></div>
</div>
"""
_panel = st.components.v2.component(
    "ulpscope_uploads", html=_HTML, css=_CSS, js=(Path(__file__).parent / "upload.js").read_text(encoding="utf-8")
)


def chosen(serial: str) -> list[str]:
    """Draw the panel and return the ids of the uploads that have arrived and are ticked, in their order. It asks the
    server anew when `serial` changes.
    """
    said = _panel(
        key="upload_panel",
        data={"address": ADDRESS, "library": vendored.address(LIBRARY), "serial": serial},
        default={"chosen": []},
        on_chosen_change=lambda: None,
    )
    ids = said.chosen if isinstance(said.chosen, list) else []
    return [each for each in ids if isinstance(each, str)]
