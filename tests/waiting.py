"""Waiting for what a thread, a process or a server does: asked again and again, with an end."""

import time
from typing import TypeVar

PATIENCE_SECONDS = 300.0  # none takes so long, however many others are at work on the machine
EVERY_SECONDS = 0.02
Found = TypeVar("Found")


def until(
    look,
    *,
    seconds=PATIENCE_SECONDS,
    every=EVERY_SECONDS,
    about=lambda: "",
):
    """The first answer of `look` that is true; AssertionError after so many seconds, with the last
    answer and what `about` says.
    """
    ends = time.monotonic() + seconds
    while not (result := look()):
        if time.monotonic() > ends:
            raise AssertionError(f"still {result!r} after {seconds:g} seconds {about()}".strip())
        time.sleep(every)
    return result
