"""Batches that a trainer saved as arrays by the names of verl, TRL and others: [responses, tokens]
each.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DumpError
from ..numerics.formats import FORMATS
from ..runs.dumps.arrays import StoredArray
from ..runs.dumps.containers import open_container
from .torch_files import Response

_MOST_BYTES = 1 << 30
_ROLLOUT = (
    *("rollout_log_probs", "rollout_logprobs", "sampling_per_token_logps"),
    *("inference_logprobs", "generation_logprobs"),
)
_TRAINER = (
    "old_log_probs",
    "old_per_token_logps",
    "prev_logprobs",
    "trainer_logprobs",
    "log_probs",
)
_MASK = ("response_mask", "completion_mask", "loss_mask", "mask")
_IDS = ("responses", "completion_ids", "token_ids")


def is_batch(path: Path) -> bool:
    """Return whether a file holds arrays of both sides, [responses, tokens], by their names."""
    try:
        return bool(_arrays(path))
    except DumpError:
        return False  # or a dump, whose reader says what is wrong


def read_batch(path: Path) -> list[Response]:
    """Return the responses of such a file; token ids are 0 if it has none."""
    columns = dict(zip(("reference", "variant", "mask", "token_ids"), _arrays(path), strict=True))
    values = {name: _values(array) for name, array in columns.items() if array is not None}
    values.setdefault("token_ids", np.zeros_like(values["reference"]))
    return [
        {"sequence": str(row), "step": 0, **{name: each[row] for name, each in values.items()}}
        for row in range(len(values["reference"]))
    ]


def _arrays(path: Path) -> list[StoredArray | None]:
    """Return the arrays of the rollout, the trainer, the mask and the token ids; none for another
    file.
    """
    arrays = open_container(path, _MOST_BYTES).arrays
    # also `batch.responses`
    plain = {key.rpartition(".")[2]: array for key, array in arrays.items()}
    found = [
        next((plain[name] for name in names if name in plain), None)
        for names in (_ROLLOUT, _TRAINER, _MASK, _IDS)
    ]
    if found[0] is None or len(found[0].shape) != 2:
        return []
    alike = [each if each is not None and each.shape == found[0].shape else None for each in found]
    return alike if alike[1] is not None else []


def _values(array: StoredArray) -> NDArray[np.float64]:
    """Return an array as float64; two bytes of no number are bfloat16."""
    values = array.load()
    if values.dtype.kind == "V":
        values = values.view(FORMATS["bfloat16"].values)
    return values.astype(np.float64).reshape(array.shape)
