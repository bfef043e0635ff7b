"""Tensor dumps as an engine: folders that hooks of a real model write in the layouts of SGLang and
torchtitan, against transformers; files that want more than to be read.
"""

import importlib
import os
import sys
from contextlib import ExitStack, contextmanager

import pytest
import torch

from core.checks.modules_alone import LARGEST_ALONE
from core.engines import registry
from core.engines.process import ADAPTERS
from core.inference.controls.judge_model import judge
from tests.core.evidence import rows_of
from tests.core.inference.sameness import alone, apart, logits_of, on_cpu
from tests.covering import thorough
from tests.places import MODEL

IDS = (5, 9, 200, 31, 77, 9, 1024, 3, 8, 44, 17, 2)

pytestmark = pytest.mark.model


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where dumps are written, known as the engine `rollout`."""
    place = tmp_path / "dumps"
    place.mkdir()
    monkeypatch.setitem(registry._locations, "rollout", registry._location("rollout", str(place)))
    yield place
    registry.end_all()


def outputs_of(model, ids, past, start):
    """What the modules of the model put out for tokens that follow a cache, and what its norms were
    given.
    """
    found = {}
    given = {}

    def see(name, inputs, output):
        first = output[0] if isinstance(output, tuple) else output
        if isinstance(first, torch.Tensor):
            found[name] = first[0].clone()
        if inputs and isinstance(inputs[0], torch.Tensor) and inputs[0].ndim == 3:
            given[name] = inputs[0][0].clone()

    with ExitStack() as hooks, torch.inference_mode():
        for name, module in model.named_modules():
            hook = module.register_forward_hook(lambda _, *call, name=name: see(name, *call))
            hooks.enter_context(hook)
        past = model(
            torch.tensor([ids]),
            past_key_values=past,
            position_ids=torch.arange(start, start + len(ids))[None],
            use_cache=True,
        ).past_key_values
    return found, given, past


def as_sglang(model, steps, folder):
    """Write `TP0_PP0_Rank0_pid7/Pass*.pt` as SGLang's hooks do: a forward of other tokens first,
    modules without parts only, projections merged, the stream added in the norms, and logits of a
    forward in the next one's file.
    """
    place = folder / "TP0_PP0_Rank0_pid7"
    place.mkdir()
    late = {}
    past = None
    start = 0
    for number, ids in enumerate([(0, 0, 0), *steps]):
        # the warm-up leaves no cache
        if number < 2:
            past = None
            start = 0
        found, given, past = outputs_of(model, list(ids), past, start)
        entries = {"model.embed_tokens": found["model.embed_tokens"]}
        for block in range(model.config.num_hidden_layers):
            stem = f"model.layers.{block}."
            heads = [found[f"{stem}self_attn.{part}_proj"] for part in "qkv"]
            entries[stem + "self_attn.qkv_proj"] = torch.cat(heads, -1)
            gate, up = (found[f"{stem}mlp.{part}_proj"] for part in ("gate", "up"))
            entries[stem + "mlp.gate_up_proj"] = torch.cat([gate, up], -1)
            entries[stem + "mlp.act_fn"] = torch.nn.functional.silu(gate) * up
            for part in ("self_attn.o_proj", "mlp.down_proj"):
                entries[stem + part] = found[stem + part]
            for norm in ("input_layernorm", "post_attention_layernorm"):
                entries[stem + norm] = [found[stem + norm], given[stem + norm]]
        entries["model.layers.0.input_layernorm"] = found["model.layers.0.input_layernorm"]
        entries["model.norm"] = [found["model.norm"], given["model.norm"]]
        entries["model.forward_batch_info.input_ids"] = torch.tensor(ids)
        entries["model.forward_batch_info.positions"] = torch.arange(start, start + len(ids))
        entries["model.forward_batch_info.seq_lens"] = torch.tensor([start + len(ids)])
        torch.save(late | entries, place / f"Pass{number:05d}.pt")
        late = {"model": found["model.norm"], "logits_processor": found["lm_head"][-1:]}
        start += len(ids)


TITAN = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
    "": "",
}


def as_torchtitan(model, ids, folder):
    """Write one file of a forward under torchtitan's names, its queries and keys in pairs of
    neighbours.
    """
    found, _, _ = outputs_of(model, list(ids), None, 0)
    entries = {
        "tok_embeddings": found["model.embed_tokens"][None],
        "norm": found["model.norm"][None],
        "output": found["lm_head"][None],
        "input_ids": torch.tensor([ids]),
    }
    for block in range(model.config.num_hidden_layers):
        for part, name in TITAN.items():
            own = f"model.layers.{block}.{part}".rstrip(".")
            theirs = f"layers.{block}.{name}".rstrip(".")
            entries[theirs] = found[own][None]
        for part, name in (("q_proj", "wq"), ("k_proj", "wk")):
            values = found[f"model.layers.{block}.self_attn.{part}"]
            # transformers rotates halves of a head, torchtitan neighbors
            halves = values.reshape(len(ids), -1, 2, model.config.head_dim // 2)
            pairs = halves.swapaxes(2, 3).reshape(1, *values.shape)
            entries[f"layers.{block}.attention.{name}"] = pairs
    torch.save(entries, folder / "step.pt")


@pytest.mark.parametrize(
    "steps",
    [
        *thorough([((IDS,),)]),
        (IDS[:5], IDS[5:9], *((one,) for one in IDS[9:])),
    ],
)
def test_a_dump_of_sglangs_layout_is_the_model_module_by_module(loaded, folder, steps):
    """Prefilled in one forward, or in pieces and then token by token; the warm-up before it is
    passed over.
    """
    as_sglang(loaded.model, steps, folder)
    replayed = logits_of("rollout:replay", loaded, IDS)
    assert apart(replayed, logits_of("prefill", loaded, IDS)) < 1e-4
    found = alone("rollout:replay", loaded, IDS)
    names = {"model.embed_tokens", "model.layers.2", "model.layers.0"}
    assert names | {"model.layers.1.self_attn.k_proj"} <= set(found.names)
    assert len(found.names) >= 30
    assert found.ratios.max() < LARGEST_ALONE / 2


def test_a_dump_of_torchtitans_names_is_the_model_module_by_module(loaded, folder):
    as_torchtitan(loaded.model, IDS, folder)
    found = alone("rollout:replay", loaded, IDS)
    # a prompt may be a part of a forward
    part = logits_of("rollout:replay", loaded, IDS[:7])
    whole = logits_of("rollout:replay", loaded, IDS)
    assert torch.allclose(part, whole[:7])
    names = {f"model.layers.1.self_attn.{part}_proj" for part in "qk"}
    assert names | {"model.layers.2"} <= set(found.names)
    assert found.ratios.max() < LARGEST_ALONE / 2


@contextmanager
def scaled(loaded, scale, row=slice(None)):
    """Another projection of the second block inside the `with`."""
    weight = loaded.model.model.layers[1].self_attn.o_proj.weight.data
    kept = weight.clone()
    try:
        weight[row] *= scale
        yield
    finally:
        weight.copy_(kept)


@pytest.mark.spread(1)
@pytest.mark.parametrize("is_faulty", [True, False])
def test_a_fault_in_what_was_dumped_is_a_bug_and_its_module_named(loaded, folder, is_faulty):
    with scaled(loaded, 0.0 if is_faulty else 1.0, row=7):
        as_sglang(loaded.model, (IDS,), folder)
    found = judge(loaded, [IDS], variant="rollout:replay")
    assert found.name == ("bug suspected" if is_faulty else "rounding")
    if is_faulty:
        (alone,) = rows_of(found.evidence, "each module alone")
        assert alone.figures.modules_beyond == ("model.layers.1.self_attn",)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("scale", "verdict"),
    [
        (1.0, "likely rounding"),
        (1.1, "bug suspected"),
    ],
)
def test_a_dump_of_16_bits_is_judged_by_the_16_bit_verdict(folder, scale, verdict):
    """It has no float32, so a sound one is likely rounding; the twin was dumped with one projection
    a tenth larger.
    """
    narrow = on_cpu(MODEL, "bfloat16")
    with scaled(narrow, scale):
        as_sglang(narrow.model, (IDS,), folder)
    found = judge(narrow, [IDS], variant="rollout:replay")
    assert found.name == verdict
    (drawn,) = rows_of(found.evidence, "error against float32")
    assert drawn.outcome == ("passed" if scale == 1 else "failed")


@pytest.fixture
def refused(folder, monkeypatch):
    """The adapter in this process: a refusal of its own, without an interpreter that loads torch
    first.
    """
    monkeypatch.syspath_prepend(str(ADAPTERS))
    adapter = importlib.import_module("replay_dump")
    monkeypatch.setattr(sys, "argv", ["replay_dump.py", str(folder)])

    def call(match, ids=IDS, dtype="float32"):
        with pytest.raises(adapter.Refused, match=match):
            adapter.load({"model": str(MODEL), "dtype": dtype})[1](ids, lambda *_, **__: None)

    return call


def test_a_dump_of_another_dtype_or_prompt_is_refused_in_one_sentence(loaded, folder, refused):
    as_sglang(loaded.model, (IDS,), folder)
    refused("folder have the 3 tokens", (1, 2, 3))
    refused("is float32, not bfloat16", dtype="bfloat16")


class Calls:
    """Pickled, it asks for a call."""

    def __reduce__(self):
        return os.mkdir, ("called",)


def test_nothing_in_a_file_is_executed(folder, monkeypatch, tmp_path, refused):
    monkeypatch.chdir(tmp_path)
    torch.save({"model.norm": Calls()}, folder / "Pass00000.pt")
    refused(r"Pass00000\.pt holds more than tensors")
    assert not (tmp_path / "called").exists()


def test_files_that_are_no_dumps_are_refused_in_one_sentence(loaded, folder, refused):
    path = folder / "Pass00000.pt"
    as_torchtitan(loaded.model, IDS, folder)
    (folder / "step.pt").rename(path)
    path.write_bytes(path.read_bytes()[:9999])
    refused(r"Pass00000\.pt holds more than tensors, or is damaged")
    torch.save([torch.zeros(2)], path)
    refused("not a dict of module name")
    torch.save({"model.norm": torch.zeros(3, 64)}, path)
    refused("has input_ids")
    torch.save({"input_ids": torch.tensor([1, 2])}, path)
    refused("has neither logits")


def test_dumps_of_several_processes_are_refused(loaded, folder, refused):
    as_sglang(loaded.model, (IDS,), folder)
    (folder / "TP1_PP0_Rank1_pid8").mkdir()
    torch.save({"model.norm": torch.zeros(3, 64)}, folder / "TP1_PP0_Rank1_pid8" / "Pass00000.pt")
    refused("dumps of 2 processes")
