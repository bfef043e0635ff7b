"""Runs over HTTP: listed and filtered as in the gallery, with the figures of the command line."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response

from app.api.downloads import path_of
from app.api.responses import RefusedError, answer, flag, page_url, refuse_unknown, route, whole
from app.gallery import filters
from app.page import LONGEST_TEXT
from app.shell import store_cache, wording
from core.errors import StoreError
from core.runs.ops_run import KIND as OPS
from core.runs.reports.run_json import card_json, ops_json, run_json
from core.runs.store.cards import RunCard, read_runs
from core.runs.store.labels import Labels
from core.runs.store.store import open_store
from core.text import clean

_MOST_LISTED = 1000
_FILTERS = ("search", "verdict", "flips", "tag", "limit", "offset")


def list_runs(request: Request) -> Response:
    """Answer with the runs that match, newest first, `limit` of them from `offset` on."""
    refuse_unknown(request, *_FILTERS)
    selection = _filters(request)
    limit, offset = whole(request, "limit", 100, _MOST_LISTED), whole(request, "offset", 0, 10**9)
    cards, unreadable = store_cache.cards(is_whole=True)
    labels, _ = store_cache.all_labels()
    prompts = store_cache.searchable(card.run_id for card in cards) if selection.words else {}
    matching = filters.matching(cards, selection, labels, prompts)

    def describe(card: RunCard) -> dict[str, Any]:
        about = asdict(labels.get(card.run_id, Labels()))
        return {**card_json(card), "labels": about, "url": page_url(request, card.run_id)}

    runs = [describe(card) for card in matching[offset : offset + limit]]
    return answer({"runs": runs, "total": len(matching), "broken": [run.reason for run in unreadable]})


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
    return answer({**figures, "labels": asdict(store.labels(path.stem)), "url": page_url(request, path.stem)})


ROUTES = (route("GET", "/api/runs", list_runs), route("GET", "/api/runs/{run_id}", one_run))


def _filters(request: Request) -> filters.Filters:
    query = request.query_params
    choices = {"verdict": ("any", *wording.VERDICTS), "flips": filters.FLIPS}
    values = {name: query.get(name, "any") for name in choices}
    for name, options in choices.items():
        if values[name] not in options:
            raise RefusedError(f"{name}={clean(values[name])} is not known; expected one of {', '.join(options)}.")
    text = query.get("search", "")
    if len(text) > LONGEST_TEXT:
        raise RefusedError(f"search has {len(text)} characters; expected at most {LONGEST_TEXT}.")
    return filters.Filters(text, tags=tuple(query.getlist("tag")), **values)
