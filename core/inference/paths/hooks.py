"""The one tracer: follows the forwards of a prompt and takes what modules put out at chosen
positions of it.

Modules are watched by forward hooks, which read and change nothing. What becomes of an output is a
subclass's matter: it is spooled (core.inference.watching.layers), or kept and compared
(core.inference.controls.modules_alone).
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Cache

_CALL = " (call "  # no module's name has a space


def name_of_call(module: str, number: int) -> str:
    """Return the name of one call of a module in a forward, counted from 1: `model.rotary_emb (call
    2)`.
    """
    return module if number == 1 else f"{module}{_CALL}{number})"


def module_of_call(name: str) -> str:
    """Return the module of a call that `name_of_call` named."""
    return name.partition(_CALL)[0]


class ModuleTrace:
    """Takes module outputs of one prompt. A path tells which positions a forward computes; of a
    callable the tokens and the cache tell. A module that runs several times in a forward has an
    output for each call, by `name_of_call`.

    positions: ascending; modules: names of those that an engine may hand in; is_ambiguous: several
    rows hold the tokens.
    """

    def __init__(self, prompt: Sequence[int] = (), positions: Sequence[int] = ()) -> None:
        self.prompt, self.positions = prompt, positions
        self.modules: Collection[str] = ()
        self.is_ambiguous = False
        self.is_told = False
        # row, first column, first position, end
        self._computed: tuple[int, int, int, int] | None = None
        self._shape = (0, 0)  # rows and columns of the batch of this forward
        # of the chosen positions; None: there are none
        self._columns: slice | Tensor | None = None
        self._first = 0  # place of the first of them in `positions`
        self._calls: Counter[str] = Counter()  # of each module in this forward
        # choices by module in this forward (core.inference.controls.choices)
        self.chosen: Counter[str] = Counter()

    def take(self, name: str, first: int, output: Tensor) -> None:
        """Take a module's output [chosen, width] from the `first` chosen position on.

        Copy it: models add in place.
        """
        raise NotImplementedError

    def not_understood(self, name: str, output: Tensor) -> None:
        """Note that the axes of this module's output are unknown."""

    @contextmanager
    def forward(
        self,
        row: int,
        skipped: int,
        start: int,
        stop: int,
    ) -> Iterator[None]:
        """Follow the forward of positions start..stop-1 of the prompt, in columns from `skipped` on
        of batch row `row`.

        One forward may be several calls: above a number of logits the model is called again for
        each slice of its head.
        """
        self._computed = (row, skipped, start, stop)
        self.is_told = True
        try:
            yield
        finally:
            self._computed, self.is_told = None, False

    def hand_in(self, name: str, output: Tensor, start: int) -> None:
        """Take a module's output from an engine, for positions from `start` on. [positions,
        width]
        """
        first, columns = self._chosen(start, start + len(output), start, output.device)
        if columns is not None:
            self.take(name, first, output[columns].detach())

    @property
    def start(self) -> int:
        """First position that this forward computes."""
        assert self._computed is not None
        return self._computed[2]

    def own(self, tensor: Tensor) -> Tensor | None:
        """Return the prompt's part of what a forward computes, a view [positions, groups, n]; None
        if its row or the axes are not known.
        """
        rows, columns = self._shape
        is_by_row = tensor.ndim > 2 and tensor.shape[:2] == self._shape
        is_known = is_by_row or tensor.shape[0] == rows * columns
        # nothing to choose from, as before the first compressed key of a DeepSeek V4
        is_empty = tensor.numel() == 0
        if self._computed is None or self.is_ambiguous or not is_known or is_empty:
            return None
        row, skipped, start, stop = self._computed
        batch = tensor.reshape(rows, columns, -1, tensor.shape[-1])
        return batch[row, skipped : skipped + stop - start]

    @contextmanager
    def following(self, model: Any, modules: Mapping[str, torch.nn.Module]) -> Iterator[None]:
        """Take every output of the modules inside the `with`, by name."""
        # functions: a callable may copy the model, and methods would copy this trace too
        begin = model.register_forward_pre_hook(
            lambda _, *call: self._begin(*call),
            with_kwargs=True,
        )
        with begin, ExitStack() as hooks:
            for name, module in modules.items():
                see = module.register_forward_hook(
                    lambda _, __, output, name=name: self._see(name, output),
                )
                hooks.enter_context(see)
            yield

    def _begin(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self._columns = None
        self._calls.clear()
        self.chosen.clear()
        ids = keywords.get("input_ids", arguments[0] if arguments else None)
        if not isinstance(ids, Tensor) or ids.ndim != 2:
            return
        if not self.is_told:
            # transformers 5.24, 5.23
            cache = keywords.get("cache", keywords.get("past_key_values"))
            start = int(cache.get_seq_length()) if isinstance(cache, Cache) else 0
            stop = start + ids.shape[1]
            own = list(self.prompt[start:stop])
            rows = [row for row, tokens in enumerate(ids.tolist()) if tokens == own]
            self.is_ambiguous = self.is_ambiguous or len(rows) > 1
            self._computed = (rows[0], 0, start, stop) if rows else None
        if self._computed is None:
            return
        _, skipped, start, stop = self._computed
        self._shape = ids.shape[0], ids.shape[1]
        self._first, self._columns = self._chosen(start, stop, start - skipped, ids.device)

    def _see(self, name: str, output: Any) -> None:
        self._calls[name] += 1
        first = output[0] if isinstance(output, tuple) and output else output
        is_float = isinstance(first, Tensor) and first.is_floating_point()
        if self._columns is not None and is_float:
            call = name_of_call(name, self._calls[name])
            own = self._own_row(first)
            if own is None:
                self.not_understood(call, first)
            else:
                self.take(call, self._first, own[self._columns].detach())

    def _own_row(self, output: Tensor) -> Tensor | None:
        """Return the prompt's row of an output, [columns, width]; None if its axes are
        ambiguous.
        """
        assert self._computed is not None
        rows, columns = self._shape
        row = self._computed[0]
        if output.ndim == 2 and len(output) == rows * columns:
            return output.reshape(rows, columns, -1)[row]
        if output.ndim not in (3, 4) or len(output) not in (1, rows):
            return None
        # position embeddings are one row for all
        own = output[row if len(output) == rows else 0]
        is_first = own.shape[0] == columns
        is_second = own.shape[1] == columns
        if output.ndim == 3:
            return own if is_first else None
        # the layout of a norm of each head
        if is_first and (not is_second or columns == 1):
            return own.reshape(columns, -1)
        # the other layout is [rows, heads, columns, width]
        if is_second and not is_first:
            return own.transpose(0, 1).reshape(columns, -1)
        return None

    def _chosen(
        self,
        start: int,
        stop: int,
        origin: int,
        device: torch.device,
    ) -> tuple[int, slice | Tensor | None]:
        """Return (place in `positions` of the first from `start` up to `stop`, offsets of those
        from `origin`): a slice if they are consecutive, None if there are none.
        """
        first, last = np.searchsorted(self.positions, (start, stop)).tolist()
        offsets = [position - origin for position in self.positions[first:last]]
        if not offsets:
            return first, None
        if offsets[-1] - offsets[0] == len(offsets) - 1:
            return first, slice(offsets[0], offsets[-1] + 1)
        return first, torch.tensor(offsets, device=device)
