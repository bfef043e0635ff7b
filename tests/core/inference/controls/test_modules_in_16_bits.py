"""Faults of one module in 16 bits that hide in the rounding of the logits: the verdict is open, and
the module is named; other ways to compute the same pass.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.verdicts.engines import alter, in_16_bits_only, layers, replacing
from benchmarks.verdicts.mutations import activated
from benchmarks.verdicts.sixteen import SMALL
from benchmarks.verdicts.tiny_models import tiny_prompts
from benchmarks.verdicts.variations import in_float64, in_two_halves, scores_rounded
from core.checks.modules_in_16_bits import (
    LARGEST_IN_16_BITS,
    MODULE_ROUNDING,
    ModuleRounding,
    ModuleRoundingFigures,
    module_rounding_row,
)
from core.errors import CaptureError
from core.evidence import MISSING, PASSED
from core.inference.controls import judge_model
from core.inference.controls.judge_model import judge
from core.inference.controls.modules_alone import module_rounding
from core.inference.models.torch_errors import quiet
from core.inference.paths.engines import side_of
from core.verdict import BUG_SUSPECTED, IDENTICAL, ROUNDING, UNDECIDED
from tests.core.evidence import rows_of

pytestmark = pytest.mark.model
FAULTS = {case.name: case.engine for case in SMALL}


def modules_of(verdict):
    return rows_of(verdict.evidence, MODULE_ROUNDING)[0]


class TruncatedTable(torch.nn.Module):
    """SiLU whose sigmoid is that of the next lower multiple of 1/32."""

    def forward(self, x):
        place = (32 * x.float()).floor() / 32
        return (x.float() * place.sigmoid()).to(x.dtype)


def changing(owner_of, name, change):
    """An attribute of a part of the model is another one."""
    return alter(
        replacing(
            lambda model: [(owner_of(model), name, change(getattr(owner_of(model), name)))],
        ),
    )


def next_value_of_some(weight):
    """A third of the weights is one unit in the last place larger."""
    moved = weight.clone()
    upwards = torch.full_like(moved[::3], torch.inf)
    moved[::3] = torch.nextafter(moved[::3], upwards)
    return torch.nn.Parameter(moved, requires_grad=False)


DIRECTIONS = {
    "epsilon 10x too large": (
        changing(
            lambda model: layers(model)[0].input_layernorm,
            "variance_epsilon",
            lambda epsilon: 10 * epsilon,
        ),
        "layers.0.input_layernorm",
        "a scale of 1-",
    ),
    "stale weight of a norm": (
        changing(lambda model: layers(model)[1].input_layernorm, "weight", next_value_of_some),
        "layers.1.input_layernorm",
        "the same in all rows",
    ),
    # large values round it away
    "constant": (
        changing(
            lambda model: layers(model)[1].self_attn.o_proj,
            "forward",
            lambda forward: lambda x: forward(x) + 0.001,
        ),
        "layers.1.self_attn",  # which hands on this output
        "the same at equal values",
    ),
    "truncated table": (alter(activated(TruncatedTable())), "layers.0.mlp", "a scale of 1-"),
    "rotary tables 0.3 % too large": (
        changing(
            lambda model: model.model.rotary_emb,
            "attention_scaling",
            lambda scaling: 1.003 * scaling,
        ),
        "layers.0.self_attn",
        "a scale of 1+",
    ),
    # bfloat16(log2 e) / log2 e - 1 = 0.0018
    "rounded log2(e)": (
        FAULTS["softmax by a rounded log2(e)"],
        "layers.0.self_attn",
        "a scale of 1+",
    ),
}


@pytest.mark.parametrize("fault", DIRECTIONS)
def test_a_fault_below_rounding_shows_by_the_direction_of_its_modules_errors(narrow, fault):
    engine, module, direction = DIRECTIONS[fault]
    side = side_of(in_16_bits_only(engine))
    with quiet(), torch.inference_mode():
        rounding = module_rounding(narrow, tiny_prompts(narrow), side)
    assert rounding.ratios.max() < LARGEST_IN_16_BITS
    assert rounding.directions[f"model.{module}"].startswith(direction)


@pytest.mark.parametrize("name", ["softmax by a rounded log2(e)", "sigmoid from 128 entries"])
def test_a_fault_within_the_rounding_of_the_logits_is_not_excused(narrow, name):
    engine = in_16_bits_only(FAULTS[name])
    verdict = judge(narrow, tiny_prompts(narrow), variant=engine)
    row = modules_of(verdict)
    assert verdict.name == UNDECIDED
    assert row.outcome == MISSING
    if name.startswith("sigmoid"):
        assert "mlp" in row.figures.modules_beyond[0]
    else:
        assert row.figures.modules_beyond == ()
        assert "model.layers.0.self_attn" in verdict.because


def test_a_fault_beyond_the_rounding_of_the_logits_has_its_module_named(narrow):
    too_large = changing(
        lambda model: layers(model)[1].mlp.down_proj,
        "forward",
        lambda forward: lambda x: 1.2 * forward(x),
    )
    verdict = judge(narrow, tiny_prompts(narrow), variant=in_16_bits_only(too_large))
    assert verdict.name == BUG_SUSPECTED
    assert modules_of(verdict).figures.modules_beyond[0] == "model.layers.1.mlp"


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
    verdict = judge(loaded, tiny_prompts(loaded), variant=side)
    if verdict.name == IDENTICAL:
        pytest.skip("this processor computes every bit alike")
    row = modules_of(verdict)
    assert row.outcome == PASSED
    assert row.figures.modules > 30


def rounding(*side):
    return ModuleRounding(
        tuple(f"model.layers.{n}.mlp" for n in range(len(side))),
        side=np.array(side, float),
        draws=np.ones((2, len(side))),
        directions={},
    )


@pytest.mark.parametrize(
    ("measured", "outcome", "beyond"),
    [
        (rounding(1.0, 3.9), PASSED, ()),
        (rounding(1.0, 4.1), MISSING, ("model.layers.1.mlp",)),
        (rounding(1.0, np.nan), MISSING, ("model.layers.1.mlp",)),
        # modules that hand on an output
        (replace(rounding(0.0, 1.0), draws=np.zeros((2, 2))), MISSING, ("model.layers.1.mlp",)),
        (replace(rounding(1.0), directions={"model.layers.0.mlp": "a constant"}), MISSING, ()),
    ],
)
def test_a_module_may_have_twice_the_errors_of_rounding_and_no_direction(measured, outcome, beyond):
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
    verdict = judge(narrow, tiny_prompts(narrow), variant=in_two_halves)
    row = modules_of(verdict)
    assert (verdict.name, row.outcome, row.says) == (ROUNDING, MISSING, says)
