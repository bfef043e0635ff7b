"""`PUT /api/runs/{name}`: a dump or a run file goes to disk as it arrives, is judged by its content, and becomes a run
in a process of its own.

It is written where a sweep finds it should this server be killed; where the sender goes away, or sends more than it
said or may, nothing stays.
"""

from __future__ import annotations

import base64
import binascii
import errno
import hashlib
import logging
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import anyio
from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from app.api.responses import (
    ApiOperation,
    NotFoundError,
    RefusedError,
    answer,
    api_path,
    page_url,
    refuse_unknown,
    whole,
)
from app.hosting.members import member_of
from app.shell import store_cache, store_changes
from app.shell.jobs import Job
from app.uploads import ingest_jobs, ingest_status
from app.uploads.saving import save
from app.uploads.spool import Spool, owner_of
from core.configuration import Limits, configuration
from core.errors import LimitError
from core.runs.dumps.llamacpp_files import READERS
from core.runs.importing import is_database
from core.runs.sparse.payloads.plain_file import starts_as_payload
from core.runs.store.partial import Partial
from core.runs.store.store import Store, open_store
from core.text import file_name, shown, visible

_audit = logging.getLogger("ulpscope.audit")

_PIECE_BYTES = 4 << 20  # written at a time, which bounds the memory of a request
_LONGEST_WAIT = 600  # seconds
_LOOK_SECONDS = 0.2
_OPTIONS = ("model", "compute_dtype", "reference", "holds")
_audit = logging.getLogger("ulpscope.audit")
_DIGEST = re.compile(r"sha-256=:([A-Za-z0-9+/=]{44}):")  # RFC 9530
_IDLE_SECONDS = 120.0  # without a byte, after which a sender is gone


async def put_run(request: Request) -> Response:
    """Take in the body, or `?upload=ID`, an upload of /api/uploads that has arrived whole. 202 with where to ask;
    `?wait=SECONDS` waits.
    """
    refuse_unknown(request, "name", "upload", "wait", *_OPTIONS)
    wait = whole(request, "wait", 0, _LONGEST_WAIT)
    name = request.query_params.get("name") or request.path_params["run_id"]  # a path's part can have no slash in it
    options = ingest_jobs.checked({"name": name, **{key: request.query_params.get(key) for key in _OPTIONS}})
    if "name" not in options:
        raise RefusedError("the name is blank; give the run one.", 400)
    await to_thread.run_sync(_check_precondition, request, options["name"])
    if "upload" in request.query_params:
        job = await to_thread.run_sync(_begin_uploaded, request, options)
    else:
        job = await _begin_body(request, options)
    return await _outcome(request, job, wait)


def _check_precondition(request: Request, name: str) -> None:
    """Check `If-None-Match: *`: only if no run is called so yet."""
    said = request.headers.get("if-none-match")
    if said is None:
        return
    if said.strip() != "*":
        raise RefusedError("If-None-Match is understood as * only: no run of this name may be there.", 400)
    cards, _ = store_cache.cards(of_replaced=True)
    waiting = [job for job in store_changes.jobs().ingests() if not job.is_over and job.title == name]
    there = next((card.run_id for card in cards if card.name == name), waiting[0].reserved if waiting else None)
    if there is not None:
        raise RefusedError(f"a run called '{visible(name)}' is there already: {there}; nothing was stored.", 412)


def _begin_uploaded(request: Request, options: dict[str, str]) -> Job:
    spool = Spool(open_store())
    owner = owner_of(member_of(request))
    found = spool.find(request.query_params["upload"], owner)
    spool.finished(found.upload_id, owner)
    return save(store_changes.jobs(), spool, [found], title=options["name"], options=options, who=member_of(request))


async def _begin_body(request: Request, options: dict[str, str]) -> Job:
    limits, store = configuration().limits, open_store()
    place = await to_thread.run_sync(_place, store, options["name"], _declared(request), limits)
    try:
        path = await _received(request, place, options["name"], limits)
        return await to_thread.run_sync(
            lambda: ingest_jobs.begin(
                store_changes.jobs(),
                [path],
                title=options["name"],
                options=options,
                who=member_of(request),
                place=place,
            )
        )
    except BaseException:  # the sender's going included
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(place.remove)
        raise


def _place(store: Store, name: str, size: int, limits: Limits) -> Partial:
    if limits.file_bytes and size > limits.file_bytes:
        raise LimitError(
            f"the file has {size:,} bytes; this server takes files of at most {limits.file_bytes:,}"
            " (limits.file_bytes).",
            413,
        )
    store.check_space(size)
    return ingest_jobs.receiving(store_changes.jobs(), name)


def _declared(request: Request) -> int:
    """Bytes that the sender announces, 0 where it does not say."""
    text = request.headers.get("content-length", "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else 0


async def _received(request: Request, place: Partial, name: str, limits: Limits) -> Path:
    """Write the body to a file and return its path. Its bytes are counted as they come: a chunked body says nothing,
    and a sender may lie.
    """
    expected = _expected_digest(request)
    folder = place.directory / "0"
    await to_thread.run_sync(folder.mkdir)
    path = folder / (file_name(name) or "dump")  # refusals name it
    digest, size, waiting = hashlib.sha256(), 0, bytearray()
    file = await to_thread.run_sync(lambda: path.open("xb"))
    try:
        stream = request.stream()
        while True:
            with anyio.move_on_after(_IDLE_SECONDS) as idle:
                part = await anext(stream, None)
            if idle.cancelled_caught:
                raise RefusedError(f"no byte came for {_IDLE_SECONDS:.0f} seconds; nothing was stored.", 408)
            if part is None:
                break
            is_first = size == 0
            size += len(part)
            waiting += part
            if limits.file_bytes and size > limits.file_bytes:
                raise LimitError(
                    f"more than {limits.file_bytes:,} bytes arrive, the most this server takes for a file"
                    " (limits.file_bytes).",
                    413,
                )
            if (is_first or size - len(part) < 12) and len(waiting) >= 12:
                _refuse_unknown_kind(bytes(waiting[:12]))
            if len(waiting) >= _PIECE_BYTES:
                await to_thread.run_sync(_write, file, digest, bytes(waiting))
                waiting.clear()
        _refuse_unknown_kind(bytes(waiting[:12]) if size == len(waiting) else b"PK\x03\x04")
        await to_thread.run_sync(_write, file, digest, bytes(waiting))
    finally:
        await to_thread.run_sync(file.close)
    if expected is not None and digest.digest() != expected:
        raise RefusedError("the body's SHA-256 is not the announced one; nothing was stored. Send it again.", 422)
    return path


def _expected_digest(request: Request) -> bytes | None:
    """SHA-256 that `Repr-Digest` or `Content-Digest` announces; None where neither is sent."""
    for header in ("repr-digest", "content-digest"):
        said = request.headers.get(header)
        if said is None:
            continue
        if (found := _DIGEST.search(said)) is None:
            raise RefusedError(f"{header}: expected sha-256=:BASE64: of 32 bytes.", 400)
        try:
            return base64.b64decode(found[1], validate=True)
        except binascii.Error:
            raise RefusedError(f"{header}: no base64.", 400) from None
    return None


def _refuse_unknown_kind(start: bytes) -> None:
    """Refuse a body of no known kind by its first bytes, not after the last: a file of gigabytes that is none of ours
    need not travel.
    """
    is_dump = start.startswith((b"PK\x03\x04", b"\x93NUMPY", *READERS)) or start[8:9] == b"{"
    if not (is_dump or starts_as_payload(start) or is_database(start)):
        raise RefusedError(
            (
                f"the body begins with {start[:8]!r}; expected an npz, npy or safetensors file, responses of"
                " an engine (JSON or a stream), or a run file (.duckdb)."
                if start
                else "the body is empty; expected an npz, npy or safetensors file, JSON, or a run file (.duckdb)."
            ),
            415,
        )


def _write(file: BinaryIO, digest: Any, data: bytes) -> None:
    digest.update(data)
    try:
        file.write(data)
        file.flush()
    except OSError as failure:
        if failure.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise LimitError("the server's disk is full; nothing was stored.") from failure
        raise RefusedError(
            f"the body cannot be written ({os.strerror(failure.errno or 0)}); nothing was stored.", 500
        ) from failure


async def _outcome(request: Request, job: Job, wait: int) -> Response:
    """Answer with the ingest's state once it is over, or after `wait` seconds."""
    deadline = time.monotonic() + wait
    standing = _job_of(job.reserved) or job
    while not standing.is_over and time.monotonic() < deadline:
        await anyio.sleep(_LOOK_SECONDS)
        standing = _job_of(job.reserved) or standing
    said = _told(request, standing)
    if standing.state == "done":
        return answer(said, 201, {"Location": api_path(request, "runs", standing.run_id)})
    if standing.is_over:
        return answer({"error": said["message"], **said}, 422)
    return answer(said, 202, {"Location": api_path(request, "ingests", job.reserved)})


def _job_of(run_id: str) -> Job | None:
    return next((job for job in store_changes.jobs().ingests() if job.reserved == run_id), None)


def _told(request: Request, job: Job) -> dict[str, Any]:
    run_id = job.run_id or job.reserved
    return {
        "run_id": run_id,
        "name": job.title,
        "state": job.state,
        "stage": job.stage,
        "rows_done": job.rows_done,
        "rows_total": job.rows_total,
        "seconds": round(job.seconds, 3),
        "message": job.message,
        "job": api_path(request, "ingests", run_id),
        "url": page_url(request, run_id),
    }


async def one_ingest(request: Request) -> Response:
    """Answer with the state of the ingest of this run id; `?wait=SECONDS` waits for its end."""
    refuse_unknown(request, "wait")
    wait, run_id = whole(request, "wait", 0, _LONGEST_WAIT), request.path_params["run_id"]
    deadline = time.monotonic() + wait
    while True:
        said = await to_thread.run_sync(_standing, request, run_id)
        if said["state"] in ("done", "failed", "cancelled") or time.monotonic() >= deadline:
            return answer(said)
        await anyio.sleep(_LOOK_SECONDS)


def _standing(request: Request, run_id: str) -> dict[str, Any]:
    """State of an ingest: of this process's job; of another's on the same store what that wrote down, and its files
    show.
    """
    job = _job_of(run_id)
    if job is not None:
        return _told(request, job)
    store = open_store()
    is_there = any(path.stem == run_id for path in store.paths())
    said = ingest_status.read(store.directory, run_id) or Job(0, run_id, "", (), state="running", reserved=run_id)
    is_arriving = not said.is_over and ingest_jobs.is_arriving(store, run_id)
    if not said.is_over and not is_arriving:  # it may have come to its end since: that is written before its files go
        said = ingest_status.read(store.directory, run_id) or said
    if is_there and not is_arriving:
        said = replace(said, state="done", run_id=run_id)
    elif not said.is_over and not is_arriving:
        raise NotFoundError(
            f"nothing is being taken in as run '{shown(run_id)}': it failed a while ago, or the server"
            " was started anew meanwhile."
        )
    return _told(request, said)


async def list_ingests(request: Request) -> Response:
    """List the ingests, the newest first, finished ones of the last day among them, whichever process of the store they
    are of.
    """
    refuse_unknown(request)
    return answer({"ingests": [_told(request, job) for job in await to_thread.run_sync(_all_there_are)]})


def _all_there_are() -> list[Job]:
    own, store = store_changes.jobs().ingests(), open_store()
    known = {job.reserved for job in own}
    others = [job for job in ingest_status.listed(store.directory) if job.reserved not in known]
    return own + [job for job in others if job.is_over or ingest_jobs.is_arriving(store, job.reserved)]


async def cancel_ingest(request: Request) -> Response:
    """Stop an ingest and remove what it began. One that is over stays as it ended."""
    job = _job_of(request.path_params["run_id"])
    if job is None:
        run_id = request.path_params["run_id"]
        if ingest_jobs.is_arriving(open_store(), run_id):
            raise RefusedError(
                "another process of this server takes it in, which alone can stop it; ask it there.", 409
            )
        raise NotFoundError(f"nothing is being taken in as run '{shown(run_id)}' by this server.")
    if await to_thread.run_sync(store_changes.jobs().cancel, job.number):
        _audit.info("%a canceled the ingest of run %a", member_of(request), job.reserved)
    return answer(_told(request, _job_of(job.reserved) or job))


OPERATIONS = (
    ApiOperation("PUT", "/api/runs/{run_id}", put_run),
    ApiOperation("GET", "/api/ingests", list_ingests),
    ApiOperation("GET", "/api/ingests/{run_id}", one_ingest),
    ApiOperation("DELETE", "/api/ingests/{run_id}", cancel_ingest),
)
