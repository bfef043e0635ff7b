"""Products of cases that are too large for `make test`: it runs a part in which every value is met,
`make thorough` the rest.
"""

import pytest
from _pytest.mark import ParameterSet


def covering(
    first,
    second,
    *,
    whole=(),
):
    """Every pair as parameters. Not thorough are those whose first is of `whole`, and a diagonal
    through all of them.
    """
    return [
        pytest.param(
            one,
            other,
            marks=()
            if one in whole or _is_diagonal(i, len(first), j, len(second))
            else pytest.mark.thorough,
        )
        for i, one in enumerate(first)
        for j, other in enumerate(second)
    ]


def _is_diagonal(i, rows, j, columns):
    """As many cells as the longer side has, at least one in each row and each column."""
    return j % rows == i if columns >= rows else i % columns == j


def thorough(cases):
    """Cases that are left to `make thorough`; a tuple is a case of several parameters."""
    return [
        pytest.param(
            *(
                case.values
                if isinstance(case, ParameterSet)
                else case
                if isinstance(case, tuple)
                else (case,)
            ),
            id=case.id if isinstance(case, ParameterSet) else None,
            marks=pytest.mark.thorough,
        )
        for case in cases
    ]


def few(cases, *quick):
    """The cases, of which all but those of `quick` are left to `make thorough`."""
    return [case if case in quick else thorough([case])[0] for case in cases]
