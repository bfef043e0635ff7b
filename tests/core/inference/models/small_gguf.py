"""A GGUF of a tiny Llama, and its weights by hand: from the bytes of the blocks, as the format
describes them.
"""

import gguf
import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

HIDDEN, FEED, LAYERS, HEADS, KV_HEADS = 64, 96, 2, 4, 2
HEAD = HIDDEN // HEADS
Q4_1, Q8_0, F32 = (
    gguf.GGMLQuantizationType.Q4_1,
    gguf.GGMLQuantizationType.Q8_0,
    gguf.GGMLQuantizationType.F32,
)
# no text needs another
TOKENS = ["<|start|>", *sorted(ByteLevel.alphabet()), "ĠĠ", "Ġ1", "th", "the", "12"]
MERGES = ["Ġ Ġ", "Ġ 1", "t h", "th e", "1 2"]


def by_hand(blocks, kind):
    """Rows of Q4_1 or Q8_0 blocks in float32, block after block: 32 elements each."""
    rows = []
    for row in blocks:
        values = []
        width = 20 if kind == Q4_1 else 34
        for start in range(0, len(row), width):
            block = row[start : start + width].tobytes()
            scale = np.frombuffer(block, "<f2", 1)[0].astype(np.float32)
            # scale, least value, then 16 bytes: the low halves are the first 16 elements
            if kind == Q4_1:
                least = np.frombuffer(block, "<f2", 1, 2)[0].astype(np.float32)
                halves = [byte & 15 for byte in block[4:]] + [byte >> 4 for byte in block[4:]]
                values += [scale * np.float32(half) + least for half in halves]
            else:
                values += [
                    scale * np.float32(whole) for whole in np.frombuffer(block, np.int8, 32, 2)
                ]
        rows.append(values)
    return np.array(rows, np.float32)


def permuted(weights, heads):
    """Rows of a projection that is rotated, as llama.cpp orders them: the two halves of a head
    alternate.
    """
    return weights.reshape(heads, 2, HEAD // 2, -1).swapaxes(1, 2).reshape(weights.shape)


def write(
    path,
    *,
    pre="gpt-2",
    facts=None,
    more=(),
):
    """Write the model; returns what its weights are in float32, by the names that transformers
    gives them. `more`: names of further tensors.
    """
    random = np.random.default_rng(5)
    file = gguf.GGUFWriter(path, "llama")
    file.add_name("tiny")
    file.add_context_length(96)
    file.add_embedding_length(HIDDEN)
    file.add_block_count(LAYERS)
    file.add_feed_forward_length(FEED)
    file.add_head_count(HEADS)
    file.add_head_count_kv(KV_HEADS)
    file.add_rope_dimension_count(HEAD)
    file.add_rope_freq_base(10_000.0)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    file.add_vocab_size(len(TOKENS))
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre(pre)
    file.add_token_list(TOKENS)
    file.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (len(TOKENS) - 1))
    file.add_token_merges(MERGES)
    file.add_bos_token_id(0)
    file.add_eos_token_id(0)
    for key, value in (facts or {}).items():
        file.add_string(key, value)
    tensors = {}

    def add(
        name,
        gguf_name,
        rows,
        columns=0,
        kind=Q4_1,
        heads=0,
    ):
        weights = random.standard_normal((rows, columns) if columns else rows).astype(
            np.float32,
        ) * np.float32(0.2)
        if not columns:
            tensors[gguf_name] = weights
            file.add_tensor(name, weights)
            return
        blocks = gguf.quants.quantize(weights, kind)
        plain = by_hand(blocks, kind)
        if heads:
            # a row's blocks do not know of other rows
            blocks = gguf.quants.quantize(permuted(weights, heads), kind)
        tensors[gguf_name] = plain
        file.add_tensor(name, blocks, raw_dtype=kind)

    add("token_embd.weight", "model.embed_tokens.weight", len(TOKENS), HIDDEN, Q8_0)
    add("output_norm.weight", "model.norm.weight", HIDDEN)
    for layer in range(LAYERS):
        here, there = f"blk.{layer}.", f"model.layers.{layer}."
        add(f"{here}attn_norm.weight", f"{there}input_layernorm.weight", HIDDEN)
        add(f"{here}ffn_norm.weight", f"{there}post_attention_layernorm.weight", HIDDEN)
        add(f"{here}attn_q.weight", f"{there}self_attn.q_proj.weight", HIDDEN, HIDDEN, heads=HEADS)
        add(
            f"{here}attn_k.weight",
            f"{there}self_attn.k_proj.weight",
            HEAD * KV_HEADS,
            HIDDEN,
            heads=KV_HEADS,
        )
        add(f"{here}attn_v.weight", f"{there}self_attn.v_proj.weight", HEAD * KV_HEADS, HIDDEN)
        add(f"{here}attn_output.weight", f"{there}self_attn.o_proj.weight", HIDDEN, HIDDEN)
        add(f"{here}ffn_gate.weight", f"{there}mlp.gate_proj.weight", FEED, HIDDEN)
        add(f"{here}ffn_up.weight", f"{there}mlp.up_proj.weight", FEED, HIDDEN)
        add(f"{here}ffn_down.weight", f"{there}mlp.down_proj.weight", HIDDEN, FEED)
    for name in more:
        add(name, name, HEAD // 2)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return tensors
