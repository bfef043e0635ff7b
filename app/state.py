"""What the viewer looks at: the store, the open run, and the one selection (run, variant, prompt, position) behind every page.

The selection lives in the session and in the address bar: a link restores it, and every change is written back, so the address
is the share link. Readers and tables are cached by file and time of change, never by array.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import streamlit as st

from app.jobs import Jobs
from core.errors import StoreError
from core.runs.caches import PositionGrid, by_position
from core.runs.gallery import BrokenRun, RunCard, list_runs
from core.runs.reader import RunReader, StoredPair
from core.runs.store import Store, open_store
from core.runs.views import HeatmapWindow, heatmap_window, row_of, top_of_both

LINKED = ("run", "variant", "prompt", "position", "rows", "tokens")  # rows and tokens: the heatmap's window


@dataclass(frozen=True)
class View:
    """One pair at one position of an open run. `table` has the pair's figures, one row a position of every prompt."""

    run: RunReader
    pair: StoredPair
    prompt: int
    position: int
    table: pd.DataFrame

    @property
    def row(self) -> int:
        return row_of(self.run, self.prompt, self.position)

    @property
    def prompt_table(self) -> pd.DataFrame:
        return self.table[self.table["prompt"] == self.prompt]

    @property
    def here(self) -> pd.Series:
        """The figures at the selected position."""
        return self.table.iloc[self.row]

    @property
    def texts(self) -> tuple[str, ...]:
        """Token texts of the selected prompt, empty if unknown."""
        return self.run.header.prompts[self.prompt].token_texts

    @property
    def dtype(self) -> str:
        return self.run.header.compute_dtype


def store() -> Store:
    return open_store()


def _stamp(path: Path) -> tuple[str, int, int]:
    try:
        status = path.stat()
    except OSError:
        raise StoreError(f"run '{path.stem}' is not there any more.") from None
    return str(path), status.st_mtime_ns, status.st_size


@st.cache_resource(max_entries=16, show_spinner=False)
def _reader(path: str, changed: int, size: int) -> RunReader:
    return RunReader(Path(path))


@st.cache_resource(max_entries=32, show_spinner=False)
def _positions(path: str, changed: int, size: int, pair: int) -> pd.DataFrame:
    return _reader(path, changed, size).positions(pair)


@st.cache_resource(max_entries=32, show_spinner=False)
def _window(path: str, changed: int, size: int, pair: int, rows: tuple[int, int], tokens: tuple[int, int]) -> HeatmapWindow:
    return heatmap_window(_reader(path, changed, size), pair, rows, tokens)


@st.cache_resource(max_entries=256, show_spinner=False)
def _top(path: str, changed: int, size: int, pair: int, prompt: int, position: int) -> pd.DataFrame:
    return top_of_both(_reader(path, changed, size), pair, prompt, position)


@st.cache_resource(max_entries=32, show_spinner=False)
def _kv_positions(path: str, changed: int, size: int, pair: int, prompt: int) -> dict[str, PositionGrid]:
    return by_position(_reader(path, changed, size), pair, prompt)


@st.cache_resource(max_entries=4, show_spinner=False)
def _cards(stamps: tuple[tuple[str, int, int], ...]) -> tuple[list[RunCard], list[BrokenRun]]:
    return list_runs(open_store())


@st.cache_resource(show_spinner=False)
def jobs() -> Jobs:
    """The captures of this server, one list for all viewers."""
    return Jobs(store().directory)


def cards() -> tuple[list[RunCard], list[BrokenRun]]:
    """All runs, newest first, and the files that are none; read again only when a file has come, gone or changed."""
    stamps = []
    for path in store().paths():
        try:
            stamps.append(_stamp(path))
        except StoreError:
            continue  # deleted between the listing and the look
    return _cards(tuple(stamps))


def open_run(run_id: str) -> RunReader:
    return _reader(*_stamp(store().path_of(run_id)))


def delete(run_id: str) -> None:
    """Delete a run and let go of its file, or the disk would not get its space back."""
    stamp = _stamp(store().path_of(run_id))
    store().delete(run_id)
    _reader(*stamp).close()
    _reader.clear(*stamp)


def positions(run: RunReader, pair: int) -> pd.DataFrame:
    return _positions(*_stamp(run.path), pair)


def window(view: View, rows: tuple[int, int], tokens: tuple[int, int]) -> HeatmapWindow:
    """The heatmap of a rectangle of the view's pair."""
    return _window(*_stamp(view.run.path), view.pair.index, rows, tokens)


def kv_positions(view: View) -> dict[str, PositionGrid]:
    """Layers x positions of the caches of the selected prompt; see core.runs.caches.by_position."""
    return _kv_positions(*_stamp(view.run.path), view.pair.index, view.prompt)


def top(view: View) -> pd.DataFrame:
    """The best tokens of both sides at the selected position; see core.runs.views.top_of_both."""
    return _top(*_stamp(view.run.path), view.pair.index, view.prompt, view.position)


def adopt_link() -> None:
    """Take the selection out of the address: at the start of a session, and whenever it is not what was written last (Back)."""
    said = {key: st.query_params[key] for key in LINKED if key in st.query_params}
    written = st.session_state.get("written")
    if said and said != written:
        for key in LINKED:
            st.session_state.pop(f"linked_{key}", None)
        for key, value in said.items():
            st.session_state[f"linked_{key}"] = value
        st.session_state["written"] = said
        if written is not None:  # Back within the session: what the older address does not name is at its default
            for key in ("rows", "tokens"):
                st.session_state.setdefault(f"linked_{key}", "")


def linked(key: str) -> str | None:
    """What the link said of `key`, once."""
    return st.session_state.pop(f"linked_{key}", None)


def linked_number(key: str, lowest: int, highest: int) -> int | None:
    """A number out of the link, moved into its range; a word to the viewer if it was none or lay outside."""
    text = linked(key)
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError:
        complain(f"The link asks for {key} '{text[:40]}', which is no number; showing {key} {lowest}.")
        return lowest
    if not lowest <= value <= highest:
        nearest = min(max(value, lowest), highest)
        complain(f"The link asks for {key} {value}; this run has {lowest} to {highest}. Showing {nearest}.")
        return nearest
    return value


def linked_range(key: str, full: tuple[int, int]) -> tuple[int, int] | None:
    """`12:40` out of the link as (12, 40); None if the link says nothing of it, `full` and a word to the viewer if nothing of use."""
    text = linked(key)
    if text is None:
        return None
    try:
        start, stop = (int(part) for part in text.split(":"))
        is_inside = full[0] <= start < stop <= full[1]
    except ValueError:
        is_inside = False
    if text and not is_inside:
        complain(f"The link asks for {key} '{text[:40]}'; this run has {full[0]} to {full[1]}. Showing all.")
    return (start, stop) if is_inside else full


def complain(sentence: str) -> None:
    """Keep a sentence for the top of the page."""
    st.session_state.setdefault("complaints", []).append(sentence)


def complaints() -> list[str]:
    return st.session_state.pop("complaints", [])


def select(**values: str | int) -> None:
    """Change the selection; for callbacks, which run before the widgets of the selection are drawn."""
    for key, value in values.items():
        st.session_state[key] = value


def current_view() -> View | None:
    """What the sidebar of this script run selected."""
    return st.session_state.get("view")


def address(view: View | None) -> dict[str, str]:
    """What the address bar says of a view: the share link."""
    if view is None:
        return {}
    said = {"run": view.run.run_id, "variant": view.pair.variant, "prompt": str(view.prompt), "position": str(view.position)}
    if len(view.run.header.prompts) == 1:
        del said["prompt"]
    for axis, full in heatmap_extent(view).items():
        span = st.session_state.get(f"heatmap_{axis}", full)
        if span != full:
            said[axis] = f"{span[0]}:{span[1]}"
    return said


def write_address(said: dict[str, str]) -> None:
    """Make the address bar say it, in one step: every change of the address is an entry in the browser's history."""
    if {key: st.query_params.get(key) for key in said} != said or any(
        key in st.query_params for key in LINKED if key not in said
    ):
        st.query_params.from_dict(said)
    st.session_state["written"] = said


def heatmap_extent(view: View) -> dict[str, tuple[int, int]]:
    """The whole run as the heatmap's axes, half open."""
    return {"rows": (0, view.run.header.rows), "tokens": (0, view.run.header.vocab)}


def settle_window(view: View) -> None:
    """Take the heatmap's window out of the link if it is there; a window belongs to its run."""
    is_new_run = st.session_state.get("heatmap_run") != view.run.run_id
    st.session_state["heatmap_run"] = view.run.run_id
    for axis, full in heatmap_extent(view).items():
        said = linked_range(axis, full)
        if said is not None or is_new_run:
            st.session_state[f"heatmap_{axis}"] = said or full
