"""Bugs of inference engines, rebuilt as engines: each computes another function than the model, so
each must be called a bug.

`source` is a public thread about a bug of that kind, as a path of github.com, where one was found.
What looks like a bug and changes no function on a model (positions that all move by one under
rotary positions) is the same mutation with `changes` False there, and must not be called one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.verdicts.engines import (
    BLOCK,
    PREFIX,
    Attention,
    Change,
    Engine,
    alter,
    attending,
    attention_of,
    cache_of,
    cached,
    has_rotary_positions,
    hooking,
    is_windowed,
    layers,
    left_by,
    other_tokens,
    prefill,
    registering,
    replaced,
    replacing,
    rewriting,
    round_to_bits,
    routers,
    walk,
)
from core.inference.controls.precisions.catalogue import RoundedOperands
from core.inference.models.model import LoadedModel
from core.inference.paths.batch import Emit, PromptBatch
from core.verdict import BUG_SUSPECTED, IDENTICAL, INVALID_DUMP, NONDETERMINISTIC, ROUNDING

Slots = slice | int
# verdicts on a fault, and on another way to compute the same
FAULTS = (BUG_SUSPECTED, INVALID_DUMP)
HARMLESS = (IDENTICAL, ROUNDING, NONDETERMINISTIC)


Applies = Callable[[LoadedModel], bool]


def _always(_: LoadedModel) -> bool:
    return True


def _not(applies: Applies) -> Applies:
    return lambda loaded: not applies(loaded)


def _rotary(loaded: LoadedModel) -> bool:
    return has_rotary_positions(loaded.model)


def _windowed(loaded: LoadedModel) -> bool:
    return is_windowed(loaded.model)


def _has_groups(loaded: LoadedModel) -> bool:
    """True where several query heads share the keys of one."""
    config = loaded.model.config
    return (
        1
        < (getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
        < config.num_attention_heads
    )


def _tied(loaded: LoadedModel) -> bool:
    return bool(loaded.model.config.tie_word_embeddings)


def single_precision(loaded: LoadedModel) -> bool:
    return loaded.dtype == "float32"


def _of(*kinds: str) -> Applies:
    return lambda loaded: loaded.model.config.model_type in kinds


def _shows_an_epsilon(loaded: LoadedModel) -> bool:
    return _of("gpt2", "mixtral")(loaded) or loaded.model.config.hidden_size > 64


@dataclass(frozen=True)
class Mutation:
    """One side to be judged. engine: the variant; or base: how a path `mutated` walks the prompt,
    and path: that path.

    applies: to which models; changes: on which of those it is another function; sample: which token
    the engine emits after each position, from its logits [positions, vocab], where the fault is in
    that; is_precision: the same function in a lower precision, no fault; is_undeclared: in one that
    no list has, so the verdict is a bug and says `or an undeclared lower precision`; says: a word
    that its sentence has to hold. module, position: where the fault is, which the verdict must
    name: the module of a model (None if it is in none that is watched, as a head) and the first
    position that it can show at; None if nothing is claimed.
    """

    name: str
    engine: Engine | None = None
    source: str = ""
    applies: Applies = _always
    changes: Applies = _always
    base: Callable[[PromptBatch, Emit], None] | None = None
    path: str = ""
    reference: str | Engine = "prefill"
    sample: Callable[[Tensor], Sequence[int]] | None = field(default=None, repr=False)
    is_precision: bool = False
    is_undeclared: bool = False
    says: str = ""
    module: Callable[[Any], Any] | None = field(default=None, repr=False)
    position: int | Callable[[Any], int] | None = field(default=None, repr=False)

    def place(self, model, module: str, position: int | None) -> tuple[str, int | None]:
        """Where the fault is in a model: the module's name and the first position, or those that
        are passed if nothing is claimed.
        """
        if self.module is not None:
            planted = self.module(model)
            module = next((name for name, each in model.named_modules() if each is planted), "")
        own = self.position(model) if callable(self.position) else self.position
        return module, position if own is None else own


# Where a fault is.


def _attention_of_block(number: int) -> Callable[[Any], Any]:
    return lambda model: attention_of(layers(model)[number])


def _first_windowed_attention(model):
    kinds = getattr(model.config, "layer_types", None) or ["sliding_attention"]
    return _attention_of_block(kinds.index("sliding_attention"))(model)


def _rotary_tables(model):
    return model.model.rotary_emb


def first_norm(layer):
    return next(each for each in layer.children() if "Norm" in type(each).__name__)


# The cache.


def positions_off_by_one_after_the_prefix(model, ids: Tensor) -> Tensor:
    """Tokens after the reused prefix believe to stand one further right."""
    return walk(model, ids, [PREFIX], positions=lambda places: places + (places[0] > 0))


def overwriting(other: Callable[[Any, Tensor], Any], stop: int, slots: Slots) -> Engine:
    """Some slots hold the keys and values that `other` left in them."""
    return cached([stop], left_by(other, stop, slots))


def another_prompt(model, ids: Tensor):
    return cache_of(model, other_tokens(ids)[:PREFIX])


def _rejected_draft(model, ids: Tensor):
    """The prompt's own prefix, then two tokens of a draft that was rejected."""
    return cache_of(model, torch.cat([ids[:PREFIX], other_tokens(ids)[:2]]))


def neighbours_block_at_one_position(model, ids: Tensor) -> Tensor:
    """For the length of one token, a block's slots are those of another request."""
    own = []

    def change(cache, at):
        if at == PREFIX:
            # a copy, because the slots are written over
            own.extend(
                (layer.keys[:, :, -BLOCK:].clone(), layer.values[:, :, -BLOCK:].clone())
                for layer in cache.layers
            )
            left_by(another_prompt, PREFIX, slice(-BLOCK, None))(model, ids, cache, at)
        if at == PREFIX + 1:
            for layer, (keys, values) in zip(cache.layers, own, strict=True):
                layer.keys[:, :, -BLOCK - 1 : -1], layer.values[:, :, -BLOCK - 1 : -1] = (
                    keys,
                    values,
                )

    return walk(model, ids, [PREFIX, PREFIX + 1], change)


def _block_table_shifted(slots: Tensor) -> Tensor:
    """The first block is lost, the last is read twice."""
    return torch.cat([slots[:, :, BLOCK:], slots[:, :, -BLOCK:]], dim=2)


def _last_block_one_slot_late(slots: Tensor) -> Tensor:
    """Each token of the last block was written one slot on: its first slot is empty, its last token
    is lost.
    """
    late = slots.clone()
    late[:, :, -BLOCK + 1 :], late[:, :, -BLOCK] = slots[:, :, -BLOCK:-1], 0
    return late


def trimmed_one_short(model, ids: Tensor) -> Tensor:
    """The cache keeps one token more than the block boundary says, so that token is seen twice."""
    last_twice = rewriting(lambda slots: torch.cat([slots, slots[:, :, -1:]], dim=2))
    return walk(model, ids, [PREFIX], partial(last_twice, model, ids), lambda places: places)


def _one_layer_not_updated(_, __: Tensor, cache, ___: int) -> None:
    """One layer's slot of the newest token was never written."""
    cache.layers[1].keys[:, :, -1] = cache.layers[1].values[:, :, -1] = 0


def scaled_value(factor: float, slots: Slots = -3) -> Engine:
    """Cached values of one head of one layer are scaled; by default those of one token."""

    def change(_, __, cache, ___):
        cache.layers[0].values[:, 0, slots] *= factor

    return cached([PREFIX], change)


def round_cache(
    round_trip: Callable[[Tensor], Tensor],
    layer: int | None = None,
) -> Engine:
    """The cache, of all layers or of one, is kept in fewer bits than the model computes in."""
    return cached(8, rewriting(round_trip, layer))


def fp8(values: Tensor) -> Tensor:
    return values.to(torch.float8_e4m3fn).to(values.dtype)


def _int8(values: Tensor) -> Tensor:
    scale = values.abs().amax(-1, keepdim=True).clamp_min(1e-8) / 127
    return (values / scale).round() * scale


def racing_slot(model, ids: Tensor) -> Tensor:
    """A slot is read before it is written, at another token each time."""
    return overwriting(another_prompt, PREFIX, random.randrange(-BLOCK, 0))(model, ids)


# What attention sees.


def _future_key(call: Attention):
    queries, keys = call.query.shape[2], call.key.shape[2]
    # query 10 of the prompt, wherever the forward begins
    row = 10 - (keys - queries)
    if 0 <= row < queries and keys > 11:
        call.mask[:, :, row, 11] = True
    return call.run()


future_key = attending(_future_key)  # query 10 sees key 11


def _boundary_hidden(call: Attention):
    """The first query of a chunk does not see the last token of the chunk before."""
    cached_keys = call.key.shape[2] - call.query.shape[2]
    if cached_keys:
        call.mask[:, :, 0, cached_keys - 1] = False
    return call.run()


def window_longer_by(tokens: int) -> Engine:
    """The window holds so many tokens more."""
    return alter(
        replacing(
            lambda model: [(model.config, "sliding_window", model.config.sliding_window + tokens)],
        ),
    )


def _end_of_window(tokens: int, model) -> int:
    """The first position that a window so many tokens longer shows at."""
    return int(model.config.sliding_window) + min(tokens, 0)


def _other_kinds(model):
    """Layers with a window have none, and those without have one."""
    kinds = model.config.layer_types
    return [(model.config, "layer_types", kinds[1:] + kinds[:1])]


def _left_padded(model, ids: Tensor, **arguments: Tensor) -> Tensor:
    # the first five rows are those of the padding
    return prefill(model, torch.nn.functional.pad(ids, (5, 0)), **arguments)[5:]


def left_padding_unmasked(model, ids: Tensor) -> Tensor:
    """Padding before the prompt is attended to; positions are right.

    A mask of ones is given, because without any transformers reads positions that begin anew as
    several sequences, and masks them.
    """
    mask = ids.new_ones((1, len(ids) + 5))
    return _left_padded(
        model,
        ids,
        attention_mask=mask,
        position_ids=torch.arange(-5, len(ids), device=ids.device).clamp_min(0)[None],
    )


def left_padding_without_positions(model, ids: Tensor) -> Tensor:
    """Padding before the prompt is masked, positions are counted from it: no matter under rotary
    positions.
    """
    mask = ids.new_ones((1, len(ids) + 5))
    mask[:, :5] = 0
    return _left_padded(model, ids, attention_mask=mask)


def all_positions_shifted_by_one(model, ids: Tensor) -> Tensor:
    """Every token believes to stand one further right: no matter under rotary positions."""
    return prefill(model, ids, position_ids=torch.arange(1, len(ids) + 1, device=ids.device)[None])


# The batch.


def second_layer(model):
    return [layers(model)[1]]


def _leaky(batch: PromptBatch, emit: Emit) -> None:
    """At one position of one layer the prompt's row reads a neighbour's, from a buffer that all
    rows share.
    """

    def change(_, __, hidden):
        hidden[batch.row, 20] = hidden[batch.rows - 1 - batch.row, 20]
        return hidden

    with hooking(second_layer, change)(batch.loaded.model):
        batch.forward(0, batch.positions, emit)


def in_a_batch(
    model,
    ids: Tensor,
    row: int = 0,
    other: Tensor | None = None,
) -> Tensor:
    """Logits of one row of two prompts in a batch, of which the second is `other` or another
    request's.
    """
    rows = torch.stack([ids, other_tokens(ids) if other is None else other])
    return model(input_ids=rows, use_cache=False).logits[row]


def _with_padding(model, ids: Tensor) -> Tensor:
    return in_a_batch(model, ids, other=torch.zeros_like(ids))


def _nan_through_a_maximum(_, __, hidden: Tensor) -> Tensor:
    """A row of padding is NaN, as a softmax over nothing is, and all rows are scaled by the batch's
    largest value.
    """
    hidden[1] = torch.nan
    hidden *= (hidden.amax() / hidden.amax()).to(hidden.dtype)
    return hidden


def _groups_swapped(call: Attention):
    """In one layer two groups of query heads read each other's keys."""
    if call.module.layer_idx != 1:
        return call.run()
    return call.run(key=call.key[:, [1, 0, *range(2, call.key.shape[1])]])


# The arithmetic.


def head_of(model):
    return [model.get_output_embeddings()]


def _head_in_bfloat16(head, arguments, output: Tensor) -> Tensor:
    """The last product is computed in bfloat16, and its result widened."""
    return torch.nn.functional.linear(arguments[0].bfloat16(), head.weight.bfloat16()).to(
        output.dtype,
    )


def scaled_head(factor: float) -> Engine:
    """One attention head's output is scaled, in one layer."""

    def change(call):
        output, *rest = call.run()
        if call.module.layer_idx == 1:
            output = output.clone()
            output[:, :, 0] *= factor
        return output, *rest

    return alter(attending(change))


def over_head_dim(call: Attention):
    """Scores are divided by head_dim, not by its root."""
    return call.run(options=call.options | {"scaling": 1 / call.query.shape[-1]})


def without_softcap(call: Attention):
    return call.run(options=call.options | {"softcap": None})


attention_scaled_by_head_dim = alter(attending(over_head_dim))


def _rotating(change: Callable[[Any, Tensor], Tensor]) -> Change:
    """The rotary frequencies are change(model, frequencies)."""

    def values(model):
        rotary = model.model.rotary_emb
        return [(rotary, "inv_freq", change(model, rotary.inv_freq).to(rotary.inv_freq.dtype))]

    return replacing(values)


_halved = _rotating(lambda _, frequencies: frequencies / 2)


def _of_another_base(_, frequencies: Tensor) -> Tensor:
    """The base of the rotation is 1 % larger than the checkpoint says."""
    places = torch.arange(len(frequencies), dtype=torch.float64, device=frequencies.device)
    return frequencies * 1.01 ** -(places / len(frequencies))


def _by_parts(model, frequencies: Tensor) -> Tensor:
    """Low frequencies are divided by 8 as in Llama 3.1, high ones stay; the checkpoint says nothing
    of it.
    """
    share = ((model.config.max_position_embeddings * frequencies / (2 * torch.pi) - 1) / 3).clamp(
        0,
        1,
    )
    return frequencies * (share + (1 - share) / 8)


def rotary_scaled_beyond_a_length(model, ids: Tensor) -> Tensor:
    """From a length on frequencies are halved, for keys that were cached before too late."""
    with ExitStack() as stack:

        def rescale(_, at):
            if at == 24:
                stack.enter_context(_halved(model))

        return walk(model, ids, [24], rescale)


def _epsilon(module) -> Iterator[tuple[Any, str, float]]:
    # Llama's norms have the first name, LayerNorm and Gemma's the second
    for name in ("variance_epsilon", "eps"):
        if "Norm" in type(module).__name__ and hasattr(module, name):
            yield module, name, getattr(module, name)


def _other_epsilons(model):
    """Norms add 1e-5 where the checkpoint says 1e-6, or the other way round."""
    every = [each for module in model.modules() for each in _epsilon(module)]
    return [(module, name, 1e-6 if value == 1e-5 else 1e-5) for module, name, value in every]


def norm_epsilon_of_layer(number: int) -> Engine:
    """One norm adds ten times what the checkpoint says."""

    def values(model):
        return [
            (module, name, 10 * value)
            for module, name, value in _epsilon(first_norm(layers(model)[number]))
        ]

    return alter(replacing(values))


def final_norm(model) -> list[Any]:
    """The norm before the head."""
    return [model.transformer.ln_f if hasattr(model, "transformer") else model.model.norm]


def activated(module: torch.nn.Module) -> Change:
    """The MLPs' activation is this module."""

    def places(model):
        mlps = [layer.mlp for layer in layers(model)]
        return [(mlp, "act" if hasattr(mlp, "act") else "act_fn", module) for mlp in mlps]

    return replacing(places)


def _head_of(change: Callable[[Any, Tensor, Tensor], Tensor]) -> Engine:
    """The head's weights are change(model, weights, ids)."""

    def engine(model, ids):
        head = model.get_output_embeddings()
        weight = torch.nn.Parameter(
            change(model, head.weight, ids).to(head.weight),
            requires_grad=False,
        )
        with replaced(head, "weight", weight):
            return prefill(model, ids)

    return engine


def _untied(model, weight: Tensor, _: Tensor) -> Tensor:
    """The head, which the checkpoint ties to the embedding, keeps what it was initialised with."""
    values = torch.randn(
        weight.shape,
        generator=torch.Generator().manual_seed(0),
        dtype=torch.float32,
    )
    return values.to(weight.device) * model.config.initializer_range


def _one_row_stale(_, weight: Tensor, ids: Tensor) -> Tensor:
    """The head is a copy from before one token's embedding was changed by a fortieth."""
    stale = weight.clone()
    stale[ids[len(ids) // 2]] *= 1.025
    return stale


# Experts.


def _routed(change: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Engine:
    """change(router's logits [tokens, experts], weights and ids of the chosen [tokens, chosen]) ->
    weights.
    """

    def route(_, __, output):
        return output[0], change(*output), output[2]

    return alter(registering("register_forward_hook", routers, route))


def without_renormalisation(logits: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    share = logits.float().softmax(-1).gather(-1, ids).sum(-1, keepdim=True)
    return (weights * share).to(weights.dtype)


def _one_token_dropped(_: Tensor, weights: Tensor, __: Tensor) -> Tensor:
    return torch.cat([weights[:20], torch.zeros_like(weights[20:21]), weights[21:]])


def _second_expert_lost(_: Tensor, weights: Tensor, __: Tensor) -> Tensor:
    return torch.cat([weights[:, :1], torch.zeros_like(weights[:, 1:])], dim=-1)


# The output.


def logits_of_the_previous_step(model, ids: Tensor) -> Tensor:
    """Each position returns what the one before computed."""
    logits = prefill(model, ids)
    return torch.cat([logits[:1], logits[:-1]])


def truncated_to_the_top_20(model, ids: Tensor) -> Tensor:
    """The dump keeps the 20 largest logits."""
    logits = prefill(model, ids)
    least = logits.topk(20, dim=-1).values[:, -1:]
    return logits.masked_fill(logits < least, -torch.inf)


uncapped = alter(replacing(lambda model: [(model.config, "final_logit_softcapping", None)]))


def _at_temperature_1(logits: Tensor) -> Sequence[int]:
    generator = torch.Generator().manual_seed(0)
    return torch.multinomial(
        logits.float().cpu().softmax(-1),
        1,
        generator=generator,
    )[:, 0].tolist()


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
        "one stale slot of an earlier request",
        overwriting(another_prompt, PREFIX, -3),
        "vllm-project/vllm/pull/17305",
    ),
    Mutation(
        "a neighbour's block at one position only",
        neighbours_block_at_one_position,
        "vllm-project/vllm/issues/39589",
    ),
    Mutation(
        "block table shifted by one",
        cached([PREFIX], rewriting(_block_table_shifted)),
        "vllm-project/vllm/issues/39146",
    ),
    Mutation(
        "slot mapping of the last block one late",
        cached([PREFIX], rewriting(_last_block_one_slot_late)),
        "ericcurtin/vllm-vulkan/pull/78",
    ),
    Mutation(
        "cache trimmed one token short",
        trimmed_one_short,
        "lablup/mlxcel/issues/994",
        _not(_windowed),
    ),
    Mutation(
        "one layer's cache not updated for one token",
        cached([PREFIX + 1], _one_layer_not_updated),
        "vllm-project/vllm-metal/pull/144",
    ),
    Mutation(
        "value cache of one head x 1.01",
        scaled_value(1.01, slice(None)),
        "vllm-project/vllm/pull/11688",
    ),
    Mutation("one cached value of one head x 1.01", scaled_value(1.01)),
    Mutation("fp8 cache", round_cache(fp8), "sgl-project/sglang/issues/25790", is_precision=True),
    Mutation("int8 cache", round_cache(_int8), is_precision=True),
    Mutation(
        "int8 cache in one layer only",
        round_cache(_int8, 1),
        module=_attention_of_block(1),
        position=8,
    ),
    Mutation(
        "fp8 cache in one layer only",
        round_cache(fp8, 1),
        module=_attention_of_block(1),
        position=8,
    ),
    Mutation(
        "a race: one stale slot, another each time",
        racing_slot,
        "vllm-project/vllm/issues/39146",
    ),
    Mutation("one future key visible to one query", alter(future_key)),
    Mutation(
        "first query of a chunk misses the token before it",
        cached([PREFIX], inner=attending(_boundary_hidden)),
    ),
    *(
        Mutation(
            name,
            window_longer_by(tokens),
            "huggingface/transformers/issues/39408",
            _windowed,
            module=_first_windowed_attention,
            position=partial(_end_of_window, tokens),
        )
        for name, tokens in (("window off by one", 1), ("window one token short", -1))
    ),
    Mutation(
        "keys of two groups swapped in one layer",
        alter(attending(_groups_swapped)),
        applies=_has_groups,
        module=_attention_of_block(1),
        position=1,
    ),
    Mutation(
        "windowed and full layers swapped",
        alter(replacing(_other_kinds)),
        applies=_of("gemma2"),
    ),
    Mutation(
        "left padding not masked",
        left_padding_unmasked,
        "turboderp-org/exllamav2/issues/606",
    ),
    Mutation(
        "left padding without position ids",
        left_padding_without_positions,
        "huggingface/transformers/pull/29583",
        changes=_not(_rotary),
    ),
    Mutation("all positions shifted by one", all_positions_shifted_by_one, changes=_not(_rotary)),
    Mutation(
        "a neighbour's row leaks through a shared buffer",
        source="sgl-project/sglang/pull/1469",
        base=_leaky,
        path="mutated+batch:3",
    ),
    Mutation("another row's logits", partial(in_a_batch, row=1), "tenstorrent/tt-xla/issues/5830"),
    Mutation(
        "NaN of a padded row through a batch-wide maximum",
        alter(hooking(second_layer, _nan_through_a_maximum), _with_padding),
        "ml-explore/mlx/pull/2608",
    ),
    Mutation(
        "TF32 where float32 was promised",
        alter(lambda _: RoundedOperands(partial(round_to_bits, bits=10))),
        "CanReader/FastNN/issues/10",
        single_precision,
        is_precision=True,
    ),
    Mutation(
        "head in bfloat16 where float32 was promised",
        alter(hooking(head_of, _head_in_bfloat16)),
        applies=single_precision,
        is_precision=True,
    ),
    Mutation("one head's output x 1.01", scaled_head(1.01)),
    Mutation(
        "attention scaled by head_dim, not its root",
        attention_scaled_by_head_dim,
        "ggml-org/llama.cpp/pull/13951",
    ),
    Mutation(
        "attention softcap dropped",
        alter(attending(without_softcap)),
        "vllm-project/vllm-metal/issues/665",
        _of("gemma2"),
    ),
    Mutation(
        "final softcap dropped",
        uncapped,
        "keras-team/keras-hub/pull/1712",
        _of("gemma2"),
    ),
    Mutation(
        "rotary base 1 % off",
        alter(_rotating(_of_another_base)),
        "unslothai/unsloth/pull/7028",
        _rotary,
    ),
    Mutation(
        "rotary positions halved",
        alter(_halved),
        applies=_rotary,
        module=_rotary_tables,
        position=1,
    ),
    Mutation(
        "rotary frequencies scaled by parts",
        alter(_rotating(_by_parts)),
        applies=_rotary,
        module=_rotary_tables,
        position=1,
    ),
    Mutation(
        "rotary frequencies halved beyond 24 tokens",
        rotary_scaled_beyond_a_length,
        "Blaizzy/mlx-vlm/pull/1710",
        _rotary,
    ),
    Mutation(
        "a bias dropped",
        alter(
            hooking(
                lambda model: [layers(model)[1].mlp.c_fc],
                lambda module, _, output: output - module.bias,
            ),
        ),
        applies=_of("gpt2"),
    ),
    Mutation(
        "a bias added on every rank",
        alter(
            hooking(
                lambda model: [layers(model)[1].attn.c_proj],
                lambda module, _, output: output + module.bias,
            ),
        ),
        "huggingface/text-generation-inference/issues/1036",
        _of("gpt2"),
    ),
    Mutation(
        "norm epsilon 1e-5 for 1e-6",
        alter(replacing(_other_epsilons)),
        "apache/tvm/pull/15856",
    ),
    Mutation(
        "norm epsilon x 10 in the first layer",
        norm_epsilon_of_layer(0),
        module=lambda model: first_norm(layers(model)[0]),
    ),
    # On tiny gemma2, llama and mistral it is 1 to 2 noise floors of float32, and is not seen: a
    # detection limit.
    Mutation(
        "norm epsilon x 10 in one layer",
        norm_epsilon_of_layer(1),
        applies=_shows_an_epsilon,
        module=lambda model: first_norm(layers(model)[1]),
    ),
    Mutation(
        "tied head left untied",
        _head_of(_untied),
        applies=_tied,
        module=lambda _: None,
        position=0,
    ),
    Mutation(
        "one row of an untied head stale",
        _head_of(_one_row_stale),
        applies=_tied,
        module=lambda _: None,
        position=0,
    ),
    Mutation(
        "exact GELU for the tanh one",
        alter(activated(torch.nn.GELU())),
        "OpenNMT/CTranslate2/issues/1658",
        _of("gpt2", "gemma2"),
    ),
    Mutation(
        "router weights not renormalised",
        _routed(without_renormalisation),
        "HabanaAI/vllm-fork/pull/73",
        _of("mixtral"),
    ),
    Mutation(
        "one token dropped by its experts",
        _routed(_one_token_dropped),
        applies=_of("mixtral"),
    ),
    Mutation("second expert lost", _routed(_second_expert_lost), applies=_of("mixtral")),
    Mutation(
        "logits of the previous step",
        logits_of_the_previous_step,
        "vllm-project/vllm/pull/5846",
    ),
    Mutation("logits truncated to the top 20", truncated_to_the_top_20),
    Mutation(
        "sampler ignores temperature 0",
        prefill,
        "oobabooga/textgen/pull/4524",
        sample=_at_temperature_1,
    ),
)
