"""Where a benchmark writes: on the disk that runs lie on (/tmp may be memory), in an ignored folder
that no commit picks up.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / ".bench"


def figures_of_child(code: str, *arguments: object, **environment: str) -> list[float]:
    """The numbers that a program prints last: a peak of memory never falls, so each has a process
    of its own.
    """
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ | environment,
    )
    return [float(word) for word in done.stdout.splitlines()[-1].split()]


@contextmanager
def scratch() -> Iterator[Path]:
    """An empty folder, gone afterwards.

    A killed benchmark leaves it in `.bench/`, which may be deleted at any time.
    """
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        yield Path(name)
