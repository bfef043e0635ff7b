"""Models of real shapes with random weights: nothing is downloaded, and kernels take the shapes
that engines meet.

Random weights say nothing about how often a real checkpoint flips; they do have the sizes of its
matrix products.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from core.inference.models.devices import usable_device
from core.inference.models.model import LoadedModel
from core.inference.models.torch_errors import quiet

TOKENIZER = Path(__file__).parents[1] / "sample_runs" / "model"
_KEYS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)
SHAPES: dict[str, dict[str, int]] = {
    name: dict(zip(_KEYS, sizes, strict=True))
    for name, sizes in {
        "8b": (4096, 14336, 32, 32, 8, 128256),  # of the published Llama 3 configurations
        "3b": (3072, 8192, 28, 24, 8, 128256),
        "1b": (2048, 8192, 16, 32, 8, 128256),
        "wide": (128, 256, 1, 4, 2, 128256),  # small enough for a processor
        "tiny": (64, 128, 2, 4, 2, 4096),
    }.items()
}


def random_model(
    shape: str,
    *,
    dtype: str = "bfloat16",
    device: str | None = None,
    context: int = 8192,
) -> LoadedModel:
    """A Llama of that shape, its weights drawn on the device from seed 0."""
    target = usable_device(device)
    config = LlamaConfig(
        **SHAPES[shape],
        max_position_embeddings=context,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    with quiet(), torch.device(target):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    model.eval().requires_grad_(False)
    return LoadedModel(
        model=model,
        tokenizer=AutoTokenizer.from_pretrained(TOKENIZER),
        name=f"llama-{shape}-random-weights",
        revision="seed 0",
        dtype=dtype,
        device=str(target),
    )


def random_prompt(loaded: LoadedModel, positions: int) -> list[int]:
    """Token ids that the tokenizer knows, the same at every call."""
    most = min(len(loaded.tokenizer), loaded.token_limit)
    return torch.randint(1, most, (positions,), generator=torch.Generator().manual_seed(0)).tolist()
