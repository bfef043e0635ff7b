"""`/api/uploads/{upload}`: PUT a file, whole or in parts at an offset; GET its state; DELETE it."""

import base64
import errno
import hashlib
import re
import secrets
import time
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple
from urllib.parse import quote

import anyio
from anyio import to_thread
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from app.api.responses import RefusedError, answer, flag, page_url, refuse_unknown, route, whole
from app.hosting.members import member_of
from app.shell import store_changes
from app.shell.jobs import Job
from app.upload.importing import OPTIONS, check_options, start_import
from app.upload.spool import DONE, FAILED, IMPORTING, RECEIVED, RECEIVING, Record, Upload, purge
from core.configuration import configuration
from core.errors import LimitError
from core.runs.store.store import open_store
from core.text import clean

# so long without a byte, a request is over and another one may continue
IDLE_SECONDS = 30.0
# written at a time, which bounds the memory of a request
_PIECE_BYTES = 1 << 20
_LONGEST_WAIT = 600  # seconds
_writing = Lock()
_LOOK_SECONDS = 0.2
_RANGE = re.compile(r"bytes (?:(\d{1,18})-(\d{1,18})|\*)/(\d{1,18})")
_DIGEST = re.compile(r"sha-256=:([A-Za-z0-9+/]{43}=):")  # RFC 9530, of 32 bytes
_STATUS = {IMPORTING: 202, DONE: 201, FAILED: 422}


class Part(NamedTuple):
    """Bytes that a request brings: `first` to before `end`, None if it does not say. total: -1 if
    unknown.
    """

    first: int
    end: int | None
    total: int


async def put_upload(request: Request) -> Response:
    """Receive a file or a part of it. Once all of it is there, import it, unless `?keep=1`."""
    refuse_unknown(request, "file", "keep", "wait", *OPTIONS)
    wait = whole(request, "wait", 0, _LONGEST_WAIT)
    is_kept = flag(request, "keep")
    name, part = request.path_params["upload"], _part(request)
    # The upload's id is the run's name unless `?name=` is set.
    given = {key: request.query_params.get(key) for key in OPTIONS}
    options = check_options(given | {"name": given["name"] or name})
    # a file sent whole cannot be resumed, so its name may be that of another upload
    is_whole = "content-range" not in request.headers
    upload = Upload(open_store(), secrets.token_hex(8) if is_whole else name)
    try:
        await _receive(request, upload, part)
        record = upload.record()
        if record and record.state in (RECEIVED, FAILED) and not is_kept:
            digest = request.headers.get("repr-digest")
            if digest is not None:
                await to_thread.run_sync(_check_digest, digest, upload, upload.path(record))
            jobs, member = store_changes.jobs(), member_of(request)
            await to_thread.run_sync(start_import, jobs, [upload], options, member)
    except BaseException as failure:
        if is_whole:
            upload.remove()
        record = upload.record()
        # A sender that is told how much has arrived goes on there.
        if isinstance(failure, RefusedError) and failure.status == 409 and record:
            return answer({"error": str(failure), **_describe(request, upload, record)}, 409)
        raise
    return await _outcome(request, upload, wait)


async def get_upload(request: Request) -> Response:
    """Answer with the number of received bytes and the state of the import; `?wait=SECONDS` waits
    for its end.
    """
    refuse_unknown(request, "wait")
    upload = Upload(open_store(), request.path_params["upload"])
    outcome = await _outcome(request, upload, whole(request, "wait", 0, _LONGEST_WAIT))
    outcome.status_code = 200
    return outcome


async def delete_upload(request: Request) -> Response:
    """Stop the import and remove what arrived. A stored run stays."""
    upload = Upload(open_store(), request.path_params["upload"])
    record = _record(upload)
    if record.state == IMPORTING:
        job = _job(record)
        if job is None:
            raise RefusedError("Another process of this server imports it; ask that one.", 409)
        await to_thread.run_sync(store_changes.jobs().cancel, job.number)
    await to_thread.run_sync(upload.remove)
    return answer({"upload": upload.upload_id, "removed": True})


ROUTES = (
    route("PUT", "/api/uploads/{upload}", put_upload),
    route("GET", "/api/uploads/{upload}", get_upload),
    route("DELETE", "/api/uploads/{upload}", delete_upload),
)


def _part(request: Request) -> Part:
    text = request.headers.get("content-range")
    if text is None:
        length = request.headers.get("content-length", "-1")
        return Part(0, None, int(length) if length.isdecimal() and len(length) <= 18 else -1)
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise RefusedError(
            f"Content-Range is '{clean(text)}'; expected 'bytes FIRST-LAST/TOTAL' or 'bytes"
            " */TOTAL'.",
        )
    total = int(match[3])
    if match[1] is None:
        return Part(0, 0, total)
    if not int(match[1]) <= int(match[2]) < total:
        raise RefusedError(f"Content-Range is '{clean(text)}'; expected FIRST <= LAST < TOTAL.")
    return Part(int(match[1]), int(match[2]) + 1, total)


async def _receive(request: Request, upload: Upload, part: Part) -> None:
    """Append the body to the file. What arrived before a break stays."""
    with upload.hold():
        record = upload.record(is_held=True)
        if record is None:
            file = request.query_params.get("file") or request.path_params["upload"]
            record = await to_thread.run_sync(_begin, upload, file, part.total)
        if part.total != record.total:
            raise RefusedError(
                f"This upload has {record.total:,} bytes, not {part.total:,}; choose another id.",
                409,
            )
        if part.end == 0:  # bytes */TOTAL
            return
        # an imported file is not here any more
        received = upload.received_bytes() if record.state == RECEIVING else record.total
        if record.state != RECEIVING or part.first != received:
            progress = f"{received:,} of {record.total:,} bytes have arrived"
            raise RefusedError(f"{progress} and the upload is {record.state}.", 409)
        await _append(request, upload.path(record), part)
        if record.total < 0:
            upload.write(replace(record, total=upload.received_bytes()))


def _begin(upload: Upload, file: str, total: int) -> Record:
    if total == 0:
        raise RefusedError("The file is empty.")
    _check_size(total)
    store = open_store()
    purge(store)
    store.check_space(max(0, total))
    return upload.begin(file, total)


def _check_size(size: int) -> None:
    most = configuration().limits.file_bytes
    if most and size > most:
        raise LimitError(
            f"The file has {size:,} bytes; this server takes at most {most:,} (limits.file_bytes).",
            413,
        )


async def _append(request: Request, path: Path, part: Part) -> None:
    stream, waiting, end = request.stream(), bytearray(), part.first
    # put_upload removes whole ones
    rest = "Nothing of it is stored" if part.end is None else "What arrived is kept"
    store = open_store()
    with path.open("ab", buffering=0) as file:

        def write() -> None:
            view = memoryview(bytes(waiting))
            waiting.clear()
            try:
                # else parallel uploads would each find room for the same bytes
                with _writing:
                    store.check_space(len(view))
                    while view:
                        view = view[file.write(view) :]
            except LimitError as error:
                raise LimitError(
                    f"The server's disk has no room for the upload. {rest}. {error}",
                ) from error
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise LimitError(f"The server's disk is full. {rest}.") from error
                raise

        try:
            while True:
                with anyio.move_on_after(IDLE_SECONDS) as idle:
                    piece = await anext(stream, b"")
                if idle.cancelled_caught:
                    raise RefusedError(f"No byte came for {IDLE_SECONDS:.0f} seconds. {rest}.", 408)
                if not piece:
                    break
                end += len(piece)
                if part.end is not None and end > part.end:
                    raise RefusedError("The body is longer than its Content-Range.")
                _check_size(end)
                waiting += piece
                if len(waiting) >= _PIECE_BYTES:
                    await to_thread.run_sync(write)
        finally:
            # at once, also if this task is cancelled: it is less than a piece
            write()


def _check_digest(text: str, upload: Upload, path: Path) -> None:
    """Compare the file with the SHA-256 of a `Repr-Digest`; RefusedError (422) if they differ."""
    match = _DIGEST.fullmatch(text.strip())
    if match is None:
        raise RefusedError("Repr-Digest: expected sha-256=:BASE64: of 32 bytes.")
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").digest() != base64.b64decode(match[1]):
            upload.remove()
            raise RefusedError(
                "The file's SHA-256 differs from Repr-Digest; nothing was stored. Send it again.",
                422,
            )


async def _outcome(request: Request, upload: Upload, wait: int) -> Response:
    """Answer with the state, at the latest after `wait` seconds."""
    deadline = time.monotonic() + wait
    record = _record(upload)
    while record.state == IMPORTING and time.monotonic() < deadline:
        await anyio.sleep(_LOOK_SECONDS)
        record = _record(upload)
    body = _describe(request, upload, record)
    if record.state == FAILED:
        body = {"error": record.message, **body}
    place = f"uploads/{quote(upload.upload_id, safe='')}"
    if record.state == DONE:
        place = f"runs/{quote(record.run_id, safe='')}"
    headers = {
        "Location": f"{request.scope.get('root_path', '')}/api/{place}",
        "Upload-Offset": str(body["received"]),
    }
    return answer(body, _STATUS.get(record.state, 200), headers)


def _record(upload: Upload) -> Record:
    record = upload.record()
    if record is None:
        raise RefusedError(
            f"There is no upload '{clean(upload.upload_id)}', or nothing came for a day.",
            404,
        )
    return record


def _job(record: Record) -> Job | None:
    jobs = store_changes.jobs().all("upload")
    return next((job for job in jobs if job.reserved == record.run_id), None)


def _describe(request: Request, upload: Upload, record: Record) -> dict[str, Any]:
    job = _job(record) if record.state == IMPORTING else None
    return {
        "upload": upload.upload_id,
        "file": record.file,
        "received": record.total if record.state == DONE else upload.received_bytes(),
        "total": record.total,
        "state": record.state,
        "name": record.run,
        "run_id": record.run_id,
        "url": page_url(request, record.run_id) if record.run_id else "",
        "stage": job.stage or job.state if job else "",
        "rows_done": job.rows_done if job else 0,
        "rows_total": job.rows_total if job else 0,
        "message": record.message,
    }
