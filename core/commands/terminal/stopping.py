"""Stop a command within two seconds of Ctrl-C or a request to end, whatever the main thread is inside of."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

SENTENCE = "stopped; nothing was stored."
PATIENCE_SECONDS = 1.5
EXIT_CODE = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopping(leave_nothing: Callable[[], None], says: Callable[[], str] = lambda: SENTENCE) -> Iterator[None]:
    """The first signal raises KeyboardInterrupt in the main thread; later ones change nothing.

    Python raises it only between two instructions of its own, and one forward of a large model is a single call
    into C++. So a thread is told of the signal at once, gives the main thread PATIENCE_SECONDS to unwind, then
    calls `leave_nothing` and ends the process with EXIT_CODE and with what it `says`. It stands back where the
    block ends without the interrupt: the request came too late.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    is_asked = False

    def interrupt(*_: object) -> None:
        nonlocal is_asked
        if not is_asked:  # a second Ctrl-C must not break off the cleaning up after the first
            is_asked = True
            raise KeyboardInterrupt

    said, told = os.pipe()
    os.set_blocking(told, False)
    is_over = threading.Event()  # nothing is left for the watcher to do
    watcher = threading.Thread(
        target=_watch, args=(said, is_over, leave_nothing, says), name="ulpscope-stopping", daemon=True
    )
    handlers = {
        number: signal.signal(number, interrupt) for number in _SIGNALS
    }  # also where a shell had interrupts ignored
    earlier = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    watcher.start()
    try:
        yield
        is_over.set()
    except BaseException as error:
        if not is_asked:
            is_over.set()
            raise
        # DuckDB, for one, makes a StoreError of an interrupt that comes during a query. What is left to do is to leave,
        # and the watcher sees to that as well: a thread that is waited for at the end may never end.
        raise KeyboardInterrupt from error
    finally:
        signal.set_wakeup_fd(earlier)
        os.close(told)  # ends a watcher that was told nothing
        for number, handler in handlers.items():
            if not is_asked and handler is not None:
                signal.signal(number, handler)


def _watch(said: int, is_over: threading.Event, leave_nothing: Callable[[], None], says: Callable[[], str]) -> None:
    """Wait for a signal's number in the pipe; b'' means that the block is over. The pipe is read to its end: a signal
    that found it closed would be told of on stderr.
    """
    with os.fdopen(said, "rb", buffering=0) as pipe:
        while (number := pipe.read(1)) and number[0] not in _SIGNALS:
            pass
        if number and not is_over.wait(PATIENCE_SECONDS):
            leave_nothing()
            clear = (
                b"\r\x1b[2K\x1b[?25h" if sys.stderr.isatty() else b""
            )  # the bar's line, and the cursor it had hidden
            with suppress(OSError):
                # not through a console, whose lock the main thread may hold
                os.write(2, clear + says().encode() + b"\n")
            os._exit(EXIT_CODE)
        while pipe.read(64):
            pass
