"""Comparison of every two classes of a run beside the page, once for all viewers: the page is drawn meanwhile and says
how far it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from functools import cache

import streamlit as st

from app.shell import store_cache
from core.errors import UlpscopeError
from core.numerics.metrics import Summary
from core.runs.reader import RunReader
from core.runs.views.repeats import pairwise

Pairs = dict[tuple[int, int], Summary]
AT_ONCE_SECONDS = 0.25  # what is over by then is drawn with the page


class _StoppedError(Exception):
    """A viewer stopped the comparison."""


class Comparison:
    """A comparison that waits for another one, runs, or is over. done, total: rows of pairs.

    is_spent: it was over without figures, and a viewer was told: the next who asks begins anew.
    """

    def __init__(self, pool: ThreadPoolExecutor, compared: Callable[[Callable[[int, int], None]], Pairs]) -> None:
        self.is_spent = False
        self.done = self.total = 0
        self._stop = threading.Event()
        self._future: Future[Pairs] = pool.submit(compared, self._tick)

    def _tick(self, done: int, total: int) -> None:
        if self._stop.is_set():
            raise _StoppedError
        self.done, self.total = done, total

    def stop(self) -> None:
        """End the comparison at its next tick, without figures."""
        self._stop.set()
        self._future.cancel()

    @property
    def is_over(self) -> bool:
        return self._future.done()

    def wait(self, seconds: float) -> Pairs | None:
        """The figures, or None if it takes longer or was stopped; StoreError where the run could not be read."""
        try:
            return self._future.result(seconds)
        except NotYet:
            return None
        except (CancelledError, _StoppedError):
            self.is_spent = True
            return None
        except UlpscopeError:
            self.is_spent = True
            raise


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="ulpscope-classes")


@st.cache_resource(max_entries=16, show_spinner=False)
def _begun(run_id: str, stamp: tuple[str, int, int]) -> Comparison:  # noqa: ARG001  (the key of the cache)
    run = store_cache.open_run(run_id)
    return Comparison(_pool(), lambda tick: pairwise(run, tick))


def comparison(run: RunReader) -> Comparison:
    """The comparison of this run, of which there is one for all viewers, begun if there is none or only a spent one."""
    key = run.run_id, store_cache.stamp_of(run)
    if _begun(*key).is_spent:
        _begun.clear(*key)
    return _begun(*key)
