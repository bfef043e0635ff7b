"""A store of objects seen through a directory of this machine: run files are written there and put whole, fetched once
and kept as long as there is room, listed with cards out of an index.

The index (`.index.json.gz` beside the run files) holds what a card says of every run, so that a list costs two requests
and no file. Nothing rests on it: which runs there are is what the backend lists, and an entry counts only for an object
of its size and tag. Whoever lists reads the cards that are missing from the run files and puts the index anew; two that
do so at once lose entries, which the next one reads again.

A directory is a mirror by the file `.url` in it, so whoever opens the directory, in whatever process, has the store.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...configuration import configuration
from ...disk import WRITING, lock, read_regular, write_atomic
from ...errors import StoreError
from ...packaged_models import cache_folder
from ...text import shown, slug
from .labels import FOLDER as LABELS
from .objects import Object, Objects, has_md5, is_url

INDEX = ".index.json.gz"
SUFFIX = ".duckdb"
URL_FILE = ".url"
_STATE = ".objects"  # folder of the mirror: what is known of the objects, and files that are being fetched
_NEW = ".new"  # what marks there a run that was put from here a moment ago
_UNSENT = ".unsent"  # folder of the mirror: finished runs that could not be put yet
_INDEX_VERSION = 1
_LARGEST_INDEX = 64 << 20  # bytes, unpacked: 60,000 cards
_PART_BYTES = 8 << 20  # of one request for a range
_LIST_SECONDS = 3.0  # for which a list is not asked for again, as often as the gallery looks
_DEAD_SECONDS = 30.0  # for which a dead endpoint is not asked again, or every page would wait for its time-outs
_RECENT_SECONDS = 900.0  # for which a run put here is looked for by name where a list lacks it
_KEEP_SECONDS = 60.0  # between two notes of when a list was asked for that is as it was
_USED_SECONDS = 600.0  # a file used within them is left where it is: a page may be about to open it
_LARGEST_LABELS = 64 << 10
_mirrors: dict[tuple[int, Path], Mirror] = {}  # by process: a backend's connections do not survive a fork
_folders: dict[tuple[int, str, Path], Path] = {}
_open_lock = threading.Lock()


class Mirror:
    """The objects of a URL, and the folder of this machine through which they are seen."""

    def __init__(self, folder: Path, objects: Objects) -> None:
        self.folder = folder
        self.url = objects.url
        self.outage: str | None = None  # a sentence, while the endpoint does not answer
        self._objects = objects
        self._lock = threading.RLock()
        self._runs, self._cards, self._index_tag, self._asked = _parsed(_read(folder / _STATE / INDEX))
        self._at, self._dead_until, self._kept_at = -_LIST_SECONDS, 0.0, 0.0
        self._brought: dict[str, float] = {}  # folder of small files -> when

    def runs(self) -> dict[str, Object]:
        """Runs by id, as the backend lists them; while it does not answer, as it listed them last, and `outage` says
        so. StoreError where it never did.
        """
        with self._lock:
            now = time.monotonic()
            if now < self._dead_until or now - self._at < _LIST_SECONDS:
                return self._runs
            try:
                listed = self._objects.list()
                runs = {
                    name.removesuffix(SUFFIX): each
                    for name, each in listed.items()
                    if name.endswith(SUFFIX) and not name.startswith(".")
                }
                runs |= self._recent(runs)
                self._read_index(listed.get(INDEX))
            except StoreError as error:
                self._is_dead(error)
                return self._runs
            is_other = runs != self._runs or now - self._kept_at > _KEEP_SECONDS
            self._runs, self._at, self.outage, self._asked = runs, now, None, time.time()
            if is_other:
                self._keep()
            return runs

    def find(self, run_id: str) -> Object | None:
        """A run, by its name where the list lacks it: a list may be older than the run."""
        if (found := self.runs().get(run_id)) is not None or self.outage:
            return found
        return self._objects.find(f"{run_id}{SUFFIX}")

    def cards(self) -> dict[str, Mapping[str, Any]]:
        """Entries of the index by run, of those that are listed, as they are listed. They may come from anybody."""
        with self._lock:
            runs = self.runs()
            return {
                run_id: said["card"]
                for run_id, said in self._cards.items()
                if (found := runs.get(run_id)) is not None and (found.bytes, found.tag) == (said["bytes"], said["tag"])
            }

    def remember(self, cards: Mapping[str, Mapping[str, Any]]) -> None:
        """Put cards that were read from run files into the index. It is a help: where it cannot be put, nothing is
        lost.
        """
        with self._lock, suppress(StoreError):
            self._cards |= {
                run_id: {"bytes": found.bytes, "tag": found.tag, "card": dict(card)}
                for run_id, card in cards.items()
                if (found := self._runs.get(run_id)) is not None
            }
            self._keep()
            if self.outage is None:
                known = self._cards
                self._read_index(self._objects.find(INDEX))  # with what others have added meanwhile
                self._cards = {each: said for each, said in (self._cards | known).items() if each in self._runs}
                self._objects.write(INDEX, _packed(self._runs, self._cards, "", 0.0, with_runs=False))
                self._keep()

    def fetch(self, run_id: str) -> Path:
        """Path of a run's file in the folder, whole and as the backend has it now, downloaded where it is not there."""
        found, path = self.find(run_id), self.folder / f"{run_id}{SUFFIX}"
        if found is None:
            self._forget(run_id)
            raise StoreError(f"run '{run_id}' is not in {self.url} any more.")
        if self._is_kept(path, found):
            with suppress(OSError):
                os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))  # used last now
            return path
        if self.outage:
            raise StoreError(f"run '{run_id}' was not fetched yet, and {self.outage}")
        state = self.folder / _STATE
        state.mkdir(parents=True, exist_ok=True)
        part = state / f"{hashlib.sha256(f'{found.name} {found.tag}'.encode()).hexdigest()[:32]}.part"
        descriptor = lock(part)  # one download, however many ask
        try:
            if not self._is_kept(path, found):
                self._download(found, part)
                self._take(part, path, found)
            if self._is_kept(path, found):
                part.unlink(missing_ok=True)  # of one that waited for another's download, while nobody else has it
        finally:
            os.close(descriptor)
        self._evict(path)
        return path

    @contextmanager
    def aside(self, run_id: str) -> Iterator[Path]:
        """The run's file, where it is not in the folder fetched beside and gone afterwards: a card needs it once."""
        found = self.runs().get(run_id)
        if found is None:
            raise StoreError(f"run '{run_id}' is not in {self.url} any more.")
        path = self.folder / f"{run_id}{SUFFIX}"
        if self._is_kept(path, found):
            yield path
            return
        if self.outage:
            raise StoreError(f"run '{run_id}' was not fetched yet, and {self.outage}")
        (self.folder / _STATE).mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=self.folder / _STATE) as place:
            path = Path(place) / path.name
            path.touch()
            self._download(found, path)
            yield path

    def put(self, path: Path, run_id: str) -> None:
        """Put a finished run file there, whole, and keep it in the folder. FileExistsError where the id is taken.

        Where it cannot be put it is kept beside, for `send` to try again: hours of capture are not lost to an outage.
        """
        target = self.folder / f"{run_id}{SUFFIX}"
        try:
            placed = self._objects.put_new(path, target.name)
        except StoreError as error:
            kept = self.folder / _UNSENT / target.name
            kept.parent.mkdir(parents=True, exist_ok=True)
            path.replace(kept)
            raise StoreError(
                f"run '{run_id}' is whole but not stored: {str(error).rstrip('.')}; it waits in {kept}, and the next"
                " command that writes to this store sends it."
            ) from None
        with self._lock:
            self._take(path, target, placed)
            (self.folder / _STATE / f"{run_id}{_NEW}").touch()
            self._runs = {**self._runs, run_id: placed}
            self._keep()
        self._evict(target)

    def send(self) -> None:
        """Put what waits since an outage, as far as that goes now."""
        for path in sorted((self.folder / _UNSENT).glob(f"*{SUFFIX}")):
            with suppress(BlockingIOError, OSError, StoreError):
                descriptor = lock(path, wait=False)
                try:
                    self.put(path, path.stem)
                finally:
                    os.close(descriptor)

    def delete(self, run_id: str) -> None:
        """Remove a run's file and its labels there, then here. FileNotFoundError where it is not there any more."""
        self._refuse_outage()
        if not self._objects.remove(f"{run_id}{SUFFIX}"):
            self._forget(run_id)
            raise FileNotFoundError(run_id)
        self._objects.remove(f"{LABELS}/{run_id}.json")
        self._forget(run_id)

    def bring(self, folder: str, most: int = _LARGEST_LABELS, *, is_now: bool = False) -> None:
        """Bring the small files of a folder, such as the labels, to what the backend has; while it does not answer they
        stay as they were. most: bytes of a file that is taken
        """
        with self._lock:
            now = time.monotonic()
            is_fresh = now - self._brought.get(folder, -_LIST_SECONDS) < _LIST_SECONDS
            if now < self._dead_until or (is_fresh and not is_now):
                return
            try:
                self._bring(folder, most)
            except StoreError as error:
                if is_now:
                    raise
                self._is_dead(error)
                return
            self._brought[folder] = now

    def send_small(self, name: str, most: int = _LARGEST_LABELS) -> None:
        """Put a small file there as it is in the folder, gone where it is gone."""
        self._refuse_outage()
        body = _read(self.folder / name, most)
        if body is None:
            self._objects.remove(name)
        else:
            self._objects.write(name, body)

    def tidy(self) -> None:
        """Send what waits, and remove what killed processes left behind there and here."""
        if self._dead_until > time.monotonic():
            return
        self.send()
        with suppress(StoreError):
            self._objects.tidy()
        for part in (self.folder / _STATE).glob("*.part"):
            with suppress(OSError):
                if time.time() - part.stat().st_mtime > 24 * 3600:
                    part.unlink()

    @property
    def bytes(self) -> int:
        """Bytes of all run files there."""
        return sum(each.bytes for each in self.runs().values())

    def _refuse_outage(self) -> None:
        if self.outage and time.monotonic() < self._dead_until:
            raise StoreError(self.outage)

    def _is_dead(self, error: StoreError) -> None:
        """Go on with what was listed last; the error itself where that is nothing."""
        if not self._asked:
            raise error
        self._dead_until = time.monotonic() + _DEAD_SECONDS
        moment = datetime.fromtimestamp(self._asked, UTC)
        self.outage = f"{str(error).rstrip('.')}; runs are listed as they were at {moment:%Y-%m-%d %H:%M} UTC."

    def _recent(self, listed: Mapping[str, Object]) -> dict[str, Object]:
        """Runs put from here a moment ago that the list lacks and that are there all the same."""
        found = {}
        for mark in (self.folder / _STATE).glob(f"*{_NEW}"):
            run_id = mark.name.removesuffix(_NEW)
            with suppress(OSError):
                if time.time() - mark.stat().st_mtime > _RECENT_SECONDS:
                    mark.unlink()
                elif run_id not in listed and (there := self._objects.find(f"{run_id}{SUFFIX}")) is not None:
                    found[run_id] = there
        return found

    def _download(self, found: Object, part: Path) -> None:
        """Append ranges to `part` until it is whole; what another download left of the same object is gone on with."""
        with part.open("r+b") as file:
            done = file.seek(0, os.SEEK_END)
            if done > found.bytes:
                done = file.truncate(file.seek(0))
            while done < found.bytes:
                end = min(found.bytes, done + _PART_BYTES)
                body = self._objects.read(found.name, done, end)
                if not body:
                    self._forget(found.name.removesuffix(SUFFIX))
                    raise StoreError(f"{found.name}: is not in {self.url} any more.")
                file.write(body[: end - done])
                file.flush()
                done = file.tell()
            os.fsync(file.fileno())
        now = self._objects.find(found.name)
        if now != found or (found.md5 is not None and not has_md5(part, found.md5)):
            part.write_bytes(b"")
            raise StoreError(f"{found.name}: what came from {self.url} is not what is there; fetch it again.")

    def _take(self, file: Path, path: Path, found: Object) -> None:
        """Give a whole file its name in the folder, and write down of which object it is."""
        record = self._record(path)
        record.parent.mkdir(parents=True, exist_ok=True)
        record.unlink(missing_ok=True)  # before another file has the name
        file.replace(path)
        write_atomic(record, json.dumps({"bytes": found.bytes, "tag": found.tag}).encode())

    def _is_kept(self, path: Path, found: Object) -> bool:
        try:
            said = _json(_read(self._record(path)))
            return path.stat().st_size == found.bytes == said.get("bytes") and said.get("tag") == found.tag
        except OSError:
            return False

    def _record(self, path: Path) -> Path:
        return self.folder / _STATE / f"{path.name}.json"

    def _forget(self, run_id: str) -> None:
        with self._lock:
            self._runs = {each: found for each, found in self._runs.items() if each != run_id}
            for path in (self.folder / f"{run_id}{SUFFIX}", self.folder / LABELS / f"{run_id}.json"):
                path.unlink(missing_ok=True)
            self._record(self.folder / f"{run_id}{SUFFIX}").unlink(missing_ok=True)
            self._keep()

    def _evict(self, newest: Path) -> None:
        """Remove the files used longest ago until the folder holds no more than it may; `newest` stays."""
        most = configuration().limits.cache_bytes
        found = []
        for path in self.folder.glob(f"*{SUFFIX}"):
            with suppress(OSError):
                status = path.stat()
                found.append((status.st_atime, status.st_size, path))
        total = sum(size for _, size, _ in found)
        for used, size, path in sorted(found):
            if not most or total <= most or time.time() - used < _USED_SECONDS:
                return
            if path != newest:
                path.unlink(missing_ok=True)
                self._record(path).unlink(missing_ok=True)
                total -= size

    def _read_index(self, found: Object | None) -> None:
        """Take the index in, if it is another than the one that is known; one that cannot be read is none."""
        if found is None or found.tag == self._index_tag or found.bytes > _LARGEST_INDEX:
            return
        _, cards, _, _ = _parsed(self._objects.read(INDEX))
        self._cards = self._cards | cards
        self._index_tag = found.tag

    def _keep(self) -> None:
        """Write down what is known, for other processes and for an outage."""
        with suppress(OSError):
            (self.folder / _STATE).mkdir(parents=True, exist_ok=True)
            cards = {run_id: said for run_id, said in self._cards.items() if run_id in self._runs}
            write_atomic(self.folder / _STATE / INDEX, _packed(self._runs, cards, self._index_tag, self._asked))
            self._kept_at = time.monotonic()

    def _bring(self, named: str, most: int) -> None:
        folder, record = self.folder / named, self.folder / _STATE / f"{named.strip('.').replace('/', '-')}.json"
        known, there = _json(_read(record)), self._objects.list(named)
        folder.mkdir(parents=True, exist_ok=True)
        for name, found in there.items():
            is_other = known.get(name) != found.tag or not (folder / name).exists()
            if not (name.endswith(".json") and is_other and found.bytes <= most):
                continue
            if (body := self._objects.read(f"{named}/{name}")) is not None:
                write_atomic(folder / name, body)
        for path in folder.glob("*.json"):
            if path.name not in there and not path.name.startswith(WRITING):
                path.unlink(missing_ok=True)
        tags = {name: found.tag for name, found in there.items()}
        if tags != known:
            record.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(record, json.dumps(tags).encode())


def mirror_for(url: str) -> Path:
    """Folder of this machine through which the store of a URL is seen, made where there is none."""
    key = (os.getpid(), url, cache_folder())
    with _open_lock:
        if (known := _folders.get(key)) is not None and (known / URL_FILE).exists():
            return known
    objects = Objects(url)
    folder = key[2] / "stores" / f"{slug(objects.url)}-{hashlib.sha256(objects.url.encode()).hexdigest()[:16]}"
    try:
        if _read(folder / URL_FILE) != objects.url.encode():
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(folder / URL_FILE, objects.url.encode())
    except OSError as error:
        raise StoreError(f"{folder}: cannot be written to ({error.strerror}); set ULPSCOPE_CACHE.") from error
    with _open_lock:
        _mirrors.setdefault((os.getpid(), folder.resolve()), Mirror(folder, objects))
        _folders[key] = folder
    return folder


def mirror_of(folder: Path) -> Mirror | None:
    """The mirror that a directory is, one a process; None where it is a directory of runs."""
    body = _read(folder / URL_FILE, 4096)
    if body is None:
        return None
    with _open_lock:
        key = (os.getpid(), folder.resolve())
        if (known := _mirrors.get(key)) is None:
            url = body.decode("utf-8", "replace").strip()
            if not is_url(url):
                raise StoreError(f"{shown(folder / URL_FILE, 200)}: names no URL of a store.")
            known = _mirrors[key] = Mirror(folder, Objects(url))
        return known


def _read(path: Path, most: int = _LARGEST_INDEX) -> bytes | None:
    try:
        return read_regular(path, most)
    except OSError:
        return None


def _json(body: bytes | None) -> dict[str, Any]:
    """A JSON object, empty where it is none."""
    try:
        said = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _packed(
    runs: Mapping[str, Object],
    cards: Mapping[str, Mapping[str, Any]],
    index_tag: str,
    asked: float,
    *,
    with_runs: bool = True,
) -> bytes:
    said: dict[str, Any] = {"version": _INDEX_VERSION, "runs": dict(sorted(cards.items()))}
    if with_runs:
        said["listed"] = {run_id: [each.bytes, each.tag] for run_id, each in sorted(runs.items())}
        said |= {"index_tag": index_tag, "asked": int(asked)}
    return gzip.compress(json.dumps(said).encode(), mtime=0)


def _parsed(body: bytes | None) -> tuple[dict[str, Object], dict[str, dict[str, Any]], str, float]:
    """(runs that were listed, entries with their cards, tag of the index, when it was asked) of an index; nothing where
    it is none.
    """
    try:
        unpacker = zlib.decompressobj(31)
        said = json.loads(unpacker.decompress(body or b"", _LARGEST_INDEX))
        if said["version"] != _INDEX_VERSION:
            return {}, {}, "", 0.0
        cards = {
            str(run_id): {"bytes": int(each["bytes"]), "tag": str(each["tag"]), "card": dict(each["card"])}
            for run_id, each in said["runs"].items()
        }
        listed = said.get("listed", {})
        runs = {str(name): Object(f"{name}{SUFFIX}", int(size), str(tag)) for name, (size, tag) in listed.items()}
        return runs, cards, str(said.get("index_tag", "")), float(said.get("asked", 0))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, zlib.error):
        return {}, {}, "", 0.0
