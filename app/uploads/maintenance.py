"""Maintenance that the server does by itself: at its start what a killed one left behind is removed and what the first
page reads is read, and every hour uploads that nobody continued are removed.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio import to_thread

from app.shell import sidebar, store_cache
from app.uploads.spool import Spool
from core.configuration import configuration
from core.errors import UlpscopeError
from core.runs.store.store import open_store

EVERY_SECONDS = 3600.0
_OF_THE_FIRST_PAGE = ("app.gallery.trash", "app.gallery.table", "app.gallery.actions", "app.upload.drop_anywhere")
_log = logging.getLogger(__name__)


@asynccontextmanager
async def lifespan(_: object) -> AsyncIterator[None]:
    """Run the maintenance for as long as the server runs."""
    await to_thread.run_sync(_sweep)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(to_thread.run_sync, warm)
        tasks.start_soon(_hourly)
        yield
        tasks.cancel_scope.cancel()


def _sweep() -> None:
    try:
        open_store().sweep()
    except (UlpscopeError, OSError) as error:
        _log.error("sweep: %s", error)


def warm() -> None:
    """Load and read what the first page needs, while its browser loads the page's code; whatever fails says so when the
    page does it again.
    """
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


async def _hourly() -> None:
    while True:
        await to_thread.run_sync(expire_uploads)
        await anyio.sleep(EVERY_SECONDS)


def expire_uploads() -> None:
    """Remove uploads that nobody has continued for as long as they are kept."""
    try:
        Spool(open_store()).expire(configuration().limits.upload_hours)
    except (UlpscopeError, OSError) as error:
        _log.error("uploads: %s", error)
