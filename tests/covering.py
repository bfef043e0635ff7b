"""Products of cases that are too large for `make test`: it runs a part in which every value is met, `make thorough` the
rest.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import pytest


def covering(first: Sequence[Any], second: Sequence[Any], *, whole: Container[Any] = ()) -> list[Any]:
    """Every pair as parameters. Not thorough are those whose first is of `whole`, and a diagonal through all of
    them.
    """
    return [
        pytest.param(
            one,
            other,
            marks=() if one in whole or _is_diagonal(i, len(first), j, len(second)) else pytest.mark.thorough,
        )
        for i, one in enumerate(first)
        for j, other in enumerate(second)
    ]


def _is_diagonal(i: int, rows: int, j: int, columns: int) -> bool:
    """As many cells as the longer side has, at least one in each row and each column."""
    return j % rows == i if columns >= rows else i % columns == j
