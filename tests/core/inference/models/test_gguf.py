"""A GGUF loads with the weights that its blocks hold, rounded once; a broken one gets a
sentence.
"""

import hashlib
import json
import struct
import sys

import gguf
import numpy as np
import pytest
import torch
from transformers.integrations.gguf.dequant import dequantize

from core.errors import CaptureError, ExtraError
from core.inference.models import gguf as reading
from core.inference.models.model import save_model
from tests.core.inference.models import small_gguf
from tests.core.inference.sameness import on_cpu, planned


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A GGUF, and its weights in float32 by hand."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return path, small_gguf.write(path)


def differing(model, expected, dtype):
    """Names of the weights whose bits are not those of `expected`, rounded once."""
    state = model.state_dict()
    return [
        name
        for name, values in expected.items()
        if not torch.equal(state[name], torch.from_numpy(values).to(dtype))
    ]


@pytest.mark.model
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gguf_has_the_weights_that_its_blocks_hold_rounded_once(written, dtype):
    path, expected = written
    loaded = on_cpu(path, dtype)
    rounded = getattr(torch, dtype)
    assert differing(loaded.model, expected, rounded) == []
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {rounded}
    assert loaded.model.get_output_embeddings().weight is loaded.model.get_input_embeddings().weight
    planted = {**expected, "model.norm.weight": expected["model.norm.weight"] * np.float32(1.01)}
    assert differing(loaded.model, planted, rounded) == ["model.norm.weight"]


@pytest.mark.model
def test_an_architecture_that_transformers_rounds_within_its_arithmetic_is_rounded_once(
    written,
    monkeypatch,
):
    """Its newer reader, which has a few architectures yet, multiplies in bfloat16: other bits than
    the blocks hold.
    """
    path, expected = written
    blocks = gguf.quants.quantize(expected["model.layers.0.mlp.up_proj.weight"], small_gguf.Q4_1)
    exact = torch.from_numpy(small_gguf.by_hand(blocks, small_gguf.Q4_1))
    of_theirs = [
        dequantize(torch.from_numpy(blocks), small_gguf.Q4_1.value, dtype).reshape(exact.shape)
        for dtype in (torch.float32, torch.bfloat16)
    ]
    assert torch.equal(of_theirs[0], exact)
    assert not torch.equal(of_theirs[1], exact.to(torch.bfloat16))
    monkeypatch.setattr(reading, "_ROUNDED_AFTERWARDS", ("llama",))
    loaded = on_cpu(path, "bfloat16")
    assert differing(loaded.model, expected, torch.bfloat16) == []
    assert loaded.model.config.dtype == loaded.model.dtype == torch.bfloat16
    assert loaded.model.get_output_embeddings().weight is loaded.model.get_input_embeddings().weight


@pytest.mark.model
def test_a_run_of_a_gguf_says_which_file_how_it_was_quantised_and_that_it_no_longer_is(
    written,
):
    path, _ = written
    digest = f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    loaded = on_cpu(path, "bfloat16")
    about = planned(loaded, ["the"]).header.provenance
    assert about.model == str(path)
    assert about.revision == digest
    assert "dequantized from Q4_1" in about.versions["weights"]
    shapes = on_cpu(path, "bfloat16", weights=False)
    # a dry run reads no weights
    assert shapes.revision == ""
    assert shapes.vocab_size == len(small_gguf.TOKENS)


@pytest.mark.model
def test_a_folder_made_of_a_gguf_loads_without_what_read_it_and_has_its_bits(
    written,
    tmp_path,
    monkeypatch,
):
    path, expected = written
    made = on_cpu(path, "bfloat16")
    save_model(made, tmp_path)
    for name in ("gguf", "accelerate"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ExtraError, match="GGUF needs gguf and accelerate"):
        on_cpu(path, "bfloat16")
    loaded = on_cpu(tmp_path, "bfloat16")
    assert differing(loaded.model, expected, torch.bfloat16) == []
    assert loaded.weights == made.weights
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())
    ids = torch.tensor([loaded.tokenizer("the 12").input_ids])
    assert ids.tolist() == [made.tokenizer("the 12").input_ids]
    with torch.inference_mode():
        assert torch.equal(loaded.model(ids).logits, made.model(ids).logits)


@pytest.mark.model
def test_files_next_to_a_gguf_have_no_effect(written, tmp_path):
    path, expected = written
    (tmp_path / "tiny.gguf").write_bytes(path.read_bytes())
    for name in (
        "config.json",
        "tokenizer_config.json",
        "generation_config.json",
        "adapter_config.json",
    ):
        (tmp_path / name).write_text(
            '{"auto_map": {"AutoTokenizer": ["x.Y", null]}, "tokenizer_class": "NoSuch"}',
        )
    loaded = on_cpu(tmp_path / "tiny.gguf")
    assert differing(loaded.model, expected, torch.float32) == []


def _refusal(path):
    with pytest.raises(CaptureError) as caught:
        reading.look(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def _damaged(data, at, what):
    return data[:at] + what + data[at + len(what) :]


@pytest.mark.parametrize(
    "break_it",
    [
        lambda data: data[: len(data) - 1],
        lambda data: data[:1000],
        lambda data: data[:5],
        # version 1 of the format, and counts of tensors and keys that no file holds
        lambda data: _damaged(data, 4, struct.pack("<I", 1)),
        lambda data: _damaged(data, 8, struct.pack("<Q", 1 << 60)),
        lambda data: _damaged(data, 16, struct.pack("<Q", 1 << 60)),
    ],
)
def test_a_gguf_that_announces_more_than_it_has_gets_a_sentence(
    written,
    tmp_path,
    break_it,
):
    (tmp_path / "m.gguf").write_bytes(break_it(written[0].read_bytes()))
    assert "is a broken GGUF file" in _refusal(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    "about",
    [
        {"facts": {"llama.rope.scaling.type": "yarn"}},
        {"more": ("rope_freqs.weight",)},
    ],
)
def test_what_transformers_would_leave_out_without_a_word_is_refused(tmp_path, about):
    small_gguf.write(tmp_path / "m.gguf", **about)
    refusal = _refusal(tmp_path / "m.gguf")
    assert "scales its rotary embeddings, which transformers ignores" in refusal
    small_gguf.write(tmp_path / "sound.gguf", facts={"llama.rope.scaling.type": "none"})
    assert reading.look(tmp_path / "sound.gguf").quantization == "Q4_1"
