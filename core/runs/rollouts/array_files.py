"""Batches that a trainer saved as arrays by the names of verl, TRL and others: [responses, tokens] each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import DumpError
from ..dumps.arrays import StoredArray
from ..dumps.containers import open_container
from .torch_files import SavedResponse

_MOST_BYTES = 1 << 30
_ROLLOUT = (
    *("rollout_log_probs", "rollout_logprobs", "sampling_per_token_logps"),
    *("inference_logprobs", "generation_logprobs"),
)
_TRAINER = ("old_log_probs", "old_per_token_logps", "prev_logprobs", "trainer_logprobs", "log_probs")
_MASK = ("response_mask", "completion_mask", "loss_mask", "mask")
_IDS = ("responses", "completion_ids", "token_ids")


def is_batch(path: Path) -> bool:
    """Return whether a file holds arrays of both sides, [responses, tokens], by their names."""
    try:
        return _sides(path) is not None
    except DumpError:
        return False  # or a dump, whose reader says what is wrong


def read_batch(path: Path) -> list[SavedResponse]:
    """Return the responses of such a file; token ids are 0 if it has none."""
    arrays = _sides(path)
    assert arrays is not None
    rollout, trainer, mask, ids = (None if each is None else _values(each) for each in arrays)
    assert rollout is not None
    assert trainer is not None
    of_loss = np.ones(rollout.shape, bool) if mask is None else mask != 0
    tokens = np.zeros(rollout.shape, np.int64) if ids is None else ids.astype(np.int64)
    return [
        SavedResponse(0, row, tokens[row], of_loss[row], {"reference": rollout[row], "variant": trainer[row]})
        for row in range(len(rollout))
    ]


def _sides(path: Path) -> list[StoredArray | None] | None:
    """Return the arrays of the rollout, the trainer, the mask and the token ids; None for another file."""
    arrays = open_container(path, _MOST_BYTES).arrays
    found = [_first(arrays, names) for names in (_ROLLOUT, _TRAINER, _MASK, _IDS)]
    sides = found[:2]
    if any(each is None or len(each.shape) != 2 or each.shape != sides[0].shape for each in sides):  # type: ignore[union-attr]
        return None
    shape = sides[0].shape  # type: ignore[union-attr]
    return [each if each is not None and each.shape == shape else None for each in found]


def _first(arrays: dict[str, StoredArray], names: Sequence[str]) -> StoredArray | None:
    """Return the first array of these names, also with a prefix, as `batch.responses`."""
    plain = {key.rpartition(".")[2]: array for key, array in arrays.items()}
    return next((plain[name] for name in names if name in plain), None)


def _values(array: StoredArray) -> NDArray[np.float64]:
    """Return an array as float64; two bytes of no number are bfloat16."""
    values = array.load()
    if values.dtype.kind == "V":
        values = (values.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float64).reshape(array.shape)
