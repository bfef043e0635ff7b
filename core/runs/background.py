"""A background thread for work in order: it stores a chunk while the next one is read and
compared.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Background:
    """Run functions one after another in a thread of its own.

    Unfinished pieces hold at most `waiting_bytes` together (or are a single one), so that memory
    stays bounded: `put` blocks until there is room. After an exception nothing more runs, and every
    later `put` and `drain` raises it.
    """

    def __init__(self, name: str, waiting_bytes: int) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._waiting_bytes = waiting_bytes
        self._pieces: deque[tuple[Future, int]] = deque()
        self._held_bytes = 0
        self._error: BaseException | None = None

    def put(self, work: Callable[..., object], *arguments: object, size: int = 0) -> None:
        """size: bytes that the arguments hold until the piece is done."""
        self._raise()
        while self._pieces and (
            self._held_bytes + size > self._waiting_bytes or self._pieces[0][0].done()
        ):
            self._finish_first()
        self._held_bytes += size
        self._pieces.append((self._pool.submit(self._run, work, arguments), size))

    def _finish_first(self) -> None:
        piece, size = self._pieces.popleft()
        self._held_bytes -= size
        piece.result()

    def _run(self, work: Callable[..., object], arguments: tuple) -> None:
        if self._error is not None:
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
            self._finish_first()
        self._raise()

    def close(self) -> None:
        """Let the piece at work finish, drop the others."""
        self._pool.shutdown(cancel_futures=True)
