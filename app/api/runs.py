"""Runs over HTTP: listed and filtered as in the gallery, with the figures of the command line; and
their files.

A run is sent as its file or as an npz, in ranges, so that an interrupted download can resume. An
npz is stored in `.npz/`. A range fits also after it was written again: exporting gives the same
bytes every time.
"""

import os
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from app.api.responses import RefusedError, answer, flag, page_url, refuse_unknown, route, whole
from app.gallery import filters
from app.page import LONGEST_TEXT
from app.shell import store_cache, wording
from app.shell.store_cache import version_of
from core.disk import make_room
from core.document.page import html_file
from core.errors import StoreError, os_errors
from core.runs.dumps.export import export_npz
from core.runs.ops_run import KIND as OPS
from core.runs.reader import RunReader
from core.runs.reports.run_json import card_json, ops_json, run_json
from core.runs.store.cards import RunCard, read_runs
from core.runs.store.labels import Labels
from core.runs.store.store import Store, open_store
from core.text import clean

FOLDER = ".npz"  # of the store's directory
# the npz file just written stays, whatever its size
MOST_BYTES = 8 << 30
_exporting = threading.Lock()
_MOST_LISTED = 1000


def list_runs(request: Request) -> Response:
    """Answer with the runs that match, newest first, `limit` of them from `offset` on."""
    refuse_unknown(request, "search", "verdict", "flips", "tag", "limit", "offset")
    query = request.query_params
    choices = {"verdict": ("any", *wording.VERDICTS), "flips": filters.FLIPS}
    values = {name: query.get(name, "any") for name in choices}
    for name, options in choices.items():
        if values[name] not in options:
            raise RefusedError(
                f"{name}={clean(values[name])} is not known; expected one of {', '.join(options)}.",
            )
    text = query.get("search", "")
    if len(text) > LONGEST_TEXT:
        raise RefusedError(f"search has {len(text)} characters; expected at most {LONGEST_TEXT}.")
    selection = filters.Filters(text, tags=tuple(query.getlist("tag")), **values)
    limit, offset = whole(request, "limit", 100, _MOST_LISTED), whole(request, "offset", 0, 10**9)
    cards, unreadable = store_cache.cards(is_whole=True)
    labels, _ = store_cache.all_labels()
    prompts = store_cache.searchable(card.run_id for card in cards) if selection.words else {}
    matching = filters.matching(cards, selection, labels, prompts)

    def describe(card: RunCard) -> dict[str, Any]:
        about = asdict(labels.get(card.run_id, Labels()))
        return {**card_json(card), "labels": about, "url": page_url(request, card.run_id)}

    runs = [describe(card) for card in matching[offset : offset + limit]]
    return answer(
        {"runs": runs, "total": len(matching), "broken": [run.reason for run in unreadable]},
    )


def one_run(request: Request) -> Response:
    """Answer with a run as `ulpscope show --json` prints it; `?positions=1` for every position."""
    refuse_unknown(request, "positions")
    with_positions, store = flag(request, "positions"), open_store()
    path = path_of(store, request.path_params["run_id"])
    try:
        figures = run_json(store_cache.open_run(path.stem), with_positions=with_positions)
    except StoreError:
        card = read_runs([path])[path]
        if not isinstance(card, RunCard) or card.kind != OPS:
            raise
        figures = ops_json(store_cache.ops_run(path.stem))
    return answer(
        {**figures, "labels": asdict(store.labels(path.stem)), "url": page_url(request, path.stem)},
    )


def path_of(store: Store, run_id: str) -> Path:
    """Return the path of a run's file; RefusedError (404) if there is none."""
    try:
        return store.path_of(run_id)
    except StoreError as failure:
        raise RefusedError(str(failure), 404) from None


def run_file(request: Request) -> Response:
    """Send the run file itself: one file that any DuckDB can open."""
    path = path_of(open_store(), request.path_params["run_id"])
    return _file_response(path, path.name, version_of(path), "application/octet-stream")


def run_npz(request: Request) -> Response:
    """Send the run as an npz: every side in the bits it came in."""
    store = open_store()
    path = path_of(store, request.path_params["run_id"])
    stamp = version_of(path)
    target = store.directory / FOLDER / f"{path.stem}-{stamp}.npz"
    # one at a time: two fill the disk's queue
    with _exporting:
        with os_errors(StoreError, f"{target.parent}: cannot be written to"):
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not target.exists():
                _export(store, path, target)
        # Used last, so dropped last.
        os.utime(target)
    return _file_response(target, f"{path.stem}.npz", f"npz-{stamp}", "application/zip")


def run_html(request: Request) -> Response:
    """Send the run as one HTML file that opens from a disk, without scripts."""
    path = path_of(open_store(), request.path_params["run_id"])
    with _exporting:
        # half a second to import, which no other route needs
        from core.judging.stored import explain_pair

        content = html_file(store_cache.open_run(path.stem), explain_pair)
    headers = {
        "Content-Disposition": f"attachment; filename*=utf-8''{quote(path.stem)}.html",
        "Cache-Control": "no-store",
    }
    return Response(content, media_type="text/html", headers=headers)


def _file_response(path: Path, name: str, etag: str, kind: str) -> Response:
    # Not compressed on the way: floats hardly shrink, and a range would be of other bytes.
    headers = {
        "ETag": f'"{etag}"',
        "Cache-Control": "private, no-cache",
        "Content-Encoding": "identity",
    }
    return FileResponse(
        path,
        filename=name,
        media_type=kind,
        stat_result=path.stat(),
        headers=headers,
    )


def _export(store: Store, path: Path, target: Path) -> None:
    """Write an npz. The oldest go before there are more than MOST_BYTES; running downloads of a
    deleted file are not interrupted.
    """
    with RunReader(path) as run:
        width = sum(4 if side.source_dtype == "float32" else 2 for side in run.header.sides)
        size = run.header.rows * run.header.vocab * width
        make_room(target.parent.iterdir(), MOST_BYTES - size)
        store.check_space(size)
        # another process of this server may be faster
        export_npz(run, target, overwrite=True)


ROUTES = (
    route("GET", "/api/runs", list_runs),
    route("GET", "/api/runs/{run_id}", one_run),
    route("GET", "/api/runs/{run_id}/file", run_file),
    route("GET", "/api/runs/{run_id}/npz", run_npz),
    route("GET", "/api/runs/{run_id}/html", run_html),
    route("GET", "/files/{run_id}.duckdb", run_file),
    route("GET", "/files/{run_id}.html", run_html),
    route("GET", "/files/{run_id}.npz", run_npz),
)
