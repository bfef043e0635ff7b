"""Models load wholly in the dtype asked for, or one sentence says why not."""

import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch
from transformers import LlamaForCausalLM

from core.errors import CaptureError
from core.inference.models.dtypes import in_float32
from core.inference.models.model import load_model
from core.text import readable
from tests.core.inference.sameness import on_cpu


@pytest.fixture
def folder(model_folders, tmp_path):
    """A copy of the Llama to break."""
    return Path(shutil.copytree(model_folders["llama"], tmp_path / "model"))


def refusal(name, **changes):
    with pytest.raises(CaptureError) as caught:
        load_model(str(name), **{"dtype": "float32", "device": "cpu", **changes})
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")
    return str(caught.value)


@pytest.mark.model
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen2", "mixtral"])
def test_a_model_loads_wholly_in_the_dtype_asked_for(kind, dtype, model_folders):
    loaded = on_cpu(model_folders[kind], dtype)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {getattr(torch, dtype)}
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    sizes = (loaded.context, loaded.vocab_size, loaded.token_limit)
    assert loaded.dtype == dtype
    assert loaded.device == "cpu"
    assert sizes == (96, 384, 384)
    assert loaded.device_name


def test_the_vocabulary_has_readable_text_for_every_id(llama):
    vocabulary = llama.vocabulary()
    assert sorted(vocabulary) == list(range(384))
    assert all(vocabulary.values())
    tokens = llama.tokenizer("café – still")["input_ids"]
    assert (
        "".join(vocabulary[token] for token in llama.tokenizer(" still lit")["input_ids"])
        == " still lit"
    )
    assert not any("Ġ" in vocabulary[token] or "\ufffd" in vocabulary[token] for token in tokens)
    lead_byte = llama.tokenizer.convert_tokens_to_ids("â")  # the byte alphabet's name of 0xE2
    assert vocabulary[lead_byte] == "<0xE2>"
    assert vocabulary[0] == "<|start|>"
    assert vocabulary[383] == "<unused 383>"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"abc", "abc"),
        (b"\xe2", "<0xE2>"),
        (b"a\xe2\x80", "a<0xE2><0x80>"),
        ("–".encode(), "–"),
        (b"\xff ", "<0xFF> "),
    ],
)
def test_bytes_that_are_no_text_are_shown_as_bytes(raw, text):
    assert readable(raw) == text


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("tpu9", "is unknown"),
        ("meta", "is not supported"),
    ],
)
def test_an_unknown_device_is_one_sentence(device, said, folder):
    assert (
        refusal(folder, device=device) == f"device '{device}' {said}; expected cpu, cuda or cuda:N."
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_where_there_is_none_is_one_sentence(folder):
    assert "sees no CUDA device" in refusal(folder, device="cuda")


def test_a_hub_that_cannot_be_reached_is_one_sentence(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "model 'nobody/no-such-model': no such folder" in refusal("nobody/no-such-model")


def write(name, content):
    return lambda folder: (folder / name).write_bytes(
        content if isinstance(content, bytes) else content.encode(),
    )


def without(pattern):
    return lambda folder: [file.unlink() for file in folder.glob(pattern)]


def config(**changes):
    """The config says something else."""

    def change(folder):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def tokenizer_of_nothing(folder):
    content = json.loads((folder / "tokenizer.json").read_text())
    content |= {
        "model": {
            "type": "BPE",
            "vocab": {},
            "merges": [],
        },
        "added_tokens": [],
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))


def missing_shard(folder):
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def cut_short(folder):
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-9])


def code_of_its_own(folder):
    own = {
        "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
        "model_type": "zork",
    }
    (folder / "config.json").write_text(json.dumps(own))
    (folder / "evil.py").write_text("raise SystemExit('code of the model was run')")


@pytest.mark.parametrize(
    ("breaks", "sentence"),
    [
        (shutil.rmtree, "expected one with config.json"),
        (without("config.json"), "config.json; expected a model saved"),
        *(
            (write("config.json", text), "its config.json is invalid")
            for text in ("{no", b"\x00\xff")
        ),
        (config(model_type="zork"), "its config.json is invalid"),
        (config(hidden_size="wide"), "its config.json is invalid"),
        (write("config.json", '{"model_type": "t5"}'), "expected a causal language model"),
        (code_of_its_own, "read it, then allow"),
        (without("tokenizer*"), "tokenizer is missing or unreadable"),
        (tokenizer_of_nothing, "tokenizer returns no tokens"),
        (without("model.safetensors"), "has no weights; expected model.safetensors"),
        (missing_shard, "has no 'model-00002-of-00002.safetensors'"),
        (cut_short, "is not a complete safetensors file"),
        (
            write("model.safetensors", b"version https://git-lfs.github.com"),
            "is not a complete safetensors file",
        ),
        (
            write("model.safetensors", b"\x02" + bytes(7) + b"[]"),
            "is not a complete safetensors file",
        ),
        # and are not filled with random numbers
        (config(num_hidden_layers=3), "its weights lack 'model.layers.2."),
        (config(intermediate_size=80), "cannot be loaded on cpu"),
    ],
)
def test_a_broken_folder_is_one_sentence(breaks, sentence, folder):
    breaks(folder)
    assert sentence in refusal(folder)


KERNEL = "a-stranger/kernels@main:attention"


@pytest.mark.parametrize("with_weights", [True, False])
@pytest.mark.parametrize(
    "asked",
    [
        {"attn_implementation": KERNEL},
        {"_attn_implementation": f"paged|{KERNEL}"},
        {"_attn_implementation": {"": KERNEL}},
        {"_attn_implementation_internal": KERNEL},
        {"experts_implementation": KERNEL},
    ],
    ids=str,
)
def test_a_config_that_names_kernels_of_the_hub_gets_the_attention_of_the_model(
    asked,
    with_weights,
    folder,
    llama,
    monkeypatch,
):
    fetched = []
    loads = "transformers.modeling_utils.lazy_import_flash_attention"
    monkeypatch.setattr(loads, lambda name, **_: fetched.append(name))
    config(**asked)(folder)
    loaded = on_cpu(folder, weights=with_weights)
    assert loaded.model.config._attn_implementation == llama.model.config._attn_implementation
    assert fetched == []


def test_weights_larger_than_the_memory_are_refused_before_loading(folder):
    """A sparse file of 2 TB that takes no disk."""
    elements = 10**12
    entry = {
        "lm_head.weight": {
            "dtype": "BF16",
            "shape": [elements],
            "data_offsets": [0, 2 * elements],
        },
    }
    header = json.dumps(entry).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 2 * elements)
    said = refusal(folder)
    assert "needs 4,000.0 GB in float32" in said
    assert "narrower dtype or another machine" in said


def test_a_folder_never_asks_the_hub(folder, monkeypatch):
    def no_network(*_, **__):
        raise AssertionError("a folder asked the network")

    monkeypatch.setattr("socket.socket.connect", no_network)
    assert isinstance(
        on_cpu(folder).model,
        LlamaForCausalLM,
    )


@pytest.mark.model
def test_a_model_that_was_cast_whole_is_wholly_widened(model_folders, monkeypatch):
    loaded = on_cpu(model_folders["llama"], "bfloat16")
    # transformers loads these in float32, `model.to(torch.bfloat16)` casts them too
    kept = ["q_proj"]
    monkeypatch.setattr(loaded.model, "_keep_in_fp32_modules_strict", kept, raising=False)
    with in_float32(loaded) as widened:
        assert {each.dtype for each in widened.model.parameters()} == {torch.float32}
    assert {each.dtype for each in loaded.model.parameters()} == {torch.bfloat16}
