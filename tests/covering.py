"""Products of cases that are too large for `make test`: it runs a part in which every value is met,
`make thorough` the rest.
"""

import itertools

import pytest
from _pytest.mark import ParameterSet


def covering(first, second, *, whole=()):
    """Every pair as parameters. Not thorough are those whose first is of `whole`, and a diagonal
    through all of them.
    """
    params = []
    for (i, one), (j, other) in itertools.product(enumerate(first), enumerate(second)):
        is_quick = one in whole or _is_diagonal(i, len(first), j, len(second))
        params.append(
            pytest.param(one, other, marks=() if is_quick else pytest.mark.thorough),
        )
    return params


def _is_diagonal(i, rows, j, columns):
    """As many cells as the longer side has, at least one in each row and each column."""
    return j % rows == i if columns >= rows else i % columns == j


def thorough(cases):
    """Cases that are left to `make thorough`; a tuple is a case of several parameters."""
    params = []
    for case in cases:
        if not isinstance(case, ParameterSet):
            case = pytest.param(*(case if isinstance(case, tuple) else (case,)))
        params.append(pytest.param(*case.values, id=case.id, marks=pytest.mark.thorough))
    return params


def few(cases, *quick):
    """The cases, of which all but those of `quick` are left to `make thorough`."""
    return [case if case in quick else thorough([case])[0] for case in cases]
