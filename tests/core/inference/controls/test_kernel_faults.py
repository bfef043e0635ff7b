"""Faults that only the 16-bit kernels of an engine have, and other 16-bit kernels of the same function."""

from __future__ import annotations

import pytest

from benchmarks.verdicts.engines import in_16_bits_only
from benchmarks.verdicts.sixteen import FAULTS, PLACE, TWINS
from benchmarks.verdicts.tiny_models import tiny_prompts
from core.runs.file.evidence import FAILED, FLOAT32, PASSED, Check
from tests.covering import covering

pytestmark = pytest.mark.model
OF_ONE_TOKEN = {"residual added twice", "norm of the token before", "tile of the head", "another row of the batch"}


@pytest.mark.spread(4)
@pytest.mark.parametrize(("case", "dtype"), covering(list(FAULTS), ["bfloat16", "float16"]))
def test_a_fault_of_16_bits_alone_is_a_bug(case: str, dtype: str, narrow, half, judged) -> None:
    loaded = narrow if dtype == "bfloat16" else half
    prompts = tiny_prompts(loaded)
    verdict = judged(loaded, prompts, "prefill", in_16_bits_only(FAULTS[case](1.0)))
    assert verdict.is_bug_suspected
    assert {row.outcome for row in verdict.evidence if row.group == FLOAT32} == {PASSED}
    (drawn,) = (row for row in verdict.evidence if row.check is Check.DRAWN)
    assert drawn.outcome == FAILED
    if case in OF_ONE_TOKEN:
        assert verdict.first_place == (0, len(prompts[0]) + PLACE)


@pytest.mark.spread(3)
@pytest.mark.parametrize(("case", "dtype"), covering(list(TWINS), ["bfloat16", "float16"]))
def test_another_16_bit_kernel_of_the_same_function_is_rounding(case: str, dtype: str, narrow, half, judged) -> None:
    loaded = narrow if dtype == "bfloat16" else half
    verdict = judged(loaded, tiny_prompts(loaded), "prefill", in_16_bits_only(TWINS[case]))
    assert verdict.name == "rounding"
    (drawn,) = (row for row in verdict.evidence if row.check is Check.DRAWN)
    assert drawn.outcome == PASSED


def test_a_reference_that_is_not_a_plain_forward_is_asked_too(narrow, judged) -> None:
    engine = in_16_bits_only(FAULTS["residual added twice"](1.0))
    verdict = judged(narrow, tiny_prompts(narrow), engine, "decode")
    assert verdict.is_bug_suspected
    outcomes = {row.side: row.outcome for row in verdict.evidence if row.check is Check.DRAWN}
    assert sorted(outcomes.values()) == [FAILED, PASSED]
    assert outcomes["decode"] == PASSED
