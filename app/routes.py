"""HTTP routes beside the pages, in the same process: a run as its file, or as an npz, streamed from disk."""

from __future__ import annotations

import tempfile
from pathlib import Path

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from app import tiles
from core.errors import UlpscopeError
from core.runs.export import export_npz
from core.runs.reader import RunReader
from core.runs.store import open_store


def run_file(request: Request) -> Response:
    """The run file itself: one file that any DuckDB can open."""
    try:
        path = open_store().path_of(request.path_params["run_id"])
    except UlpscopeError as error:
        return PlainTextResponse(str(error), status_code=404)
    return FileResponse(path, filename=path.name, media_type="application/octet-stream")


def run_npz(request: Request) -> Response:
    """Every side in the bits it came in; written to a temporary file first, so that a failure is a status and not a torn download."""
    try:
        path = open_store().path_of(request.path_params["run_id"])
    except UlpscopeError as error:
        return PlainTextResponse(str(error), status_code=404)
    folder = tempfile.TemporaryDirectory(prefix="ulpscope-")
    target = Path(folder.name) / f"{path.stem}.npz"
    try:
        with RunReader(path) as run:
            export_npz(run, target)
    except UlpscopeError as error:
        folder.cleanup()
        return PlainTextResponse(str(error), status_code=409)
    return FileResponse(
        target, filename=target.name, media_type="application/octet-stream", background=BackgroundTask(folder.cleanup)
    )


ROUTES = [Route("/files/{run_id}.duckdb", run_file), Route("/files/{run_id}.npz", run_npz), *tiles.ROUTES]
