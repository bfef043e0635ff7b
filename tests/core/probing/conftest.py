"""Real servers that are probed, and one that misbehaves."""

import json
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import gguf
import numpy as np
import pytest

from core.inference.models.engine_files import gguf_of
from tests.core.inference.sameness import on_cpu
from tests.places import MODEL
from tests.serving import free_port


def add_tokenizer(file, _):
    """Add the small model's own tokenizer, in place of none."""
    config = json.loads((MODEL / "config.json").read_text())
    tokenizer = json.loads((MODEL / "tokenizer.json").read_text())
    tokens = {number: text for text, number in tokenizer["model"]["vocab"].items()}
    extra = {one["id"]: one["content"] for one in tokenizer["added_tokens"]}
    every = []
    kinds = []
    # llama.cpp wants a text for every row of the embedding
    for number in range(config["vocab_size"]):
        every.append((tokens | extra).get(number, f"<unused {number}>"))
        is_control = number in extra
        kinds.append(gguf.TokenType.CONTROL if is_control else gguf.TokenType.NORMAL)
    file.add_string("tokenizer.ggml.model", "gpt2")
    file.add_tokenizer_pre("gpt-2")
    file.add_token_list(every)
    file.add_token_types(kinds)
    # a merge is a text or a pair, by the version of the file
    merges = tokenizer["model"]["merges"]
    file.add_token_merges([one if isinstance(one, str) else " ".join(one) for one in merges])
    file.add_bos_token_id(config["bos_token_id"])
    file.add_eos_token_id(config["eos_token_id"])
    file.add_add_bos_token(False)


def _written(place, quantize=None):
    """The small model as the GGUF in float32 that llama.cpp is given as an engine, with a
    tokenizer. quantize: kind of its matrices.
    """
    plain = gguf.GGUFWriter.add_tensor

    def add(file, name, values, **more):
        if quantize is not None and values.ndim > 1:
            values = gguf.quants.quantize(values.view(np.float32), quantize)
            more = {"raw_dtype": quantize}
        plain(file, name, values, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ULPSCOPE_CACHE", str(place))
        patch.setattr(gguf.GGUFWriter, "add_tokenizer_model", add_tokenizer)
        patch.setattr(gguf.GGUFWriter, "add_tensor", add)
        written = gguf_of(on_cpu(MODEL), "float32")
    return written.rename(place / "small.gguf")


@pytest.fixture(scope="session")
def small_gguf(tmp_path_factory):
    return _written(tmp_path_factory.mktemp("gguf"))


@pytest.fixture(scope="session")
def quantized_gguf(tmp_path_factory):
    return _written(tmp_path_factory.mktemp("quantized"), gguf.GGMLQuantizationType.Q4_0)


def adapter_of(model, path):
    """Write an adapter of rank 4 of all keys and values of a model, of random numbers."""
    random = np.random.default_rng(0)
    file = gguf.GGUFWriter(path, "llama")
    file.add_type("adapter")
    file.add_string("adapter.type", "lora")
    file.add_float32("adapter.lora.alpha", 4.0)
    for tensor in gguf.GGUFReader(model).tensors:
        if re.search(r"attn_[kv]\.weight$", tensor.name):
            inputs, outputs = map(int, tensor.shape)
            down = random.normal(size=(4, inputs)) / np.sqrt(inputs)
            up = random.normal(size=(outputs, 4))
            file.add_tensor(f"{tensor.name}.lora_a", down.astype(np.float32))
            file.add_tensor(f"{tensor.name}.lora_b", up.astype(np.float32))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path


@contextmanager
def llama_of(path, port, *adapters):
    """Address of a llama.cpp server with this model."""
    script = Path(__file__).with_name("llama_server.py")
    command = [sys.executable, *map(str, (script, path, port, *adapters))]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        address = process.stdout.readline().strip()
        assert address.startswith("http"), f"no llama.cpp server came up: {address}"
        yield address
        process.kill()


@pytest.fixture(scope="session")
def llama(small_gguf):
    """Address of a llama.cpp server with the small model in float32."""
    with llama_of(small_gguf, free_port()) as address:
        yield address
