"""What the viewer looks at: the store, the open run, and the one selection (run, variant, prompt, position) behind every page.

The selection lives in the session and in the address bar, and with it what the page's own controls are set to: a link restores
both, and every change is written back, so the address is the share link. Readers and tables are cached by file and time of change,
never by array.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from app import page_settings
from app.jobs import Jobs
from core.errors import StoreError
from core.runs import labels
from core.runs.caches import PositionGrid, by_position
from core.runs.gallery import BrokenRun, RunCard, arranged, prompt_texts, read_runs
from core.runs.heatmap import Measure, Order, is_offered
from core.runs.layers import LayerGrid
from core.runs.layers import grid as layer_grid_of
from core.runs.ops import OpsRun, read_ops
from core.runs.reader import RunReader, StoredPair
from core.runs.store import Store, open_store
from core.runs.trash import Discarded
from core.runs.views import row_of, top_of_both

# rows, tokens (a range of columns), order and cells: the heatmap's window; token: the logit selected there
LINKED = ("run", "variant", "prompt", "position", "rows", "tokens", "order", "cells", "token")


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


def stamp_of(run: RunReader) -> tuple[str, int, int]:
    """The run's file with its time of change and size, for caches of what is in it."""
    return _stamp(run.path)


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
def _histogram(path: str, changed: int, size: int, pair: int) -> dict[int, int]:
    return _reader(path, changed, size).histogram(pair)


@st.cache_resource(max_entries=256, show_spinner=False)
def _top(path: str, changed: int, size: int, pair: int, prompt: int, position: int) -> pd.DataFrame:
    return top_of_both(_reader(path, changed, size), pair, prompt, position)


@st.cache_resource(max_entries=32, show_spinner=False)
def _kv_positions(path: str, changed: int, size: int, pair: int, prompt: int) -> dict[str, PositionGrid]:
    return by_position(_reader(path, changed, size), pair, prompt)


@st.cache_resource(max_entries=32, show_spinner=False)
def _layer_grid(path: str, changed: int, size: int, pair: int, prompt: int, measure: str) -> LayerGrid:
    reader = _reader(path, changed, size)
    modules = max(1, len(reader.layers(pair).query("prompt == @prompt")))
    return layer_grid_of(reader, pair, prompt, measure, max_columns=min(400, max(40, 12_000 // modules)))


@st.cache_resource(show_spinner=False)
def _kept(kind: str) -> dict[tuple[str, int, int], Any]:
    """What was read of each file, for all viewers: of a thousand runs, only the one that came is read."""
    return {}


def _digest(stamps: tuple) -> str:
    """For a key: Streamlit takes 45 ms to hash the stamps of a thousand files by itself."""
    return hashlib.sha256(repr(stamps).encode("utf-8", "backslashreplace")).hexdigest()


@st.cache_resource(max_entries=4, show_spinner=False)
def _cards(digest: str, _stamps: tuple[tuple[str, int, int], ...]) -> tuple[list[RunCard], list[BrokenRun]]:
    stamps = _stamps
    kept = _kept("card")
    known = {stamp: kept.get(stamp) for stamp in stamps}
    read = read_runs([Path(stamp[0]) for stamp, card in known.items() if card is None])
    found = {Path(stamp[0]): card or read[Path(stamp[0])] for stamp, card in known.items()}
    kept |= {stamp: card for stamp in stamps if isinstance(card := found[Path(stamp[0])], RunCard)}
    _forget(kept, stamps)
    return arranged(open_store(), found)


def _forget(kept: dict[tuple[str, int, int], Any], stamps: tuple[tuple[str, int, int], ...]) -> None:
    """Keep no more of what is gone than of what is there: it may come back out of the trash."""
    if len(kept) > 2 * len(stamps) + 100:
        for stamp in set(kept) - set(stamps):
            kept.pop(stamp, None)


@st.cache_resource(max_entries=4, show_spinner=False)
def _labels(directory: str, digest: str) -> tuple[dict[str, labels.Labels], list[str]]:
    return labels.read_all(Path(directory))


@st.cache_resource(max_entries=4, show_spinner=False)
def _names(digest: str, _stamps: tuple[tuple[str, int, int], ...]) -> dict[Path, str]:
    found = read_runs([Path(stamp[0]) for stamp in _stamps])
    return {path: path.stem if isinstance(card, StoreError) else card.name for path, card in found.items()}


@st.cache_resource(show_spinner=False)
def jobs() -> Jobs:
    """The captures of this server, one list for all viewers."""
    return Jobs(store().directory)


def cards() -> tuple[list[RunCard], list[BrokenRun]]:
    """All runs, newest first, and the files that are none; only a file that has come or changed is read."""
    stamps = _stamps(store().paths())
    return _cards(_digest(stamps), stamps)


def _stamps(paths: Iterable[Path]) -> tuple[tuple[str, int, int], ...]:
    stamps = []
    for path in paths:
        try:
            stamps.append(_stamp(path))
        except StoreError:
            continue  # deleted between the listing and the look
    return tuple(stamps)


def searchable() -> dict[str, str]:
    """Run id to the beginnings of its prompts, case folded; read once a file, at the first search (1 ms a run)."""
    stamps, kept = _stamps(store().paths()), _kept("prompts")
    missing = [stamp for stamp in stamps if stamp not in kept]
    texts = prompt_texts([Path(stamp[0]) for stamp in missing]) if missing else {}
    kept |= {stamp: texts[Path(stamp[0])].casefold() for stamp in missing}
    _forget(kept, stamps)
    return {Path(stamp[0]).stem: kept[stamp] for stamp in stamps}


def all_labels() -> tuple[dict[str, labels.Labels], list[str]]:
    """Labels by run id, and a sentence on each file of labels that cannot be read."""
    directory = store().directory
    return _labels(str(directory), _digest(labels.stamps(directory)))


def label(run_id: str, new: labels.Labels) -> None:
    """Write the labels of a run; what had to be put aside for that is said."""
    aside = labels.write(store().directory, run_id, new)
    if aside:
        complain(f"The damaged labels of run '{clipped(run_id)}' were put aside as {clipped(aside)}.")


def discarded() -> list[Discarded]:
    """The runs in the trash, the latest deleted first."""
    return store().discarded()


def names_of(runs: list[Discarded]) -> dict[Path, str]:
    """What they were called; their ids where the files cannot be read."""
    stamps = _stamps(run.path for run in runs)
    return _names(_digest(stamps), stamps)


def open_run(run_id: str) -> RunReader:
    return _reader(*_stamp(store().path_of(run_id)))


@st.cache_resource(max_entries=16, show_spinner=False)
def _ops_run(path: str, changed: int, size: int) -> OpsRun:
    return read_ops(Store(Path(path).parent), Path(path).stem)


def ops_run(run_id: str) -> OpsRun:
    """A run of probes of operations, which has no sides."""
    return _ops_run(*_stamp(store().path_of(run_id)))


def delete(run_id: str) -> None:
    """Delete a run for good and let go of its file, or the disk would not get its space back."""
    stamp = _stamp(store().path_of(run_id))
    store().delete(run_id)
    _let_go(stamp)


def discard(run_id: str) -> str:
    """Move a run into the trash; returns the entry. Its file is let go of, for the day on which the trash is emptied."""
    stamp = _stamp(store().path_of(run_id))
    entry = store().discard(run_id)
    _let_go(stamp)
    return entry


def _let_go(stamp: tuple[str, int, int]) -> None:
    with suppress(StoreError):  # it was not open, and is not there to be opened any more
        _reader(*stamp).close()
    _reader.clear(*stamp)


def positions(run: RunReader, pair: int) -> pd.DataFrame:
    return _positions(*_stamp(run.path), pair)


def histogram(view: View) -> dict[int, int]:
    """ULP distance to number of elements; a float32 pair can have a hundred thousand distances, which take 0.15 s to read."""
    return _histogram(*_stamp(view.run.path), view.pair.index)


def kv_positions(view: View) -> dict[str, PositionGrid]:
    """Layers x positions of the caches of the selected prompt; see core.runs.caches.by_position."""
    return _kv_positions(*_stamp(view.run.path), view.pair.index, view.prompt)


def layer_grid(view: View, measure: str) -> LayerGrid:
    """Modules x positions of the selected prompt, at most 12,000 cells or 40 a module: each has its name, for the hover."""
    return _layer_grid(*_stamp(view.run.path), view.pair.index, view.prompt, measure)


def top(view: View) -> pd.DataFrame:
    """The best tokens of both sides at the selected position; see core.runs.views.top_of_both."""
    return _top(*_stamp(view.run.path), view.pair.index, view.prompt, view.position)


def stamp(view: View) -> str:
    """Which prompt of which pair of which run: what a position belongs to."""
    return f"{view.run.run_id} {view.pair.index} {view.prompt}"


def file_stamp(view: View) -> str:
    """The same with the file and its time of change, for caches."""
    return f"{stamp(view)} {_stamp(view.run.path)}"


def adopt_link(page: str) -> None:
    """Take what the address says: at the start of a session, and whenever it is not what was written last (Back)."""
    names = (*LINKED, *(setting.name for setting in page_settings.of_page(page)))
    said = {key: st.query_params[key] for key in names if key in st.query_params}
    written = st.session_state.get("written")
    if said and said != written:
        for key in names:
            st.session_state.pop(f"linked_{key}", None)
        for key, value in said.items():
            st.session_state[f"linked_{key}"] = value
            if len(st.query_params.get_all(key)) > 1:
                complain(f"The link names {key} more than once; the last one counts.")
        st.session_state["written"] = said
        if written is not None:  # Back within the session: what the older address does not name is at its default
            for key in names:
                if key not in ("run", "variant", "prompt", "position"):
                    st.session_state.setdefault(f"linked_{key}", "")
    st.session_state["page"] = page


def settle_settings(page: str) -> None:
    """Give the page's own controls the values of the link, else those they had when the page was left."""
    kept = st.session_state.setdefault("settings", {})
    for setting in page_settings.of_page(page):
        asked = linked(setting.name)
        value = None if asked is None or asked == "" else setting.parsed(asked)
        if asked is not None:
            if asked and value is None:
                complain(
                    f"The link asks for {setting.name} '{clipped(asked)}'; there is {setting.expected}. Showing the default."
                )
            st.session_state[setting.key] = setting.default if value is None else value
        elif setting.key not in st.session_state:  # the widget was not on the last page
            st.session_state[setting.key] = kept.get(setting.key, setting.default)
        kept[setting.key] = st.session_state[setting.key]


def linked(key: str) -> str | None:
    """What the link said of `key`, once."""
    return st.session_state.pop(f"linked_{key}", None)


def linked_number(key: str, lowest: int, highest: int) -> int | None:
    """A number out of the link; if it is none or lies outside, the nearest, and the viewer goes to the gallery with a sentence."""
    text = linked(key)
    if text is None:
        return None
    value = page_settings.whole(text)
    if value is None:
        go_astray(
            f"The link asks for {key} '{clipped(text)}', which is no number that a {key} can be; {key} {lowest} is selected."
        )
        return lowest
    if not lowest <= value <= highest:
        nearest = min(max(value, lowest), highest)
        go_astray(f"The link asks for {key} {value}; this run has {lowest} to {highest}, and {nearest} is selected.")
        return nearest
    return value


def clipped(text: str) -> str:
    """The beginning of what a link says, for a sentence."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"


def go_astray(sentence: str) -> None:
    """What was asked for is not there: say so, and show the gallery instead of another view under the old link."""
    complain(sentence)
    st.session_state["astray"] = True


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
    """Keep a sentence for the top of the page. It is shown as plain text, so it may quote a link."""
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


def address(view: View | None, page: str | None = None) -> dict[str, str]:
    """What the address bar says of a view on a page (the open one where none is named): the share link."""
    said = {} if view is None else _selection_address(view)
    kept = st.session_state.get("settings", {})
    for setting in page_settings.of_page(page or st.session_state.get("page", "overview")):
        word = setting.said(kept.get(setting.key, setting.default))
        if word is not None:
            said[setting.name] = word
    return said


def _selection_address(view: View) -> dict[str, str]:
    said = {"run": view.run.run_id, "variant": view.pair.variant, "prompt": str(view.prompt), "position": str(view.position)}
    if len(view.run.header.prompts) == 1:
        del said["prompt"]
    return said | _heatmap_address(view)


def write_address(said: dict[str, str]) -> None:
    """Make the address bar say it, in one step: every change of the address is an entry in the browser's history."""
    names = {*LINKED, *(setting.name for setting in page_settings.SETTINGS)}
    if {key: st.query_params.get(key) for key in said} != said or any(key in st.query_params for key in names - said.keys()):
        st.query_params.from_dict(said)
    st.session_state["written"] = said


@dataclass(frozen=True)
class HeatmapWindow:
    """What of the heatmap is looked at: rows and columns, half open, what the columns are, and what the cells hold."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    order: Order = "id"
    measure: Measure = "ulps"


def heatmap_extent(view: View) -> dict[str, tuple[int, int]]:
    """The whole run as the heatmap's axes, half open; the address and the session know the columns as tokens."""
    return {"rows": (0, view.run.header.rows), "tokens": (0, view.run.header.vocab)}


def heatmap_window(view: View) -> HeatmapWindow:
    """The heatmap's window of this session."""
    full = heatmap_extent(view)
    kept = st.session_state
    return HeatmapWindow(
        kept.get("heatmap_rows", full["rows"]), kept.get("heatmap_tokens", full["tokens"]), kept.get("heatmap_order", "id"),
        kept.get("heatmap_cells", "ulps"),
    )  # fmt: skip


def set_heatmap_window(view: View, window: HeatmapWindow) -> None:
    """Remember a window, moved into the run."""
    for axis, (first, last) in heatmap_extent(view).items():
        span = window.rows if axis == "rows" else window.columns
        start = min(max(span[0], first), last - 1)
        st.session_state[f"heatmap_{axis}"] = (start, min(max(span[1], start + 1), last))
    st.session_state["heatmap_order"] = window.order
    st.session_state["heatmap_cells"] = window.measure


def heatmap_token(view: View) -> int | None:
    """The token selected on the heatmap, if one is."""
    token = st.session_state.get("heatmap_token")
    return token if token is not None and token < view.run.header.vocab else None


def _heatmap_address(view: View) -> dict[str, str]:
    """What the address says of the heatmap: nothing of what is at its default."""
    window = heatmap_window(view)
    full = heatmap_extent(view)
    spans = {"rows": window.rows, "tokens": window.columns}
    said = {axis: f"{span[0]}:{span[1]}" for axis, span in spans.items() if span != full[axis]}
    if window.order != "id":
        said["order"] = window.order
    if window.measure != "ulps":
        said["cells"] = window.measure
    token = heatmap_token(view)
    return said if token is None else said | {"token": str(token)}


def settle_window(view: View) -> None:
    """Take the heatmap's window and token out of the link if they are there; they belong to their run."""
    is_new_run = st.session_state.get("heatmap_run") != view.run.run_id
    st.session_state["heatmap_run"] = view.run.run_id
    is_linked = False
    for axis, full in heatmap_extent(view).items():
        said = linked_range(axis, full)
        if said is not None or is_new_run:
            st.session_state[f"heatmap_{axis}"] = said or full
            is_linked = True
    for name, default, other in (("order", "id", "rank"), ("cells", "ulps", "difference")):
        text = linked(name)
        if text is not None or is_new_run:
            st.session_state[f"heatmap_{name}"] = other if text == other else default
            is_linked = True
    window = heatmap_window(view)
    if not is_offered(view.run, window.order, window.measure):
        set_heatmap_window(view, HeatmapWindow(window.rows, window.columns))
    if is_linked:
        st.session_state["heatmap_serial"] = ""  # the browser follows; see app/heatmap.py
    token = linked("token")
    if token is not None or is_new_run:
        number = page_settings.whole(token or "")
        st.session_state["heatmap_token"] = number if number is not None and 0 <= number < view.run.header.vocab else None
        if token and st.session_state["heatmap_token"] is None:
            complain(
                f"The link asks for token '{clipped(token)}'; this run has 0 to {view.run.header.vocab - 1}. None is selected."
            )
