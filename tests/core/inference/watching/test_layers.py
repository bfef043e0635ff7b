"""Outputs of modules during a capture: the right rows, planted faults named, nothing changed by
watching.
"""

from contextlib import contextmanager
from functools import cache

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.verdicts.tiny_models import tiny_model
from core.errors import CaptureError, UsageError
from core.inference.capture.capture import run_capture
from core.inference.models.model import loaded_from
from core.inference.models.torch_errors import quiet
from core.inference.watching import layers as layer_capture
from core.inference.watching.modules import watched_modules
from core.runs.queries.layers import first_module, furthest_module, modules
from core.runs.reader import RunReader
from core.runs.store.store import Store
from core.runs.writer import RunWriter
from tests.core.inference import sameness
from tests.core.inference.conftest import CONFIGS, FEWER, config_of
from tests.core.inference.sameness import planned, plant_modifier, replacing_output
from tests.covering import few

pytestmark = pytest.mark.model
ALL = CONFIGS | {
    "opt": FEWER | {"ffn_dim": 96, "word_embed_proj_dim": 48, "init_std": 0.2},
    "phi": FEWER | {"intermediate_size": 96},
    "falcon": FEWER,
}
ARCHITECTURES = [name for name in ALL if name not in ("qwen2", "mistral", "gemma2", "longrope")]


def drawn_ids(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(1, 300, (count,), generator=generator).tolist())


IDS = drawn_ids(13, seed=3)


@cache
def model_of(name):
    torch.manual_seed(5)
    with quiet():
        model = AutoModelForCausalLM.from_config(config_of(name, ALL), dtype=torch.float32)
    return loaded_from(model.eval().requires_grad_(False), tiny_model("llama").tokenizer)


def captured(folder, loaded, variant, *, prompts=(IDS,), **settings):
    settings = {"layers": True, "kv": False, **settings}
    return sameness.captured(Store(folder), loaded, prompts, variant, **settings)


def plant(monkeypatch, loaded, name, change):
    """A modifier `faulty`, with which the module of that name puts out something else."""
    hook = replacing_output(change)

    @contextmanager
    def modified(batch):
        with loaded.model.get_submodule(name).register_forward_hook(hook):
            yield batch

    plant_modifier(monkeypatch, "faulty", modified)


def nudged(output):
    """The largest element by one part in a thousand."""
    changed = output.clone()
    changed.view(-1)[changed.abs().argmax()] *= 1.001
    return changed


@pytest.mark.thorough
@pytest.mark.parametrize("name", few(ARCHITECTURES, "mixtral"))
def test_a_fault_in_any_kind_of_module_is_named_as_the_first_that_differs(
    name,
    tmp_path,
    monkeypatch,
):
    loaded = model_of(name)
    plant(monkeypatch, loaded, watched_modules(loaded.model)[0].name, torch.clone)
    with captured(tmp_path / "twin", loaded, "prefill+faulty", layer_floor=0) as run:
        table = modules(run, 0)
    # the twin: what is put out is only copied
    assert first_module(table) is None
    followed = dict(zip(table["module"], table["kind"], strict=True))
    kinds = set(followed.values())
    of_blocks = {"other"} if name == "mamba" else {"attention", "projection", "mlp"}
    expected = {"embedding", "norm", "residual", "head"} | of_blocks
    assert expected <= kinds
    assert list(followed)[-1] == "logits"
    for kind in sorted(kinds - {"head"}):
        target = [module for module, of in followed.items() if of == kind][-1]
        plant(monkeypatch, loaded, target, nudged)
        with captured(tmp_path / kind, loaded, "prefill+faulty", layer_floor=0) as run:
            first = first_module(modules(run, 0))
        assert first.module == target
        assert first.neq == 1


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    "name",
    few(ARCHITECTURES, "llama", "gpt2", "gemma3", "mixtral", "mamba", "falcon"),
)
def test_every_module_that_can_be_is_followed_into_the_prompts_own_row(name, tmp_path):
    """In the wrong row or column a module would be a million floors away."""
    loaded = model_of(name)
    variant = "prefill+batch:3+row:1"
    # padding on the left would change the function of these
    if name not in ("mamba", "lfm2", "bloom"):
        variant += "+pad:left:4"
    with captured(tmp_path, loaded, variant) as run:
        table = modules(run, 0)
    missing = {each.name for each in watched_modules(loaded.model)} - set(table["module"])
    # Mamba reads its weight without calling it
    assert all("mixer.dt_proj" in module for module in missing)
    limit = 100 * table["floor_rms"].fillna(0) + 1e-6 * (1 + table["max_abs"])
    assert (table["rms"] <= limit).all()


def test_watching_changes_no_bit_and_leaves_no_hook(tmp_path):
    loaded = model_of("mixtral")
    bits = []
    for layers in (False, True):
        with captured(tmp_path / str(layers), loaded, "prefill+batch:2", layers=layers) as run:
            bits.append([side.sha256 for side in run.sides])
    assert bits[0] == bits[1]
    assert not any(
        module._forward_hooks or module._forward_pre_hooks for module in loaded.model.modules()
    )


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    "variant",
    ["chunked:5+pad:right:3", "reuse:4", "blocks:4", "static", "decode+batch:2+row:1"],
)
def test_a_prompt_in_several_forwards_is_put_together(variant, tmp_path):
    with captured(tmp_path, model_of("llama"), variant) as run:
        table = modules(run, 0)
    # 13 modules of each of two layers, the embedding, the last norm and the head
    assert len(table) == 2 * 13 + 3
    assert (table["rms"] <= 100 * table["floor_rms"].fillna(0)).all()


def test_a_fault_at_one_position_is_found_at_that_position(tmp_path, monkeypatch):
    loaded = model_of("llama")

    def at_seven(output):
        changed = output.clone()
        changed[:, 7, 3] += 0.01
        return changed

    plant(monkeypatch, loaded, "model.layers.1.self_attn.v_proj", at_seven)
    with captured(tmp_path, loaded, "prefill+faulty") as run:
        table = modules(run, 0)
        along = run.rows("layer_position", pair=0, prompt=0)
    first = first_module(table)
    assert first.module == "model.layers.1.self_attn.v_proj"
    assert first.first_position == 7
    assert along.loc[along["neq"] > 0, "position"].min() == 7
    assert furthest_module(table).ratio > 100


def test_what_cannot_be_watched_is_refused_before_anything_runs():
    loaded = model_of("llama")
    with pytest.raises(UsageError, match="--layer-floor -1"):
        planned(loaded, [IDS], layers=True, layer_floor=-1)
    with pytest.raises(CaptureError, match="leave --layers out"):
        planned(loaded, [IDS], "prefill+compile", ["decode"], layers=True)


def test_a_floor_that_cannot_be_had_costs_no_side(store, monkeypatch):
    loaded = model_of("llama")
    plan = planned(loaded, [IDS], layers=True)

    def refused(*_):
        raise CaptureError("reordering: an operation is not known.")

    monkeypatch.setattr(layer_capture, "reorder", refused)
    with RunWriter(store, plan.header) as writer:
        (missing,) = run_capture(plan, writer)
        path = store.path_of(writer.finish())
    assert "no noise floor: reordering" in missing
    with RunReader(path) as run:
        assert modules(run, 0)["floor_rms"].isna().all()


@pytest.mark.thorough
def test_long_prompts_do_not_wait_in_memory(tmp_path, monkeypatch):
    """What a trace holds between two forwards is a part of each module at most, for any length of
    the prompt.
    """
    loaded = model_of("llama")
    held = []
    see_logits = layer_capture.SpooledOutputs.see_logits

    def noting(trace, position, logits):
        held.append(sum(waiting.space.nbytes for waiting in trace._waiting.values()))
        see_logits(trace, position, logits)

    for name in ("_PART_BYTES", "_LARGER_PART_BYTES"):
        monkeypatch.setattr(layer_capture, name, 2000)
    monkeypatch.setattr(layer_capture.SpooledOutputs, "see_logits", noting)
    prompts = [drawn_ids(90, seed) for seed in range(4)]
    with captured(tmp_path, loaded, "decode", prompts=prompts, layer_floor=0) as run:
        assert (run.rows("layer", pair=0)["positions"] == 90).all()
    # as many modules with a part of 2,000 bytes each
    assert max(held) <= 29 * 2000
