"""The audit log, for what answers in the event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from core.runs.store import audit

# Of this process, whatever event loop asks: a limiter belongs to one loop, and loses who waits in another.
_tellers = ThreadPoolExecutor(2, "audit")


async def tell(store_directory: Path, who: str, what: str, run_id: str = "", **figures: object) -> None:
    """Call `audit.record` in a thread: another process may hold the log's lock, or the disk be slow, and nobody else
    waits with it.
    """
    record = partial(audit.record, store_directory, who, what, run_id, **figures)
    await asyncio.get_running_loop().run_in_executor(_tellers, record)
