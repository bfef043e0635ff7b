"""What the server does at its start: remove what a killed one left behind."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio import to_thread

from app.shell import store_changes
from app.uploads.spool import purge
from core.errors import UlpscopeError
from core.runs.store.store import open_store

_log = logging.getLogger(__name__)


@asynccontextmanager
async def lifespan(_: object) -> AsyncIterator[None]:
    await to_thread.run_sync(_tidy)
    yield


def _tidy() -> None:
    try:
        store_changes.jobs()  # sweeps the store; made here, so that two first viewers get the same list
        purge(open_store())
    except (UlpscopeError, OSError) as error:
        _log.error("sweep: %s", error)
