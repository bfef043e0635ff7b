"""A store of objects (S3, Google Cloud Storage, Azure) seen through a cache folder of this machine.
obstore sends the requests and repeats them; its messages may quote an address with a key in it and
are left out of ours.

A run is written here and put whole, fetched once, and listed with cards out of an index,
`.index.json.gz`. Nothing rests on the index: which runs there are is what the backend lists, and an
entry counts only for an object of its tag.
"""

import gzip
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from hashlib import md5, sha256
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from ...command_name import COMMAND
from ...configuration import configuration
from ...disk import WRITING, discard, make_room, write_atomic, writing
from ...errors import ExtraError, StoreError, UsageError, os_errors
from ...packaged_models import cache_folder
from ...text import clean, slug
from . import labels

INDEX = ".index.json.gz"
SUFFIX = ".duckdb"
# it lies in the folder, so that opening the folder opens the store
URL_FILE = ".url"
SCHEMES = ("s3", "s3a", "gs", "az", "azure")
SHORT_SECONDS, LONG_SECONDS = 15, 300  # limits of one request: a question, a piece of a run
RETRIES = 2
MOST_TRIES = 20  # of a conditional put that others came before
PIECE_BYTES = 8 << 20  # of a download
# of a put in one request, which the backend refuses over another; beyond, pieces are put
SINGLE_BYTES = 64 << 20
# of a plan of a sweep or a state of a watch; 100,000 cells take some 30 MB
SMALL_BYTES = 64 << 20
# a list is not read again sooner: the gallery refreshes that often
LIST_SECONDS = 3.0
DEAD_SECONDS = 30.0  # for which a dead endpoint is not asked again
# a file used within them stays in the cache: a page may be about to open it
USED_SECONDS = 600.0
ABANDONED_SECONDS = 24 * 3600
_UNSENT = "unsent"  # folder of finished runs that could not be put
_open_lock = threading.Lock()
Result = TypeVar("Result")
Meta = Mapping[str, Any]  # size, e_tag and last_modified of an object, as obstore has them


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """A run's card in the index, for the object of this tag."""

    tag: str
    card: msgspec.Raw


class Mirror:
    """The objects of a URL, and the folder of this machine through which they are seen."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self._short, self._long = _connect(url, SHORT_SECONDS), _connect(url, LONG_SECONDS)
        self._obstore = import_module("obstore")
        self._lock = threading.RLock()
        self._listed: dict[str, Meta] = {}
        self._failure, self._fresh_until = "", 0.0  # why the last list failed, if it did
        self._cards: dict[str, _Entry] = {}
        self._tags: dict[str, str] = {}  # of small objects, by name, as they lie in the folder
        self._fetching: dict[str, threading.Lock] = {}

    def runs(self) -> dict[str, Meta]:
        """Return runs by id."""
        listed = self._list()
        return {name.removesuffix(SUFFIX): listed[name] for name in listed if name.endswith(SUFFIX)}

    def _list(self) -> dict[str, Meta]:
        with self._lock:
            if time.monotonic() >= self._fresh_until:
                try:
                    self._listed, self._failure, seconds = self._folder(""), "", LIST_SECONDS
                except StoreError as error:
                    self._failure, seconds = str(error), DEAD_SECONDS
                self._fresh_until = time.monotonic() + seconds
            if self._failure:
                raise StoreError(self._failure)
            return self._listed

    def _folder(self, name: str) -> dict[str, Meta]:
        listing = self._ask("list", self._obstore.list_with_delimiter, self._short, name or None)
        if listing is None:
            raise StoreError(f"{clean(self.url)}: there is no such bucket.")
        return {each["path"].rpartition("/")[2]: each for each in listing["objects"]}

    def find(self, run_id: str) -> Meta | None:
        """Return a run of the list, which is read again if it lacks the run: it may be seconds
        old.
        """
        if run_id not in self.runs():
            self._fresh_until = 0.0
        return self.runs().get(run_id)

    def fetch(self, run_id: str) -> Path:
        """Path of a run's file in the folder, downloaded if it is not there."""
        path = self.folder / f"{run_id}{SUFFIX}"
        with self._fetching.setdefault(run_id, threading.Lock()):
            remote = self.find(run_id)
            if remote is None:
                path.unlink(missing_ok=True)
                raise StoreError(f"run '{run_id}' is not in {self.url} any more.")
            if not _is_copy(path, remote):
                self._download(remote, path)
            self._use(path, remote)
        return path

    @contextmanager
    def fetch_once(self, run_id: str) -> Iterator[Path]:
        """Yield the run's file for the length of the block, so that listing a thousand runs does
        not fill the cache.
        """
        remote, path = self.find(run_id), self.folder / f"{run_id}{SUFFIX}"
        if remote is None or _is_copy(path, remote):
            yield self.fetch(run_id)
            return
        with TemporaryDirectory(dir=self.folder, prefix=WRITING) as place:
            self._download(remote, Path(place) / path.name)
            yield Path(place) / path.name

    def _download(self, remote: Meta, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing(path) as file:
            # in pieces: one that breaks off is asked for again, and not the whole run
            while file.tell() < remote["size"]:
                end = min(file.tell() + PIECE_BYTES, remote["size"])
                options = {"range": (file.tell(), end), "if_match": remote["e_tag"]}
                body = b""
                # the object may have another tag by now
                with suppress(FileExistsError):
                    body, _ = self._read(self._long, path.name, options)
                if len(body) != end - file.tell():
                    raise StoreError(
                        f"run '{path.stem}' changed in {self.url} while it was fetched; try again.",
                    )
                file.write(body)

    def put(self, path: Path, run_id: str) -> None:
        """Put a finished run file there and keep it in the folder. FileExistsError if the id is
        taken.

        If it cannot be put it stays in the folder: hours of capture are not lost to an outage.
        """
        target = self.folder / f"{run_id}{SUFFIX}"
        try:
            remote = self._create(path, target.name)
        except StoreError as error:
            waiting = self.folder / _UNSENT / target.name
            waiting.parent.mkdir(parents=True, exist_ok=True)
            path.replace(waiting)
            raise StoreError(
                f"run '{run_id}' is not stored: {error} `{COMMAND} ingest {waiting}` stores it.",
            ) from None
        path.replace(target)
        self._fresh_until = 0.0
        self._use(target, remote)

    def _create(self, path: Path, name: str) -> Meta:
        size = path.stat().st_size
        head = self._obstore.head, self._short, name
        if size <= SINGLE_BYTES:
            body = path.read_bytes()
            digest = md5(body, usedforsecurity=False).hexdigest()
            try:
                is_new = self._put_if(self._long, name, body, "create")
            except StoreError:
                # obstore does not repeat a put whose answer got lost
                is_new = self._put_if(self._long, name, body, "create")
        else:
            is_new = self._ask("look at", *head) is None
            if is_new:
                put = self._obstore.put
                self._ask("write", put, self._long, name, path, chunk_size=PIECE_BYTES)
        meta = self._ask("look at", *head)
        if meta is None or (is_new and meta["size"] != size):
            raise StoreError(
                f"{clean(self.url)}: {size:,} bytes of {name} were put there and did not arrive.",
            )
        # A put that is answered too late has happened, and the next try finds its own bytes under
        # the name.
        if not is_new and (size > SINGLE_BYTES or meta["e_tag"].strip('"') != digest):
            raise FileExistsError(name)
        return meta

    def _put_if(self, client: Any, name: str, body: bytes, mode: Any) -> bool:
        """Put under a condition: "create", or the tag that is to be replaced; False if it does not
        hold.
        """
        try:
            self._ask("write", self._obstore.put, client, name, body, mode=mode)
        except FileExistsError:
            return False
        return True

    def remove(self, run_id: str) -> None:
        """Remove a run's file, there and here."""
        (self.folder / f"{run_id}{SUFFIX}").unlink(missing_ok=True)
        self.send_small(f"{run_id}{SUFFIX}")
        self._fresh_until = 0.0

    def change(self, work: Callable[[Path], Result]) -> Result:
        """Run `work` on a copy of the labels and put it if they have not changed meanwhile; else do
        it again.
        """
        for _ in range(MOST_TRIES):
            body, tag = self._read(self._short, labels.FILE)
            with TemporaryDirectory() as name:
                copy = Path(name) / labels.FILE
                copy.write_bytes(body)
                result = work(Path(name))
                mode = {"e_tag": tag} if tag else "create"
                if self._put_if(self._short, labels.FILE, copy.read_bytes(), mode):
                    # the list still has the old tag
                    self._fresh_until = 0.0
                    return result
            time.sleep(random.uniform(0.01, 0.2))
        raise StoreError(
            f"{clean(self.url)}: others keep changing labels there; nothing was changed. Try"
            " again.",
        )

    def bring_labels(self) -> None:
        """Bring the copy of the labels to what the backend has."""
        self._bring(labels.FILE, self._list().get(labels.FILE))

    def bring(self, folder: str) -> None:
        """Bring the small files of a folder to what the backend has."""
        listed = self._folder(folder).items()
        remote_files = {name: remote for name, remote in listed if remote["size"] <= SMALL_BYTES}
        local_names = {path.name for path in (self.folder / folder).glob("*")}
        for name in remote_files.keys() | local_names:
            if not name.startswith(WRITING):
                self._bring(f"{folder}/{name}", remote_files.get(name))

    def _bring(self, name: str, remote: Meta | None) -> None:
        path = self.folder / name
        with self._lock:
            if remote is None:
                path.unlink(missing_ok=True)
            elif self._tags.get(name) != remote["e_tag"] or not path.exists():
                body, self._tags[name] = self._read(self._short, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(path, body)

    def send_small(self, name: str) -> None:
        """Put a small file there as it is in the folder, gone if it is gone."""
        path = self.folder / name
        if path.exists():
            self._ask("write", self._obstore.put, self._short, name, path.read_bytes())
        else:
            self._ask("remove", self._obstore.delete, self._short, name)

    def cards(self) -> dict[str, msgspec.Raw]:
        """Cards of the index by run, JSON each, of those that are there as they were."""
        with self._lock:
            runs, remote = self.runs(), self._list().get(INDEX)
            if remote is None:
                return {}
            if self._tags.get(INDEX) != remote["e_tag"]:
                self._cards = {}
                index, self._tags[INDEX] = self._read(self._short, INDEX)
                # it may be damaged, and rests on nothing
                with suppress(Exception):
                    self._cards = msgspec.json.decode(
                        gzip.decompress(index), type=dict[str, _Entry]
                    )
            cards = {}
            for each, entry in self._cards.items():
                if each in runs and entry.tag == runs[each]["e_tag"]:
                    cards[each] = entry.card
            return cards

    def remember(self, cards: Mapping[str, bytes]) -> None:
        """Put cards that were read from run files into the index.

        What is lost to another's put is read again.
        """
        with self._lock, suppress(StoreError):
            runs = self.runs()
            raw_cards = self.cards() | {each: msgspec.Raw(card) for each, card in cards.items()}
            self._cards = {
                each: _Entry(runs[each]["e_tag"], card)
                for each, card in raw_cards.items()
                if each in runs
            }
            index = gzip.compress(msgspec.json.encode(self._cards), mtime=0)
            self._ask("write", self._obstore.put, self._short, INDEX, index)

    def _read(self, client: Any, name: str, options: Any = None) -> tuple[bytes, str]:
        """Return an object, or a piece of it, and its tag, both empty if there is none."""

        def ask() -> tuple[bytes, str]:
            answer = self._obstore.get(client, name, options=options)
            return bytes(answer.bytes()), answer.meta["e_tag"]

        return self._ask("read", ask) or (b"", "")

    def _use(self, newest: Path, remote: Meta) -> None:
        """Date a copy by its object, by which it is known for one; then remove the files used
        longest ago until the folder holds no more than it may.
        """
        os.utime(newest, (time.time(), remote["last_modified"].timestamp()))
        # killed processes leave their files
        for path in self.folder.glob(f"{WRITING}*"):
            if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                discard(path)
        # the newest is spared
        if most := configuration().limits.cache_bytes:
            make_room(self.folder.glob(f"*{SUFFIX}"), most, USED_SECONDS)

    def _ask(
        self,
        what: str,
        ask: Callable[..., Result],
        *arguments: Any,
        **options: Any,
    ) -> Result | None:
        """Return the result of a request, None if there is no such object; FileExistsError if a
        condition fails.
        """
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

        # obstore repeats requests, and not what broke off in the middle of a body
        for attempt in range(RETRIES + 1):
            try:
                return ask(*arguments, **options)
            except FileNotFoundError:
                return None
            except (AlreadyExistsError, PreconditionError):
                raise FileExistsError(what) from None
            except (BaseError, OSError) as error:
                if attempt == RETRIES or "body error" not in str(error):
                    raise StoreError(
                        f"{clean(self.url)}: cannot {what} objects there ({_reason(error)}).",
                    ) from None
        raise AssertionError("unreachable")


# in words of ours: a backend's own may quote keys
_REASONS = {
    "permissiondenied|unauthenticated": "access is denied",
    # of the cloud's own machines
    "credential|metadata|/api/token": "no credentials for it are in the environment",
    "nosuchbucket": "there is no such bucket",
    "sending request|timed out": "no answer, or an error",
}


def _reason(error: BaseException) -> str:
    kind = type(error).__name__
    for pattern, words in _REASONS.items():
        if re.search(pattern, f"{kind} {error}", re.IGNORECASE):
            return words
    return kind


def _is_copy(path: Path, remote: Meta) -> bool:
    """Return whether a file has the size and time of its object."""
    with suppress(OSError):
        status = path.stat()
        seconds = int(remote["last_modified"].timestamp())
        return (status.st_size, int(status.st_mtime)) == (remote["size"], seconds)
    return False


def _connect(url: str, seconds: int) -> Any:
    """obstore's client; credentials are those of the environment."""
    parts = urlsplit(url)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UsageError(
            "a store's URL is scheme://bucket/prefix and nothing more; credentials belong in the"
            " environment of its backend (docs/guides/object_storage.md).",
        )
    if parts.scheme not in SCHEMES or not parts.netloc:
        raise UsageError(
            f"{clean(url, 80)}: no store; expected s3://, gs:// or az:// with a bucket.",
        )
    try:
        from obstore.store import from_url
    except ImportError:
        raise ExtraError(
            f"a store on {parts.scheme}:// needs obstore, not installed here; the package's extra"
            " 's3' brings it (pip install '.[s3]' in a clone).",
        ) from None
    timeout = timedelta(seconds=seconds)
    limits: Any = {"timeout": timeout, "connect_timeout": "4s", "allow_http": True}
    retries: Any = {"max_retries": RETRIES, "retry_timeout": 3 * timeout}
    return from_url(url, client_options=limits, retry_config=retries)


def mirror_for(url: str) -> Path:
    """Folder of this machine through which the store of a URL is seen, made if there is none."""
    url = url.rstrip("/")
    folder = cache_folder() / "stores" / f"{slug(url)}-{sha256(url.encode()).hexdigest()[:16]}"
    what = f"{folder}: cannot be written to"
    with os_errors(StoreError, what, "; set ULPSCOPE_CACHE"):
        if not (folder / URL_FILE).exists():
            # connected first: what is no URL of a store gets no folder
            _connect(url, SHORT_SECONDS)
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(folder / URL_FILE, url.encode())
    return folder


def mirror_of(folder: Path) -> Mirror | None:
    """Return the mirror that a directory is, one per process; None if it is a directory of runs."""
    try:
        url = (folder / URL_FILE).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    # threads that begin together share one
    with _open_lock:
        return _mirror(folder.resolve(), url, os.getpid())


@cache
def _mirror(folder: Path, url: str, process: int) -> Mirror:  # noqa: ARG001
    # by process: connections do not survive a fork
    return Mirror(folder, url)
