"""Batches that a trainer saved as arrays by the names of verl, TRL and others: [responses, tokens]
each, or [tokens] of one response.
"""

from pathlib import Path

import numpy as np

from ..errors import DumpError
from ..numerics.formats import FORMATS
from ..runs.dumps.arrays import StoredArray
from ..runs.dumps.containers import open_container
from .torch_files import Response

_MOST_BYTES = 1 << 30
# Names of arrays by our column; of two that a file has, the first one is read.
_NAMES = {
    "reference": (
        "rollout_log_probs",
        "rollout_logprobs",
        "sampling_per_token_logps",
        "inference_logprobs",
        "generation_logprobs",
    ),
    "variant": (
        "old_log_probs",
        "old_per_token_logps",
        "prev_logprobs",
        "trainer_logprobs",
        "log_probs",
    ),
    "mask": ("response_mask", "completion_mask", "loss_mask", "mask"),
    "entropy": ("entropys", "entropy"),
    "token_ids": ("responses", "completion_ids", "token_ids"),
}


def is_batch(path: Path) -> bool:
    """Return whether a file holds arrays of both sides, not of a vocabulary, by their names."""
    try:
        return bool(_arrays(path))
    except DumpError:
        # it may still be a dump, whose reader says what is wrong
        return False


def read_batch(path: Path) -> list[Response]:
    """Return the responses of such a file; token ids are 0 if it has none of that shape.

    DumpError: an array has another shape than the rollout's.
    """
    columns = {}
    arrays = _arrays(path)
    shape = arrays["reference"].shape
    for name, array in arrays.items():
        if array.shape != shape:
            if name == "token_ids":
                # of the prompt as well
                continue
            raise array.refusal(
                f"has shape {array.shape}",
                f"{shape} like '{arrays['reference'].key}'",
            )
        values = array.load()
        # two bytes of no number are bfloat16
        if values.dtype.kind == "V":
            values = values.view(FORMATS["bfloat16"].values)
        columns[name] = values.astype(np.float64).reshape(-1, shape[-1])
    columns.setdefault("token_ids", np.zeros_like(columns["reference"]))
    return [
        {"sequence": str(row), "step": 0, **{name: each[row] for name, each in columns.items()}}
        for row in range(len(columns["reference"]))
    ]


def _arrays(path: Path) -> dict[str, StoredArray]:
    """Return the arrays by our columns; none for another file."""
    # also `batch.responses`
    arrays = {
        name.rpartition(".")[2]: array
        for name, array in open_container(path, _MOST_BYTES).arrays.items()
    }
    columns = {}
    for column, names in _NAMES.items():
        if present := [arrays[name] for name in names if name in arrays]:
            columns[column] = present[0]
    if not {"reference", "variant"} <= columns.keys():
        return {}
    are_tokens = all(len(columns[side].shape) in (1, 2) for side in ("reference", "variant"))
    return columns if are_tokens else {}
