"""A result for tests has no truth value of its own."""

import numpy as np
import pytest
import torch

from core.closeness.comparison import compare_errors
from core.closeness.operation import judge_op
from core.runs.reports.gate import GateReport
from core.verdict import BUG_SUSPECTED, Verdict

EXACT = np.random.default_rng(0).standard_normal((4, 64))
ROUNDED = EXACT.astype(np.float32)


@pytest.mark.parametrize(
    "result",
    [
        Verdict(BUG_SUSPECTED, "", ()),
        GateReport.__new__(GateReport),
        compare_errors(2 * ROUNDED, ROUNDED, EXACT),
        judge_op(torch.sin, torch.cos, torch.ones(4, 64)),
    ],
    ids=lambda result: type(result).__name__,
)
def test_an_assert_of_a_result_does_not_pass_whatever_was_found(result):
    with pytest.raises(TypeError, match=r"call check\(\)"):
        assert result
