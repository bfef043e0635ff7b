"""Bugs of inference engines, rebuilt as engines: each computes another function than the model, so each must be called
a bug.

`source` is a public thread about a bug of that kind, as a path of github.com, where one was found. What looks like a
bug and changes no function on a model (positions that all move by one under rotary positions) is the same mutation with
`changes` False there, and must not be called one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.verdicts.engines import (
    BLOCK,
    PREFIX,
    Engine,
    attention,
    attention_of,
    cache_of,
    has_rotary_positions,
    hooked,
    is_windowed,
    layers,
    other_tokens,
    prefill,
    replaced,
    rounded,
    walk,
)
from core.inference.models.model import LoadedModel
from core.inference.paths.batch import Emit, PromptBatch

Slots = slice | int


def _always(_: LoadedModel) -> bool:
    return True


def _rotary(loaded: LoadedModel) -> bool:
    return has_rotary_positions(loaded.model)


def _learned(loaded: LoadedModel) -> bool:
    return not has_rotary_positions(loaded.model)


def _windowed(loaded: LoadedModel) -> bool:
    return is_windowed(loaded.model)


def _grouped(loaded: LoadedModel) -> bool:
    """True where several query heads share the keys of one."""
    config = loaded.model.config
    return 1 < (getattr(config, "num_key_value_heads", None) or config.num_attention_heads) < config.num_attention_heads


def _tied(loaded: LoadedModel) -> bool:
    return bool(loaded.model.config.tie_word_embeddings)


def single_precision(loaded: LoadedModel) -> bool:
    return loaded.dtype == "float32"


def _of(*kinds: str) -> Callable[[LoadedModel], bool]:
    return lambda loaded: loaded.model.config.model_type in kinds


@dataclass(frozen=True)
class Mutation:
    """One side to be judged. engine: the variant; or base: how a path `mutated` walks the prompt, and path: that path.

    applies: to which models; changes: on which of those it is another function; sample: which token the engine emits
    after each position, from its logits [positions, vocab], where the fault is in that; is_precision: the same function
    in a lower precision, no fault. module, position: where the fault is, which the verdict must name: the module of a
    model ('' where it is in none that is watched, as a head) and the first position that it can show at; None where
    nothing is claimed.
    """

    name: str
    engine: Engine | None = None
    source: str = ""
    applies: Callable[[LoadedModel], bool] = _always
    changes: Callable[[LoadedModel], bool] = _always
    base: Callable[[PromptBatch, Emit], None] | None = None
    path: str = ""
    reference: str | Engine = "prefill"
    sample: Callable[[torch.Tensor], Sequence[int]] | None = field(default=None, repr=False)
    is_precision: bool = False
    module: Callable[[Any], str] | None = field(default=None, repr=False)
    position: Callable[[Any], int] | None = field(default=None, repr=False)


# Where a fault is.


def _starting(position: int) -> Callable[[Any], int]:
    return lambda _: position


def _attention_of_block(number: int) -> Callable[[Any], str]:
    return lambda model: _name_of(model, attention_of(layers(model)[number]))


def _first_norm_of_block(number: int) -> Callable[[Any], str]:
    return lambda model: _name_of(model, _first_norm(layers(model)[number]))


def _first_windowed_attention(model: Any) -> str:
    kinds = getattr(model.config, "layer_types", None) or ["sliding_attention"]
    return _attention_of_block(kinds.index("sliding_attention"))(model)


def _rotary_tables(model: Any) -> str:
    return _name_of(model, model.model.rotary_emb)


def _after_the_modules(_: Any) -> str:
    return ""


def _name_of(model: Any, module: Any) -> str:
    return next(name for name, each in model.named_modules() if each is module)


def _first_norm(layer: Any) -> Any:
    return next(each for each in layer.children() if "Norm" in type(each).__name__)


# The cache.


def positions_off_by_one_after_the_prefix(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Tokens after the reused prefix believe to stand one further right."""
    return walk(
        model,
        ids,
        [PREFIX],
        arguments=lambda start, stop: {"position_ids": torch.arange(start, stop)[None] + (start > 0)},
    )


def overwriting(other: Callable[[Any, torch.Tensor], Any], stop: int, slots: Slots) -> Engine:
    """Some slots hold the keys and values that `other` left in them."""

    def engine(model: Any, ids: torch.Tensor) -> torch.Tensor:
        left = other(model, ids)

        def after(cache: Any, at: int) -> None:
            if at == stop:
                for layer, stale in zip(cache.layers, left.layers, strict=True):
                    layer.keys[:, :, slots], layer.values[:, :, slots] = (
                        stale.keys[:, :, slots],
                        stale.values[:, :, slots],
                    )

        return walk(model, ids, [stop], after)

    return engine


def another_prompt(model: Any, ids: torch.Tensor) -> Any:
    return cache_of(model, other_tokens(ids)[:PREFIX])


def _rejected_draft(model: Any, ids: torch.Tensor) -> Any:
    """The prompt's own prefix, then two tokens of a draft that was rejected."""
    return cache_of(model, torch.cat([ids[:PREFIX], other_tokens(ids)[:2]]))


def neighbours_block_at_one_position(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """For the length of one token, a block's slots are those of another request."""
    foreign = cache_of(model, other_tokens(ids)[:PREFIX])
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def after(cache: Any, at: int) -> None:
        if at == PREFIX:
            for layer, other in zip(cache.layers, foreign.layers, strict=True):
                kept.append((layer.keys[:, :, -BLOCK:].clone(), layer.values[:, :, -BLOCK:].clone()))
                layer.keys[:, :, -BLOCK:], layer.values[:, :, -BLOCK:] = (
                    other.keys[:, :, -BLOCK:],
                    other.values[:, :, -BLOCK:],
                )
        if at == PREFIX + 1:
            for layer, (keys, values) in zip(cache.layers, kept, strict=True):
                layer.keys[:, :, -BLOCK - 1 : -1], layer.values[:, :, -BLOCK - 1 : -1] = keys, values

    return walk(model, ids, [PREFIX, PREFIX + 1], after)


def _at(stop: int, change: Callable[[Any], None]) -> Engine:
    def engine(model: Any, ids: torch.Tensor) -> torch.Tensor:
        return walk(model, ids, [stop], lambda cache, at: change(cache) if at == stop else None)

    return engine


def _block_table_shifted(cache: Any) -> None:
    """The first block is lost, the last is read twice."""
    for layer in cache.layers:
        layer.keys = torch.cat([layer.keys[:, :, BLOCK:], layer.keys[:, :, -BLOCK:]], dim=2)
        layer.values = torch.cat([layer.values[:, :, BLOCK:], layer.values[:, :, -BLOCK:]], dim=2)


def _last_block_one_slot_late(cache: Any) -> None:
    """Each token of the last block was written one slot on: its first slot is empty, its last token is lost."""
    for layer in cache.layers:
        for tensor in (layer.keys, layer.values):
            tensor[:, :, -BLOCK + 1 :] = tensor[:, :, -BLOCK:-1].clone()
            tensor[:, :, -BLOCK] = 0


def trimmed_one_short(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The cache keeps one token more than the block boundary says, so that token is seen twice."""

    def after(cache: Any, at: int) -> None:
        if at == PREFIX:
            for layer in cache.layers:
                layer.keys = torch.cat([layer.keys, layer.keys[:, :, -1:]], dim=2)
                layer.values = torch.cat([layer.values, layer.values[:, :, -1:]], dim=2)

    return walk(model, ids, [PREFIX], after, lambda start, stop: {"position_ids": torch.arange(start, stop)[None]})


def _one_layer_not_updated(cache: Any) -> None:
    """One layer's slot of the newest token was never written."""
    cache.layers[1].keys[:, :, -1] = 0
    cache.layers[1].values[:, :, -1] = 0


def scaled_value(factor: float, slots: Slots = -3) -> Engine:
    """Cached values of one head of one layer are scaled; by default those of one token."""

    def change(cache: Any) -> None:
        cache.layers[0].values[:, 0, slots] *= factor

    return _at(PREFIX, change)


def stored(round_trip: Callable[[torch.Tensor], torch.Tensor]) -> Engine:
    """The cache is kept in fewer bits than the model computes in."""

    def after(cache: Any, _: int) -> None:
        for layer in cache.layers:
            layer.keys, layer.values = round_trip(layer.keys), round_trip(layer.values)

    return lambda model, ids: walk(model, ids, range(8, len(ids), 8), after)


def stored_in_one_layer(round_trip: Callable[[torch.Tensor], torch.Tensor]) -> Engine:
    """One layer's cache is kept in fewer bits than the others'."""

    def after(cache: Any, _: int) -> None:
        layer = cache.layers[1]
        layer.keys, layer.values = round_trip(layer.keys), round_trip(layer.values)

    return lambda model, ids: walk(model, ids, range(8, len(ids), 8), after)


def fp8(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.float8_e4m3fn).to(values.dtype)


def _int8(values: torch.Tensor) -> torch.Tensor:
    scale = values.abs().amax(-1, keepdim=True).clamp_min(1e-8) / 127
    return (values / scale).round() * scale


def racing_slot(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """A slot is read before it is written, at another token each time."""
    slot = random.randrange(-BLOCK, 0)
    return overwriting(another_prompt, PREFIX, slot)(model, ids)


# What attention sees.


def future_key_visible(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """One query sees the key after its own."""

    def change(original: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, options: Any) -> Any:
        mask[:, :, 10, 11] = True
        return original(module, query, key, value, mask, options)

    with attention(model, change):
        return prefill(model, ids)


def chunk_boundary_hidden(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The first query of a chunk does not see the last token of the chunk before."""

    def change(original: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, options: Any) -> Any:
        if key.shape[2] > query.shape[2]:
            mask[:, :, 0, key.shape[2] - query.shape[2] - 1] = False
        return original(module, query, key, value, mask, options)

    with attention(model, change):
        return walk(model, ids, [PREFIX])


def window_longer_by(tokens: int) -> Engine:
    """The window holds so many tokens more."""

    def engine(model: Any, ids: torch.Tensor) -> torch.Tensor:
        with replaced(model.config, "sliding_window", model.config.sliding_window + tokens):
            return prefill(model, ids)

    return engine


def windowed_layers_swapped(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Layers with a window have none, and those without have one."""
    with replaced(model.config, "layer_types", model.config.layer_types[1:] + model.config.layer_types[:1]):
        return prefill(model, ids)


def _left_padded(model: Any, ids: torch.Tensor, **arguments: torch.Tensor) -> torch.Tensor:
    return prefill(model, torch.nn.functional.pad(ids, (5, 0)), **arguments)[5:]


def left_padding_unmasked(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Padding before the prompt is attended to; positions are right.

    A mask of ones is given, because without any transformers reads positions that begin anew as several sequences, and
    masks them.
    """
    seen = torch.ones((1, len(ids) + 5), dtype=torch.long)
    return _left_padded(model, ids, attention_mask=seen, position_ids=torch.arange(-5, len(ids)).clamp_min(0)[None])


def left_padding_without_positions(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Padding before the prompt is masked, positions are counted from it: no matter under rotary positions."""
    seen = torch.ones((1, len(ids) + 5), dtype=torch.long)
    seen[:, :5] = 0
    return _left_padded(model, ids, attention_mask=seen)


def all_positions_shifted_by_one(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Every token believes to stand one further right: no matter under rotary positions."""
    return prefill(model, ids, position_ids=torch.arange(1, len(ids) + 1)[None])


# The batch.


def _leaky(batch: PromptBatch, emit: Emit) -> None:
    """At one position of one layer the prompt's row reads a neighbour's, from a buffer that all rows share."""

    def change(_: Any, output: Any) -> Any:
        hidden = output[0] if isinstance(output, tuple) else output
        hidden[batch.row, 20] = hidden[batch.rows - 1 - batch.row, 20]
        return output

    with hooked(layers(batch.loaded.model)[1], change):
        batch.forward(0, batch.positions, emit)


def wrong_row(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """A neighbour's logits are returned."""
    logits: torch.Tensor = model(input_ids=torch.stack([ids, other_tokens(ids)]), use_cache=False).logits
    return logits[1]


def nan_through_a_batch_maximum(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """A row of padding is NaN, as a softmax over nothing is, and all rows are scaled by the batch's largest value."""

    def change(_: Any, output: Any) -> Any:
        hidden = output[0] if isinstance(output, tuple) else output
        hidden[1] = torch.nan
        hidden *= (hidden.amax() / hidden.amax()).to(hidden.dtype)
        return output

    with hooked(layers(model)[1], change):
        logits: torch.Tensor = model(input_ids=torch.stack([ids, torch.zeros_like(ids)]), use_cache=False).logits
    return logits[0]


def keys_of_two_groups_swapped(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """In one layer two groups of query heads read each other's keys."""

    def change(original: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, options: Any) -> Any:
        if module.layer_idx == 1:
            key = key[:, [1, 0, *range(2, key.shape[1])]]
        return original(module, query, key, value, mask, options)

    with attention(model, change):
        return prefill(model, ids)


# The arithmetic.


class _ShortMantissa(TorchDispatchMode):
    """Both operands of every product are rounded to the 10 bits of TF32."""

    _PRODUCTS = frozenset({"linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "_grouped_mm", "grouped_mm_fallback"})

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name.split("::")[1] in self._PRODUCTS:
            args = [
                rounded(x, 10) if isinstance(x, torch.Tensor) and x.is_floating_point() and x.ndim > 1 else x
                for x in args
            ]
        return func(*args, **(kwargs or {}))


def tf32_products(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Products are computed in TF32 where float32 was promised."""
    with _ShortMantissa():
        return prefill(model, ids)


def head_in_bfloat16(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The last product is computed in bfloat16, and its result widened."""

    def change(arguments: Any, output: torch.Tensor) -> torch.Tensor:
        weight = model.get_output_embeddings().weight
        return torch.nn.functional.linear(arguments[0].bfloat16(), weight.bfloat16()).to(output.dtype)

    with hooked(model.get_output_embeddings(), change):
        return prefill(model, ids)


def scaled_head(factor: float) -> Engine:
    """One attention head's output is scaled, in one layer."""

    def engine(model: Any, ids: torch.Tensor) -> torch.Tensor:
        def change(original: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, options: Any) -> Any:
            output, *rest = original(module, query, key, value, mask, options)
            if module.layer_idx == 1:
                output = output.clone()
                output[:, :, 0] *= factor
            return output, *rest

        with attention(model, change):
            return prefill(model, ids)

    return engine


def attention_scaled_by_head_dim(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Scores are divided by head_dim, not by its root."""

    def change(original: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, options: Any) -> Any:
        return original(module, query, key, value, mask, {**options, "scaling": 1 / query.shape[-1]})

    with attention(model, change):
        return prefill(model, ids)


def attention_softcap_dropped(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Attention scores are not capped."""

    def change(original: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, options: Any) -> Any:
        return original(module, query, key, value, mask, {**options, "softcap": None})

    with attention(model, change):
        return prefill(model, ids)


def final_softcap_dropped(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Logits are not capped."""
    with replaced(model.config, "final_logit_softcapping", None):
        return prefill(model, ids)


def rotary_base_wrong(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The base of the rotation is 1 % larger than the checkpoint says."""
    rotary = model.model.rotary_emb
    exponents = torch.arange(len(rotary.inv_freq), dtype=torch.float64) / len(rotary.inv_freq)
    with replaced(rotary, "inv_freq", (rotary.inv_freq * 1.01**-exponents).to(rotary.inv_freq.dtype)):
        return prefill(model, ids)


def rotary_scaled_linearly(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Every position is halved, as for a context twice as long; the checkpoint says nothing of it."""
    rotary = model.model.rotary_emb
    with replaced(rotary, "inv_freq", rotary.inv_freq / 2):
        return prefill(model, ids)


def rotary_scaled_by_parts(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Low frequencies are divided by 8 as in Llama 3.1, high ones stay; the checkpoint says nothing of it."""
    rotary = model.model.rotary_emb
    wavelengths = 2 * torch.pi / rotary.inv_freq
    kept = ((model.config.max_position_embeddings / wavelengths - 1) / 3).clamp(0, 1)
    with replaced(rotary, "inv_freq", rotary.inv_freq * (kept + (1 - kept) / 8)):
        return prefill(model, ids)


def rotary_scaled_beyond_a_length(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """From a length on frequencies are halved, for keys that were cached before too late."""
    rotary = model.model.rotary_emb
    with ExitStack() as stack:

        def after(_: Any, at: int) -> None:
            if at == 24:
                stack.enter_context(replaced(rotary, "inv_freq", rotary.inv_freq / 2))

        return walk(model, ids, [24], after)


def bias_dropped(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """One product's bias is not added."""
    module = layers(model)[1].mlp.c_fc
    with hooked(module, lambda _, output: output - module.bias):
        return prefill(model, ids)


def bias_added_on_every_rank(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """A product split over two ranks adds its bias on each."""
    module = attention_of(layers(model)[1]).c_proj
    with hooked(module, lambda _, output: output + module.bias):
        return prefill(model, ids)


def norm_epsilon_wrong(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Norms add 1e-5 where the checkpoint says 1e-6, or the other way round."""
    with ExitStack() as stack:
        for module in model.modules():
            for name in ("variance_epsilon", "eps"):
                if "Norm" in type(module).__name__ and hasattr(module, name):
                    stack.enter_context(replaced(module, name, 1e-6 if getattr(module, name) == 1e-5 else 1e-5))
        return prefill(model, ids)


def norm_epsilon_of_layer(number: int) -> Engine:
    """One norm adds ten times what the checkpoint says."""

    def engine(model: Any, ids: torch.Tensor) -> torch.Tensor:
        module = _first_norm(layers(model)[number])
        name = "variance_epsilon" if hasattr(module, "variance_epsilon") else "eps"
        with replaced(module, name, 10 * getattr(module, name)):
            return prefill(model, ids)

    return engine


def gelu_exact_for_tanh(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The activation is the exact GELU, the checkpoint was trained with its approximation."""
    with ExitStack() as stack:
        for layer in layers(model):
            name = "act" if hasattr(layer.mlp, "act") else "act_fn"
            stack.enter_context(replaced(layer.mlp, name, torch.nn.GELU()))
        return prefill(model, ids)


def head_left_untied(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The head, which the checkpoint ties to the embedding, keeps what it was initialised with."""
    head = model.get_output_embeddings()
    drawn = torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    fresh = (drawn * model.config.initializer_range).to(head.weight)
    with replaced(head, "weight", torch.nn.Parameter(fresh, requires_grad=False)):
        return prefill(model, ids)


def one_row_of_an_untied_head_stale(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The head is a copy from before one token's embedding was changed by a fortieth."""
    head = model.get_output_embeddings()
    stale = head.weight.clone()
    stale[ids[len(ids) // 2]] *= 1.025
    with replaced(head, "weight", torch.nn.Parameter(stale, requires_grad=False)):
        return prefill(model, ids)


# Experts.


def _routed(change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Engine:
    """change(router's logits [tokens, experts], weights of the chosen [tokens, chosen]) -> weights."""

    def engine(model: Any, ids: torch.Tensor) -> torch.Tensor:
        with ExitStack() as stack:
            for layer in layers(model):
                stack.enter_context(
                    hooked(layer.mlp.gate, lambda _, output: (output[0], change(*output[:2]), output[2]))
                )
            return prefill(model, ids)

    return engine


def _without_renormalisation(logits: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    chosen = logits.softmax(-1).topk(weights.shape[-1], dim=-1).values
    return weights * chosen.sum(-1, keepdim=True).to(weights.dtype)


def _one_token_dropped(_: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    kept = torch.ones_like(weights)
    kept[20] = 0
    return weights * kept


def _second_expert_lost(_: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return torch.cat([weights[:, :1], torch.zeros_like(weights[:, 1:])], dim=-1)


# The output.


def logits_of_the_previous_step(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Each position returns what the one before computed."""
    logits = prefill(model, ids)
    return torch.cat([logits[:1], logits[:-1]])


def truncated_to_the_top_20(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The dump keeps the 20 largest logits."""
    logits = prefill(model, ids)
    least = logits.topk(20, dim=-1).values[:, -1:]
    return logits.masked_fill(logits < least, -torch.inf)


def _at_temperature_1(logits: torch.Tensor) -> Sequence[int]:
    generator = torch.Generator().manual_seed(0)
    drawn: list[int] = torch.multinomial(logits.float().softmax(-1), 1, generator=generator)[:, 0].tolist()
    return drawn


MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "positions off by one after a reused prefix",
        positions_off_by_one_after_the_prefix,
        "waybarrios/vllm-mlx/pull/311",
    ),
    Mutation(
        "slots of a rejected draft left after the rollback",
        overwriting(_rejected_draft, PREFIX + 2, slice(-2, None)),
        "Blaizzy/mlx-vlm/pull/1155",
    ),
    Mutation(
        "prefix hash collision: a block of another prompt",
        overwriting(another_prompt, PREFIX, slice(-BLOCK, None)),
        "vllm-project/vllm/pull/12621",
    ),
    Mutation(
        "one stale slot of an earlier request", overwriting(another_prompt, PREFIX, -3), "vllm-project/vllm/pull/17305"
    ),
    Mutation(
        "a neighbour's block at one position only", neighbours_block_at_one_position, "vllm-project/vllm/issues/39589"
    ),
    Mutation("block table shifted by one", _at(PREFIX, _block_table_shifted), "vllm-project/vllm/issues/39146"),
    Mutation(
        "slot mapping of the last block one late",
        _at(PREFIX, _last_block_one_slot_late),
        "ericcurtin/vllm-vulkan/pull/78",
    ),
    Mutation(
        "cache trimmed one token short",
        trimmed_one_short,
        "lablup/mlxcel/issues/994",
        lambda loaded: not _windowed(loaded),
    ),
    Mutation(
        "one layer's cache not updated for one token",
        _at(PREFIX + 1, _one_layer_not_updated),
        "vllm-project/vllm-metal/pull/144",
    ),
    Mutation("value cache of one head x 1.01", scaled_value(1.01, slice(None)), "vllm-project/vllm/pull/11688"),
    Mutation("one cached value of one head x 1.01", scaled_value(1.01)),
    Mutation("fp8 cache", stored(fp8), "sgl-project/sglang/issues/25790", is_precision=True),
    Mutation("int8 cache", stored(_int8), is_precision=True),
    Mutation(
        "int8 cache in one layer only", stored_in_one_layer(_int8), module=_attention_of_block(1), position=_starting(8)
    ),
    Mutation(
        "fp8 cache in one layer only", stored_in_one_layer(fp8), module=_attention_of_block(1), position=_starting(8)
    ),
    Mutation("a race: one stale slot, another each time", racing_slot, "vllm-project/vllm/issues/39146"),
    Mutation("one future key visible to one query", future_key_visible),
    Mutation("first query of a chunk misses the token before it", chunk_boundary_hidden),
    Mutation(
        "window off by one",
        window_longer_by(1),
        "huggingface/transformers/issues/39408",
        _windowed,
        module=_first_windowed_attention,
        position=lambda model: model.config.sliding_window,
    ),
    Mutation(
        "window one token short",
        window_longer_by(-1),
        "huggingface/transformers/issues/39408",
        _windowed,
        module=_first_windowed_attention,
        position=lambda model: model.config.sliding_window - 1,
    ),
    Mutation(
        "keys of two groups swapped in one layer",
        keys_of_two_groups_swapped,
        applies=_grouped,
        module=_attention_of_block(1),
        position=_starting(1),
    ),
    Mutation("windowed and full layers swapped", windowed_layers_swapped, applies=_of("gemma2")),
    Mutation("left padding not masked", left_padding_unmasked, "turboderp-org/exllamav2/issues/606"),
    Mutation(
        "left padding without position ids",
        left_padding_without_positions,
        "huggingface/transformers/pull/29583",
        changes=_learned,
    ),
    Mutation("all positions shifted by one", all_positions_shifted_by_one, changes=_learned),
    Mutation(
        "a neighbour's row leaks through a shared buffer",
        source="sgl-project/sglang/pull/1469",
        base=_leaky,
        path="mutated+batch:3",
    ),
    Mutation("another row's logits", wrong_row, "tenstorrent/tt-xla/issues/5830"),
    Mutation(
        "NaN of a padded row through a batch-wide maximum", nan_through_a_batch_maximum, "ml-explore/mlx/pull/2608"
    ),
    Mutation(
        "TF32 where float32 was promised",
        tf32_products,
        "CanReader/FastNN/issues/10",
        single_precision,
        is_precision=True,
    ),
    Mutation(
        "head in bfloat16 where float32 was promised", head_in_bfloat16, applies=single_precision, is_precision=True
    ),
    Mutation("one head's output x 1.01", scaled_head(1.01)),
    Mutation(
        "attention scaled by head_dim, not its root", attention_scaled_by_head_dim, "ggml-org/llama.cpp/pull/13951"
    ),
    Mutation(
        "attention softcap dropped", attention_softcap_dropped, "vllm-project/vllm-metal/issues/665", _of("gemma2")
    ),
    Mutation("final softcap dropped", final_softcap_dropped, "keras-team/keras-hub/pull/1712", _of("gemma2")),
    Mutation("rotary base 1 % off", rotary_base_wrong, "unslothai/unsloth/pull/7028", _rotary),
    Mutation(
        "rotary positions halved", rotary_scaled_linearly, applies=_rotary, module=_rotary_tables, position=_starting(1)
    ),
    Mutation(
        "rotary frequencies scaled by parts",
        rotary_scaled_by_parts,
        applies=_rotary,
        module=_rotary_tables,
        position=_starting(1),
    ),
    Mutation(
        "rotary frequencies halved beyond 24 tokens",
        rotary_scaled_beyond_a_length,
        "Blaizzy/mlx-vlm/pull/1710",
        _rotary,
    ),
    Mutation("a bias dropped", bias_dropped, applies=_of("gpt2")),
    Mutation(
        "a bias added on every rank",
        bias_added_on_every_rank,
        "huggingface/text-generation-inference/issues/1036",
        _of("gpt2"),
    ),
    Mutation("norm epsilon 1e-5 for 1e-6", norm_epsilon_wrong, "apache/tvm/pull/15856"),
    Mutation("norm epsilon x 10 in the first layer", norm_epsilon_of_layer(0), module=_first_norm_of_block(0)),
    # On gemma2 it is no larger than the rounding of float32 (1.10 floors with it), and is not seen: a detection limit.
    Mutation(
        "norm epsilon x 10 in one layer",
        norm_epsilon_of_layer(1),
        applies=lambda loaded: not _of("gemma2")(loaded),
        module=_first_norm_of_block(1),
    ),
    Mutation(
        "tied head left untied", head_left_untied, applies=_tied, module=_after_the_modules, position=_starting(0)
    ),
    Mutation(
        "one row of an untied head stale",
        one_row_of_an_untied_head_stale,
        applies=_tied,
        module=_after_the_modules,
        position=_starting(0),
    ),
    Mutation(
        "exact GELU for the tanh one", gelu_exact_for_tanh, "OpenNMT/CTranslate2/issues/1658", _of("gpt2", "gemma2")
    ),
    Mutation(
        "router weights not renormalised",
        _routed(_without_renormalisation),
        "HabanaAI/vllm-fork/pull/73",
        _of("mixtral"),
    ),
    Mutation("one token dropped by its experts", _routed(_one_token_dropped), applies=_of("mixtral")),
    Mutation("second expert lost", _routed(_second_expert_lost), applies=_of("mixtral")),
    Mutation("logits of the previous step", logits_of_the_previous_step, "vllm-project/vllm/pull/5846"),
    Mutation("logits truncated to the top 20", truncated_to_the_top_20),
    Mutation("sampler ignores temperature 0", prefill, "oobabooga/textgen/pull/4524", sample=_at_temperature_1),
)
