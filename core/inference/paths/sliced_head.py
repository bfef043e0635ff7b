"""The logits of one forward in slices: the body of the model runs once, its head on some columns at
a time.

4096 tokens over a vocabulary of 128256 give a gigabyte of logits per row; hidden states are fifty
times smaller. So above SLICE_BYTES the model is called again for each slice, with its body's output
cached.
"""

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
    whole: Any = None
    columns = slice(None)
    forward = body.forward

    def of_columns(*positional: Any, **keywords: Any) -> Any:
        """Run the body once, and hand on its hidden states of the columns."""
        nonlocal whole
        if whole is None:
            whole = forward(*positional, **keywords)
        if isinstance(whole, tuple):
            return (whole[0][:, columns], *whole[1:])
        hidden = whole.last_hidden_state[:, columns]
        return type(whole)(**{**whole, "last_hidden_state": hidden})

    with attribute_replaced(body, "forward", of_columns):
        for first in range(start, stop, size):
            columns = slice(first, min(first + size, stop))
            logits = model(**arguments).logits
            if whole is None:
                return emit_slices(logits)
            emit(logits)
            # gone before the next one is computed
            del logits
    return None


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
