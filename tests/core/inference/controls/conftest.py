"""Models of a few thousand parameters, and judgements of them that share what does not depend on
the variant.
"""

from functools import cache

import pytest
import torch
from transformers import DeepseekV3Config

from benchmarks.verdicts.tiny_models import model_of, tiny_model
from core.inference.controls.judge_model import JudgingSession, judge


@pytest.fixture(scope="session")
def small():
    return tiny_model("llama")


@pytest.fixture(scope="session")
def ties():
    """A router whose first two experts nearly tie at every token."""
    return tiny_model("mixtral-ties")


@pytest.fixture(scope="session")
def biased():
    """A router with a bias that chooses the experts and is no part of their weights."""
    config = DeepseekV3Config(
        vocab_size=384,
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        kv_lora_rank=16,
        q_lora_rank=None,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=16,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=4,
        topk_group=2,
        first_k_dense_replace=1,
        max_position_embeddings=96,
        initializer_range=0.15,
    )
    loaded = model_of(config)
    bias = loaded.model.model.layers[1].mlp.gate.e_score_correction_bias
    generator = torch.Generator().manual_seed(3)
    bias.copy_(0.3 * torch.randn(bias.shape, generator=generator))
    return loaded


@pytest.fixture(scope="session")
def narrow():
    return tiny_model("llama", "bfloat16")


@pytest.fixture(scope="session")
def half():
    return tiny_model("llama", "float16")


@pytest.fixture(scope="session")
def judged():
    """(model, prompts, reference, variant) -> verdict, in one session for the same model and
    prompts.
    """
    session_of = cache(lambda loaded, prompts: JudgingSession(loaded, prompts))

    def judge_once(loaded, prompts, reference, variant):
        session = session_of(loaded, tuple(map(tuple, prompts)))
        return judge(loaded, prompts, reference=reference, variant=variant, session=session)

    return judge_once
