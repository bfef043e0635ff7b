"""Downloads: a run as its file, or as an npz, in ranges, so that one that broke off goes on.

An npz is written once and kept beside the runs, in `.npz/`, up to a number of bytes; exporting gives the same bytes
every time, so a range asked for after it was dropped and written again, or of another process, still fits.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from anyio import CapacityLimiter, to_thread
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.types import Message, Receive, Scope, Send

from app.api.responses import NotFoundError, error, status_of
from app.api.runs import path_of
from core.errors import StoreError, UlpscopeError
from core.runs.dumps.export import export_npz
from core.runs.reader import RunReader
from core.runs.store.store import Store, open_store

FOLDER = ".npz"  # of the store's directory
KEPT_BYTES = 8 << 30  # of npz files; the one just written stays whatever its size
_FORM = "1"  # of the bytes that exporting gives; another one makes another ETag
_ABANDONED_SECONDS = 3600
_REFUSALS = {
    400: "the Range header cannot be read; expected bytes=FIRST-LAST.",
    416: "the range lies beyond the file's end.",
}
_building: dict[Path, threading.Lock] = {}
_guard = threading.Lock()
_limiter: list[CapacityLimiter] = []  # made by the first request: it belongs to the server's event loop


async def run_file(request: Request) -> Response:
    """Send the run file itself: one file that any DuckDB can open."""
    return await _answered(request, _file)


async def run_npz(request: Request) -> Response:
    """Send the run as an npz: every side in the bits it came in."""
    return await _answered(request, _npz)


async def _answered(request: Request, make: Callable[[Request], Response]) -> Response:
    """Call `make` in one of two threads of the downloads' own: to write an npz takes seconds, and two at once fill the
    disk's queue.
    """
    if not _limiter:
        _limiter.append(CapacityLimiter(2))
    try:
        return await to_thread.run_sync(make, request, limiter=_limiter[0])
    except UlpscopeError as failure:
        if request.url.path.startswith("/api/"):
            return error(str(failure), status_of(failure))
        return PlainTextResponse(str(failure), status_code=status_of(failure))


def _file(request: Request) -> Response:
    path = path_of(open_store(), request.path_params["run_id"])
    status = _status(path)
    return _sent(request, path, path.name, status, f'"{_stamp(status)}"', "application/octet-stream")


def _npz(request: Request) -> Response:
    store = open_store()
    path = path_of(store, request.path_params["run_id"])
    status = _status(path)
    etag = f'"npz{_FORM}-{_stamp(status)}"'
    if (known := _unchanged(request, etag)) is not None:  # before it is written only to say so
        return known
    target = npz_of(store, path, status)
    return _sent(request, target, f"{path.stem}.npz", _status(target), etag, "application/zip")


def _sent(request: Request, path: Path, name: str, status: os.stat_result, etag: str, kind: str) -> Response:
    """Response with the file, never compressed on the way: floats hardly shrink, and a range would be of other bytes
    than the whole.
    """
    if (known := _unchanged(request, etag)) is not None:
        return known
    headers = {"ETag": etag, "Cache-Control": "private, no-cache", "Content-Encoding": "identity"}
    kind_of_answer = _ApiFile if request.url.path.startswith("/api/") else FileResponse
    return kind_of_answer(path, filename=name, media_type=kind, stat_result=status, headers=headers)


class _ApiFile(FileResponse):
    """File response that refuses a range in JSON, as the rest of the API does."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        said: Response | None = None

        async def sending(message: Message) -> None:
            nonlocal said
            if message["type"] == "http.response.start" and message["status"] in _REFUSALS:
                given = Headers(raw=message["headers"])
                headers = {"Content-Range": given["content-range"]} if "content-range" in given else None
                said = error(_REFUSALS[message["status"]], message["status"], headers)
                await said(scope, receive, send)
            elif said is None:
                await send(message)

        await super().__call__(scope, receive, sending)


def _unchanged(request: Request, etag: str) -> Response | None:
    said = request.headers.get("if-none-match", "")
    known = {part.strip().removeprefix("W/") for part in said.split(",")}
    return Response(status_code=304, headers={"ETag": etag}) if etag in known or said.strip() == "*" else None


def _status(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError:
        raise NotFoundError(f"run '{path.stem}' is not there any more.") from None


def _stamp(status: os.stat_result) -> str:
    """Text that changes whenever the file does."""
    return f"{status.st_mtime_ns:x}-{status.st_size:x}"


def npz_of(store: Store, path: Path, status: os.stat_result) -> Path:
    """Path of the npz of the run at `path`, written if it is not there. StoreError, or LimitError where the disk is too
    full for it.
    """
    folder = store.directory / FOLDER
    target = folder / f"{path.stem}-{_FORM}-{_stamp(status)}.npz"
    with _guard:
        turn = _building.setdefault(target, threading.Lock())
    with turn:
        if not target.exists():
            _write(store, path, target)
        with suppress(OSError):
            os.utime(target)  # used last: dropped last
    with _guard:
        _building.pop(target, None)
    return target


def _write(store: Store, path: Path, target: Path) -> None:
    with RunReader(path) as run:
        header = run.header
        size = sum(header.rows * header.vocab * (4 if side.source_dtype == "float32" else 2) for side in header.sides)
        _drop_oldest(target.parent, size)
        store.check_space(size)
        place = store.new_partial("npz", datetime.now(UTC))
        try:
            made = place.directory / target.name
            export_npz(run, made)
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            made.replace(target)
        except OSError as failure:
            raise StoreError(f"{target.parent}: cannot be written to ({failure.strerror}).") from failure
        finally:
            place.remove()


def _drop_oldest(folder: Path, coming: int) -> None:
    """Make room within KEPT_BYTES. Who is downloading one of them reads on."""
    found = []
    with suppress(OSError):
        for path in folder.iterdir():
            with suppress(OSError):
                status = path.stat()
                if path.suffix == ".npz":
                    found.append((status.st_mtime, status.st_size, path))
                elif (
                    abs(time.time() - status.st_mtime) > _ABANDONED_SECONDS
                ):  # of a process that was killed while it wrote
                    path.unlink()
    held = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if held + coming <= KEPT_BYTES:
            break
        with suppress(OSError):
            path.unlink()
        held -= size
