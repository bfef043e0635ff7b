"""tus 1.0.0 under /api/uploads: uploads that are resumed where they broke off, by any client that speaks it
(tus.io/protocols/resumable-upload).

A file is announced (POST), sent in pieces of any size (PATCH), asked after (HEAD) and given up (DELETE). What is told
to have arrived lies on the disk. Where a request breaks off, what came of it until then is kept, and HEAD says how much
that is.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from email.utils import formatdate
from typing import Any

import anyio
from anyio import to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from app.api.responses import ApiOperation, Dispatcher, Handler, answer, error, tried
from app.hosting.members import member_of
from app.uploads.partial_file import Upload, UploadError, Writing
from app.uploads.spool import Spool, owner_of
from core.configuration import Limits, configuration
from core.errors import UlpscopeError
from core.runs.store.store import open_store

ADDRESS = "/api/uploads"
VERSION = "1.0.0"
EXTENSIONS = "creation,creation-with-upload,termination,expiration,checksum"
PIECE_BYTES = 1 << 20  # written at a time, which bounds the memory of a request
IDLE_SECONDS = 60.0  # without a byte, after which a request is over
STALE_SECONDS = 5.0  # without a byte, after which a newer request for the same upload takes over
_LARGEST_METADATA = 4096  # characters
_CONTENT_TYPE = "application/offset+octet-stream"
_CHECKSUMS = ("sha1", "sha256")
_MISMATCH = 460  # of the protocol


class _Receiving:
    """One request that sends, as the others of this process see it."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.last_arrival = time.monotonic()
        self.over = anyio.Event()


_receiving: dict[str, _Receiving] = {}


def _in_protocol(handler: Handler) -> Handler:
    """A handler that answers as tus does, and only who speaks it."""

    async def answered(request: Request) -> Response:
        if request.method in ("POST", "PATCH", "HEAD", "DELETE") and request.headers.get("tus-resumable") != VERSION:
            said = error(f"expected the header Tus-Resumable: {VERSION}, of the protocol at tus.io.", 412)
            said.headers["Tus-Version"] = VERSION
        else:
            said = await tried(handler, request)
        said.headers["Tus-Resumable"] = VERSION
        said.headers["Cache-Control"] = "no-store"
        return said

    return answered


async def _collection(request: Request) -> Response:
    """OPTIONS: what this server can do. GET: one's own uploads that are not saved yet, as JSON. POST: announce a
    file.
    """
    limits = configuration().limits
    if request.method == "OPTIONS":
        return _options(limits)
    spool, owner = Spool(open_store()), owner_of(member_of(request))
    if request.method == "GET":
        return answer({"uploads": await to_thread.run_sync(_described_all, spool, owner, limits)})
    about = _metadata(request.headers.get("upload-metadata", ""))
    length = _whole(request, "upload-length")
    body_type = request.headers.get("content-type", "")
    made = await to_thread.run_sync(
        lambda: spool.create(
            owner,
            about.get("filename", ""),
            length,
            limits,
            modified=about.get("modified", ""),
            browser=about.get("browser", ""),
        )
    )
    if body_type == _CONTENT_TYPE:
        try:
            await _receive(request, made, 0)
        except UlpscopeError:  # the sender never learns where it is, and announces it again
            await to_thread.run_sync(spool.remove, made)
            raise
    location = f"{request.scope.get('root_path', '')}{ADDRESS}/{made.upload_id}"
    return Response(status_code=201, headers=_state(made, limits) | {"Location": location})


async def _one(request: Request) -> Response:
    """HEAD, GET, PATCH, DELETE of one upload; a POST may say X-HTTP-Method-Override, for clients that have only
    that.
    """
    limits = configuration().limits
    method = request.method
    if method == "POST":
        method = request.headers.get("x-http-method-override", "").upper()
        if method not in ("PATCH", "DELETE"):
            return error("expected PATCH or DELETE in X-HTTP-Method-Override.", 405)
    if method == "OPTIONS":
        return _options(limits)
    spool = Spool(open_store())
    found = await to_thread.run_sync(spool.find, request.path_params["upload_id"], owner_of(member_of(request)))
    if method == "HEAD":
        return Response(
            headers=_state(found, limits) | {"Upload-Length": str(found.length), "Upload-Metadata": _as_metadata(found)}
        )
    if method == "GET":
        return answer(await to_thread.run_sync(_described, spool, found, limits))
    if method == "DELETE":
        if (sender := _receiving.get(found.upload_id)) is not None:
            sender.scope.cancel()
            with anyio.move_on_after(STALE_SECONDS):
                await sender.over.wait()
        await to_thread.run_sync(spool.remove, found)
        return Response(status_code=204)
    if request.headers.get("content-type", "") != _CONTENT_TYPE:
        return error(f"expected the content type {_CONTENT_TYPE}.", 415)
    await _receive(request, found, _whole(request, "upload-offset"))
    return Response(status_code=204, headers=_state(found, limits))


async def _receive(request: Request, found: Upload, offset: int) -> None:
    """Take the body of a request, which begins at `offset`. UploadError where it cannot be taken; what came before is
    kept.
    """
    checksum = _checksum(request)
    coming = int(request.headers.get("content-length") or 0)  # a chunked body does not say
    if offset + coming > found.length:
        raise UploadError(f"{offset + coming:,} bytes, and {found.length:,} were announced.", 413)
    async with _turn(found, is_verified_later=checksum is not None) as (receiving, writing):
        if writing.offset != offset:
            raise UploadError(
                f"{writing.offset:,} bytes have arrived, and this request begins at {offset:,}; ask again with HEAD.",
                409,
            )
        await to_thread.run_sync(open_store().check_space, coming)
        is_whole = await _take(request, receiving, writing, offset, checksum[0] if checksum else None)
        if not is_whole:
            raise UploadError("the request broke off; what has arrived is kept.", 408)
        await to_thread.run_sync(writing.settle)
        if checksum is not None:
            if checksum[0].digest() != checksum[1]:
                raise UploadError("the checksum does not agree; this piece is thrown away.", _MISMATCH)
            await to_thread.run_sync(writing.verify)


async def _take(request: Request, receiving: _Receiving, writing: Writing, offset: int, digest: Any) -> bool:
    """Write the body as it comes, never more of it in memory than a piece; return whether it came to its end."""
    waiting = bytearray()
    place = offset
    is_whole = False
    try:
        with receiving.scope as scope:
            scope.deadline = anyio.current_time() + IDLE_SECONDS
            async with aclosing(request.stream()) as stream:
                async for part in stream:
                    receiving.last_arrival = time.monotonic()
                    scope.deadline = anyio.current_time() + IDLE_SECONDS
                    waiting += part
                    if digest is not None:
                        digest.update(part)
                    if len(waiting) >= PIECE_BYTES:
                        await to_thread.run_sync(writing.write, place, waiting)
                        place += len(waiting)
                        waiting = bytearray()
            is_whole = True
    except ClientDisconnect:
        pass  # kept all the same: it comes back and goes on
    finally:
        if waiting:
            writing.write(place, waiting)  # at once, also where this task is being cancelled: it is less than a piece
    return is_whole


@asynccontextmanager
async def _turn(found: Upload, *, is_verified_later: bool) -> AsyncIterator[tuple[_Receiving, Writing]]:
    """Hold the upload's lock. A sender of this process from whom nothing comes any more is sent away; its connection
    may be long dead.
    """
    earlier = _receiving.get(found.upload_id)
    if earlier is not None and time.monotonic() - earlier.last_arrival > STALE_SECONDS:
        earlier.scope.cancel()
        with anyio.move_on_after(STALE_SECONDS):
            await earlier.over.wait()
    writing = await to_thread.run_sync(lambda: Writing(found, is_verified_later=is_verified_later))
    receiving = _receiving[found.upload_id] = _Receiving()
    try:
        yield receiving, writing
    finally:
        writing.close()
        if _receiving.get(found.upload_id) is receiving:
            del _receiving[found.upload_id]
        receiving.over.set()


def _options(limits: Limits) -> Response:
    headers = {"Tus-Version": VERSION, "Tus-Extension": EXTENSIONS, "Tus-Checksum-Algorithm": ",".join(_CHECKSUMS)}
    if limits.file_bytes:
        headers["Tus-Max-Size"] = str(limits.file_bytes)
    return Response(status_code=204, headers=headers)


def _state(found: Upload, limits: Limits) -> dict[str, str]:
    expires = _expires(found, limits)
    return {"Upload-Offset": str(found.offset)} | ({"Upload-Expires": expires} if expires else {})


def _expires(found: Upload, limits: Limits) -> str:
    return formatdate(found.expires(limits.upload_hours), usegmt=True) if limits.upload_hours else ""


def _described(spool: Spool, found: Upload, limits: Limits) -> dict[str, object]:
    is_held = spool.is_held(found)
    state = ("saving" if is_held else "complete") if found.is_complete else ("receiving" if is_held else "unfinished")
    return {
        "id": found.upload_id,
        "name": found.name,
        "bytes_done": found.offset,
        "bytes_total": found.length,
        "state": state,
        "modified": found.modified,
        "browser": found.browser,
        "expires": _expires(found, limits),
    }


def _described_all(spool: Spool, owner: str, limits: Limits) -> list[dict[str, object]]:
    spool.expire(limits.upload_hours)
    described = []
    for found in spool.listed(owner):
        try:
            described.append(_described(spool, found, limits))
        except UploadError:
            continue  # removed between the listing and the look
    return described


def _whole(request: Request, header: str) -> int:
    text = request.headers.get(header, "")
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise UploadError(f"expected the header {header.title()} with a whole number of bytes.", 400)
    return int(text)


def _metadata(text: str) -> dict[str, str]:
    """Metadata of an upload, from `filename d29ybGQ=,modified MTI=`: names, and values in base64, which are UTF-8."""
    if len(text) > _LARGEST_METADATA:
        raise UploadError(f"Upload-Metadata has {len(text):,} characters; expected at most {_LARGEST_METADATA:,}.", 400)
    found: dict[str, str] = {}
    for part in text.split(",") if text.strip() else ():
        key, _, value = part.strip().partition(" ")
        try:
            found[key] = base64.b64decode(value, validate=True).decode("utf-8")
        except ValueError:  # no base64, not even ASCII, or not of UTF-8
            raise UploadError(
                "Upload-Metadata cannot be read; expected names and base64 of UTF-8, with commas between.", 400
            ) from None
    return found


def _as_metadata(found: Upload) -> str:
    values = {"filename": found.name, "modified": found.modified, "browser": found.browser}
    return ",".join(
        f"{key} {base64.b64encode(value.encode('utf-8', 'replace')).decode()}" for key, value in values.items() if value
    )


def _checksum(request: Request) -> tuple[Any, bytes] | None:
    """(a fresh digest, what it must come to), or None where the sender gives none."""
    text = request.headers.get("upload-checksum")
    if text is None:
        return None
    name, _, value = text.partition(" ")
    if name not in _CHECKSUMS:
        raise UploadError(f"the checksum is of an unknown kind; expected {' or '.join(_CHECKSUMS)}.", 400)
    try:
        return hashlib.new(name), base64.b64decode(value, validate=True)
    except ValueError:  # no base64, or not even ASCII
        raise UploadError("Upload-Checksum cannot be read; expected the algorithm and base64.", 400) from None


def _route(path: str, handler: Handler, *methods: str) -> Route:
    spoken = _in_protocol(handler)
    return Route(path, Dispatcher({each: ApiOperation(each, path, spoken) for each in methods}))


ROUTES = [
    _route(ADDRESS, _collection, "OPTIONS", "GET", "POST"),
    _route(f"{ADDRESS}/{{upload_id}}", _one, "OPTIONS", "HEAD", "GET", "PATCH", "POST", "DELETE"),
]
