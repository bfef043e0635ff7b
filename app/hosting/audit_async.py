"""The audit log, for what answers in the event loop, and for what anybody may bring about."""

from __future__ import annotations

import asyncio
import atexit
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from core.runs.store import audit

FOLDED_SECONDS = 60.0
ALONE = 3  # failures of one address in a minute that have a line each, as a person's do
MOST_ADDRESSES = 30  # in a minute; those of all others are counted together
_OF_ANYBODY = ("failed sign-in", "refused sign-in")
# Of this process, whatever event loop asks: a limiter belongs to one loop, and loses who waits in another.
_tellers = ThreadPoolExecutor(2, "audit")


async def tell(store_directory: Path, who: str, what: str, run_id: str = "", **figures: object) -> None:
    """Call `audit.record` in a thread: another process may hold the log's lock, or the disk be slow, and nobody else
    waits with it.
    """
    write = failures.record if what in _OF_ANYBODY else audit.record
    record = partial(write, store_directory, who, what, run_id, **figures)
    await asyncio.get_running_loop().run_in_executor(_tellers, record)


_Event = tuple[str, str, tuple[tuple[str, object], ...]]  # who, what, and the figures


class Folded:
    """Failed sign-ins, which anybody may bring about: of a minute the first few of an address have a line each, and all
    others one, with their number as `times`. So a flood from any number of addresses is some 120 lines a minute.

    The numbers are written when the minute is over, and when the process ends, unless it is killed.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._counts: dict[Path, dict[_Event, int]] = {}
        self._over: threading.Timer | None = None

    def record(self, store_directory: Path, who: str, what: str, run_id: str = "", **figures: object) -> bool:
        """`audit.record`, or a count of what it would have written."""
        event = (who, what, tuple(figures.items()))
        with self._mutex:
            if self._over is None:
                self._over = threading.Timer(FOLDED_SECONDS, self.settle)
                self._over.daemon = True
                self._over.start()
            counts = self._counts.setdefault(store_directory, {})
            is_known = event in counts or len(counts) < MOST_ADDRESSES
            event = event if is_known else ("nobody", what, (("address", "others"),))
            number = counts[event] = counts.get(event, 0 if is_known else ALONE) + 1
        return number > ALONE or audit.record(store_directory, who, what, run_id, **figures)

    def settle(self) -> None:
        """Write the numbers of the minute, and begin another."""
        with self._mutex:
            stores, self._counts = self._counts, {}
            if self._over is not None:
                self._over.cancel()
                self._over = None
        for store_directory, counts in stores.items():
            for (who, what, figures), number in counts.items():
                if number > ALONE:
                    audit.record(store_directory, who, what, "", **dict(figures), times=number - ALONE)


failures = Folded()
atexit.register(failures.settle)
