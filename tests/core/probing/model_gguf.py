"""The small model as a float32 GGUF that llama.cpp loads."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

Weights = NDArray[np.float32]


def write_gguf(folder: Path, path: Path) -> None:
    """Write the Llama in a transformers folder as one GGUF. llama.cpp rotates neighbours, so queries and keys are
    permuted.
    """
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    heads, kv_heads, size = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    file = gguf.GGUFWriter(path, "llama")
    file.add_name("ulpscope-small")
    file.add_context_length(config["max_position_embeddings"])
    file.add_embedding_length(config["hidden_size"])
    file.add_block_count(config["num_hidden_layers"])
    file.add_feed_forward_length(config["intermediate_size"])
    file.add_head_count(heads)
    file.add_head_count_kv(kv_heads)
    file.add_key_length(size)
    file.add_value_length(size)
    file.add_rope_dimension_count(size)
    file.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    file.add_layer_norm_rms_eps(config["rms_norm_eps"])
    file.add_file_type(0)
    file.add_vocab_size(config["vocab_size"])
    _add_tokenizer(file, tokenizer, config)
    for name, weights in _weights(folder):
        tensor = _gguf_name(name)
        if tensor.endswith("attn_q.weight"):
            weights = _permuted(weights, heads)
        elif tensor.endswith("attn_k.weight"):
            weights = _permuted(weights, kv_heads)
        file.add_tensor(tensor, np.ascontiguousarray(weights))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def _add_tokenizer(file: gguf.GGUFWriter, tokenizer: dict, config: dict) -> None:
    tokens = {number: text for text, number in tokenizer["model"]["vocab"].items()}
    extra = {one["id"]: one["content"] for one in tokenizer["added_tokens"]}
    every = [(tokens | extra).get(number, f"<unused {number}>") for number in range(config["vocab_size"])]
    kinds = [gguf.TokenType.CONTROL if number in extra else gguf.TokenType.NORMAL for number in range(len(every))]
    merges = [one if isinstance(one, str) else " ".join(one) for one in tokenizer["model"]["merges"]]
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("gpt-2")
    file.add_token_list(every)
    file.add_token_types(kinds)
    file.add_token_merges(merges)
    file.add_bos_token_id(config["bos_token_id"])
    file.add_eos_token_id(config["eos_token_id"])
    file.add_add_bos_token(False)


def _weights(folder: Path) -> list[tuple[str, Weights]]:
    import torch

    with safe_open(folder / "model.safetensors", "pt") as file:
        names = list(file.keys())
        return [(name, file.get_tensor(name).to(torch.float32).numpy()) for name in names if name != "lm_head.weight"]


def _gguf_name(name: str) -> str:
    parts = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "model.layers": "blk",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    for theirs, ours in parts.items():
        name = name.replace(theirs, ours)
    return name


def _permuted(weights: Weights, heads: int) -> Weights:
    rows = weights.shape[0]
    return weights.reshape(heads, 2, rows // heads // 2, -1).swapaxes(1, 2).reshape(weights.shape)
