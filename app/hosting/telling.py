"""The audit log, for what answers in the event loop."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio
from anyio import to_thread

from core.runs import audit

_telling = anyio.CapacityLimiter(2)


async def tell(store_directory: Path, who: str, what: str, run_id: str = "", **figures: object) -> None:
    """`audit.record`, in a thread: another process may hold the log's lock, or the disk be slow, and nobody else waits with it."""
    await to_thread.run_sync(partial(audit.record, store_directory, who, what, run_id, **figures), limiter=_telling)
