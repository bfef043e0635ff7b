"""CTranslate2 as an engine: a transformers folder of the Llama family, converted in memory and read by numpy alone."""

from __future__ import annotations

import json
import struct
import tempfile
from pathlib import Path

import numpy as np
from ulpscope_engine import Refused, is_installed, modifier, serve, version_of, with_neighbors

COMPUTE = ["float32", "int8_float32", "bfloat16", "int8_bfloat16", "float16", "int8_float16"]
HELLO = {
    "engine": "CTranslate2",
    "dtypes": ["float32", "bfloat16", "float16"],
    "logits": "float32",
    "bases": {"prefill": {"says": "the whole prompt in one call"}},
    "modifiers": {
        "compute": modifier(
            "compute type; the run's dtype by default",
            COMPUTE,
            widest="float32",
            bits={"bfloat16": 8, "float16": 11, "int8_float32": 4, "int8_bfloat16": 4, "int8_float16": 4},
        ),
        "threads": modifier("threads of the CPU", least=1),
        "batch": modifier("this prompt with N - 1 others in one batch", least=1),
    },
}


def tensors_of(folder):
    """Return name -> float32 array of every safetensors file of a folder."""
    weights = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        data = np.memmap(path, np.uint8, "r")
        length = struct.unpack("<Q", data[:8].tobytes())[0]
        for name, about in json.loads(data[8 : 8 + length].tobytes()).items():
            if name == "__metadata__":
                continue
            start, end = about["data_offsets"]
            weights[name] = _float32(data[8 + length + start : 8 + length + end], about, name)
    return weights


def _float32(raw, about, name):
    if about["dtype"] == "BF16":
        values = (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    elif about["dtype"] in ("F32", "F16"):
        values = raw.view({"F32": "<f4", "F16": "<f2"}[about["dtype"]]).astype(np.float32)
    else:
        raise Refused(f"the adapter reads weights of F32, F16 and BF16; '{name}' is {about['dtype']}.")
    return values.reshape(about["shape"])


def convert(folder, target):
    """Write a Llama of transformers as a model of CTranslate2, its weights in float32."""
    from ctranslate2.specs import common_spec, transformer_spec

    config = json.loads((Path(folder) / "config.json").read_text())
    if config.get("model_type") != "llama" or config.get("attention_bias") or config.get("mlp_bias"):
        raise Refused(f"the adapter converts Llamas without biases; this is a '{config.get('model_type')}'.")
    rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta", 10000.0)}
    if rope.get("rope_type", "default") != "default" or config.get("rope_scaling"):
        raise Refused("the adapter converts no scaled RoPE.")
    weights = tensors_of(folder)
    heads = config["num_attention_heads"]
    spec = transformer_spec.TransformerDecoderModelSpec.from_config(
        config["num_hidden_layers"],
        heads,
        activation=common_spec.Activation.SWISH,
        pre_norm=True,
        ffn_glu=True,
        rms_norm=True,
        rotary_dim=0,
        rotary_interleave=False,
        rotary_base=float(rope["rope_theta"]),
        num_heads_kv=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
    )
    decoder = spec.decoder
    decoder.scale_embeddings = False
    embedding = weights["model.embed_tokens.weight"]
    decoder.embeddings.weight = embedding
    decoder.layer_norm.gamma = weights["model.norm.weight"]
    decoder.projection.weight = embedding if config.get("tie_word_embeddings") else weights["lm_head.weight"]
    for number, layer in enumerate(decoder.layer):
        prefix = f"model.layers.{number}."
        attention = prefix + "self_attn."
        layer.self_attention.layer_norm.gamma = weights[prefix + "input_layernorm.weight"]
        layer.ffn.layer_norm.gamma = weights[prefix + "post_attention_layernorm.weight"]
        layer.self_attention.linear[0].weight = np.concatenate(
            [weights[f"{attention}{name}_proj.weight"] for name in "qkv"]
        )
        layer.self_attention.linear[1].weight = weights[attention + "o_proj.weight"]
        layer.ffn.linear_0.weight = weights[prefix + "mlp.gate_proj.weight"]
        layer.ffn.linear_0_noact.weight = weights[prefix + "mlp.up_proj.weight"]
        layer.ffn.linear_1.weight = weights[prefix + "mlp.down_proj.weight"]
    spec.config.layer_norm_epsilon = config["rms_norm_eps"]
    names = [f"t{number}" for number in range(len(embedding))]  # token ids go in, so that any name will do
    spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = names[0]
    spec.register_vocabulary(names)
    spec.validate()
    spec.optimize()
    spec.save(target)
    return len(embedding)


def load(request):
    """Convert the folder and load it."""
    import ctranslate2

    options = request["modifiers"]
    kind = options.get("compute", request["dtype"])
    kinds = ctranslate2.get_supported_compute_types("cpu")
    if kind not in kinds:
        raise Refused(f"CTranslate2 has no {kind} on this CPU; choose from {', '.join(sorted(kinds))}.")
    with tempfile.TemporaryDirectory() as target:
        vocab = convert(request["model"], target)
        threads = int(options.get("threads", 0))
        generator = ctranslate2.Generator(
            target, device="cpu", compute_type=kind, intra_threads=threads, inter_threads=1
        )
    rows = int(options.get("batch", 1))

    def run(ids, emit):
        emit(0, np.asarray(generator.forward_batch(with_neighbors(ids, rows)))[0])

    parts = {"weights": kind, "kv": kind, "activations": kind, "accumulation": "float32"}
    return {"vocab": vocab, "versions": {"ctranslate2": version_of("ctranslate2")}, "parts": parts}, run


if __name__ == "__main__":
    serve(dict(HELLO, version=version_of("ctranslate2"), is_here=is_installed("ctranslate2")), load)
