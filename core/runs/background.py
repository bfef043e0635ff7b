"""One thread beside the caller's, for work in order: storing goes on while the next chunk is read and compared."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Background:
    """Runs what it is given one after another in its own thread.

    At most `waiting` pieces are unfinished, so that memory stays bounded: `put` blocks until there is room. The first
    exception is raised by the next `put` or `drain`; what was put after it does not run.
    """

    def __init__(self, name: str, waiting: int) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._waiting = waiting
        self._pieces: deque[Future] = deque()
        self._failed = False

    def put(self, work: Callable[..., object], *arguments: object) -> None:
        while len(self._pieces) >= self._waiting or (self._pieces and self._pieces[0].done()):
            self._pieces.popleft().result()
        self._pieces.append(self._pool.submit(self._run, work, arguments))

    def _run(self, work: Callable[..., object], arguments: tuple) -> None:
        if self._failed:
            return
        try:
            work(*arguments)
        except BaseException:
            self._failed = True
            raise

    def drain(self) -> None:
        """Wait until all is done."""
        while self._pieces:
            self._pieces.popleft().result()

    def close(self) -> None:
        """Let the piece at work finish, drop the others."""
        self._failed = True
        self._pool.shutdown(wait=True)
