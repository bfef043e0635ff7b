"""Cache of what the pages read of the store, by file and time of change, never by array."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import streamlit as st

from app import navigation
from app.shell.selection import View
from core.errors import StoreError
from core.probing.rounds import Round, read_rounds
from core.runs.ops_run import OpsRun, ops_of
from core.runs.queries.elements import top_of_sides
from core.runs.reader import RunReader
from core.runs.store import labels
from core.runs.store.cards import (
    BrokenRun,
    RunCard,
    arrange,
    drop_replaced,
    prompt_texts,
    read_cards,
    rename,
)
from core.runs.store.store import open_store
from core.sweeps.ledger import Ledger

if TYPE_CHECKING:
    import pandas as pd

MOST_CELLS = 200  # of sweeps among the runs that are listed
store = open_store
Value = TypeVar("Value")
Stamp = tuple[str, int, int]  # a file with its time of change and size


def stamp_of(path: Path) -> Stamp:
    """Key of caches of what is in a run's file."""
    try:
        status = path.stat()
    except OSError:
        raise StoreError(f"run '{path.stem}' does not exist any more.") from None
    return str(path), status.st_mtime_ns, status.st_size


def version_of(path: Path) -> str:
    """Return a text that changes with a run's file."""
    _, mtime, size = stamp_of(path)
    return f"{mtime:x}-{size:x}"


def _stamps(paths: Iterable[Path]) -> tuple[Stamp, ...]:
    stamps = []
    for path in paths:
        # deleted between the listing and the look
        with suppress(StoreError):
            stamps.append(stamp_of(path))
    return tuple(stamps)


# Each keeps its file open.
@st.cache_resource(max_entries=8, show_spinner=False)
def _reader(stamp: Stamp, name: str) -> RunReader:
    run = RunReader(Path(stamp[0]))
    run.header = replace(run.header, name=name or run.header.name)
    return run


# Keys are texts: Streamlit samples arrays of 500,000 elements and more, and two that differed in
# one element got the same value. cache_resource hands out the value itself; cache_data copies it,
# 262 MB in 0.1 s.
@st.cache_resource(max_entries=256, show_spinner=False)
def _cached(kind: str, stamp: Stamp, of: str, _make: Callable[[], Any]) -> Any:
    return _make()


def remember(kind: str, run: RunReader, of: object, make: Callable[[], Value]) -> Value:
    """Return `make()`, computed once per kind, file and `of` for all viewers; do not change it."""
    return _cached(kind, stamp_of(run.path), repr(of), make)


def cached(run: RunReader, make: Callable[..., Value], *arguments: Any, **options: Any) -> Value:
    """Return `make(run, *arguments)`, computed once per file and arguments for all viewers; do not
    change it.
    """
    return remember(
        f"{make.__module__}.{make.__qualname__}",
        run,
        (arguments, options),
        lambda: make(run, *arguments, **options),
    )


@st.cache_resource(show_spinner=False)
def _by_file(kind: str) -> dict[Stamp, Any]:
    """Return a cache by file for lists: of a thousand runs, only new ones are read."""
    return {}


@st.cache_resource(max_entries=4, show_spinner=False)
def _cards(key: int, _stamps: tuple[Stamp, ...]) -> tuple[list[RunCard], list[BrokenRun]]:
    cache = _by_file("card")
    new = [Path(stamp[0]) for stamp in _stamps if stamp not in cache]
    read = read_cards(store(), new)
    cards = {}
    for stamp in _stamps:
        path = Path(stamp[0])
        card = cache.get(stamp) or read[path]
        cards[path] = card
        # A file that is no run is read again: no card says why it is none.
        if isinstance(card, RunCard):
            cache[stamp] = card
    return arrange(store(), cards)


def _all_cards(is_whole: bool) -> tuple[list[RunCard], list[BrokenRun]]:
    current = store()
    has_cells = is_whole or len(current.cells()) <= MOST_CELLS
    stamps = tuple(current.stamps(of_cells=has_cells))
    return _cards(hash(stamps), stamps)


def cards(*, is_whole: bool = False) -> tuple[list[RunCard], list[BrokenRun]]:
    """Return the runs, newest first, and the files that are none; only new or changed files are
    read.

    is_whole: also cells of large sweeps, which Compare has, and runs that a judged run replaces.
    """
    runs, unreadable = _all_cards(is_whole)
    attached = all_labels()[0]
    runs = rename(runs, attached)
    if not is_whole:
        runs = drop_replaced(runs, attached)
    return runs, unreadable


def hidden() -> int:
    """Return the number of runs that are not in `cards`."""
    cells = len(store().cells())
    runs, _ = _all_cards(is_whole=False)
    replaced = len(runs) - len(cards()[0])
    return replaced + cells if cells > MOST_CELLS else replaced


def cards_of(run_ids: Iterable[str]) -> list[RunCard]:
    """Return the cards of runs that exist, in `cards` or not."""
    current = store()
    paths = []
    for run_id in run_ids:
        with suppress(StoreError):
            # only a whole id counts, not the beginning of one
            if current.has(run_id):
                paths.append(current.path_of(run_id))
    stamps = _stamps(paths)
    cards, _ = _cards(hash(stamps), stamps)
    return rename(cards, all_labels()[0])


def searchable(run_ids: Iterable[str]) -> dict[str, str]:
    """Map from run id to the beginnings of its prompts, case folded; each file is read once (1
    ms).
    """
    cache = _by_file("prompts")
    ids = set(run_ids)
    paths = {stamp: Path(stamp[0]) for stamp in store().stamps() if Path(stamp[0]).stem in ids}
    missing = paths.keys() - cache.keys()
    texts = prompt_texts([paths[stamp] for stamp in missing]) if missing else {}
    for stamp in missing:
        cache[stamp] = texts[paths[stamp]].casefold()
    return {path.stem: cache[stamp] for stamp, path in paths.items()}


def all_labels() -> tuple[dict[str, labels.Labels], list[str]]:
    """Labels by run id, and a sentence if they cannot be read."""
    return store().all_labels()


def labels_of(run_id: str) -> labels.Labels:
    """Labels of one run; none if they cannot be read."""
    return all_labels()[0].get(run_id, labels.Labels())


def judged_run(run_id: str) -> str:
    """Id of the run that judges this one; '' if there is none."""
    judged_as = labels_of(run_id).judged_as
    return judged_as if judged_as and store().has(judged_as) else ""


def open_run(run_id: str) -> RunReader:
    path = store().path_of(run_id)
    return _reader(stamp_of(path), labels_of(path.stem).name)


def close(path: Path) -> None:
    """Close a run's file before it is removed, so that the disk gets its space back."""
    with suppress(StoreError):
        _reader.clear(stamp_of(path), labels_of(path.stem).name)


def ops_run(run_id: str) -> OpsRun:
    """Return a run of probes of operations, which has no sides."""
    path = store().path_of(run_id)
    return _cached("probes", stamp_of(path), "", lambda: ops_of(path))


def ledger() -> Ledger:
    """Return the sweeps of the store, cached in the session: it reads each card once."""
    if "ledger" not in st.session_state:
        st.session_state["ledger"] = Ledger(store())
    return st.session_state["ledger"]


def watches() -> list[list[Round]]:
    """Return the rounds of each watched endpoint."""
    return read_rounds(store())


def absent(view: View | None) -> dict[str, str]:
    """Pages and tabs that have nothing to show, with a word for each; see app.navigation.absent."""
    words = {}
    if not ledger().plans():
        words["sweeps"] = "none"
    if not watches():
        words["watches"] = "none"
    if view is None:
        return words
    return words | cached(view.run, navigation.absent, view.pair.index)


def top(view: View) -> pd.DataFrame:
    """Return the top tokens of both sides at the selected position; see
    core.runs.queries.elements.top_of_sides.
    """
    sides = {"reference": 0, "variant": view.pair.index + 1}
    return cached(view.run, top_of_sides, sides, view.prompt, view.position)
