"""One thread beside the caller's, for work in order: storing goes on while the next chunk is read and compared."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Background:
    """Runs what it is given one after another in its own thread.

    At most `waiting` pieces are unfinished, so that memory stays bounded: `put` blocks until there is room. After an exception
    nothing more runs, and every later `put` and `drain` raises it.
    """

    def __init__(self, name: str, waiting: int) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._waiting = waiting
        self._pieces: deque[Future] = deque()
        self._error: BaseException | None = None
        self._is_closed = False

    def put(self, work: Callable[..., object], *arguments: object) -> None:
        self._raise()
        while len(self._pieces) >= self._waiting or (self._pieces and self._pieces[0].done()):
            self._pieces.popleft().result()
        self._pieces.append(self._pool.submit(self._run, work, arguments))

    def _run(self, work: Callable[..., object], arguments: tuple) -> None:
        if self._error is not None or self._is_closed:
            return
        try:
            work(*arguments)
        except BaseException as error:
            self._error = error
            raise

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def drain(self) -> None:
        """Wait until all is done."""
        while self._pieces:
            self._pieces.popleft().result()
        self._raise()

    def close(self) -> None:
        """Let the piece at work finish, drop the others."""
        self._is_closed = True
        self._pool.shutdown(wait=True)
