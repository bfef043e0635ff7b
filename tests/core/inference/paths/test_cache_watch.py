"""KV caches of a capture: those of the prompt's own tokens, counted as the public thread counts
them.
"""

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from benchmarks.families import tiny_family
from benchmarks.verdicts.tiny_models import model_of as model_of_config
from core.errors import CaptureError
from core.inference.paths.batch import CacheWatch, kv_parts
from core.inference.paths.engines import whole_side
from core.inference.paths.paths import open_path, parse_path
from tests.core.inference.conftest import MODELS
from tests.core.inference.odd_models import deepseek_v32, recurrent_gemma
from tests.core.inference.sameness import (
    apart,
    captured,
    float32_bound,
    logits_of,
    on_cpu,
    planned,
    rms,
    tokens,
)
from tests.covering import covering, thorough

pytestmark = pytest.mark.model

PATHS = [
    "prefill",
    "decode",
    "chunked:5",
    "reuse:7",
    "blocks:8",
    "static",
    "decode+batch:3+row:1",
    "decode+pad:left:5",
    "blocks:8+pad:left:5",
    "blocks:5+pad:right:3",
    "static+pad:right:3",
    "prefill+pad:right:3",
    "prefill+batch:3+row:2+pad:left:2",
]


def parts_of(path, loaded):
    """({(layer, kind): (first position, [heads, positions, width])}, logits)"""
    watch = CacheWatch()
    with torch.inference_mode(), open_path(parse_path(path), loaded, watch=watch) as opened:
        logits = whole_side(opened, tokens(loaded))
        parts = {}
        for part in kv_parts(watch, 0, loaded.torch_dtype):
            values = torch.from_numpy(part.bits.view(np.float32).copy())
            parts[part.layer, part.kind] = (part.first_position, values)
    return parts, logits


def feed(loaded, ids, cache):
    """A plain forward that reads and writes a cache."""
    loaded.model(torch.tensor([ids]), past_key_values=cache, use_cache=True)


def own_cache(loaded):
    """A plain forward that knows nothing of paths; it keeps every position, also of a window."""
    cache = DynamicCache(config=loaded.model.config)
    cache.activate_past_recording()
    with torch.inference_mode():
        feed(loaded, tokens(loaded), cache)
    return cache


@pytest.mark.spread(8)
@pytest.mark.parametrize(
    ("loaded", "path"),
    covering(MODELS, PATHS, whole=("llama",)),
    indirect=["loaded"],
)
def test_each_path_leaves_the_keys_and_values_of_the_prompts_own_tokens(path, loaded):
    found, logits = parts_of(path, loaded)
    exact = own_cache(loaded)
    assert found
    assert torch.equal(logits, logits_of(path, loaded))
    for (layer, kind), (first, part) in found.items():
        whole = getattr(exact.layers[layer], f"{kind}s")[0]
        expected = whole[:, first : first + part.shape[1]]
        assert first + part.shape[1] == len(tokens(loaded))
        assert part.shape == expected.shape
        # The float32 bound of logits holds for states before the head with room to spare: their
        # products are as long.
        assert apart(part, expected) <= float32_bound(loaded)


# 47 of 48: the response is one row, which takes another kernel everywhere
@pytest.mark.parametrize(
    ("dtype", "prompt"),
    [
        ("float32", 47),
        *thorough(
            [
                ("float32", 31),
                ("bfloat16", 31),
                ("bfloat16", 47),
            ]
        ),
    ],
)
def test_the_public_threads_count_is_ours_for_every_layer(
    dtype,
    prompt,
    shipped_model,
    store,
):
    """Report C, protocol 1: the cache of one forward over prompt + response, against prompt first
    and response after it.

    The thread's own lines, on the shipped model: `(whole.layers[0].keys !=
    parts.layers[0].keys).sum()` of `.numel()`.
    """
    loaded = on_cpu(shipped_model, dtype)
    text = (shipped_model.parent / "prompts" / "shapes.txt").read_text()
    ids = loaded.tokenizer(text)["input_ids"][:48]
    whole, parts = (DynamicCache(config=loaded.model.config) for _ in range(2))
    with torch.inference_mode():
        feed(loaded, ids, whole)
        feed(loaded, ids[:prompt], parts)
        feed(loaded, ids[prompt:], parts)
    with captured(store, loaded, [ids], f"reuse:{prompt}") as run:
        table = run.rows("kv", pair=0)
        heads = table.groupby(["layer", "kind"])
        positions = run.rows("kv_position", pair=0, prompt=0).groupby(["layer", "kind"])
        for layer, (a, b) in enumerate(zip(whole.layers, parts.layers, strict=True)):
            for kind in ("key", "value"):
                ours, places = (each.get_group((layer, kind)) for each in (heads, positions))
                theirs = getattr(a, f"{kind}s") != getattr(b, f"{kind}s")
                assert ours["neq"].sum() == int(theirs.sum())
                assert ours["elements"].sum() == theirs.numel()
                # by head
                assert ours["neq"].tolist() == theirs[0].sum(dim=(1, 2)).tolist()
                assert places["neq"].tolist() == theirs[0].sum(dim=(0, 2)).tolist()
        # in bfloat16 the last digits of another kernel may round away, as they do without vectors
        assert table["neq"].sum() > 0 or prompt != 47 or dtype != "float32"


def test_caches_are_kept_where_a_path_reads_one_or_where_they_are_asked_for(
    llama,
    model_of,
):
    assert planned(llama, ["def"]).has_kv
    assert not planned(llama, ["def"], "prefill", ["prefill+batch:2"]).has_kv
    assert planned(llama, ["def"], "prefill", ["prefill+batch:2"], kv=True).has_kv
    assert not planned(llama, ["def"], kv=False).has_kv
    with pytest.raises(CaptureError, match="no cache to read"):
        planned(model_of("gpt1"), ["def"], "prefill", ["prefill+batch:2"], kv=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_running_states_are_those_of_the_models_own_cache(dtype, model_of, store):
    """Mamba 2 keeps its recurrent state in float32 in a bfloat16 model too."""
    loaded = model_of("mamba2", dtype)
    ids = tokens(loaded)
    fresh, steps = (DynamicCache(config=loaded.model.config) for _ in range(2))
    with torch.inference_mode():
        loaded.model(torch.tensor([ids]), cache_params=fresh, use_cache=True)
        for token in ids:
            loaded.model(torch.tensor([[token]]), cache_params=steps, use_cache=True)
    with captured(store, loaded, [ids], "decode") as run:
        table = run.rows("kv", pair=0)
    states_of = table.groupby(["layer", "kind"])
    assert set(table["kind"]) == {"conv state", "recurrent state"}
    assert set(table["first_position"].dropna()) <= {len(ids) - 1}
    for layer, (a, b) in enumerate(zip(fresh.layers, steps.layers, strict=True)):
        for kind in ("conv", "recurrent"):
            ours = states_of.get_group((layer, f"{kind} state"))
            states = getattr(a, f"{kind}_states")[0], getattr(b, f"{kind}_states")[0]
            assert ours["elements"].sum() == states[0].numel()
            assert ours["neq"].sum() == int((states[0] != states[1]).sum())
            squares = ours["rms"] ** 2 * ours["elements"]
            found = np.sqrt(squares.sum() / ours["elements"].sum())
            exact = rms(states[0].double() - states[1].double())
            assert found == pytest.approx(exact, rel=1e-6)
    # layers x heads
    assert len(table[table["kind"] == "recurrent state"]) == 2 * 6


def test_running_states_are_those_of_the_last_generated_token_that_was_fed(model_of, store):
    loaded = model_of("mamba2", "bfloat16")
    with captured(store, loaded, [tokens(loaded)], "decode", tokens=4, kv="on") as run:
        last = run.header.prompts[0].positions - 1
        # a prompt and four tokens, of which the last is never fed
        assert last == len(tokens(loaded)) + 2
        assert set(run.rows("kv", pair=0)["first_position"].dropna()) == {last}


def test_a_state_outside_the_cache_of_layers_is_its_familys_own(model_of):
    """MiniMax's and RWKV's, of a plain forward of transformers; whole, by head and at the end."""
    loaded = model_of("minimax")
    ids = torch.tensor([tokens(loaded)])
    with torch.inference_mode():
        own = loaded.model(ids, use_cache=True).past_key_values
    parts, _ = parts_of("prefill", loaded)
    assert {kind for _, kind in parts} == {"key", "value", "linear cache"}
    first, state = parts[1, "linear cache"]
    assert first == ids.shape[1] - 1
    assert torch.equal(state, own.linear_cache[1][0].reshape(4, 1, -1))
    assert torch.equal(parts[0, "key"][1], own.layers[0].keys[0])

    loaded = model_of("rwkv")
    with torch.inference_mode():
        states = loaded.model(torch.tensor([tokens(loaded)]), use_cache=True).state
    parts, _ = parts_of("prefill", loaded)
    assert sorted(parts) == [(0, "state"), (1, "state")]
    # five tensors [batch, hidden, layers]
    expected = torch.cat([state[0, :, 1] for state in states])
    assert torch.equal(parts[1, "state"][1].flatten(), expected)


def test_a_state_in_a_module_and_latents_have_the_names_of_their_families():
    loaded = model_of_config(recurrent_gemma())
    parts, _ = parts_of("decode", loaded)
    state = loaded.model.model.layers[1].temporal_block.rg_lru.recurrent_states
    assert torch.equal(parts[1, "recurrent state"][1].flatten(), state.flatten())
    assert {
        (0, "conv1d state"),
        (2, "key"),
        (2, "value"),
    } <= set(parts)

    loaded = model_of_config(deepseek_v32(8))
    cache = own_cache(loaded).layers[2]
    parts, _ = parts_of("prefill", loaded)
    assert {kind for _, kind in parts} == {"latent", "rotary key", "indexer key"}
    assert torch.equal(parts[2, "latent"][1], cache.keys[0])
    assert torch.equal(parts[2, "rotary key"][1], cache.values[0])
    assert torch.equal(parts[2, "indexer key"][1], cache.indexer_keys)


def test_caches_of_a_family_that_compresses_its_keys_are_compared(store):
    """DeepSeek V4: the first tokens have no compressed key to choose."""
    loaded = tiny_family("deepseek_v4")
    with captured(store, loaded, [tokens(loaded)], "decode") as run:
        table = run.rows("kv", pair=0)
    assert {"key", "compressed kv", "buffer kv", "overlap gate"} <= set(table["kind"])
