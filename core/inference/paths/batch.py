"""A padded batch with the prompt in one row, and the forward call that all bases share.

Logits are pushed: the producer calls `emit` and keeps no reference, so that only one piece is
alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import cycle, islice
from math import gcd
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedTokenizerBase, StaticCache

from ...errors import CaptureError
from ...runs.tables.kv_cache import KvPart
from ..models.devices import own_bits
from ..models.encoder import token_types
from ..models.model import LoadedModel
from ..models.torch_errors import foreign_errors_mean, quiet
from .caches import (
    AnyCache,
    ReturnedState,
    arguments_of,
    keys_of_layer,
    new_cache,
    running_states,
)
from .hooks import ModuleTrace
from .sliced_head import columns_at_once, sliced_logits

_TEXT = Path(__file__).with_name("neighbours.txt")

# multiples of the golden ratio's share of the text stay far apart
_GOLDEN = 0.6180339887498949
# logits leave the device and reach the sink in pieces of about this size
CHUNK_BYTES = 8 << 20

Emit = Callable[[int, Tensor], None]
"""Takes (first position, logits[rows, vocab] of consecutive positions) in order, in their compute
dtype.
"""
Run = Callable[[Sequence[int], Emit], None]
"""(token ids of a prompt, emit): hands all of its logits to `emit`."""
Neighbours = Callable[[LoadedModel, Sequence[int], int], Tensor]
"""(model, prompt, count) -> token ids of the other rows, [count, positions]."""


# a continuation needs them at every step; a model in use and another one, not those unloaded
@lru_cache(maxsize=2)
def _tokens_of_text(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens of the text."""
    text = _TEXT.read_text(encoding="utf-8")
    with quiet():
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def neighbour_rows(loaded: LoadedModel, ids: Sequence[int], count: int) -> Tensor:
    """Return token ids of other prompts, each as long as `ids`. [count, positions], int64, on the
    CPU.

    Windows of real text, the same at every call; row k does not depend on `count`, so a batch of 4
    is the beginning of a batch of 8. None equals `ids`, and all differ until the text has no new
    window.
    """
    prompt = list(ids)
    tokenizer = loaded.tokenizer
    text = _tokens_of_text(tokenizer)
    # If a prompt begins with the BOS token, its neighbors do too, like any request to a server.
    opening = prompt[:1] if len(prompt) > 1 and prompt[0] == tokenizer.bos_token_id else []
    length = len(prompt) - len(opening)
    # the text repeats, so that every offset has a whole window
    around = text * (2 + length // max(1, len(text)))
    step = max(1, round(len(text) * _GOLDEN))
    # a step coprime to the text brings up each offset once
    while gcd(step, len(text)) > 1:
        step += 1
    # in the order in which they are met
    windows: dict[tuple[int, ...], None] = {}
    for number in range(len(text)):
        if len(windows) == count:
            break
        offset = (1 + number) * step % len(text)
        window = opening + around[offset : offset + length]
        if window != prompt:
            windows[tuple(window)] = None
    if not windows:
        raise CaptureError(
            f"the tokenizer turns every neighbor of a prompt of {len(prompt)} tokens into that"
            " prompt; lengthen it.",
        )
    return torch.tensor(list(islice(cycle(windows), count)), dtype=torch.long)


@dataclass
class CacheWatch:
    """Holds the cache of the last forward of an open path, and its batch."""

    cache: AnyCache | None = None
    batch: PromptBatch | None = None


@dataclass(frozen=True)
class PromptBatch:
    """The prompt as row `row` of a batch of `rows`, and the forward that computes its logits.

    left_padding, right_padding: masked padding of every row; gives_positions: position ids are
    passed without padding too, else the model counts its cached tokens; call: computes a forward,
    None for the model itself; room: tokens that will follow the prompt, for a cache allocated
    beforehand; watch: gets the cache of each forward, which then always makes one; trace: follows
    the forwards.
    """

    loaded: LoadedModel
    prompt: tuple[int, ...] = ()
    rows: int = 1
    row: int = 0
    neighbours: Neighbours = neighbour_rows
    left_padding: int = 0
    right_padding: int = 0
    gives_positions: bool = False
    call: Callable[..., Any] | None = None
    room: int = 0
    watch: CacheWatch | None = None
    trace: ModuleTrace | None = None

    @property
    def positions(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt)

    @property
    def columns(self) -> int:
        """Tokens of a row: the prompt and its padding."""
        return self.left_padding + self.positions + self.right_padding

    @cached_property
    def token_ids(self) -> Tensor:
        """The whole batch on the model's device. [rows, columns], int64"""
        rows = self._among_others(self.prompt)
        padding = 0
        # all are masked
        for token in (self.loaded.tokenizer.eos_token_id, self.loaded.tokenizer.pad_token_id):
            if isinstance(token, int) and 0 <= token < self.loaded.token_limit:
                padding = token
        sides = self.left_padding, self.right_padding
        return torch.nn.functional.pad(rows, sides, value=padding).to(self.loaded.device)

    def _among_others(self, own: Sequence[int]) -> Tensor:
        """Return a sequence in its row among its neighbors. [rows, tokens]"""
        row = torch.tensor([own], dtype=torch.long)
        if self.rows == 1:
            return row
        others = self.neighbours(self.loaded, own, self.rows - 1)
        return torch.cat([others[: self.row], row, others[self.row :]])

    @cached_property
    def attention_mask(self) -> Tensor:
        """1 for a token, 0 for padding. [rows, columns], int64"""
        mask = torch.zeros_like(self.token_ids)
        mask[:, self.left_padding : self.left_padding + self.positions] = 1
        return mask

    @cached_property
    def position_ids(self) -> Tensor:
        """The place of each token in its prompt, as the model counts; padding shares that of the
        token it touches. [rows, columns], int64
        """
        places = torch.arange(self.columns, device=self.loaded.device) - self.left_padding
        places = places.clamp(0, self.positions - 1) + self.loaded.first_position
        return places.expand(self.rows, -1)

    def column(self, position: int) -> int:
        """First column of the forward that begins at `position`: left padding is computed with the
        first token.
        """
        return 0 if position == 0 else self.left_padding + position

    def column_after(self, stop: int) -> int:
        """End of the forward that ends before `stop`, in columns: right padding is computed with
        the last token.
        """
        return self.columns if stop == self.positions else self.left_padding + stop

    def forward(
        self,
        start: int,
        stop: int,
        emit: Emit,
        cache: AnyCache | None = None,
    ) -> None:
        """Send `emit` the logits of positions start..stop-1 by one forward that continues `cache`.
        If they are too many at once, the head runs on slices of the columns (sliced_head.py). Of an
        encoder the row of values of the whole text.
        """
        loaded = self.loaded
        encoder = self.loaded.encoder
        if self.watch is not None and encoder is None:
            if cache is None:
                cache = new_cache(loaded)
            self.watch.cache, self.watch.batch = cache, self
        first = self.column(start)
        last = self.column_after(stop)
        arguments: dict[str, Any] = {"input_ids": self.token_ids[:, first:last]}
        if encoder is None:
            arguments |= arguments_of(loaded, cache)
        elif loaded.separator is not None:
            arguments["token_type_ids"] = token_types(self.token_ids, loaded.separator)
        # without padding, the model's defaults apply, as everywhere
        is_padded = self.columns > self.positions
        if is_padded:
            arguments["attention_mask"] = self.attention_mask[:, :last]
        if is_padded or self.gives_positions:
            arguments["position_ids"] = self.position_ids[:, first:last]
        skipped = self.left_padding + start - first
        end = skipped + stop - start
        position = start

        def split(logits: Tensor) -> None:
            """Emit the prompt's row of a slice. [rows, columns, vocab]"""
            nonlocal position
            for piece in logits[self.row].split(rows_of_a_chunk(loaded)):
                emit(position, piece)
                position += len(piece)

        size = columns_at_once(self.rows, loaded.row_bytes)
        trace = self.trace
        # a compiled model has no body to replace, and slices return no state
        is_whole = self.call is not None or isinstance(cache, ReturnedState)
        with nullcontext() if trace is None else trace.forward(self.row, skipped, start, stop):
            if encoder is not None:
                rows = encoder.rows(self._outputs(arguments), self.attention_mask)
                emit(0, rows[self.row : self.row + 1])
            elif is_whole or last - first <= size:
                split(self._logits(arguments, cache)[:, skipped:end])
            else:
                sliced_logits(
                    loaded.model,
                    arguments,
                    skipped,
                    end,
                    size,
                    split,
                )

    def step(self, own: Sequence[int], cache: AnyCache) -> Tensor:
        """Feed the last of `own`, the tokens after the prompt; other rows continue their own texts.
        Return the logits of the prompt's row. [1, vocab]
        """
        tokens = self._among_others((*self.prompt, *own))[:, -1:].to(self.loaded.device)
        arguments = arguments_of(self.loaded, cache) | {"input_ids": tokens}
        if self.left_padding:
            mask = self.attention_mask
            arguments["attention_mask"] = torch.cat([mask, mask.new_ones(self.rows, len(own))], 1)
        if self.left_padding or self.gives_positions:
            arguments["position_ids"] = self.position_ids[:, -1:] + len(own)
        return self._logits(arguments, cache)[self.row, -1:]

    def _logits(self, arguments: dict[str, Any], cache: AnyCache | None) -> Tensor:
        reason = ""
        # what a model cannot do that fails
        if cache is not None and self.call is None:
            what = "continue a cache"
            if isinstance(cache, StaticCache):
                what = "use a cache allocated beforehand"
            elif arguments["input_ids"].shape[1] > 1:
                what = "continue a cache by several tokens"
            reason = f"a {self.loaded.kind} cannot {what}; choose prefill"
        with foreign_errors_mean(reason):
            output = self._outputs(arguments)
        if isinstance(cache, ReturnedState):
            cache.value = output[cache.name]
        return output.logits

    def _outputs(self, arguments: dict[str, Any]) -> Any:
        # a compiled model has no truth
        call: Any = self.loaded.model if self.call is None else self.call
        return call(**arguments)


def ignore(*_: object) -> None:
    """Discard logits, or progress."""


def rows_of_a_chunk(loaded: LoadedModel) -> int:
    """Return the rows of logits that make about CHUNK_BYTES; at least one."""
    return max(1, CHUNK_BYTES // loaded.row_bytes)


def kv_parts(watch: CacheWatch, prompt: int, dtype: torch.dtype) -> Iterator[KvPart]:
    """Yield the prompt's row of all keys, values and running states by layer, without padding, in
    `dtype` if exact; states in float32 otherwise.
    """
    batch = watch.batch
    cache = watch.cache
    if batch is None or cache is None:
        return
    value = cache.value if isinstance(cache, ReturnedState) else cache
    for index, layer in enumerate(value.layers if isinstance(value, Cache) else ()):
        for kind, tensor in keys_of_layer(batch.loaded, layer).items():
            is_by_slot = isinstance(tensor, Tensor) and tensor.ndim == 4
            if is_by_slot and torch.promote_types(tensor.dtype, dtype) == dtype:
                first, slots = _slots(layer, tensor.shape[2], batch)
                if slots.start < slots.stop:
                    own = tensor[batch.row, :, slots].to(dtype)
                    yield KvPart(prompt, index, kind, first, own_bits(own))
    for index, name, by_row in running_states(batch.loaded, cache):
        states = [state[batch.row] for state in by_row]
        # heads are the first axis of a state of three
        heads = states[0].shape[0] if states[0].ndim == 3 else 1
        if any(state.shape[0] % heads for state in states):
            heads = 1
        # [heads, 1, width]
        whole = torch.cat([state.reshape(heads, 1, -1) for state in states], dim=2)
        is_exact = torch.promote_types(whole.dtype, dtype) == dtype
        if whole.numel() and (is_exact or whole.dtype == torch.float32):
            bits = own_bits(whole.to(dtype) if is_exact else whole)
            kind = name.removesuffix("s").replace("_", " ")
            yield KvPart(prompt, index, kind, batch.positions - 1, bits)


def _slots(layer: Any, size: int, batch: PromptBatch) -> tuple[int, slice]:
    """Return (first position of the prompt in the layer, the slots from it on).

    A layer holds its columns from slot 0 on, or, once it has dropped some, the last ones. Columns
    are the prompt's positions shifted by the left padding.
    """
    length = int(layer.get_seq_length())
    first_column, filled = (0, length) if size >= length else (length - size, size)
    first = max(0, first_column - batch.left_padding)
    last = first_column + filled - batch.left_padding
    if batch.right_padding:
        last = min(last, batch.positions)
    shift = batch.left_padding - first_column
    return first, slice(first + shift, last + shift)
