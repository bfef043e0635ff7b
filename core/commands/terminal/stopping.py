"""Stop a command within two seconds of Ctrl-C or a request to end, whatever the main thread is
inside of.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from typer import Exit

from ...runs.store.partial import remove_living
from .console import err, print_text

SENTENCE = "stopped; nothing was stored."
PATIENCE_SECONDS = 1.5
# as shells have it: 128 and the number of SIGINT
EXIT_CODE = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopping(says: Callable[[], str]) -> Iterator[None]:
    """Raise KeyboardInterrupt at the first signal; ignore later ones. says: the last line.

    Python raises it between two of its own instructions only, and one forward of a large model is a
    single call into C++. So a thread hears the signal too, and ends the process if the block is not
    over after PATIENCE_SECONDS.
    """
    is_over, is_asked = threading.Event(), False

    def interrupt(*_: object) -> None:
        nonlocal is_asked
        # a second Ctrl-C must not break off the cleanup after the first
        if not is_asked:
            is_asked = True
            raise KeyboardInterrupt

    def watch() -> None:
        with os.fdopen(read_end, "rb", buffering=0) as pipe:
            if pipe.read(1) and not is_over.wait(PATIENCE_SECONDS):
                remove_living()
                # the progress bar, and the hidden cursor
                clear = "\r\x1b[2K\x1b[?25h" if sys.stderr.isatty() else ""
                with suppress(OSError):
                    # the main thread may hold the console's lock
                    os.write(2, f"{clear}{says()}\n".encode())
                # sys.exit would end this thread alone
                os._exit(EXIT_CODE)
            # signals that come later need a reader
            pipe.read()

    if threading.current_thread() is not threading.main_thread():
        # only the main thread gets signals
        yield
        return
    read_end, write_end = os.pipe()
    # Python writes signals to descriptors that never block only
    os.set_blocking(write_end, False)
    handlers = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    earlier = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    threading.Thread(target=watch, name="ulpscope-stopping", daemon=True).start()
    try:
        yield
        is_over.set()
    except BaseException as error:
        # DuckDB makes a StoreError of an interrupt during a query
        if is_asked:
            raise KeyboardInterrupt from error
        is_over.set()
        raise
    finally:
        signal.set_wakeup_fd(earlier)
        os.close(write_end)
        for number, handler in handlers.items():
            # after a stop, signals stay ignored until the process has ended
            if not is_asked and handler is not None:
                signal.signal(number, handler)


@contextmanager
def stoppable(says: Callable[[], str] = lambda: SENTENCE) -> Iterator[None]:
    """Let Ctrl-C end the block with a sentence and EXIT_CODE; unfinished runs are removed."""
    try:
        with stopping(says):
            yield
    except KeyboardInterrupt:
        print_text(says(), err)
        raise Exit(EXIT_CODE) from None
