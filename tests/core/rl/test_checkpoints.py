"""Two checkpoints compared: figures as torch has them, layouts that conversions change, files that
are incomplete.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save, save_file

from core.inference.models.engine_files import gguf_of
from core.numerics.formats import BFLOAT16, LOGIT_FORMATS
from core.rl import checkpoints
from core.rl.checkpoints import compare_checkpoints
from tests.core.inference.models import small_gguf
from tests.core.inference.sameness import drawn, on_cpu, rms
from tests.core.numerics.oracle import ordinal
from tests.places import MODEL

Q_PROJ = "layers.0.self_attn.q_proj"


def compared(folder, a, b, fmt=BFLOAT16):
    paths = []
    for name, tensors in (("a", a), ("b", b)):
        paths.append(str(folder / f"{name}.safetensors"))
        save_file(
            {key: each.contiguous().clone() for key, each in tensors.items()},
            paths[-1],
        )
    return compare_checkpoints(*paths, fmt, print)


def found(result):
    """Tensors of each kind of finding."""
    return {kind: keys for (kind, _), keys in result.findings.items()}


def elements_of(path):
    return sum(tensor.numel() for tensor in load_file(path).values())


@pytest.mark.parametrize("dtype", LOGIT_FORMATS)
def test_what_an_update_leaves_in_the_engines_dtype_is_what_torch_rounds_to(dtype, tmp_path):
    """A step of Adam at a rate of 1e-6 from the weights of a trained layer, off the grid of
    bfloat16.
    """
    before = load_file(MODEL / "model.safetensors")["model.layers.0.mlp.up_proj.weight"].float()
    before *= 1 + drawn(*before.shape) / 256
    parameter = before.clone().requires_grad_()
    parameter.grad = drawn(*before.shape, seed=1)
    torch.optim.Adam([parameter], lr=1e-6).step()
    after = parameter.detach()
    fmt = LOGIT_FORMATS[dtype]
    weights = {"up_proj.weight": before}, {"up_proj.weight": after}
    total = compared(tmp_path, *weights, fmt).total
    rounded, rounded_after = (
        each.to(getattr(torch, dtype)).double().numpy() for each in (before, after)
    )
    assert total.elements == before.numel()
    assert total.differing == int((before != after).sum())
    expected = np.abs(ordinal(rounded, fmt) - ordinal(rounded_after, fmt)).max()
    assert total.rounded_differing == int((rounded != rounded_after).sum())
    assert total.max_rounded_ulps == expected
    change = (after.double() - before.double()).abs()
    assert total.max_abs == float(change.max())
    assert total.rms == pytest.approx(rms(change), rel=1e-9)
    if dtype == "bfloat16":
        assert 0.2 < total.rounded_differing / total.differing < 0.4


def test_bits_that_differ_are_counted_by_value(tmp_path):
    """Next values, zeros of both signs, NaNs of two payloads, a NaN and an infinity on one side."""
    a = np.array([0x3F80, 0x0000, 0x7FC0, 0x7FC0, 0x4000, 0x7F80], np.int16)
    b = np.array([0x3F81, -0x8000, 0x7FC1, 0x3F80, 0x7F80, 0x7F80], np.int16)
    tensors = [torch.from_numpy(bits).view(torch.bfloat16) for bits in (a, b)]
    sides = [{"norm.weight": tensor} for tensor in tensors]
    result = compared(tmp_path, *sides)
    total = result.total
    assert total.elements == 6
    assert total.differing == 3
    assert total.nonfinite_mismatch == 2
    assert total.finite == 2
    assert total.rounded_differing == 3
    assert total.max_rounded_ulps == 1
    assert total.max_abs == 2**-7
    assert found(result) == {"nonfinite": ["norm.weight"]}
    json.dumps(result.as_json(), allow_nan=False)


def test_shards_are_compared_with_one_file_in_the_order_of_a_forward(tmp_path):
    tensors = load_file(MODEL / "model.safetensors")
    names = sorted(tensors)
    weight_map = {}
    for n in range(3):
        shard = f"model-{n}.safetensors"
        keys = names[n::3]
        # torch.compile puts this in front of every name
        save_file({f"_orig_mod.{key}": tensors[key] for key in keys}, tmp_path / shard)
        weight_map |= dict.fromkeys(keys, shard)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    result = compare_checkpoints(str(MODEL), str(tmp_path), BFLOAT16, print)
    assert result.total.elements == elements_of(MODEL / "model.safetensors")
    assert result.total.differing == 0
    assert result.findings == {}
    modules = list(result.modules)
    # nine modules a layer, the embedding and the last norm: the head is tied
    assert len(modules) == 3 * 9 + 2
    assert modules[0] == "embed_tokens"
    assert modules[-1] == "norm"
    assert modules[10:19] == [
        "layers.1.input_layernorm",
        "layers.1.self_attn.q_proj",
        "layers.1.self_attn.k_proj",
        "layers.1.self_attn.v_proj",
        "layers.1.self_attn.o_proj",
        "layers.1.post_attention_layernorm",
        "layers.1.mlp.gate_proj",
        "layers.1.mlp.up_proj",
        "layers.1.mlp.down_proj",
    ]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_model_equals_its_gguf_with_rotary_rows_reordered(is_first, tmp_path, monkeypatch):
    """The file that llama.cpp is given as an engine."""
    monkeypatch.setenv("ULPSCOPE_CACHE", str(tmp_path))
    gguf = gguf_of(on_cpu(MODEL), "float32")
    paths = [str(gguf), str(MODEL)]
    result = compare_checkpoints(*(paths if is_first else paths[::-1]), BFLOAT16, print)
    assert result.total.differing == 0
    assert result.total.elements == elements_of(MODEL / "model.safetensors")
    reordered = found(result)["layout"]
    assert reordered[:2] == [f"{Q_PROJ}.weight", "layers.0.self_attn.k_proj.weight"]
    # queries and keys of three layers
    assert len(reordered) == 2 * 3
    texts = dict(result.findings.keys())
    assert f"in {'A' if is_first else 'B'} (heads of 64)" in texts["layout"]
    assert "float32" in texts["dtype"]


def test_a_quantized_gguf_equals_its_blocks_by_hand(tmp_path):
    by_hand, gguf = tmp_path / "by_hand.safetensors", tmp_path / "model.gguf"
    tensors = small_gguf.write(gguf)
    save_file({key: torch.from_numpy(values) for key, values in tensors.items()}, by_hand)
    result = compare_checkpoints(str(by_hand), str(gguf), BFLOAT16, print)
    assert result.total.elements == elements_of(by_hand)
    assert result.total.differing == 0
    quantized = result.findings["dtype", "float32 in A, Q8_0 (quantized) in B"]
    assert quantized == ["embed_tokens.weight"]
    quantized = result.findings["dtype", "float32 in A, Q4_1 (quantized) in B"]
    assert len(quantized) == 7 * small_gguf.LAYERS


WIDE, SQUARE = drawn(96, 64), drawn(64, 64)
ORDER = torch.randperm(96, generator=torch.Generator().manual_seed(2))
PARTS = {
    f"{Q_PROJ[:-6]}{name}_proj.weight": drawn(32 if name == "q" else 16, 64, seed=ord(name))
    for name in "qkv"
}
FUSED = {"layers.0.self_attn.qkv_proj.weight": torch.cat(list(PARTS.values()))}
# sorted as text, expert 10 would come before expert 2
EXPERTS = {f"layers.0.mlp.experts.{n}.down_proj.weight": drawn(8, 16, seed=n) for n in range(11)}


@pytest.mark.parametrize(
    ("kind", "a", "b"),
    [
        ("layout", {"x.weight": WIDE}, {"x.weight": WIDE.T}),
        ("layout", {"x.weight": SQUARE}, {"x.weight": SQUARE.T}),
        ("layout", {"x.weight": WIDE}, {"x.weight": WIDE[ORDER]}),
        ("layout", {"x.weight": WIDE}, {"x.weight": torch.cat([WIDE, torch.zeros(32, 64)])}),
        ("fused", PARTS, FUSED),
        ("fused", FUSED, PARTS),
        (
            "fused",
            EXPERTS,
            {"layers.0.mlp.experts.down_proj.weight": torch.stack(list(EXPERTS.values()))},
        ),
        (
            "shape",
            {"x.weight": WIDE, "norm.weight": SQUARE},
            {"x.weight": WIDE[:, :-1], "norm.weight": SQUARE},
        ),
        ("missing", {"x.weight": WIDE}, {"x.weight": WIDE, "extra.weight": WIDE}),
        (
            "dtype",
            {"x.weight": WIDE, "y.weight": SQUARE},
            {"x.weight": WIDE.to(torch.float64), "y.weight": SQUARE},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_changed_layout_is_named_and_what_is_compared_is_equal(kind, a, b, tmp_path, monkeypatch):
    """Also if a chunk is smaller than the tensors."""
    for chunk in (checkpoints.CHUNK, 500):
        monkeypatch.setattr(checkpoints, "CHUNK", chunk)
        result = compared(tmp_path, a, b)
        assert set(found(result)) == {kind}
        assert result.total.elements > 0
        assert result.total.differing == 0


def test_rows_in_another_order_are_found_under_quantization_noise(tmp_path):
    noisy = WIDE[ORDER] + 0.05 * drawn(96, 64, seed=3)
    result = compared(tmp_path, {"x.weight": WIDE}, {"x.weight": noisy})
    assert set(found(result)) == {"layout"}
    assert result.total.rms == pytest.approx(0.05, rel=0.1)
    unrelated = compared(tmp_path, {"x.weight": WIDE}, {"x.weight": drawn(96, 64, seed=4)})
    assert found(unrelated) == {}
    # of two independent normals
    assert unrelated.total.rms == pytest.approx(2**0.5, rel=0.1)


def test_a_norm_stored_as_1_plus_weight_is_named_and_a_first_step_of_adam_is_not(tmp_path):
    norm = drawn(64)
    offset = compared(tmp_path, {"norm.weight": norm}, {"norm.weight": norm + 1})
    assert found(offset) == {"offset": ["norm.weight"]}
    # Adam's first step is the rate times the sign of the gradient
    assert found(compared(tmp_path, {"norm.weight": norm}, {"norm.weight": norm + 1e-3})) == {}


EMBEDDING, HEAD = drawn(40, 8), drawn(40, 8, seed=1)
TIED = {"model.embed_tokens.weight": EMBEDDING}
COPIED = {**TIED, "lm_head.weight": EMBEDDING}
UNTIED = {**TIED, "lm_head.weight": HEAD}


@pytest.mark.parametrize(
    ("a", "b", "words", "differing"),
    [
        (COPIED, TIED, "Only in A (tied", 0),
        (TIED, UNTIED, "Only in B (not tied", 320),
        (COPIED, UNTIED, "Equal to the embedding in A only", 320),
        (UNTIED, UNTIED, None, 0),
        (TIED, TIED, None, 0),
    ],
)
def test_a_head_is_compared_with_the_embedding_that_it_is_tied_to(a, b, words, differing, tmp_path):
    result = compared(tmp_path, a, b)
    assert result.total.differing == differing
    assert found(result) == ({"tied": ["lm_head.weight"]} if words else {})
    assert all(text.startswith(words) for _, text in result.findings)


def test_a_block_is_no_larger_than_a_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "CHUNK", 640)
    save_file({"x.weight": WIDE}, tmp_path / "a.safetensors")
    tensor = checkpoints.open_checkpoint(str(tmp_path / "a.safetensors")).tensors["x.weight"]
    # 96 x 64 elements
    assert [block.size for block in tensor.blocks()] == [640] * 9 + [384]


INDEX = '{"weight_map": {"x.weight": "model-00001-of-00002.safetensors"}}'


@pytest.mark.parametrize(
    ("name", "make", "words"),
    [
        ("b.safetensors", id, "no such file or folder"),
        ("b.safetensors", Path.touch, "cannot be read"),
        (
            "b.safetensors",
            lambda path: path.write_bytes(save({"x.weight": WIDE})[:-9]),
            "a complete file",
        ),
        (
            "b.safetensors",
            lambda path: path.write_bytes(save({"z.weight": WIDE})),
            "no tensor of the same name",
        ),
        (
            "b.gguf",
            lambda path: small_gguf.write(path) and path.write_bytes(path.read_bytes()[:-4000]),
            "ends within",
        ),
        (
            "b.gguf",
            lambda path: small_gguf.write(path) and os.truncate(path, 2000),
            "ends within its keys",
        ),
        (
            "b/model.safetensors.index.json",
            lambda path: path.write_text(INDEX),
            "has no 'model-00001-of-00002",
        ),
        (
            "b/model.safetensors.index.json",
            lambda path: path.write_text('{"weight_map": {"x.weight": 1}}'),
            "is no index of weight files",
        ),
        (
            "b/pytorch_model.bin",
            lambda path: torch.save({"x.weight": WIDE}, path),
            "a pickle, which is never opened",
        ),
    ],
)
def test_a_checkpoint_that_cannot_be_read_is_one_sentence_and_code_2(
    name,
    make,
    words,
    cli,
    tmp_path,
):
    save_file({"x.weight": WIDE}, tmp_path / "a.safetensors")
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    make(path)
    # a file of its own, or the folder that holds it
    other = tmp_path / name.split("/")[0]
    assert words in cli("weights", tmp_path / "a.safetensors", other).refusal


def test_the_command_prints_layers_together_and_json_has_every_module(cli, tmp_path):
    tensors = load_file(MODEL / "model.safetensors")
    doubled = tensors["model.layers.1.mlp.down_proj.weight"]
    doubled *= 2
    other = tmp_path / "b.safetensors"
    save_file(tensors, other)
    done = cli("weights", MODEL, other).succeeded()
    assert " layers.0,2.mlp.down_proj " in done.stdout
    assert " layers.1.mlp.down_proj " in done.stdout
    assert " layers.0-2.self_attn.q_proj " in done.stdout
    assert " layers.2.self_attn.q_proj " in cli("weights", MODEL, other, "--layers").stdout
    facts = cli("weights", MODEL, other, "--as", "float16", "--json").json
    assert facts["rounded_to"] == "float16"
    (module,) = (one["module"] for one in facts["modules"] if one["differing"])
    assert module == "layers.1.mlp.down_proj"
    assert facts["total"]["differing"] == int(doubled.count_nonzero())
    assert cli("weights", MODEL, MODEL, "--as", "int8").returncode == 2
