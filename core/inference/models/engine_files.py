"""Files of a loaded model for other engines: the weights that transformers runs, as a GGUF or a
folder.
"""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from ...disk import WRITING, discard, hold, making
from ...errors import CaptureError
from ...packaged_models import cache_folder, packaged_folder, require_gguf
from .devices import bits_of
from .model import LoadedModel, save_model

# transformers' model_type -> llama.cpp's architecture, of those that compute the same function
_ARCHITECTURES = {
    "llama": "LLAMA",
    "mistral": "LLAMA",
    "qwen2": "QWEN2",
    "qwen3": "QWEN3",
    "gemma": "GEMMA",
}
_TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}  # as ggml calls them
_KEPT_FILES = 6
_LOCK = ".lock"
_digests: WeakKeyDictionary[torch.nn.Module, tuple[tuple[int, ...], str]] = WeakKeyDictionary()


def gguf_of(loaded: LoadedModel, dtype: str) -> Path:
    """Write a GGUF of the model to the user's cache, if missing: matrices in `dtype`, no
    vocabulary.
    """
    require_gguf()
    config = loaded.text_config
    kind = config.model_type
    obstacle = ""
    if kind not in _ARCHITECTURES:
        obstacle = f"of a '{kind}' model, only of {', '.join(_ARCHITECTURES)}"
    elif kind == "mistral" and config.sliding_window:
        obstacle = "of a Mistral with a sliding window"
    elif kind == "llama" and config.attention_bias:
        obstacle = "of a Llama with biases"
    elif _ARCHITECTURES[kind] != "LLAMA" and config.rope_parameters["rope_type"] != "default":
        obstacle = f"of a {kind} with scaled RoPE"
    elif getattr(_rotary(loaded), "attention_scaling", 1.0) != 1.0:
        obstacle = "with attention scaled by RoPE"
    if obstacle:
        raise CaptureError(f"ULPscope writes no GGUF {obstacle}; give a GGUF as the model.")
    return _write_once(
        loaded,
        dtype,
        ".gguf",
        lambda path: _write(path, kind, config, loaded, dtype),
    )


def folder_of(loaded: LoadedModel) -> Path:
    """Return a transformers folder of the model: its own, or one in the user's cache."""
    own = Path(loaded.name)
    if own.is_dir():
        return own.resolve()
    return packaged_folder(loaded.name) or _write_once(
        loaded,
        loaded.dtype,
        "",
        lambda path: save_model(loaded, path),
    )


def _write_once(
    loaded: LoadedModel,
    dtype: str,
    ending: str,
    write: Callable[[Path], None],
) -> Path:
    """Return a file or folder of the model in the cache, by digest; call `write` if missing, and
    remove the oldest.
    """
    place = cache_folder() / "engines"
    digest = hashlib.sha256(f"2 {dtype} {digest_of(loaded)}".encode()).hexdigest()
    path = place / (digest[:32] + ending)
    try:
        if not path.exists():
            place.mkdir(parents=True, exist_ok=True)
            # concurrent processes write it once
            with hold(place / _LOCK):
                if not path.exists():
                    _make_room(place)
                    with making(path) as begun:
                        write(begun)
        os.utime(path)
    except OSError as error:
        raise CaptureError(
            f"the model cannot be written to {place}: {error.strerror or error}.",
        ) from error
    return path


def _make_room(place: Path) -> None:
    """Remove the oldest models of the cache, and leftovers of killed processes."""
    begun = list(place.glob(f"{WRITING}*"))
    others = set(place.iterdir()) - {*begun, place / _LOCK}
    whole = sorted(others, key=lambda one: one.stat().st_mtime)
    for one in (*begun, *whole[: -_KEPT_FILES + 1]):
        discard(one)


def digest_of(loaded: LoadedModel) -> str:
    """Return the sha256 of a model's weights, names and configuration, cached until a weight
    changes.
    """
    versions = tuple(parameter._version for parameter in loaded.model.parameters())
    known_versions, hexdigest = _digests.get(loaded.model, ((), ""))
    if known_versions != versions:
        config = json.dumps(loaded.model.config.to_dict(), sort_keys=True, default=str)
        digest = hashlib.sha256(config.encode())
        for name, tensor in loaded.model.state_dict().items():
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
            digest.update(bits_of(tensor).data)
        hexdigest = digest.hexdigest()
        _digests[loaded.model] = versions, hexdigest
    return hexdigest


def _write(
    path: Path,
    kind: str,
    config: Any,
    loaded: LoadedModel,
    dtype: str,
) -> None:
    import gguf

    architecture = getattr(gguf.MODEL_ARCH, _ARCHITECTURES[kind])
    layers = config.num_hidden_layers
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    base = config.rope_parameters["rope_theta"]
    names = gguf.get_tensor_name_map(architecture, layers)
    file = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    file.add_context_length(config.max_position_embeddings)
    file.add_embedding_length(config.hidden_size)
    file.add_block_count(layers)
    file.add_feed_forward_length(config.intermediate_size)
    file.add_head_count(heads)
    file.add_head_count_kv(config.num_key_value_heads)
    file.add_key_length(size)
    file.add_value_length(size)
    file.add_rope_dimension_count(size)
    file.add_rope_freq_base(base)
    file.add_layer_norm_rms_eps(config.rms_norm_eps)
    file.add_vocab_size(loaded.vocab_size)
    file.add_tokenizer_model("no_vocab")
    is_llama = _ARCHITECTURES[kind] == "LLAMA"
    model: Any = loaded.model
    is_tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    for name, weight in model.state_dict().items():
        # a tied head is left to the engine
        if is_tied and name == "lm_head.weight":
            continue
        values = weight.float().cpu()
        stem, _, ending = name.rpartition(".")
        tensor = names.get_name(stem)
        if tensor is None:
            raise CaptureError(
                f"a GGUF has no tensor for the model's '{name}'; give a GGUF as the model.",
            )
        if is_llama and ending == "weight" and tensor.endswith(("attn_q", "attn_k")):
            # llama.cpp's Llama rotates neighboring rows of queries and keys instead of halves
            of_heads = values.reshape(-1, 2, size // 2, values.shape[1])
            values = of_heads.swapaxes(1, 2).reshape(values.shape)
        if kind == "gemma" and tensor.endswith("norm"):
            # transformers adds it, llama.cpp has it in the file
            values = values + 1
        stored_dtype = dtype if values.ndim > 1 else "float32"
        stored = values.to(getattr(torch, stored_dtype))
        if stored_dtype != "float32" and not torch.equal(stored.float(), values):
            raise CaptureError(
                f"{dtype} does not hold the model's '{name}' exactly; leave the engine's dtype"
                " out.",
            )
        raw_dtype = gguf.GGMLQuantizationType[_TYPES[stored_dtype]]
        data = bits_of(stored).view(np.uint8)
        file.add_tensor(f"{tensor}.{ending}", data, raw_dtype=raw_dtype)
    if config.rope_parameters["rope_type"] != "default":
        # llama.cpp divides the base's frequencies by these
        exponents = torch.arange(0, size, 2, dtype=torch.float64) / size
        plain = 1.0 / base**exponents
        factors = plain / _rotary(loaded).inv_freq.double().cpu()
        file.add_tensor("rope_freqs.weight", factors.float().numpy())
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def _rotary(loaded: LoadedModel) -> Any:
    return next((module for module in loaded.model.modules() if hasattr(module, "inv_freq")), None)
