"""Models of real shapes with random weights: nothing is downloaded, and kernels take the shapes that engines meet.

Random weights say nothing about how often a real checkpoint flips; they do have the sizes of its matrix products.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from core.inference.models.devices import name_of_device, usable_device
from core.inference.models.model import LoadedModel
from core.inference.models.torch_errors import quiet

TOKENIZER = Path(__file__).parents[2] / "sample_runs" / "model"
SHAPES: dict[str, dict[str, int]] = {
    # hidden, MLP, layers, heads, key/value heads, vocabulary: of the published Llama 3 configurations
    "8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "3b": {
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    # not published: small enough for a processor, and for a test of this script
    "wide": {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 128256,
    },
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 4096,
    },
}


def random_model(shape: str, *, dtype: str = "bfloat16", device: str | None = None, context: int = 8192) -> LoadedModel:
    """A Llama of that shape, its weights drawn on the device from seed 0."""
    target = usable_device(device)
    config = LlamaConfig(
        **SHAPES[shape], max_position_embeddings=context, bos_token_id=0, eos_token_id=0, pad_token_id=0
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
        device_name=name_of_device(target),
        context=context,
        vocab_size=config.vocab_size,
    )


def random_prompt(loaded: LoadedModel, positions: int) -> list[int]:
    """Token ids that the tokenizer knows, the same at every call."""
    most = min(len(loaded.tokenizer), loaded.token_limit)
    return torch.randint(1, most, (positions,), generator=torch.Generator().manual_seed(0)).tolist()
