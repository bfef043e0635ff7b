"""The logits of one forward in slices: the body of the model runs once, its head on some columns at
a time.

4096 tokens over a vocabulary of 128256 give a gigabyte of logits per row; hidden states are fifty
times smaller. So above SLICE_BYTES the model is called again for each slice, with its body's output
cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

SLICE_BYTES = 128 << 20  # logits of all rows of the batch that exist at once


def columns_at_once(rows: int, row_bytes: int) -> int:
    """Return the columns of `rows` rows whose logits take up to SLICE_BYTES; at least one.
    row_bytes: of one row's logits of a column
    """
    return max(1, SLICE_BYTES // (rows * row_bytes))


def sliced_logits(
    model: Any,
    arguments: dict[str, Any],
    start: int,
    stop: int,
    size: int,
    emit: Callable[[Tensor], None],
) -> None:
    """Send `emit` the logits of columns start..stop-1 of one forward, [rows, up to `size`, vocab]
    each.

    If a model's forward bypasses its body (custom code), its whole logits are sliced instead.
    """

    def emit_slices(logits: Tensor) -> None:
        for piece in logits[:, start:stop].split(size, dim=1):
            emit(piece)

    body = getattr(model, model.base_model_prefix, None)
    if stop - start <= size or not isinstance(body, torch.nn.Module) or body is model:
        return emit_slices(model(**arguments).logits)
    standing = _Standing(body.forward)
    with attribute_replaced(body, "forward", standing):
        for first in range(start, stop, size):
            standing.columns = slice(first, min(first + size, stop))
            logits = model(**arguments).logits
            if standing.output is None:
                return emit_slices(logits)
            emit(logits)
            # gone before the next one is computed
            del logits
    return None


class _Standing:
    """Replacement for `body.forward` that caches hidden states, so that the LM head can be applied
    in slices.
    """

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.columns = slice(None)
        self.output: Any = None
        self._forward = forward

    def __call__(self, *positional: Any, **keywords: Any) -> Any:
        if self.output is None:
            self.output = self._forward(*positional, **keywords)
        if isinstance(self.output, tuple):
            return (self.output[0][:, self.columns], *self.output[1:])
        return type(self.output)(
            **{**self.output, "last_hidden_state": self.output.last_hidden_state[:, self.columns]},
        )


@contextmanager
def attribute_replaced(owner: torch.nn.Module, name: str, value: Any) -> Iterator[None]:
    """Replace an instance attribute inside the `with`."""
    # accelerate, for one, puts its own forward on the instance
    own = owner.__dict__.get(name)
    owner.__dict__[name] = value
    try:
        yield
    finally:
        if own is None:
            del owner.__dict__[name]
        else:
            owner.__dict__[name] = own
