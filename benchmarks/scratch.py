"""Where a benchmark writes: on the disk that runs lie on (/tmp may be memory), in an ignored folder
that no commit picks up.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / ".bench"


@contextmanager
def scratch() -> Iterator[Path]:
    """An empty folder, gone afterwards.

    A killed benchmark leaves it in `.bench/`, which may be deleted at any time.
    """
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        yield Path(name)
