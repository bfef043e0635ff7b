"""Models load wholly in the dtype asked for, or one sentence says why not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch
from transformers import BertConfig, LlamaConfig, LlamaForCausalLM

from core.errors import CaptureError, UsageError
from core.inference.models.model import LoadedModel, load_model
from core.inference.models.token_text import readable


@pytest.fixture
def folder(model_folders: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the Llama to break."""
    return Path(shutil.copytree(model_folders["llama"], tmp_path / "model"))


def refusal(name: object, **changes: object) -> str:
    with pytest.raises(CaptureError) as caught:
        load_model(str(name), **{"dtype": "float32", "device": "cpu", **changes})
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")
    return str(caught.value)


@pytest.mark.model
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen2", "mixtral"])
def test_a_model_loads_wholly_in_the_dtype_asked_for(kind: str, dtype: str, model_folders: dict[str, Path]) -> None:
    loaded = load_model(str(model_folders[kind]), dtype=dtype, device="cpu")
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {getattr(torch, dtype)}
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert (loaded.dtype, loaded.device, loaded.context, loaded.vocab_size, loaded.token_limit) == (
        dtype,
        "cpu",
        96,
        384,
        384,
    )
    assert loaded.device_name
    with torch.inference_mode():
        assert loaded.model(torch.tensor([[1, 2]])).logits.shape[-1] == loaded.vocab_size


def test_an_alias_of_a_dtype_is_understood_and_an_unknown_one_lists_what_exists(model_folders: dict[str, Path]) -> None:
    assert load_model(str(model_folders["llama"]), dtype="bf16", device="cpu").dtype == "bfloat16"
    with pytest.raises(UsageError, match="one of float32, float16, bfloat16"):
        load_model(str(model_folders["llama"]), dtype="int8")


def test_the_vocabulary_has_readable_text_for_every_id(llama: LoadedModel) -> None:
    vocabulary = llama.vocabulary()
    assert sorted(vocabulary) == list(range(384))
    assert all(vocabulary.values())
    tokens = llama.tokenizer("café – still")["input_ids"]
    assert "".join(vocabulary[token] for token in llama.tokenizer(" still lit")["input_ids"]) == " still lit"
    assert not any("Ġ" in vocabulary[token] or "\ufffd" in vocabulary[token] for token in tokens)
    lead_byte = llama.tokenizer.convert_tokens_to_ids("â")  # the byte alphabet's name of 0xE2
    assert vocabulary[lead_byte] == "<0xE2>"
    assert vocabulary[0] == "<|start|>"
    assert vocabulary[383] == "<unused 383>"


@pytest.mark.parametrize(
    ("raw", "text"),
    [(b"abc", "abc"), (b"\xe2", "<0xE2>"), (b"a\xe2\x80", "a<0xE2><0x80>"), ("–".encode(), "–"), (b"\xff ", "<0xFF> ")],
)
def test_bytes_that_are_no_text_are_shown_as_bytes(raw: bytes, text: str) -> None:
    assert readable(raw) == text


# Refusals, in the order in which the checks come.


@pytest.mark.parametrize(("device", "said"), [("tpu9", "is unknown"), ("meta", "is not supported")])
def test_an_unknown_device_is_one_sentence(device: str, said: str, folder: Path) -> None:
    assert refusal(folder, device=device) == f"device '{device}' {said}; expected cpu, cuda or cuda:N."


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_where_there_is_none_is_one_sentence(folder: Path) -> None:
    assert "sees no CUDA device" in refusal(folder, device="cuda")


def test_a_missing_folder_is_one_sentence(tmp_path: Path) -> None:
    assert "expected one with config.json" in refusal(tmp_path / "none")


def test_a_hub_that_cannot_be_reached_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    said = refusal("nobody/no-such-model")
    assert "model 'nobody/no-such-model': no such folder" in said


def test_a_folder_without_config_is_one_sentence(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert "config.json; expected a model saved" in refusal(folder)


@pytest.mark.parametrize(
    "text",
    [
        "{no",
        "\x00\xff",
        "[]",
        '{"model_type": "zork"}',
        '{"model_type": "llama", "hidden_size": "wide"}',
        '{"model_type": 5}',
    ],
)
def test_an_unreadable_config_is_one_sentence(text: str, folder: Path) -> None:
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    assert "its config.json is invalid" in refusal(folder)


def test_what_is_no_causal_language_model_is_refused(folder: Path) -> None:
    BertConfig(architectures=["BertForMaskedLM"]).save_pretrained(folder)
    assert "expected a causal language model" in refusal(folder)
    (folder / "config.json").write_text('{"model_type": "t5"}')
    assert "expected a causal language model" in refusal(folder)


def test_a_model_with_code_of_its_own_is_not_run_unasked(folder: Path) -> None:
    own = {"model_type": "llama", "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}}
    (folder / "config.json").write_text(json.dumps({**own, "model_type": "zork"}))
    (folder / "evil.py").write_text("raise SystemExit('code of the model was run')")
    assert "read it, then allow" in refusal(folder)


KERNEL = "a-stranger/kernels@main:attention"


@pytest.mark.parametrize("with_weights", [True, False])
@pytest.mark.parametrize(
    "asked",
    [
        {"attn_implementation": KERNEL},
        {"_attn_implementation": KERNEL},
        {"_attn_implementation": f"paged|{KERNEL}"},
        {"_attn_implementation": {"": KERNEL}},
        {"_attn_implementation_internal": KERNEL},
        {"experts_implementation": KERNEL},
    ],
    ids=str,
)
def test_a_config_that_names_kernels_of_the_hub_gets_the_attention_of_the_model(
    asked: dict, with_weights: bool, folder: Path, llama: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[object] = []
    monkeypatch.setattr(
        "transformers.modeling_utils.lazy_import_flash_attention", lambda name, **_: fetched.append(name)
    )
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | asked))
    loaded = load_model(str(folder), dtype="float32", device="cpu", weights=with_weights)
    assert loaded.model.config._attn_implementation == llama.model.config._attn_implementation
    assert fetched == []


def test_a_missing_tokenizer_is_one_sentence(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()
    assert "tokenizer is missing or unreadable" in refusal(folder)


def test_a_tokenizer_that_encodes_nothing_is_one_sentence(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"] = {"type": "BPE", "vocab": {}, "merges": []}
    content["added_tokens"] = []
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert "tokenizer returns no tokens" in refusal(folder)


def test_a_folder_without_weights_is_one_sentence(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "has no weights; expected model.safetensors" in refusal(folder)


def test_a_missing_shard_is_one_sentence(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "has no 'model-00002-of-00002.safetensors'" in refusal(folder)


def test_weights_cut_short_are_one_sentence(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-9])
    assert "is not a complete safetensors file" in refusal(folder)


@pytest.mark.parametrize(
    "content", [b"", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", b"\x02" + bytes(7) + b"[]"]
)
def test_what_is_no_safetensors_file_is_one_sentence(content: bytes, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(content)
    assert "is not a complete safetensors file" in refusal(folder)


def test_weights_larger_than_the_memory_are_refused_before_loading(folder: Path) -> None:
    """A sparse file of 2 TB that takes no disk."""
    elements = 10**12
    entry = {"lm_head.weight": {"dtype": "BF16", "shape": [elements], "data_offsets": [0, 2 * elements]}}
    header = json.dumps(entry).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 2 * elements)
    said = refusal(folder)
    assert "needs 4,000.0 GB in float32" in said
    assert "narrower dtype or another machine" in said


def test_weights_that_are_absent_are_not_filled_with_random_numbers(folder: Path) -> None:
    config = LlamaConfig.from_pretrained(folder)
    config.num_hidden_layers = 3
    config.save_pretrained(folder)
    assert "its weights lack 'model.layers.2." in refusal(folder)


def test_weights_of_another_shape_are_one_sentence(folder: Path) -> None:
    config = LlamaConfig.from_pretrained(folder)
    config.intermediate_size = 80
    config.save_pretrained(folder)
    assert "cannot be loaded on cpu" in refusal(folder)


def test_a_folder_never_asks_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise AssertionError("a folder asked the network")

    monkeypatch.setattr("socket.socket.connect", no_network)
    assert isinstance(load_model(str(folder), dtype="float32", device="cpu").model, LlamaForCausalLM)
