"""What a base is given: the prompt among its neighbours and padding, and the one forward that every base is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from transformers import Cache, DynamicCache

from ..models.model import LoadedModel
from .cache_watch import CacheWatch, PromptPlace
from .hooks import Forwards
from .neighbours import neighbour_rows
from .sliced_head import columns_at_once, sliced_logits

CHUNK_BYTES = 8 << 20  # logits leave the device and reach the sink in pieces of about this size

Neighbours = Callable[[LoadedModel, Sequence[int], int], torch.Tensor]
"""(model, prompt, count) -> token ids of the other rows, [count, positions]."""


def real_neighbours(loaded: LoadedModel, prompt: Sequence[int], count: int) -> torch.Tensor:
    """Other real text, as on a busy server. -> [count, positions]"""
    return neighbour_rows(loaded.tokenizer, prompt, count)


@dataclass(frozen=True)
class Setting:
    """What a base is to compute: the logits of `prompt`, which is row `row` of a batch of `rows`.

    left, right: padding tokens before and after every row, masked; call: what computes a forward, None for the model
    itself; room: tokens that will follow the prompt, for which a cache that is allocated beforehand needs space; watch:
    is told of the cache that each forward leaves behind, and has forwards that need none make one; trace: is told which
    positions each forward computes, and where in its batch.
    """

    loaded: LoadedModel
    prompt: tuple[int, ...] = ()
    rows: int = 1
    row: int = 0
    neighbours: Neighbours = real_neighbours
    left: int = 0
    right: int = 0
    call: Callable[..., Any] | None = None
    room: int = 0
    watch: CacheWatch | None = None
    trace: Forwards | None = None

    @property
    def positions(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt)

    @property
    def columns(self) -> int:
        """Tokens of a row: the prompt and its padding."""
        return self.left + self.positions + self.right

    @cached_property
    def token_ids(self) -> torch.Tensor:
        """The whole batch on the model's device. [rows, columns], int64"""
        own = torch.tensor([self.prompt], dtype=torch.long)
        others = self.neighbours(self.loaded, self.prompt, self.rows - 1) if self.rows > 1 else own[:0]
        rows = torch.cat([others[: self.row], own, others[self.row :]])
        padded = torch.nn.functional.pad(rows, (self.left, self.right), value=_padding_token(self.loaded))
        return padded.to(self.loaded.device)

    @cached_property
    def attention_mask(self) -> torch.Tensor:
        """1 for a token, 0 for padding. [rows, columns], int64"""
        mask = torch.zeros_like(self.token_ids)
        mask[:, self.left : self.left + self.positions] = 1
        return mask

    @cached_property
    def position_ids(self) -> torch.Tensor:
        """The place of each token in its prompt; padding shares that of the token it touches. [rows, columns], int64"""
        places = torch.arange(self.columns, device=self.loaded.device) - self.left
        return places.clamp(0, self.positions - 1).expand(self.rows, -1)

    def column(self, position: int) -> int:
        """Where the forward that begins at `position` begins: left padding is computed with the first token."""
        return 0 if position == 0 else self.left + position

    def column_after(self, stop: int) -> int:
        """Where the forward that ends before `stop` ends: right padding is computed with the last token."""
        return self.columns if stop == self.positions else self.left + stop

    def forward(self, start: int, stop: int, cache: Cache | None = None) -> torch.Tensor:
        """Logits of the prompt's positions start..stop-1 by one forward, after whatever `cache` holds. -> [stop -
        start, vocab]
        """
        return torch.cat([logits for _, logits in self.pieces(start, stop, cache)])

    def pieces(self, start: int, stop: int, cache: Cache | None = None) -> Iterator[tuple[int, torch.Tensor]]:
        """The same forward, its logits a piece at a time: (first position, logits[rows, vocab]).

        The model's body has run, and `cache` is filled, when the first piece comes; where all logits would be too many
        at once, its head then runs for the columns of one slice after another (core.inference.paths.sliced_head).
        """
        if cache is None and self.watch is not None:
            cache = DynamicCache(config=self.loaded.model.config)
        first, last = self.column(start), self.column_after(stop)
        arguments: dict[str, Any] = {"input_ids": self.token_ids[:, first:last], "use_cache": cache is not None}
        if cache is not None:
            arguments["past_key_values"] = cache
        if self.left or self.right:  # without padding the model's own defaults are what everyone runs
            arguments["attention_mask"] = self.attention_mask[:, :last]
            arguments["position_ids"] = self.position_ids[:, first:last]
        skipped = self.left + start - first
        position, step = start, rows_of_a_chunk(self.loaded)
        if self.trace is not None:
            self.trace.expect(self.row, skipped, start, stop)
        try:
            for logits in self._slices(arguments, last - first, skipped, skipped + stop - start):
                self._note(cache)
                for piece in logits[self.row].split(step):
                    yield position, piece
                    position += len(piece)
                del logits, piece  # or they would live on beside the next slice
        finally:
            if self.trace is not None:
                self.trace.done()

    def _slices(self, arguments: dict[str, Any], columns: int, start: int, stop: int) -> Iterator[torch.Tensor]:
        """Logits of columns start..stop-1 of a forward of `columns`. -> [rows, n, vocab] each"""
        size = columns_at_once(self.rows, self.loaded.vocab_size, self.loaded.torch_dtype.itemsize)
        if columns <= size or self.call is not None:  # a compiled model is one piece: its body cannot stand still
            call = self.loaded.model if self.call is None else self.call
            yield call(**arguments).logits[:, start:stop]
        else:
            yield from sliced_logits(self.loaded.model, arguments, start, stop, size)

    def step(self, tokens: torch.Tensor, done: int, cache: Cache) -> torch.Tensor:
        """One more token a row, after the prompt and `done` tokens that followed it: tokens [rows] -> [1, vocab], of
        the prompt's row.
        """
        arguments: dict[str, Any] = {"input_ids": tokens[:, None], "use_cache": True, "past_key_values": cache}
        if self.left:
            after = torch.ones((self.rows, done + 1), dtype=torch.long, device=tokens.device)
            arguments["attention_mask"] = torch.cat([self.attention_mask, after], dim=1)
            place = self.positions + done
            arguments["position_ids"] = torch.full((self.rows, 1), place, dtype=torch.long, device=tokens.device)
        call = self.loaded.model if self.call is None else self.call
        logits: torch.Tensor = call(**arguments).logits[self.row]
        self._note(cache)
        return logits[-1:]

    def tokens_after(self, own: Sequence[int]) -> torch.Tensor:
        """The last of the tokens `own` that followed the prompt, among those that follow in the other rows. -> [rows]

        The others go on as their own texts do, whatever the prompt's row chooses: they stand for other requests.
        """
        sequence = (*self.prompt, *own)
        token = torch.tensor(sequence[-1:], dtype=torch.long)
        others = self.neighbours(self.loaded, sequence, self.rows - 1)[:, -1] if self.rows > 1 else token[:0]
        return torch.cat([others[: self.row], token, others[self.row :]]).to(self.loaded.device)

    def _note(self, cache: Cache | None) -> None:
        if self.watch is not None:
            self.watch.cache = cache
            self.watch.place = PromptPlace(self.rows, self.row, self.left, self.right, self.positions)


def rows_of_a_chunk(loaded: LoadedModel) -> int:
    """Rows of logits that make about CHUNK_BYTES; at least one."""
    return max(1, CHUNK_BYTES // (loaded.vocab_size * loaded.torch_dtype.itemsize))


def _padding_token(loaded: LoadedModel) -> int:
    """The tokenizer's own padding, else its last token of a text, else token 0: masked, so any will do."""
    for token in (loaded.tokenizer.pad_token_id, loaded.tokenizer.eos_token_id):
        if isinstance(token, int) and 0 <= token < loaded.token_limit:
            return token
    return 0
