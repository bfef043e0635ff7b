"""The floor is the rms of reorderings, the pair is measured alike, and float32 has the very same
weights.
"""

import copy
import math

import numpy as np
import pytest
import torch

from core.errors import CaptureError
from core.inference.controls.reordering import reorder
from core.inference.controls.rounding_floor import rounding_floor
from core.inference.models import devices
from core.inference.models.dtypes import in_float32
from core.inference.paths.engines import divergence, divergence_of, side_of
from core.numerics.formats import format_named
from tests.core.inference.paths.test_modifiers import state
from tests.core.inference.sameness import logits_of, on_cpu, tokens


def rms_by_numpy(reference, variant):
    """Over all elements, and position by position, in float64."""
    sides = [side.float().numpy().astype(np.float64) for side in (reference, variant)]
    squares = np.square(sides[0] - sides[1])
    return math.sqrt(squares.mean()), [math.sqrt(row.mean()) for row in squares]


@pytest.mark.spread(1)
@pytest.mark.model
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_floor_is_the_rms_of_each_reordering(dtype, model_folders):
    loaded = on_cpu(model_folders["mixtral"], dtype)
    prompts = [tokens(loaded), tokens(loaded)[::-1][:11]]
    found = rounding_floor(
        loaded,
        prompts,
        (3, 9),
        row_ulps_of=format_named(dtype),
    )
    assert found.maps == 15
    assert found.squares.shape == (2, sum(map(len, prompts)))
    for seed, squares in zip((3, 9), found.squares, strict=True):
        expected = []
        for prompt in prompts:
            plain = logits_of("prefill", loaded, prompt)
            with reorder(loaded.model, seed):
                other = logits_of("prefill", loaded, prompt)
            expected += rms_by_numpy(plain, other)[1]
        assert np.sqrt(squares) == pytest.approx(expected, rel=1e-12)
    # so small a model moves next to nothing in 16 bits
    assert found.row_ulps > 0 or dtype == "bfloat16"


@pytest.mark.model
def test_a_pair_is_measured_by_the_same_rule(llama):
    prompts = [tokens(llama), tokens(llama)[::-1][:11]]
    names = ("prefill", "decode")
    with torch.inference_mode():
        found = divergence_of(llama, prompts, (side_of("prefill"), side_of("decode")))
    sides = [torch.cat([logits_of(name, llama, ids) for ids in prompts]) for name in names]
    rms, by_position = rms_by_numpy(*sides)
    assert rms > 0
    assert found.rms == pytest.approx(rms, rel=1e-12)
    assert np.sqrt(found.squares) == pytest.approx(by_position, rel=1e-12)


def test_only_elements_finite_on_both_sides_count():
    inf = float("inf")
    nan = float("nan")
    plain = torch.tensor(
        [
            [1.0, 2.0, -inf, nan],
            [0.0, nan, inf, 5.0],
            [inf, nan, -inf, inf],
        ]
    )
    other = torch.tensor(
        [
            [4.0, 2.0, -inf, nan],
            [4.0, 1.0, -inf, nan],
            [inf, nan, -inf, inf],
        ]
    )
    found = divergence(plain, lambda _, emit: (emit(0, other[:2]), emit(2, other[2:])), ())
    # NaN against 1, inf against -inf, 5 against NaN
    assert found.nonfinite_mismatch == 3
    assert found.squares.tolist() == [4.5, 16.0, 0.0]


@pytest.mark.spread(5)
@pytest.mark.model
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "name",
    ["llama", "gpt2", "qwen2", "gemma2", "gemma3", "mixtral", "mamba"],
)
def test_widened_it_computes_in_float32_with_the_very_same_values(
    name,
    dtype,
    model_folders,
):
    narrow = on_cpu(model_folders[name], dtype)
    before = state(narrow)
    ids = torch.tensor([tokens(narrow)])
    with torch.inference_mode():
        plain = narrow.model(ids).logits
        expected = copy.deepcopy(narrow.model).float()(ids).logits
        with in_float32(narrow) as widened:
            assert widened.dtype == "float32"
            assert torch.equal(logits_of("prefill", widened), expected[0])
    assert not torch.equal(plain.float(), expected)
    assert state(narrow) == before


def test_too_little_memory_for_float32_is_said_beforehand(llama_bfloat16, monkeypatch):
    monkeypatch.setattr(devices, "free_bytes", lambda device: 1000)
    with (
        pytest.raises(CaptureError, match=r"take another 314\.3 KB; cpu"),
        in_float32(llama_bfloat16),
    ):
        pass
