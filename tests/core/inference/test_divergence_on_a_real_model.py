"""On the shipped, really trained model paths part by rounding: in bfloat16 visibly, in float32 a thousand times less.

Which paths part and which do not is the machine's affair (docs/paths.md has what one machine showed), so only what
holds wherever a product of one row takes another kernel than a product of many is asserted.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from core.inference.models.model import LoadedModel, load_model
from tests.core.inference.sameness import HAS_MATRIX_TILES, logits_of

SAMPLES = Path(__file__).parents[3] / "sample_runs"
POSITIONS = 49  # one more than three blocks of 16: the last token is computed alone

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not (SAMPLES / "model" / "config.json").is_file(), reason="sample_runs/model is not built"),
]


@pytest.fixture(scope="module")
def shipped() -> Callable[[str], LoadedModel]:
    return cache(lambda dtype: load_model(str(SAMPLES / "model"), dtype=dtype, device="cpu"))


def prompt(loaded: LoadedModel) -> list[int]:
    return loaded.tokenizer((SAMPLES / "prompts" / "scheduler.txt").read_text())["input_ids"][:POSITIONS]


@pytest.mark.spread(4)
@pytest.mark.parametrize("path", ["decode", "static", "decode+batch:2", "prefill+attn:eager"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_paths_that_part(path: str, dtype: str, shipped: Callable[[str], LoadedModel]) -> None:
    if HAS_MATRIX_TILES and (path, dtype) == ("static", "bfloat16"):
        pytest.skip("products of one row may go through the tiles that products of many rows go through")
    loaded = shipped(dtype)
    reference, variant = (logits_of(name, loaded, prompt(loaded)) for name in ("prefill", path))
    assert (reference != variant).any()


@pytest.mark.spread(2)
@pytest.mark.parametrize("path", ["prefill", "decode", "static", "blocks:16"])
def test_reruns_agree_bit_for_bit(path: str, shipped: Callable[[str], LoadedModel]) -> None:
    loaded = shipped("bfloat16")
    assert torch.equal(logits_of(path, loaded, prompt(loaded)), logits_of(path, loaded, prompt(loaded)))


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    "path", ["decode", "static", "chunked:7", "reuse:31", "blocks:16", "decode+batch:3+row:2", "prefill+pad:left:5"]
)
def test_what_parts_in_bfloat16_is_a_thousand_times_closer_in_float32(
    path: str, shipped: Callable[[str], LoadedModel]
) -> None:
    """Rounding scales with the dtype's unit, 2^-8 against 2^-24; a wrong cache or position would not."""
    narrow, wide = shipped("bfloat16"), shipped("float32")
    exact = logits_of("prefill", wide, prompt(wide))
    rounding = float((logits_of("prefill", narrow, prompt(narrow)).float() - exact).abs().max())
    assert float((logits_of(path, wide, prompt(wide)) - exact).abs().max()) < rounding / 1000


BATCHED = """
from core.inference.models.model import load_model
from tests.core.inference.sameness import logits_of
loaded = load_model("sample_runs/model", dtype="bfloat16", device="cpu")
ids = loaded.tokenizer(open("sample_runs/prompts/parser.txt").read())["input_ids"]
alone, batched = (logits_of(path, loaded, ids) for path in ("decode", "decode+batch:2"))
print((alone != batched).float().mean().item())
"""


@pytest.mark.thorough
@pytest.mark.skipif(not torch.cpu._is_avx512_bf16_supported(), reason="the processor has no bfloat16 instructions")
def test_a_batch_parts_from_decode_alone_where_one_row_takes_another_kernel() -> None:
    """oneDNN is held to AVX-512 with bfloat16: with matrix tiles, and without either, one kernel takes both."""
    limited = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    done = subprocess.run(
        [sys.executable, "-c", BATCHED], cwd=SAMPLES.parent, env=limited, capture_output=True, text=True, check=True
    )
    assert float(done.stdout) > 0
