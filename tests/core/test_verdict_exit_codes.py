"""Exit codes of verdicts."""

import pytest

from core.verdict import exit_code


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ([None], 0),
        (["rounding"], 0),
        (["rounding", "misplaced"], 1),
        (["Rounding"], 1),
    ],
)
def test_a_verdict_that_this_build_does_not_know_fails(verdicts, code):
    assert exit_code(verdicts) == code
