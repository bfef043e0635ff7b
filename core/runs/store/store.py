"""The store: directories of run files. One run = one DuckDB file, written under a temporary name,
renamed, then read-only. A store under a URL is seen through a directory too
(core.runs.store.objects).
"""

import os
import re
import secrets
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from sqlite3 import Connection
from typing import TypeVar

from msgspec.structs import replace

from ...configuration import configuration
from ...disk import place_new, to_disk
from ...errors import LimitError, StoreError, os_errors
from ...text import clean, slug
from . import labels
from .labels import Attached, Labels
from .objects import SUFFIX, mirror_for, mirror_of
from .partial import Partial, sweep

Result = TypeVar("Result")
_CELL = re.compile(r"cell-([0-9a-f]{16})-([0-9a-f]{16})")
DELETED_SECONDS = 7 * 24 * 3600  # for which a deleted run can be restored
_LONGEST_WORDS = 28  # characters of a name in an id, which tables and links show whole
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}")


def is_run_id(text: str) -> bool:
    """Return whether a run that is written here may be called so."""
    return _RUN_ID.fullmatch(text) is not None


def cell_of(run_id: str) -> str | None:
    """Cell of a sweep that a run is of, the digest of its request (docs/guides/sweeps.md); None of
    any other run.
    """
    match = _CELL.fullmatch(run_id)
    return match and match[1]


@dataclass(frozen=True)
class DeletedRun:
    """A run that was deleted and can be restored. deleted: UTC."""

    run_id: str
    path: Path
    deleted: datetime
    bytes: int


class Store:
    """A directory that runs are written to, and directories that are only read (sample runs)."""

    def __init__(self, directory: Path, read_only: Sequence[Path] = ()) -> None:
        self.directory = directory
        self.mirror = mirror_of(directory)
        # else every run would be there twice
        own = directory.resolve()
        self.read_only = tuple(folder for folder in read_only if folder.resolve() != own)

    @property
    def address(self) -> str:
        """URL or directory, for sentences."""
        return self.mirror.url if self.mirror else str(self.directory)

    def paths(self, *, of_cells: bool = True) -> list[Path]:
        """Every visible run file, those of the writable directory first. of_cells: those of sweeps
        too.
        """
        paths = []
        for folder, ids in self._ids_by_folder():
            shown = [run_id for run_id in ids if of_cells or cell_of(run_id) is None]
            paths += [folder / f"{run_id}{SUFFIX}" for run_id in sorted(shown)]
        return paths

    def cells(self) -> set[str]:
        """Ids of the runs of cells of sweeps."""
        cells: set[str] = set()
        for _, ids in self._ids_by_folder():
            cells.update(filter(cell_of, ids))
        return cells

    def _ids_by_folder(self) -> Iterator[tuple[Path, Iterable[str]]]:
        """Each folder with the ids of its visible runs, each once: one here hides a sample of its
        id.

        Of 20,000 files names are read in 10 ms, paths made in 30.
        """
        deleted = self._deletions().keys()
        folders = self.read_only
        seen: set[str] = set()
        if self.mirror:
            seen = self.mirror.runs().keys() - deleted
            yield self.directory, seen
        else:
            folders = (self.directory, *folders)
        for folder in folders:
            with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                names = os.listdir(folder)  # noqa: PTH208  (paths of 20,000 take 30 ms)
                ids = {
                    name.removesuffix(SUFFIX)
                    for name in names
                    if name.endswith(SUFFIX) and name[0] != "."
                }
                if folder == self.directory:
                    ids -= deleted
                yield folder, ids - seen
                seen |= ids

    def _deletions(self) -> dict[str, datetime]:
        """Return when runs were deleted whose files are still there, by id.

        A file of labels that cannot be read hides no run.
        """
        try:
            return self._read_labels().deleted
        except StoreError:
            return {}

    def _read_labels(self) -> Attached:
        if self.mirror:
            self.mirror.bring_labels()
        return labels.read_all(self.directory)

    def _change(self, work: Callable[[Connection], Result]) -> Result:
        """Change labels and deletions in one transaction."""
        if self.mirror:
            return self.mirror.change(lambda folder: labels.change(folder, work))
        return labels.change(self.directory, work)

    def stamps(self, *, of_cells: bool = True) -> list[tuple[str, int, int]]:
        """Return (path, time of change or a substitute, size) of every visible run file, to detect
        changes.
        """
        runs = self.mirror.runs() if self.mirror else {}
        stamps = []
        for path in self.paths(of_cells=of_cells):
            remote = runs.get(path.stem) if path.parent == self.directory else None
            # deleted between the listing and the look
            with suppress(OSError):
                if remote is None:
                    status = path.stat()
                    stamp = status.st_mtime_ns, status.st_size
                else:
                    stamp = zlib.crc32(remote["e_tag"].encode()), remote["size"]
                stamps.append((str(path), *stamp))
        return stamps

    def is_writable(self, path: Path) -> bool:
        return path.parent.resolve() == self.directory.resolve()

    def has(self, run_id: str) -> bool:
        """Return whether there is a run of exactly this id."""
        return self._exact(run_id) is not None

    def _exact(self, run_id: str) -> Path | None:
        """Path of the run of exactly this id; thousands need not be listed for it."""
        if self._is_there(run_id):
            return self._target(run_id)
        samples = (folder / f"{run_id}{SUFFIX}" for folder in self.read_only)
        return next((path for path in samples if os.path.lexists(path)), None)

    def path_of(self, run_id: str) -> Path:
        """Path of a run's file, fetched if need be. A unique beginning of its id will do."""
        path = self.find(run_id)
        if self.mirror and self.is_writable(path):
            return self.mirror.fetch(path.stem)
        return path

    def find(self, run_id: str) -> Path:
        """Path of a run's file as `path_of` has it, of objects without fetching it."""
        # a renamed file may have any other
        is_name = run_id and "/" not in run_id and not run_id.startswith(".")
        if is_name and (path := self._exact(run_id)):
            return path
        if not is_run_id(run_id):
            raise StoreError(f"'{clean(run_id)}' is not a run id; `list` shows those there are.")
        close = [path for path in self.paths() if path.stem.startswith(run_id)]
        if not close:
            raise StoreError(f"no run '{run_id}' in {self.address}; `list` shows those there are.")
        if len(close) > 1:
            ids = ", ".join(path.stem for path in close[:3])
            raise StoreError(f"run '{run_id}' could be {ids}; give more of its id.")
        return close[0]

    def _is_there(self, run_id: str) -> bool:
        if not self.mirror:
            has_file = os.path.lexists(self._target(run_id))
        else:
            has_file = self.mirror.find(run_id) is not None
        return has_file and run_id not in self._deletions()

    def delete(self, run_id: str) -> str:
        """Hide a run, which `restore` brings back within a week; returns its full id.

        Sample runs are refused.
        """
        path = self.find(run_id)
        if not self.is_writable(path):
            raise StoreError(f"run '{path.stem}' is a read-only sample run; it is not deleted.")
        sql, row = "REPLACE INTO deleted VALUES (?, ?)", [path.stem, time.time()]
        self._change(lambda database: database.execute(sql, row))
        return path.stem

    def deleted(self) -> list[DeletedRun]:
        """Return the deleted runs that can be restored, latest first.

        The path of an object may not exist yet.
        """
        objects = self.mirror.runs() if self.mirror else {}
        runs = []
        for run_id, at in self._deletions().items():
            with suppress(OSError, KeyError):
                path = self._target(run_id)
                size = objects[run_id]["size"] if self.mirror else path.lstat().st_size
                runs.append(DeletedRun(run_id, path, at, size))
        return sorted(runs, key=lambda run: run.deleted, reverse=True)

    def restore(self, run_id: str) -> str:
        """Bring a deleted run back, with its labels; returns its id. A unique beginning will do."""
        full = self._deleted_id(run_id)
        sql = "DELETE FROM deleted WHERE run_id = ?"
        if not self._change(lambda database: database.execute(sql, [full]).rowcount):
            raise StoreError(f"run '{full}' was removed for good meanwhile.")
        return full

    def purge(self, run_id: str) -> str:
        """Remove a deleted run and its labels for good; returns its id.

        Who has it open reads on.
        """
        full = self._deleted_id(run_id)
        self._remove([full])
        return full

    def _deleted_id(self, run_id: str) -> str:
        ids = [run.run_id for run in self.deleted()]
        if run_id in ids:
            return run_id
        close = [each for each in ids if run_id and each.startswith(run_id)]
        if len(close) == 1:
            return close[0]
        problem = "is no deleted run"
        if close:
            problem = f"could be {', '.join(close[:3])}; give more of its id"
        raise StoreError(f"'{clean(run_id)}' {problem}. `list --deleted` shows those there are.")

    def _remove(self, run_ids: Sequence[str]) -> None:
        """Remove runs that are still deleted: one that is restored in the same moment stays."""

        def forget(database: Connection) -> list[str]:
            sql = "SELECT 1 FROM deleted WHERE run_id = ?"
            gone = [run_id for run_id in run_ids if database.execute(sql, [run_id]).fetchone()]
            for run_id in gone:
                if not self.mirror:
                    # while no other process can change the table
                    self._target(run_id).unlink(missing_ok=True)
                database.execute("DELETE FROM deleted WHERE run_id = ?", [run_id])
                labels.forget(database, run_id)
            return gone

        for run_id in self._change(forget):
            if self.mirror:
                self.mirror.remove(run_id)

    def labels(self, run_id: str) -> Labels:
        """Labels of one run."""
        return self._read_labels().labels.get(run_id, Labels())

    def all_labels(self) -> tuple[dict[str, Labels], list[str]]:
        """Labels by run id, and a sentence if they cannot be read."""
        try:
            return self._read_labels().labels, []
        except StoreError as error:
            return {}, [str(error)]

    def label(self, run_id: str, mine: Labels, base: Labels | None = None) -> Labels:
        """Change the labels of a run, and return them; see core.runs.store.labels.update."""
        return self._change(lambda database: labels.update(database, run_id, mine, base))

    def new_run_id(self, name: str, created: datetime) -> str:
        """Sortable by time, readable, and unique: 20261120-213000-fresh-against-cached-3f9a."""
        words = slug(name.lower())[:_LONGEST_WORDS].strip("-")
        parts = f"{created:%Y%m%d-%H%M%S}", words, secrets.token_hex(2)
        return "-".join(filter(None, parts))

    @contextmanager
    def new_file(
        self,
        name: str,
        created: datetime,
        run_id: str | None = None,
    ) -> Iterator[Partial]:
        """Yield a place for the file of a new run, which becomes visible when the block ends
        without an error.
        """
        self.sweep()
        with self.new_partial(name, created, run_id) as partial:
            yield partial
            self.place(partial.path, partial.path.stem)

    def new_partial(self, name: str, created: datetime, run_id: str | None = None) -> Partial:
        """Return a place for a run to be written to, in the same directory, so that renaming it is
        atomic.
        """
        if run_id is not None and not is_run_id(run_id):
            raise StoreError(
                f"'{clean(run_id)}' cannot be a run id; expected letters, digits, '.', '-' and"
                " '_'.",
            )
        if self.mirror:
            # the store is asked now, before hours of capture
            self.mirror.runs()
        with os_errors(
            StoreError,
            f"{self.directory}: cannot be written to",
            "; set ULPSCOPE_STORE or --store to another directory",
        ):
            self.directory.mkdir(parents=True, exist_ok=True)
            for _ in range(1 if run_id else 1000):
                new_id = run_id or self.new_run_id(name, created)
                if self._is_there(new_id):
                    continue
                if partial := Partial.make(self.directory, new_id):
                    return partial
        what = f"no id is left for a run '{name}'"
        if run_id:
            what = f"run '{run_id}' exists already or is being written"
        raise StoreError(f"{self.address}: {what}; nothing was changed.")

    def check_space(self, wanted_bytes: int) -> None:
        """LimitError (507) if writing so many bytes would leave less than `limits.free_bytes` on
        the store's disk.
        """
        margin = configuration().limits.free_bytes
        if not margin:
            return
        place = self.directory.absolute()
        place = next((each for each in (place, *place.parents) if each.exists()), place)
        with os_errors(StoreError, f"{self.directory}: cannot read its free disk space"):
            disk = shutil.disk_usage(place)
        # /proc has no size; writing there fails by itself
        if disk.total and disk.free - wanted_bytes < margin:
            raise LimitError(
                f"{self.directory}: {wanted_bytes:,} bytes do not fit, {disk.free:,} are free and"
                f" {margin:,} must stay free (limits.free_bytes). Delete runs or use a larger"
                " disk.",
            )

    def _target(self, run_id: str) -> Path:
        return self.directory / f"{run_id}{SUFFIX}"

    def place(self, path: Path, run_id: str) -> None:
        """Make a finished file visible, once it is on the disk. Never over an existing run."""
        with os_errors(StoreError, f"run '{run_id}' could not be put in place"):
            to_disk(path)
            # a deleted run leaves its place free
            if run_id in self._deletions():
                self._remove([run_id])
            try:
                if self.mirror:
                    self.mirror.put(path, run_id)
                else:
                    place_new(path, self._target(run_id))
                    to_disk(self.directory)
            except FileExistsError:
                raise StoreError(f"run '{run_id}' exists already; nothing was changed.") from None

    def mark_judged(self, run_id: str, judged_id: str) -> None:
        """Let lists show the run `judged_id`, which judges the run `run_id`, in its place, with its
        tags, note and pin.

        The run itself stays. If its labels cannot be read or written, lists show both.
        """
        with suppress(StoreError):
            base = self.labels(run_id)
            self.label(run_id, replace(base, judged_as=judged_id), base)
            self.label(judged_id, replace(base, judged_as=""), Labels())

    def sweep(self) -> None:
        """Remove what killed writers left, and what was deleted a week ago."""
        with suppress(StoreError):
            week_ago = datetime.now(UTC) - timedelta(seconds=DELETED_SECONDS)
            deleted = self._read_labels().deleted.items()
            if old := [run_id for run_id, at in deleted if at < week_ago]:
                self._remove(old)
        sweep(self.directory)


def open_store(directory: str | Path | None = None) -> Store:
    """Open the store of a directory or URL, else of ULPSCOPE_STORE, else `runs/` of the clone, or
    of the working directory if installed without one; with the sample runs unless ULPSCOPE_SAMPLES
    is ''.
    """
    clone = Path(__file__).resolve().parents[3]
    shipped = clone / "sample_runs"
    default = clone / "runs" if shipped.is_dir() else "runs"
    address = str(directory or os.environ.get("ULPSCOPE_STORE") or default)
    folder = mirror_for(address) if "://" in address else Path(address)
    samples = os.environ.get("ULPSCOPE_SAMPLES", str(shipped))
    return Store(folder, [Path(samples)] if samples else [])
