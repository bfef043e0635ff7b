"""Modules taken one at a time: a planted fault is named where it is and nowhere after it, and rounding names none."""

from __future__ import annotations

import pytest
import torch

from benchmarks.verdicts.tiny_models import tiny_model, tiny_prompts
from core.errors import CaptureError
from core.inference.controls.modules_alone import fits, modules_alone
from core.inference.paths.engines import side_of
from core.judging.module_evidence import LARGEST_ALONE, alone_evidence

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def loaded():
    return tiny_model("llama")


def alone(loaded, engine):
    with torch.inference_mode():
        return modules_alone(loaded, tiny_prompts(loaded)[0], side_of(engine))


def with_fault(name, change):
    """An engine that is the model with one module's output changed."""

    def engine(model, ids):
        def changed(_, __, output):
            return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

        handle = model.get_submodule(name).register_forward_hook(changed, prepend=True)
        try:
            return model(ids[None]).logits[0]
        finally:
            handle.remove()

    return engine


@pytest.mark.parametrize("path", ["decode", "decode+batch:4", "prefill+pad:left:3", "prefill+attn:eager"])
def test_of_the_same_function_no_module_differs_by_more_than_rounding(loaded, path):
    found = alone(loaded, path)
    assert len(found.names) > 30
    assert found.ratios.max() < LARGEST_ALONE / 2


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.input_layernorm",
        "model.layers.1.self_attn.v_proj",
        "model.layers.1.self_attn",
        "model.layers.2.mlp.gate_proj",
        "model.layers.2.mlp",
        "model.norm",
    ],
)
def test_a_fault_is_named_at_its_module_and_not_at_those_that_it_reaches(loaded, name):
    found = alone(loaded, with_fault(name, lambda output: output * 1.0001))
    row = alone_evidence("c", found.names, found.ratios, found.side_rms, found.own_rms, "engine")
    beyond = set(row.figures.modules_beyond)
    # what stands in the module computes as it did; what is made of its output alone bears the fault's name
    assert name in beyond or f"{name}.o_proj" in beyond or f"{name}.down_proj" in beyond
    assert len(beyond) == 1
    assert row.figures.largest_ratio_of_others < LARGEST_ALONE / 2


def test_one_position_is_enough(loaded):
    def change(output):
        output = output.clone()
        output[:, 11] *= 1.0001
        return output

    found = alone(loaded, with_fault("model.layers.1.self_attn.k_proj", change))
    beyond = [name for name, ratio in zip(found.names, found.ratios, strict=True) if ratio > LARGEST_ALONE]
    assert beyond == ["model.layers.1.self_attn.k_proj"]


def test_nan_is_told_where_it_begins_and_no_module_after_it_is_blamed(loaded):
    def change(output):
        output = output.clone()
        output[:, 3, 0] = float("nan")
        return output

    with pytest.raises(CaptureError, match=r"first at model\.layers\.1\.mlp\.up_proj"):
        alone(loaded, with_fault("model.layers.1.mlp.up_proj", change))


def test_the_model_is_as_it_was(loaded):
    prompt = torch.tensor([tiny_prompts(loaded)[0]])
    with torch.inference_mode():
        before = loaded.model(prompt).logits
        alone(loaded, "decode")
        assert torch.equal(loaded.model(prompt).logits, before)
    assert fits(loaded, 10) == 10


def test_an_engine_that_shows_no_module_is_refused(loaded):
    weight = loaded.model.lm_head.weight
    with pytest.raises(CaptureError, match="hands on no module's outputs"):
        alone(loaded, lambda model, ids: weight[ids][:, :8] @ weight[:, :8].T)
