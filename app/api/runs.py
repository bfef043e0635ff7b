"""Runs over HTTP: listed and filtered as in the gallery, told as on the command line, deleted, restored and
labelled.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from app.api.responses import (
    NotFoundError,
    RefusedError,
    answer,
    api_path,
    body_object,
    flag,
    page_url,
    refuse_unknown,
    whole,
)
from app.gallery import SORTS, filters
from app.hosting.members import member_of
from app.page import LONGEST_TEXT
from app.shell import store_cache, wording
from core.errors import StoreError
from core.runs.ops_run import KIND as OPS
from core.runs.reports.run_json import card_json, ops_json, run_json
from core.runs.reports.sparse_json import sparse_run_json
from core.runs.sparse_run import KIND as SPARSE
from core.runs.store import labels
from core.runs.store.cards import RunCard, read_runs
from core.runs.store.labels import Labels
from core.runs.store.store import Store, open_store
from core.runs.store.trash import KEPT_SECONDS, entry_of
from core.text import shown

_audit = logging.getLogger("ulpscope.audit")

_MOST_LISTED = 1000
_LABEL_BYTES = 64 << 10
_FILTERS = ("search", "dtype", "device", "verdict", "flips", "tag", "sort", "limit", "offset")


async def list_runs(request: Request) -> Response:
    """Answer with `{"runs": [...], "total": N, "broken": [...]}`: those that match, in order, `limit` of them from
    `offset` on.
    """
    return await to_thread.run_sync(_list, request)


def _list(request: Request) -> Response:
    refuse_unknown(request, *_FILTERS)
    asked, limit, offset = (
        _asked(request),
        whole(request, "limit", 100, _MOST_LISTED),
        whole(request, "offset", 0, 10**9),
    )
    cards, broken = store_cache.cards(of_cells=True, of_replaced=True)
    attached, _ = store_cache.all_labels()
    prompts = store_cache.searchable(card.run_id for card in cards) if asked.sought else {}
    matching = filters.matching(cards, asked, attached, prompts)
    listed = [_card(request, card, attached.get(card.run_id, Labels())) for card in matching[offset : offset + limit]]
    return answer({"runs": listed, "total": len(matching), "broken": [run.reason for run in broken]})


def _asked(request: Request) -> filters.Filters:
    given = request.query_params
    choices = {
        "dtype": ("any", "bfloat16", "float16", "float32"),
        "verdict": ("any", *wording.VERDICTS),
        "flips": filters.FLIPS,
        "sort": tuple(SORTS),
    }
    chosen = {}
    for name, known in choices.items():
        chosen[name] = given.get(name, known[0])
        if chosen[name] not in known:
            raise RefusedError(f"{name}={shown(chosen[name])} is not known; expected one of {', '.join(known)}.", 400)
    text = given.get("search", "")
    if len(text) > LONGEST_TEXT:
        raise RefusedError(f"search has {len(text)} characters; expected at most {LONGEST_TEXT}.", 400)
    return filters.Filters(text=text, device=given.get("device", ""), tags=tuple(given.getlist("tag")), **chosen)


def _card(request: Request, card: RunCard, attached: Labels) -> dict[str, Any]:
    return {**card_json(card), "labels": asdict(attached), "url": page_url(request, card.run_id)}


async def one_run(request: Request) -> Response:
    """Answer with a run's figures as `ulpscope show --json` prints them, with its labels and its link;
    `?positions=1` for every position.
    """
    return await to_thread.run_sync(_one, request)


def _one(request: Request) -> Response:
    refuse_unknown(request, "positions")
    with_positions = flag(request, "positions")
    path = path_of(open_store(), request.path_params["run_id"])
    try:
        told = run_json(store_cache.open_run(path.stem), with_positions=with_positions)
    except StoreError:
        kind = _kind_of(path)
        if kind == OPS:
            told = ops_json(store_cache.ops_run(path.stem))
        elif kind == SPARSE:
            told = sparse_run_json(store_cache.sparse_run(path.stem), with_positions=with_positions)
        else:
            raise
    attached = open_store().labels(path.stem)
    return answer({**told, "labels": asdict(attached), "url": page_url(request, path.stem)})


def _kind_of(path: Path) -> str:
    card = read_runs([path])[path]
    return card.kind if isinstance(card, RunCard) else ""


def path_of(store: Store, run_id: str, *, whole_id: bool = False) -> Path:
    """Path of a run's file; NotFoundError where there is none. whole_id: the beginning of an id will not do, for what
    cannot be undone by a look.
    """
    try:
        path = store.path_of(run_id)
    except StoreError as failure:
        raise NotFoundError(str(failure)) from None
    if whole_id and path.stem != run_id:
        raise NotFoundError(f"no run '{shown(run_id)}'; give the whole id.")
    return path


async def delete_run(request: Request) -> Response:
    """Move a run into the trash, from where it comes back for a week; `?for_good=1` removes it at once."""
    return await to_thread.run_sync(_delete, request)


def _delete(request: Request) -> Response:
    refuse_unknown(request, "for_good")
    store, who, for_good = open_store(), member_of(request), flag(request, "for_good")
    path = path_of(store, request.path_params["run_id"], whole_id=True)
    run_id = path.stem
    with store_cache.leaving(path):
        entry = None if for_good else store.discard(run_id)
        if for_good:
            store.delete(run_id)
    _audit.info("%a deleted run %a%s", who, run_id, " for good" if for_good else "")
    said: dict[str, Any] = {"run_id": run_id, "deleted": "for good" if for_good else "into the trash"}
    if entry:
        said |= {
            "entry": entry,
            "kept_days": KEPT_SECONDS // 86_400,
            "restore": api_path(request, "runs", run_id, "restore"),
        }
    return answer(said)


async def restore_run(request: Request) -> Response:
    """Restore a run out of the trash. The id is the run's, or an entry's own name where the run was deleted more than
    once.
    """
    return await to_thread.run_sync(_restore, request)


def _restore(request: Request) -> Response:
    store = open_store()
    try:
        entry = entry_of(store.discarded(), request.path_params["run_id"])
    except StoreError as failure:
        raise NotFoundError(str(failure)) from None
    run_id = store.restore(entry)
    _audit.info("%a restored run %a", member_of(request), run_id)
    return answer({"run_id": run_id, "url": page_url(request, run_id)})


async def list_trash(request: Request) -> Response:
    """List the runs deleted within a week, the latest first."""
    refuse_unknown(request)
    return await to_thread.run_sync(_trash)


def _trash() -> Response:
    found = open_store().discarded()
    names = store_cache.names_of(found)
    return answer(
        {
            "deleted": [
                {
                    "run_id": run.run_id,
                    "name": names.get(run.path, run.run_id),
                    "deleted": run.deleted.isoformat() + "Z",
                    "bytes": run.bytes,
                    "entry": run.entry,
                }
                for run in found
            ]
        }
    )


async def run_labels(request: Request) -> Response:
    """Answer with `{"tags": [...], "note": "...", "pinned": false}`."""
    return await to_thread.run_sync(_labels, request)


def _labels(request: Request) -> Response:
    store = open_store()
    path = path_of(store, request.path_params["run_id"])
    return answer({"run_id": path.stem, **asdict(store.labels(path.stem))})


async def put_labels(request: Request) -> Response:
    """Replace tags, note and pin; what the object leaves out stays as it is. Sample runs can be labelled too."""
    said = await body_object(request, _LABEL_BYTES)
    return await to_thread.run_sync(_put_labels, request, said)


def _put_labels(request: Request, said: dict[str, Any]) -> Response:
    store = open_store()
    run_id = path_of(store, request.path_params["run_id"], whole_id=True).stem
    before = store.labels(run_id)
    strange = sorted(set(said) - {"tags", "note", "pinned"})
    if strange:
        raise RefusedError(f"'{shown(strange[0])}' is none of tags, note and pinned.", 400)
    tags, note, pinned = (said.get(name, getattr(before, name)) for name in ("tags", "note", "pinned"))
    is_text = isinstance(tags, list | tuple) and all(isinstance(tag, str) for tag in tags) and isinstance(note, str)
    if not is_text or not isinstance(pinned, bool):
        raise RefusedError("expected tags as a list of texts, note as a text, pinned as true or false.", 400)
    changed = store.label(run_id, labels.labels_of(tags, note, pinned), before)
    after, aside = changed.labels, changed.aside
    _audit.info("%a labelled run %a", member_of(request), run_id)
    return answer({"run_id": run_id, **asdict(after), **({"put_aside": aside} if aside else {})})
