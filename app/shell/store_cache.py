"""Cache of what the pages read of the store, by file and time of change, never by array."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import streamlit as st

from app import navigation
from app.shell.memory_budget import MemoryBudget
from app.shell.selection import SparseView, View
from core.errors import StoreError
from core.judging.explain.hypotheses import Explanation
from core.judging.explain.stored import explain_lists, explain_pair
from core.runs.file.held_bytes import size_of
from core.runs.ops_run import OpsRun, ops_of
from core.runs.reader import RunReader
from core.runs.sparse_run import SparseRun, sparse_of
from core.runs.store import labels
from core.runs.store.cards import BrokenRun, RunCard, arranged, prompt_texts, read_cards, read_runs, without_replaced
from core.runs.store.store import DeletedRun, Store, open_store
from core.runs.views.elements import top_of_both
from core.runs.views.kv_cache import PositionGrid, by_position
from core.runs.views.layers import LayerGrid
from core.runs.views.layers import grid as layer_grid_of
from core.runs.views.sparse import figures_by_position

if TYPE_CHECKING:
    import pandas as pd

# Of all that is kept of what was read: some twenty ordinary runs. Sixteen readers of made files held 6 GB.
KEPT_BYTES = 512 << 20
MOST_CELLS = 200  # of sweeps among the runs that are listed
Value = TypeVar("Value")


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


@st.cache_resource(show_spinner=False)
def memory() -> MemoryBudget:
    """All that is kept of what was read of runs, readers included, for all viewers."""
    return MemoryBudget(KEPT_BYTES)


def _reader(path: str, changed: int, size: int) -> RunReader:
    key = ("reader", path, changed, size)
    return memory().get(key, lambda: RunReader(Path(path)), lambda reader: reader.held_bytes())


def kept(kind: str, stamp: tuple[str, int, int], of: tuple[Hashable, ...], make: Callable[[], Value]) -> Value:
    """Result of `make`, kept for the same kind, file and `of` as long as there is memory for it; never to be
    changed.
    """
    return memory().get((kind, *stamp, *of), make, size_of)


@st.cache_resource(max_entries=256, show_spinner=False)
def _top(path: str, changed: int, size: int, pair: int, prompt: int, position: int) -> pd.DataFrame:
    return top_of_both(_reader(path, changed, size), pair, prompt, position)


@st.cache_resource(max_entries=32, show_spinner=False)
def _layer_grid(path: str, changed: int, size: int, pair: int, prompt: int, measure: str) -> LayerGrid:
    reader = _reader(path, changed, size)
    modules = max(1, len(reader.layers(pair).query("prompt == @prompt")))
    return layer_grid_of(reader, pair, prompt, measure, max_columns=min(400, max(40, 12_000 // modules)))


@st.cache_resource(show_spinner=False)
def _kept(kind: str) -> dict[tuple[str, int, int], Any]:
    """Cache of one kind of what was read of each file, for all viewers: of a thousand runs, only the one that came is
    read.
    """
    return {}


def _digest(stamps: tuple) -> str:
    """Digest of stamps for a key: Streamlit takes 45 ms to hash the stamps of a thousand files by itself."""
    return hashlib.sha256(repr(stamps).encode("utf-8", "backslashreplace")).hexdigest()


@st.cache_resource(max_entries=4, show_spinner=False)
def _cards(digest: str, _stamps: tuple[tuple[str, int, int], ...]) -> tuple[list[RunCard], list[BrokenRun]]:
    stamps = _stamps
    kept = _kept("card")
    known = {stamp: kept.get(stamp) for stamp in stamps}
    read = read_cards(store(), [Path(stamp[0]) for stamp, card in known.items() if card is None])
    found = {Path(stamp[0]): card or read[Path(stamp[0])] for stamp, card in known.items()}
    kept |= {stamp: card for stamp in stamps if isinstance(card := found[Path(stamp[0])], RunCard)}
    return arranged(open_store(), found)


def _forget(kept: dict[tuple[str, int, int], Any], stamps: tuple[tuple[str, int, int], ...]) -> None:
    """Keep no more of what is gone than of what is there: a deleted run may be restored."""
    if len(kept) > 2 * len(stamps) + 100:
        for stamp in set(kept) - set(stamps):
            kept.pop(stamp, None)


@st.cache_resource(max_entries=4, show_spinner=False)
def _names(digest: str, _stamps: tuple[tuple[str, int, int], ...]) -> dict[Path, str]:
    found = read_runs([Path(stamp[0]) for stamp in _stamps])
    return {path: path.stem if isinstance(card, StoreError) else card.name for path, card in found.items()}


def cards(*, of_cells: bool = False, of_replaced: bool = False) -> tuple[list[RunCard], list[BrokenRun]]:
    """Runs, newest first, and the files that are none; only a file that has come or changed is read. Of sweeps with
    many cells none, unless they are asked for: the Matrix page has them. of_replaced: those too that a judged run
    replaces.
    """
    where = store()
    are_all = of_cells or len(where.cells()) <= MOST_CELLS
    stamps = tuple(where.stamps(of_cells=are_all))
    found = _cards(_digest(stamps), stamps)
    if are_all:
        _forget(_kept("card"), stamps)
    return found if of_replaced else (without_replaced(found[0], all_labels()[0]), found[1])


def unlisted_cells() -> int:
    """Number of runs of sweeps that are not among `cards`."""
    count = len(store().cells())
    return count if count > MOST_CELLS else 0


def cards_of(run_ids: Iterable[str]) -> list[RunCard]:
    """Cards of runs that are there, whether they are among `cards` or not."""
    where, stamps = store(), []
    for run_id in run_ids:
        with suppress(StoreError):
            if where.has(run_id):  # by its whole id
                stamps.append(_stamp(where.path_of(run_id)))
    found, _ = _cards(_digest(tuple(stamps)), tuple(stamps))
    return found


def _stamps(paths: Iterable[Path]) -> tuple[tuple[str, int, int], ...]:
    stamps = []
    for path in paths:
        try:
            stamps.append(_stamp(path))
        except StoreError:
            continue  # deleted between the listing and the look
    return tuple(stamps)


def searchable(run_ids: Iterable[str]) -> dict[str, str]:
    """Map from run id to the beginnings of its prompts, case folded; read once a file, at the first search (1 ms a
    run).
    """
    where, kept = store(), _kept("prompts")
    wanted = set(run_ids)
    stamps = [stamp for stamp in where.stamps() if Path(stamp[0]).stem in wanted]
    missing = [stamp for stamp in stamps if stamp not in kept]
    texts = prompt_texts([Path(stamp[0]) for stamp in missing]) if missing else {}
    kept |= {stamp: texts[Path(stamp[0])].casefold() for stamp in missing}
    return {Path(stamp[0]).stem: kept[stamp] for stamp in stamps}


def all_labels() -> tuple[dict[str, labels.Labels], list[str]]:
    """Labels by run id, and a sentence if they cannot be read."""
    return store().all_labels()


def judged_run(run_id: str) -> str:
    """Id of the run that judges this one; '' if there is none."""
    attached = all_labels()[0].get(run_id)
    return attached.judged_as if attached and attached.judged_as and store().has(attached.judged_as) else ""


def deleted_runs() -> list[DeletedRun]:
    """The runs that can be restored, the latest deleted first."""
    return store().deleted()


def names_of(runs: list[DeletedRun]) -> dict[Path, str]:
    """Names of deleted runs; their ids where the files cannot be read."""
    stamps = _stamps(run.path for run in runs)
    return _names(_digest(stamps), stamps)


def open_run(run_id: str) -> RunReader:
    return _reader(*_stamp(store().path_of(run_id)))


def ops_run(run_id: str) -> OpsRun:
    """A run of probes of operations, which has no sides."""
    stamp = _stamp(store().path_of(run_id))
    return kept("probes", stamp, (), lambda: ops_of(Path(stamp[0])))


def sparse_run(run_id: str) -> SparseRun:
    """A run of sparse sides, with its pairs compared."""
    stamp = _stamp(store().path_of(run_id))

    def read() -> SparseRun:
        run = sparse_of(Path(stamp[0]))
        _ = run.pairs  # compared once, for all viewers
        return run

    return kept("sparse sides", stamp, (), read)


def sparse_positions(run_id: str, pair: int) -> pd.DataFrame:
    """Figures by position; see core.runs.views.sparse.figures_by_position."""
    stamp = _stamp(store().path_of(run_id))
    return kept("sparse positions", stamp, (pair,), lambda: figures_by_position(sparse_run(run_id).pairs[pair]))


def causes(view: View | SparseView) -> Explanation:
    """Simple causes of the pair's difference, and what was looked at. See core.judging.explain."""
    if isinstance(view, SparseView):
        run, number = view.run, view.run.pairs.index(view.pair)
        stamp = _stamp(store().path_of(run.run_id))
        sides = run.sides[0], run.sides[number + 1]
        return kept("causes", stamp, (number,), lambda: explain_lists(view.pair, *sides))
    number = view.pair.index
    return kept("causes", _stamp(view.run.path), (number,), lambda: explain_pair(view.run, number))


@contextmanager
def leaving(path: Path) -> Iterator[None]:
    """Let go of a run's file, if it is here, once the block has removed it."""
    stamp = _stamp(path) if path.exists() else None
    yield
    if stamp is not None and (reader := memory().take(("reader", *stamp))) is not None:
        reader.close()


def positions(run: RunReader, pair: int) -> pd.DataFrame:
    return kept("positions", stamp := _stamp(run.path), (pair,), lambda: _reader(*stamp).positions(pair))


def histogram(view: View) -> dict[int, int]:
    """Map from ULP distance to number of elements; a float32 pair can have a hundred thousand distances, which take
    0.15 s to read.
    """
    stamp, pair = _stamp(view.run.path), view.pair.index
    return kept("histogram", stamp, (pair,), lambda: _reader(*stamp).histogram(pair))


def absent(view: View | SparseView) -> dict[str, str]:
    """Pages of which the pair has nothing, with a word for each; see app.navigation.absent."""
    if isinstance(view, SparseView):
        return {page.name: "not sent" for page in navigation.PAGES if page.shows == "capture"}
    stamp, pair = _stamp(view.run.path), view.pair
    return kept("absent", stamp, (pair.index,), lambda: navigation.absent(_reader(*stamp), pair))


def kv_positions(view: View) -> dict[str, PositionGrid]:
    """Layers x positions of the caches of the selected prompt; see core.runs.views.kv_cache.by_position."""
    stamp, of = _stamp(view.run.path), (view.pair.index, view.prompt)
    return kept("kv by position", stamp, of, lambda: by_position(_reader(*stamp), *of))


def layer_grid(view: View, measure: str) -> LayerGrid:
    """Modules x positions of the selected prompt, at most 12,000 cells or 40 a module: each has its name, for the
    hover.
    """
    return _layer_grid(*_stamp(view.run.path), view.pair.index, view.prompt, measure)


def top(view: View) -> pd.DataFrame:
    """The best tokens of both sides at the selected position; see core.runs.views.elements.top_of_both."""
    return _top(*_stamp(view.run.path), view.pair.index, view.prompt, view.position)
