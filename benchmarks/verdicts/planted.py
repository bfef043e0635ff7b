"""Faults of public reports with a strength: 1 computes what the report did, 0 the right result
(`python -m benchmarks.power`).

Most move what a module, the cache or the attention gives a share of the way from right to wrong.
Kinds of faults of two papers are among them: those of serving engines (Ekka, arXiv 2606.04594) and
those of a tensor-parallel forward (TTrace, arXiv 2506.09280).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.verdicts import choices
from benchmarks.verdicts.engines import (
    BLOCK,
    PREFIX,
    Attention,
    Engine,
    alter,
    attending,
    attention_of,
    cached,
    interpolate,
    layers,
    left_by,
    prefill,
    replacing,
    rewriting,
    routers,
    walk,
)
from benchmarks.verdicts.mutations import (
    _attention_of_block,
    _block_table_shifted,
    _boundary_hidden,
    _by_parts,
    _epsilon,
    _first_windowed_attention,
    _future_key,
    _groups_swapped,
    _of_another_base,
    _one_token_dropped,
    _rotary_tables,
    _rotating,
    _routed,
    _second_expert_lost,
    _untied,
    another_prompt,
    first_norm,
    in_a_batch,
    left_padding_without_positions,
    logits_of_the_previous_step,
    over_head_dim,
    scaled_value,
    uncapped,
    without_renormalisation,
    without_softcap,
)
from benchmarks.verdicts.sixteen import FAULTS, Share, _towards
from benchmarks.verdicts.tiny_models import CONFIGS, model_of
from core.inference.models.model import LoadedModel

CACHE, ATTENTION = "cache, batch", "attention, positions"
WEIGHTS, OUTPUT = "weights, experts", "output"
GROUPS = (CACHE, ATTENTION, WEIGHTS, OUTPUT)
FAMILIES = ("llama", "gpt2", "gemma2", "mistral-window", "mixtral", "gpt-oss")
_PADDING = 5
_TOKEN = 40
Places = Iterator[tuple[Any, str, Any]]


@dataclass(frozen=True)
class Planted:
    """A fault. of_share: the engine of a strength in (0, 1]; families: of FAMILIES; source: a path
    of github.com; module: the one at fault, if it is one that a verdict can name.
    """

    name: str
    group: str
    of_share: Share
    families: tuple[str, ...]
    source: str = ""
    module: Callable[[Any], Any] | None = None
    is_precision: bool = False


def family_model(family: str, dtype: str, seed: int) -> LoadedModel:
    """A tiny model of FAMILIES, its weights drawn from the seed."""
    config = CONFIGS.get(family) or choices.CONFIGS[family]
    return model_of(config(), dtype, seed)


def _attention(change: Callable[[Attention], Any], inner: Engine = prefill) -> Share:
    """Attention goes towards change(call)."""

    def of_share(share):
        def attend(call):
            output, *rest = call.run()
            return interpolate(output, change(call)[0], share), *rest

        return alter(attending(attend), inner)

    return of_share


def _slots(change: Callable[[Tensor], Tensor]) -> Share:
    """Cached keys and values go towards change(slots)."""

    def of_share(share):
        def move(slots):
            return interpolate(slots, change(slots), share)

        return cached([PREFIX], rewriting(move))

    return of_share


def _stale(slots: int | slice) -> Share:
    """Slots of the cache go towards what another request left there."""
    return lambda share: cached([PREFIX], left_by(another_prompt, PREFIX, slots, share))


def _weights(places: Callable[[Any], Places]) -> Share:
    """Weights go towards others: (module, name, wrong weight) of a model."""

    def of_share(share):
        def moved(model):
            for module, name, wrong in places(model):
                weight = interpolate(getattr(module, name), wrong, share)
                yield module, name, torch.nn.Parameter(weight, requires_grad=False)

        return alter(replacing(moved))

    return of_share


def _blend(engine: Engine) -> Share:
    """Logits go towards an engine's."""

    def of_share(share):
        def run(model, ids):
            return interpolate(prefill(model, ids), engine(model, ids), share)

        return run

    return of_share


# The cache and the batch.


def _keys_scaled(share: float) -> Engine:
    """Keys are read with another scale than they were written with."""

    def change(_, __, cache, ___):
        for layer in cache.layers:
            layer.keys = layer.keys * (1 + share)

    return cached([PREFIX], change)


def _positions_moved_after_the_prefix(share: float) -> Engine:
    """Tokens after a reused prefix stand a share of a position further right."""

    def move(places):
        return places + share * bool(places[0] > 0)

    return lambda model, ids: walk(model, ids, [PREFIX], positions=move)


def _padding_seen(call: Attention):
    call.mask[..., _PADDING:, :_PADDING] = True
    return call.run()


# Attention and positions.


def _window_longer(call: Attention):
    """A layer with a window sees one key more."""
    window = call.options.get("sliding_window")
    if window is None:
        return call.run()
    queries, keys = call.query.shape[2], call.key.shape[2]
    distance = torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)
    return call.run(mask=call.mask | (distance == window))


def _frequencies(change: Callable[[Any, Tensor], Tensor]) -> Share:
    """Frequencies of the rotation go towards change(model, frequencies)."""

    def of_share(share):
        def move(model, own):
            return interpolate(own, change(model, own), share)

        return alter(_rotating(move))

    return of_share


def _without_sinks(model) -> Places:
    for layer in layers(model):
        attention = attention_of(layer)
        # e^-20 of a key's weight is as good as none
        yield attention, "sinks", attention.sinks - 20


# Weights, norms and experts.


def _epsilons(share: float) -> Engine:
    """Norms add up to ten times the epsilon of the checkpoint."""

    def values(model):
        for module in model.modules():
            for owner, name, value in _epsilon(module):
                yield owner, name, value * (1 + 9 * share)

    return alter(replacing(values))


def _mean_square_in_bfloat16(output: Tensor, x: Tensor) -> Tensor:
    """Each sum of the squares is rounded."""
    squares = x.bfloat16().square()
    rounded = sum(squares.unbind(-1))[..., None] / x.shape[-1]
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    exact = wide.square().mean(-1, keepdim=True)
    return (output * (exact / rounded).sqrt()).to(x.dtype)


def _first_norms(model) -> list[Any]:
    return [first_norm(layer) for layer in layers(model)]


def _bias(part: str, name: str, factor: float) -> Share:
    """A bias of the second layer goes towards `factor` times itself."""

    def places(model):
        module = getattr(getattr(layers(model)[1], part), name)
        yield module, "bias", module.bias * factor

    return _weights(places)


def _rank_lost(model) -> Places:
    """The partial sums of the second of two ranks are not added."""
    module = attention_of(layers(model)[1]).o_proj
    wrong = module.weight.clone()
    wrong[:, wrong.shape[1] // 2 :] = 0
    yield module, "weight", wrong


def _expert_transposed(model) -> Places:
    """One expert's last projection was stored the other way round."""
    experts = layers(model)[1].mlp.experts
    wrong = experts.down_proj.clone()
    wrong[0] = wrong[0].T.reshape(wrong[0].shape)
    yield experts, "down_proj", wrong


def _without_router_bias(model) -> Places:
    for router in routers(model):
        yield router, "bias", torch.zeros_like(router.bias)


def _routing(change: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Share:
    """Weights of the chosen experts go towards change(router's logits, weights, ids)."""

    def of_share(share):
        def move(logits, weights, ids):
            return interpolate(weights, change(logits, weights, ids), share)

        return _routed(move)

    return of_share


def _head_untied(model) -> Places:
    head = model.get_output_embeddings()
    yield head, "weight", _untied(model, head.weight, head.weight).to(head.weight)


def _row_stale(model) -> Places:
    """The head has one token's row from before its embedding was halved."""
    head = model.get_output_embeddings()
    wrong = head.weight.clone()
    wrong[_TOKEN] *= 2
    yield head, "weight", wrong


# The output.


def _at_temperature(model, ids: Tensor) -> Tensor:
    return prefill(model, ids) / 2


def _biased(model, ids: Tensor) -> Tensor:
    """Another request's logit bias is added."""
    logits = prefill(model, ids).clone()
    logits[:, _TOKEN] += 5
    return logits


_DENSE = ("llama", "gpt2")

PLANTED: tuple[Planted, ...] = (
    Planted(
        "stale slot of an earlier request",
        CACHE,
        _stale(-3),
        _DENSE,
        "vllm-project/vllm/pull/17305",
    ),
    Planted(
        "block of another prompt",
        CACHE,
        _stale(slice(-BLOCK, None)),
        ("gemma2",),
        "vllm-project/vllm/pull/12621",
    ),
    Planted(
        "block table shifted by one",
        CACHE,
        _slots(_block_table_shifted),
        ("llama",),
        "vllm-project/vllm/issues/39146",
    ),
    Planted("k_scale", CACHE, _keys_scaled, ("gpt2",), "sgl-project/sglang/pull/20705"),
    Planted(
        "v_scale of a head",
        CACHE,
        lambda share: scaled_value(1 + share, slice(None)),
        ("llama",),
        "vllm-project/vllm/pull/11688",
        _attention_of_block(0),
    ),
    Planted(
        "edge of a chunk not seen",
        CACHE,
        _attention(_boundary_hidden, cached([PREFIX])),
        ("llama",),
        "huggingface/transformers/pull/43132",
    ),
    Planted(
        "another row of the batch",
        CACHE,
        FAULTS["another row of the batch"],
        ("gemma2",),
        "sgl-project/sglang/pull/1469",
    ),
    Planted(
        "padding attended to",
        CACHE,
        # no matter under rotary positions
        _attention(_padding_seen, left_padding_without_positions),
        ("llama",),
        "turboderp-org/exllamav2/issues/606",
    ),
    Planted(
        "positions after a reused prefix",
        ATTENTION,
        _positions_moved_after_the_prefix,
        ("llama",),
        "waybarrios/vllm-mlx/pull/311",
    ),
    Planted("a future key seen", ATTENTION, _attention(_future_key), ("gpt2",)),
    Planted(
        "window one token longer",
        ATTENTION,
        _attention(_window_longer),
        ("mistral-window", "gemma2"),
        "huggingface/transformers/issues/39408",
        _first_windowed_attention,
    ),
    Planted(
        "base of the rotation",
        ATTENTION,
        _frequencies(_of_another_base),
        ("mistral-window",),
        "unslothai/unsloth/pull/7028",
        _rotary_tables,
    ),
    Planted(
        "RoPE scaling by parts missing",
        ATTENTION,
        _frequencies(_by_parts),
        ("llama",),
        "NeuraLegion/shainet/pull/111",
        _rotary_tables,
    ),
    Planted(
        "scores over head_dim",
        ATTENTION,
        _attention(over_head_dim),
        ("gpt2",),
        "ggml-org/llama.cpp/pull/13951",
        _attention_of_block(0),
    ),
    Planted(
        "softcap of scores dropped",
        ATTENTION,
        _attention(without_softcap),
        ("gemma2",),
        "vllm-project/vllm-metal/issues/665",
        _attention_of_block(0),
    ),
    Planted(
        "sinks dropped",
        ATTENTION,
        _weights(_without_sinks),
        ("gpt-oss",),
        "modular/modular/issues/6198",
        _attention_of_block(0),
    ),
    Planted(
        "keys of two groups swapped",
        ATTENTION,
        _attention(_groups_swapped),
        ("llama",),
        module=_attention_of_block(1),
    ),
    Planted("a query reads ahead", ATTENTION, FAULTS["attention reads ahead"], ("gpt2",)),
    Planted("epsilon", WEIGHTS, _epsilons, _DENSE, "huggingface/candle/pull/271"),
    Planted(
        "mean square of norms in bfloat16",
        WEIGHTS,
        _towards(_first_norms, ..., _mean_square_in_bfloat16),
        ("llama",),
        "ROCm/aiter/issues/3806",
        is_precision=True,
    ),
    Planted("stale final norm", WEIGHTS, FAULTS["stale final norm"], ("llama",)),
    Planted(
        "tied head untied",
        WEIGHTS,
        _weights(_head_untied),
        ("gemma2",),
        module=lambda _: None,
    ),
    Planted(
        "row of the head stale", WEIGHTS, _weights(_row_stale), ("gpt2",), module=lambda _: None
    ),
    Planted(
        "bias of q, k and v missing",
        WEIGHTS,
        _bias("attn", "c_attn", 0.0),
        ("gpt2",),
        "ServiceNow/Fast-LLM/pull/398",
        _attention_of_block(1),
    ),
    Planted(
        "bias added on every rank",
        WEIGHTS,
        _bias("attn", "c_proj", 2.0),
        ("gpt2",),
        "huggingface/text-generation-inference/issues/1036",
        _attention_of_block(1),
    ),
    Planted(
        "partial sums of a rank lost",
        WEIGHTS,
        _weights(_rank_lost),
        ("llama",),
        module=_attention_of_block(1),
    ),
    Planted(
        "exact GELU for the tanh one",
        WEIGHTS,
        _towards(
            lambda model: [layer.mlp.act for layer in layers(model)],
            ...,
            lambda _, x: torch.nn.functional.gelu(x),
        ),
        ("gpt2",),
        "OpenNMT/CTranslate2/issues/1658",
    ),
    Planted(
        "scale of the embedding missing",
        WEIGHTS,
        _towards(
            lambda model: [model.get_input_embeddings()],
            ...,
            lambda output, _: output / output.shape[-1] ** 0.5,
        ),
        ("gemma2",),
        "huggingface/transformers/pull/29402",
    ),
    Planted(
        "rows of the embedding swapped",
        WEIGHTS,
        FAULTS["embedding rows swapped"],
        ("llama",),
    ),
    Planted(
        "router not renormalized",
        WEIGHTS,
        _routing(without_renormalisation),
        ("mixtral",),
        "pytorch/torchtitan/issues/1448",
    ),
    Planted(
        "experts in the other order",
        WEIGHTS,
        _routing(lambda _, weights, __: weights.flip(-1)),
        ("mixtral",),
    ),
    Planted("second expert lost", WEIGHTS, _routing(_second_expert_lost), ("mixtral",)),
    Planted(
        "one token dropped by its experts", WEIGHTS, _routing(_one_token_dropped), ("mixtral",)
    ),
    Planted(
        "expert transposed",
        WEIGHTS,
        _weights(_expert_transposed),
        ("mixtral",),
        "vllm-project/vllm/pull/47874",
    ),
    Planted("bias of the router missing", WEIGHTS, _weights(_without_router_bias), ("gpt-oss",)),
    Planted(
        "temperature in the logits",
        OUTPUT,
        _blend(_at_temperature),
        ("llama", "mixtral"),
        "PrimeIntellect-ai/prime-rl/pull/697",
        lambda _: None,
    ),
    Planted(
        "final softcap dropped",
        OUTPUT,
        _blend(uncapped),
        ("gemma2",),
        "sgl-project/sglang/pull/1046",
        lambda _: None,
    ),
    Planted(
        "logits of the step before",
        OUTPUT,
        _blend(logits_of_the_previous_step),
        ("gemma2",),
        "vllm-project/vllm/pull/5846",
        lambda _: None,
    ),
    Planted(
        "logits of another row",
        OUTPUT,
        _blend(partial(in_a_batch, row=1)),
        ("gpt2",),
        "tenstorrent/tt-xla/issues/5830",
        lambda _: None,
    ),
    Planted("logit bias", OUTPUT, _blend(_biased), ("llama",), module=lambda _: None),
    Planted("tile of the head", OUTPUT, FAULTS["tile of the head"], ("gpt2",)),
)
