"""Configs of models that are unlike others in one respect each."""

import torch
from transformers import DeepseekV32Config, RecurrentGemmaConfig

_SHAPE = {
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "initializer_range": 0.15,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def recurrent_gemma():
    """Its modules hold the recurrent state."""
    return RecurrentGemmaConfig(
        **_SHAPE,
        num_key_value_heads=2,
        lru_width=64,
        head_dim=16,
        attention_window_size=8,
        block_types=["recurrent", "recurrent", "attention"],
        w_init_variance_scale=0.3,
    )


def deepseek_v32(index_topk, heads=2):
    """An indexer chooses the keys of each query, a router the experts."""
    return DeepseekV32Config(
        **_SHAPE,
        num_key_value_heads=4,
        moe_intermediate_size=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=32,
        kv_lora_rank=32,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=16,
        head_dim=8,
        index_topk=index_topk,
        index_n_heads=heads,
        index_head_dim=16,
    )


def topk_by_sort(more=0):
    """In place of `topk`, a sort, whose choices cannot be followed. more: how many besides"""

    def choose(scores, k, dim=-1, **_):
        values, ids = scores.sort(dim=dim, descending=True)
        count = min(k + more, scores.shape[dim])
        return torch.return_types.topk((values.narrow(dim, 0, count), ids.narrow(dim, 0, count)))

    return choose
