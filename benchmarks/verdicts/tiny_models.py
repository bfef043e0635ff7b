"""Tiny models of random weights, one for each kind of architecture that a fault can hide in; no
network, no file.

Every parameter is drawn, biases and norms too: transformers leaves biases at 0 and norms at 1, and
a dropped bias of 0 is no fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    PreTrainedTokenizerFast,
)

from core.inference.models.model import LoadedModel, loaded_from
from core.inference.models.torch_errors import quiet

TEXT = (
    "def walk(self, path): return [step for step in path if step]\nThe ferry left at ten past six,"
    " café lamps – still lit.\n"
)
PROMPTS = (
    "def walk(self, path): return [step for step in path if step]\nThe ferry left at ten past six",
    (
        "café lamps – still lit. The path left at six, past ten steps of the ferry; return self if"
        " it walks past the lamps"
    ),
)
TOKENS = 48
# the windowed layers' is far shorter than the prompts, so that caches do drop tokens
WINDOW = 8
COMMON: dict[str, Any] = {
    "vocab_size": 384,
    # with the usual 0.02 attention is so even that a wrong key would hardly show
    "initializer_range": 0.15,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
SHAPE: dict[str, Any] = {
    **COMMON,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
}


def _mixtral() -> MixtralConfig:
    return MixtralConfig(**SHAPE, num_local_experts=4, num_experts_per_tok=2, sliding_window=None)


# One windowed and one full layer in turn; soft caps low enough to bite at these weights.
_GEMMA2 = {
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 10.0,
}
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**SHAPE),
    "gpt2": lambda: GPT2Config(**COMMON, n_embd=64, n_layer=3, n_head=4, n_positions=96),
    "gemma2": lambda: Gemma2Config(**SHAPE, **_GEMMA2, sliding_window=WINDOW),
    "mixtral": _mixtral,
    "mixtral-ties": _mixtral,
    "mistral-window": lambda: MistralConfig(**SHAPE, sliding_window=WINDOW),
}


def tiny_model(
    name: str,
    dtype: str = "float32",
    seed: int = 7,
    device: str = "cpu",
) -> LoadedModel:
    """A model of CONFIGS with its tokenizer, ready for forwards."""
    return model_of(CONFIGS[name](), dtype, seed, device, ties_experts=name == "mixtral-ties")


def model_of(
    config,
    dtype: str = "float32",
    seed: int = 7,
    device: str = "cpu",
    *,
    ties_experts: bool = False,
) -> LoadedModel:
    """A model of a config, every parameter drawn."""
    generator = torch.Generator().manual_seed(seed)
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
            if ties_experts:
                _tie_two_experts(model, generator)
        model = model.to(device, getattr(torch, dtype)).eval().requires_grad_(False)
        return loaded_from(model, _tokenizer())


def _tie_two_experts(model, generator: torch.Generator) -> None:
    """The router's scores of the first two experts nearly tie at every token, so that in float32
    rounding chooses between them.
    """
    for layer in model.model.layers:
        gate = layer.mlp.gate.weight
        gate[1] = gate[0] * (1 + 1e-7 * torch.randn(gate[0].shape, generator=generator))


def tiny_prompts(loaded: LoadedModel, tokens: int = TOKENS) -> list[tuple[int, ...]]:
    """Token ids of the prompts, at most `tokens` each."""
    return [tuple(loaded.tokenizer(text)["input_ids"][:tokens]) for text in PROMPTS]


def _tokenizer() -> PreTrainedTokenizerFast:
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        [TEXT] * 3,
        vocab_size=300,
        special_tokens=["<|start|>"],
        show_progress=False,
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer,
        bos_token="<|start|>",
        eos_token="<|start|>",
        unk_token="<|start|>",
    )
    # CTranslate2 needs that token, and as many as the model has; the tokenizer of Qwen 2 adds the
    # last one here
    unused = [f"<|{number}|>" for number in range(len(tokenizer) + 1, COMMON["vocab_size"])]
    tokenizer.add_tokens([*unused, "<|endoftext|>"])
    return tokenizer
