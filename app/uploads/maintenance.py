"""What the server does at its start: remove what a killed one left behind, and read what the first page needs."""

from __future__ import annotations

import importlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio import to_thread

from app.shell import sidebar, store_cache
from app.uploads.spool import purge
from core.errors import UlpscopeError
from core.runs.store.store import open_store

_OF_THE_FIRST_PAGE = ("app.gallery.trash", "app.gallery.table", "app.gallery.actions", "app.upload.drop_anywhere")
_log = logging.getLogger(__name__)


@asynccontextmanager
async def lifespan(_: object) -> AsyncIterator[None]:
    await to_thread.run_sync(_tidy)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(to_thread.run_sync, warm)
        yield
        tasks.cancel_scope.cancel()


def _tidy() -> None:
    try:
        store = open_store()
        store.sweep()
        purge(store)
    except (UlpscopeError, OSError) as error:
        _log.error("sweep: %s", error)


def warm() -> None:
    """Load and read what the first page needs while its browser loads the page's code; the page shows any failure."""
    try:
        for name in _OF_THE_FIRST_PAGE:
            importlib.import_module(name)
        cards, _ = store_cache.cards()
        store_cache.all_labels()
        store_cache.deleted_runs()
        runs = [card for card in cards if card.sides]
        if runs:
            store_cache.positions(store_cache.open_run(sidebar.worth_opening(runs).run_id), 0)
    except Exception as error:  # nothing that is only done early may end the server
        _log.info("nothing more is read in advance: %s", error)
