"""What the server does by itself: at its start what a killed one left behind is removed, and every hour runs that have been there as
long as they may go to the trash, and uploads that nobody continued are removed.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio import to_thread

from app.hosting.settings import now_in_force
from app.uploads.spool import Spool
from core.errors import UlpscopeError
from core.runs.limits import apply_retention
from core.runs.store import open_store

EVERY_SECONDS = 3600.0
_FIRST_SECONDS = 60.0  # after the start: a server that is started again and again moves nothing in a hurry
_log = logging.getLogger(__name__)


@asynccontextmanager
async def lifespan(_: object) -> AsyncIterator[None]:
    """For as long as the server runs."""
    await to_thread.run_sync(_sweep)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_hourly)
        yield
        tasks.cancel_scope.cancel()


def _sweep() -> None:
    try:
        open_store().sweep()
    except (UlpscopeError, OSError) as error:
        _log.error("sweep: %s", error)


async def _hourly() -> None:
    await anyio.sleep(_FIRST_SECONDS)
    while True:
        await to_thread.run_sync(tidy)
        await to_thread.run_sync(expire_uploads)
        await anyio.sleep(EVERY_SECONDS)


def expire_uploads() -> None:
    """Remove uploads that nobody has continued for as long as they are kept."""
    try:
        Spool(open_store()).expire(now_in_force().limits.upload_hours)
    except (UlpscopeError, OSError) as error:
        _log.error("uploads: %s", error)


def tidy() -> list[str]:
    """Apply the retention that is configured now; a failure is a line in the log, and the next hour tries again."""
    try:
        retention = now_in_force().retention
        if not retention.days and not retention.runs:
            return []
        moved = apply_retention(open_store(), retention)
    except (UlpscopeError, OSError) as error:
        _log.error("retention: %s", error)
        return []
    if moved:
        _log.info("retention moved %d runs to the trash: %s", len(moved), ", ".join(moved))
    return moved
