"""What `make test` leaves to `make thorough` of a product leaves out no value of either side, and no pair
altogether.
"""

from __future__ import annotations

import pytest

from tests.covering import covering


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 3), (11, 32), (11, 12), (5, 2), (11, 8)])
def test_every_value_is_met_and_every_pair_is_kept(rows, columns):
    pairs = covering(range(rows), range(100, 100 + columns), whole=(0,))
    assert [case.values for case in pairs] == [(i, 100 + j) for i in range(rows) for j in range(columns)]
    quick = [case.values for case in pairs if not case.marks]
    assert {i for i, _ in quick} == set(range(rows))
    assert {j for _, j in quick} == set(range(100, 100 + columns))
    assert {(0, 100 + j) for j in range(columns)} <= set(quick)
    assert len(quick) <= columns + max(rows, columns)
    assert all(mark.name == "thorough" for case in pairs for mark in case.marks)
