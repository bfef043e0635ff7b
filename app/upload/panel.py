"""Files on their way to the server. upload.js sends them; nothing of them passes through a page's script."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

_CSS = """
.root { font-family: var(--st-font); font-size: 0.9rem; color: var(--st-text-color); }
.zone { display: flex; flex-wrap: wrap; gap: 0.4rem 0.9rem; align-items: center; padding: 0.85rem 1rem;
  border-radius: var(--st-base-radius);
  border: 1px dashed var(--st-border-color); background-color: var(--st-secondary-background-color);
    box-sizing: border-box; min-height: 4.6rem; }
.zone.over { outline: 2px solid var(--st-primary-color); }
button { font: inherit; font-size: 0.85rem; color: inherit; background-color: var(--st-background-color);
  border: 1px solid var(--st-border-color);
  cursor: pointer; border-radius: var(--st-button-radius); padding: 0.3rem 0.7rem; min-height: 2rem; }
button:hover { border-color: var(--st-primary-color); }
button:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: 1px; }
[hidden] { display: none !important; }
ul { list-style: none; margin: 0.6rem 0 0; padding: 0; display: flex; flex-direction: column; gap: 0.45rem; }
li { border: 1px solid var(--st-border-color); border-radius: var(--st-base-radius); padding: 0.5rem 0.8rem; }
.top { display: flex; gap: 0.8rem; align-items: center; justify-content: space-between; overflow-wrap: anywhere; }
progress { width: 100%; height: 0.6rem; margin-top: 0.45rem; accent-color: var(--st-primary-color); }
.line { font-size: 0.82rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.status { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
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
_panel = st.components.v2.component(
    "ulpscope_uploads", html=_HTML, css=_CSS, js=(Path(__file__).parent / "upload.js").read_text(encoding="utf-8")
)


def draw_panel(serial: str) -> list[str]:
    """Draw the panel; return the ids of the uploads that arrived. It asks the server again if `serial` changes."""
    data = {"address": "/api/uploads", "serial": serial}
    state = _panel(key="upload_panel", data=data, default={"arrived": []}, on_arrived_change=lambda: None)
    ids = state.arrived if isinstance(state.arrived, list) else []
    return [each for each in ids if isinstance(each, str)]
