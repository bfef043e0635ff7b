"""The floor is the rms of reorderings, the pair is measured alike, and in float32 a bug stands above it that bfloat16
hides.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path as FilePath

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from core.errors import CaptureError
from core.inference.controls.reordering import reorder
from core.inference.controls.rounding_floor import rounding_floor
from core.inference.models import memory
from core.inference.models.dtypes import in_float32
from core.inference.models.model import LoadedModel, load_model
from core.inference.models.torch_errors import quiet
from core.inference.paths.bases import BASES
from core.inference.paths.batch import Emit, PromptBatch
from core.inference.paths.engines import divergence, divergence_of, side_of
from core.inference.paths.grammar import Base
from core.judging.divergence import Divergence
from core.judging.judge import OWN
from core.numerics.formats import format_named
from tests.core.inference.paths.test_modifiers import state
from tests.core.inference.sameness import logits_of, tokens

SAMPLES = FilePath(__file__).parents[4] / "sample_runs"
needs_the_shipped_model = pytest.mark.skipif(
    not (SAMPLES / "model" / "config.json").is_file(), reason="sample_runs/model is not built"
)


@pytest.fixture(scope="module")
def shipped() -> LoadedModel:
    return load_model(str(SAMPLES / "model"), dtype="bfloat16", device="cpu")


@pytest.fixture(scope="module")
def shipped_prompts(shipped: LoadedModel) -> list[list[int]]:
    texts = [file.read_text() for file in sorted((SAMPLES / "prompts").glob("*.txt"))]
    return [shipped.tokenizer(text)["input_ids"][:48] for text in texts]


@pytest.fixture(scope="module")
def saved_in(model_folders: dict[str, FilePath], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], str]:
    """The folder of a tiny model whose weights are saved in a narrower dtype."""

    @cache
    def save(name: str, dtype: str) -> str:
        folder = tmp_path_factory.mktemp(f"{name}-{dtype}")
        loaded = load_model(str(model_folders[name]), dtype=dtype, device="cpu")
        with quiet():
            loaded.model.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)
        return str(folder)

    return save


# What is measured.


def rms_by_numpy(reference: torch.Tensor, variant: torch.Tensor) -> tuple[float, list[float]]:
    """Over all elements, and position by position, in float64."""
    squares = np.square(reference.float().numpy().astype(np.float64) - variant.float().numpy().astype(np.float64))
    return math.sqrt(squares.mean()), [math.sqrt(row.mean()) for row in squares]


@pytest.mark.spread(1)
@pytest.mark.model
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_floor_is_the_rms_of_each_reordering(dtype, model_folders) -> None:
    loaded = load_model(str(model_folders["mixtral"]), dtype=dtype, device="cpu")
    prompts = [tokens(loaded), tokens(loaded)[::-1][:11]]
    found = rounding_floor(loaded, prompts, (3, 9), row_ulps_of=format_named(dtype))
    assert (found.maps, found.squares.shape) == (15, (2, sum(map(len, prompts))))
    for seed, squares in zip((3, 9), found.squares, strict=True):
        expected = []
        for prompt in prompts:
            plain = logits_of("prefill", loaded, prompt)
            with reorder(loaded.model, seed):
                other = logits_of("prefill", loaded, prompt)
            expected += rms_by_numpy(plain, other)[1]
        assert np.sqrt(squares) == pytest.approx(expected, rel=1e-12)
    assert found.row_ulps is not None
    assert dtype == "bfloat16" or found.row_ulps > 0  # so small a model moves next to nothing in 16 bits


def pair_divergence(
    loaded: LoadedModel, prompts: list[list[int]], reference: str, variant: str, dtype: str = ""
) -> Divergence:
    with quiet(), torch.inference_mode(), in_float32(loaded) if dtype == "float32" else nullcontext(loaded) as model:
        return divergence_of(model, prompts, (side_of(reference), side_of(variant)))


@pytest.mark.model
def test_a_pair_is_measured_by_the_same_rule(llama: LoadedModel) -> None:
    prompts = [tokens(llama), tokens(llama)[::-1][:11]]
    found = pair_divergence(llama, prompts, "prefill", "decode")
    both = [torch.cat([logits_of(path, llama, prompt) for prompt in prompts]) for path in ("prefill", "decode")]
    rms, by_position = rms_by_numpy(*both)
    assert rms > 0
    assert found.rms == pytest.approx(rms, rel=1e-12)
    assert np.sqrt(found.squares) == pytest.approx(by_position, rel=1e-12)
    assert pair_divergence(llama, prompts, "decode", "decode").rms == 0


def test_only_elements_finite_on_both_sides_count() -> None:
    inf, nan = float("inf"), float("nan")
    plain = torch.tensor([[1.0, 2.0, -inf, nan], [0.0, nan, inf, 5.0], [inf, nan, -inf, inf]])
    other = torch.tensor([[4.0, 2.0, -inf, nan], [4.0, 1.0, -inf, nan], [inf, nan, -inf, inf]])
    found = divergence(plain, lambda _, emit: (emit(0, other[:2]), emit(2, other[2:])), ())
    assert found.nonfinite_mismatch == 3  # NaN against 1, inf against -inf, 5 against NaN
    assert found.squares.tolist() == [4.5, 16.0, 0.0]


# float32.


@pytest.mark.spread(5)
@pytest.mark.model
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen2", "gemma2", "gemma3", "mixtral", "mamba"])
def test_widened_it_computes_in_float32_with_the_very_same_values(name, dtype, saved_in) -> None:
    narrow = load_model(saved_in(name, dtype), dtype=dtype, device="cpu")
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
    if not name.startswith(
        "gemma"
    ):  # the scale of its embeddings is a buffer, rounded as it was loaded: another function
        wide = load_model(saved_in(name, dtype), dtype="float32", device="cpu")
        assert torch.equal(logits_of("prefill", wide), expected[0])


@pytest.mark.model
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_widening_is_undone_however_it_ends(error: type[BaseException], llama_bfloat16: LoadedModel) -> None:
    before = state(llama_bfloat16)
    with pytest.raises(error), in_float32(llama_bfloat16):
        raise error
    assert state(llama_bfloat16) == before


@pytest.mark.model
def test_the_floor_in_float32_is_that_of_the_model_loaded_in_float32(saved_in: Callable[[str, str], str]) -> None:
    narrow, wide = (
        load_model(saved_in("llama", "bfloat16"), dtype=dtype, device="cpu") for dtype in ("bfloat16", "float32")
    )
    with in_float32(narrow) as widened:
        found = rounding_floor(widened, [tokens(narrow)], (0, 1))
    expected = rounding_floor(wide, [tokens(narrow)], (0, 1))
    assert np.array_equal(found.squares, expected.squares)
    before = state(narrow)
    rounding_floor(narrow, [tokens(narrow)], (0, 1))
    assert state(narrow) == before


# The microscope, on weights that were really trained.


def _one_value_scaled(batch: PromptBatch, emit: Emit) -> None:
    """decode, but one cached value of one head is 1 % too large."""
    cache_ = DynamicCache(config=batch.loaded.model.config)
    for position in range(batch.positions):
        batch.forward(position, position + 1, emit, cache_)
        if position == 3:
            cache_.layers[0].values[:, 0, 3].mul_(1.01)


@pytest.mark.model
@needs_the_shipped_model
def test_a_bug_below_the_floor_of_bfloat16_stands_above_that_of_float32(shipped, shipped_prompts, monkeypatch) -> None:
    monkeypatch.setitem(BASES, "scaled", Base(_one_value_scaled))
    ratios = {}
    for dtype in ("bfloat16", "float32"):
        with in_float32(shipped) if dtype == "float32" else nullcontext(shipped) as model:
            noise = rounding_floor(model, shipped_prompts, range(2))
        squares = pair_divergence(shipped, shipped_prompts, "prefill", "scaled", dtype).squares
        ratios[dtype] = np.sqrt(squares.mean() / noise.squares.mean())
    assert ratios["bfloat16"] < OWN.over_all
    assert ratios["float32"] > 10


# Refusals.


def test_too_little_memory_for_float32_is_said_beforehand(llama_bfloat16, monkeypatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1000)
    with pytest.raises(CaptureError, match=r"take another 314\.3 KB; cpu"), in_float32(llama_bfloat16):
        pass
