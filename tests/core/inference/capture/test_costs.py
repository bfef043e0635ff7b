"""A dry run: it refuses what a capture refuses, and its figures are those of the forwards really
made.
"""

from contextlib import contextmanager

import pytest
import torch
from transformers import DynamicCache

from core.errors import CaptureError
from core.inference.capture.capture import run_capture
from core.inference.capture.costs import costs_of
from core.inference.models import devices
from core.inference.models.devices import devices_here
from core.inference.models.model import load_model
from tests.core.inference.capture.test_capture import Collected
from tests.core.inference.conftest import CONFIGS
from tests.core.inference.sameness import on_cpu, planned

PROMPTS = ["def walk(self, path): return [step for step in path if step]", "café lamps"]


def shapes(folder):
    return on_cpu(folder, weights=False)


@contextmanager
def tokens_of_forwards(loaded):
    """Tokens of each forward, all rows."""
    seen = []
    with loaded.model.model.embed_tokens.register_forward_hook(
        lambda _, given, __: seen.append(given[0].numel()),
    ):
        yield seen


@pytest.mark.parametrize("name", CONFIGS)
def test_without_weights_every_shape_and_limit_is_there_and_nothing_is_held(name, model_folders):
    empty = shapes(model_folders[name])
    whole = on_cpu(model_folders[name])
    of_empty = {key: value.shape for key, value in empty.model.state_dict().items()}
    of_whole = {key: value.shape for key, value in whole.model.state_dict().items()}
    assert of_empty == of_whole
    assert all(parameter.is_meta for parameter in empty.model.parameters())
    for same in (
        "name",
        "dtype",
        "device",
        "device_name",
        "context",
        "vocab_size",
        "token_limit",
        "weight_bytes",
    ):
        assert getattr(empty, same) == getattr(whole, same), same
    assert empty.revision == ""
    assert empty.vocabulary() == whole.vocabulary()


PATHS = [
    "decode",
    "chunked:5",
    "reuse:4",
    "blocks:4",
    "static",
    "prefill+batch:3",
    "decode+batch:2+pad:left:3",
    "chunked:5+pad:right:2",
]


@pytest.mark.parametrize("path", ["prefill", *PATHS])
def test_forwards_and_tokens_are_those_that_the_model_really_computes(llama, model_folders, path):
    other = "decode" if path == "prefill" else "prefill"
    plan = planned(shapes(model_folders["llama"]), PROMPTS, path, [other], kv=False)
    foreseen = costs_of(plan)
    with tokens_of_forwards(llama) as seen:
        run_capture(planned(llama, PROMPTS, path, [other], kv=False), Collected())
    assert sum(side["forwards"] for side in foreseen["sides"]) == len(seen)
    assert sum(side["tokens"] for side in foreseen["sides"]) == sum(seen)
    assert foreseen["sides"][0]["positions"] == sum(map(len, plan.token_ids))


@pytest.mark.parametrize(
    "name",
    ["llama", "gpt2", "qwen2", "gemma3", "mistral-window", "gpt-neox", "mixtral", "qwen2-moe"],
)
def test_the_estimate_of_a_cache_is_what_the_cache_takes(name, model_folders):
    plan = planned(
        shapes(model_folders[name]),
        PROMPTS,
        "prefill",
        ["decode+batch:3"],
        kv=False,
    )
    foreseen = costs_of(plan)
    whole = on_cpu(model_folders[name])
    longest = max(plan.token_ids, key=len)
    cache = DynamicCache(config=whole.model.config)
    with torch.inference_mode():
        whole.model(input_ids=torch.tensor([longest] * 3), past_key_values=cache)
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert [side["kv_bytes"] for side in foreseen["sides"]] == [0, held]
    assert foreseen["kv_bytes"] == held


def test_logits_that_do_not_fit_beside_the_weights_are_refused(model_folders, monkeypatch):
    loaded = shapes(model_folders["llama"])
    plan = planned(loaded, PROMPTS, "prefill+batch:64", ["decode"])
    needed = plan.paths[0].working_bytes(loaded, max(map(len, plan.token_ids)))
    monkeypatch.setattr(devices, "free_bytes", lambda device: needed + loaded.weight_bytes)
    foreseen = costs_of(planned(loaded, PROMPTS, "prefill+batch:64", ["decode"]))
    assert foreseen["free_bytes"] == needed
    monkeypatch.setattr(devices, "free_bytes", lambda device: needed + loaded.weight_bytes - 1)
    with pytest.raises(CaptureError, match=r"path 'prefill\+batch:64': a batch"):
        planned(loaded, PROMPTS, "prefill+batch:64", ["decode"])


@pytest.mark.parametrize(
    ("prompt", "variant", "sentence"),
    [
        ("x", "reuse:40", "has nothing left to compute"),
        ("x " * 200, "decode", r"prompt 1 of 1 has \d+ tokens; the model's context is 96"),
        ("x", "decode+attn:flash_attention_2", "has no attention 'flash_attention_2'"),
        ("x", "decode+tf32", "tf32 needs CUDA"),
    ],
)
def test_what_a_capture_refuses_a_dry_run_refuses_too(
    llama,
    model_folders,
    prompt,
    variant,
    sentence,
):
    for loaded in (llama, shapes(model_folders["llama"])):
        with pytest.raises(CaptureError, match=sentence):
            planned(loaded, [prompt], "prefill", [variant])


def test_the_devices_are_those_a_model_can_be_loaded_on(model_folders):
    found = devices_here()
    assert found[0][0] == "cpu"
    for name, chip, free in found:
        shaped = load_model(
            str(model_folders["llama"]), dtype="float32", device=name, weights=False
        )
        assert shaped.device_name == chip
        assert free is None or free > 0


def test_what_is_generated_is_counted_as_the_most_it_can_be(llama, model_folders):
    """Twice the prompt's forwards and one a token, both to find the tokens and to keep their
    logits; the real capture as oracle.
    """
    what = PROMPTS, "chunked:5", ["decode"]
    shaped = shapes(model_folders["llama"])
    foreseen = costs_of(planned(shaped, *what, tokens=6, kv=False, is_dry=True))
    with tokens_of_forwards(llama) as seen:
        plan = planned(llama, *what, tokens=6, kv=False)
        run_capture(plan, Collected())
    # in float32 these do not part; if that changes, choose prompts that do not
    assert all(len(side) == 6 for made in plan.generations for side in made.tokens)
    assert all(made.parting(1) is None for made in plan.generations)
    assert len(seen) == foreseen["forwards"]
    assert sum(seen) == foreseen["tokens"]
