"""Faults of one module in 16 bits that hide in the rounding of the logits: the verdict is open, and
the module is named; other ways to compute the same pass.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.verdicts.engines import in_16_bits_only
from benchmarks.verdicts.sixteen import SMALL
from benchmarks.verdicts.tiny_models import tiny_prompts
from benchmarks.verdicts.variations import in_float64, in_two_halves, scores_rounded
from core.checks.modules_in_16_bits import (
    MODULE_ROUNDING,
    ModuleRounding,
    ModuleRoundingFigures,
    module_rounding_row,
)
from core.errors import CaptureError
from core.evidence import MISSING, PASSED
from core.inference.controls import judge_model
from core.inference.controls.judge_model import judge
from core.verdict import ROUNDING, UNDECIDED

pytestmark = pytest.mark.model
FAULTS = {case.name: case.engine for case in SMALL}


def modules_of(verdict):
    return next(row for row in verdict.evidence if row.check is MODULE_ROUNDING)


@pytest.mark.parametrize("name", ["softmax by a rounded log2(e)", "sigmoid from 128 entries"])
def test_a_fault_within_the_rounding_of_the_logits_is_not_excused(narrow, name):
    engine = in_16_bits_only(FAULTS[name])
    verdict = judge(narrow, tiny_prompts(narrow), variant=engine)
    row = modules_of(verdict)
    assert verdict.name == UNDECIDED
    assert row.outcome == MISSING
    if name.startswith("sigmoid"):
        assert "mlp" in row.figures.modules_beyond[0]
    else:  # bfloat16(log2 e) / log2 e - 1 = 0.0018
        assert row.figures.modules_beyond == ()
        assert 0.001 < row.figures.score_scale < 0.0025


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "side",
    [
        scores_rounded,
        in_two_halves,
        in_float64,
        "decode+batch:3",
        "chunked:5",
        "prefill+attn:eager",
    ],
)
def test_other_ways_to_compute_the_same_pass(narrow, half, dtype, side):
    loaded = narrow if dtype == "bfloat16" else half
    row = modules_of(judge(loaded, tiny_prompts(loaded), variant=side))
    assert row.outcome == PASSED
    assert row.figures.modules > 30


def rounding(side, score_scale=0.0, own=0.0, drawn=(-1e-4, 1e-4)):
    count = len(side)
    return ModuleRounding(
        tuple(f"model.layers.{n}.mlp" for n in range(count)),
        side=np.array(side, float),
        draws=np.ones((2, count)),
        score_scale=score_scale,
        own_score_scale=own,
        drawn_score_scales=np.array(drawn),
    )


@pytest.mark.parametrize(
    ("measured", "outcome", "beyond"),
    [
        (rounding([1.0, 3.9]), PASSED, ()),
        (rounding([1.0, 4.1]), MISSING, ("model.layers.1.mlp",)),
        (rounding([1.0, np.nan]), MISSING, ("model.layers.1.mlp",)),
        # modules that hand on an output
        (replace(rounding([0.0, 1.0]), draws=np.zeros((2, 2))), MISSING, ("model.layers.1.mlp",)),
        # 3 spreads of 1e-4
        (rounding([1.0], score_scale=2.9e-4), PASSED, ()),
        (rounding([1.0], score_scale=-3.1e-4), MISSING, ()),
        # as far off as the model itself, and nearer to float32 than the model is
        (rounding([1.0], score_scale=9e-4, own=9e-4), PASSED, ()),
        (rounding([1.0], score_scale=0.0, own=9e-4), PASSED, ()),
        # a model that says no scale
        (rounding([1.0], score_scale=np.nan, own=np.nan, drawn=(np.nan, np.nan)), PASSED, ()),
    ],
)
def test_limits_of_a_module_and_of_the_scale_of_the_scores(measured, outcome, beyond):
    row = module_rounding_row(measured, "decode", "bfloat16")
    assert row.outcome == outcome
    assert isinstance(row.figures, ModuleRoundingFigures)
    assert row.figures.modules_beyond == beyond
    assert not row.figures.largest_ratio > 1.001e6


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (RuntimeError("no kernel"), "Not run: torch: RuntimeError: no kernel."),
        (CaptureError("'b' hands on no module."), "Not run: 'b' hands on no module."),
    ],
)
def test_a_check_that_cannot_run_says_why_and_decides_nothing(narrow, monkeypatch, error, says):
    def fail(*_):
        raise error

    monkeypatch.setattr(judge_model, "module_rounding", fail)
    verdict = judge(narrow, tiny_prompts(narrow), variant="chunked:5")
    row = modules_of(verdict)
    assert (verdict.name, row.outcome, row.says) == (ROUNDING, MISSING, says)
