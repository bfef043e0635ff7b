"""The name of this package and of its command line: `core` and `python -m core` in a clone, `ulpscope` and `ulpscope`
where it is installed. Sentences that name a command to type take it from here.
"""

from __future__ import annotations

import os

OF_A_CLONE, INSTALLED = "python -m core", "ulpscope"  # a command that a run stores begins with either
COMMAND = INSTALLED if __name__.partition(".")[0] == "ulpscope" else OF_A_CLONE
CALLED = "ULPSCOPE_CALLED"  # a variable: how the launcher at the top of a clone was typed


def called() -> str:
    """Return the name by which a person calls this command line: the launcher as it was typed, else COMMAND."""
    return os.environ.get(CALLED) or COMMAND
