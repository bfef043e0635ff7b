"""Engines that compute a model's function in a lower precision, which the verdict must name, and
faults on top of them, which stay bugs.

Formats are rounded to by other means than core.inference.controls.precisions.catalogue does:
ml_dtypes and numpy, the nearest of all levels, loops over groups.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from benchmarks.verdicts.engines import (
    PREFIX,
    Engine,
    alter,
    cached,
    left_by,
    prefill,
    replacing,
    rewriting,
)
from benchmarks.verdicts.mutations import (
    Mutation,
    another_prompt,
    fp8,
    overwriting,
    round_cache,
    scaled_head,
    single_precision,
)
from core.inference.controls.precisions.catalogue import NF4_LEVELS
from core.inference.models.model import LoadedModel

Rounding = Callable[[np.ndarray], np.ndarray]


def q4_0(rows: np.ndarray) -> np.ndarray:
    """GGUF's Q4_0: groups of 32, the value of largest magnitude at -8 of 16 steps, the step in
    float16.
    """
    stored_rows = rows.copy()
    for start in range(0, rows.shape[1], 32):
        part = rows[:, start : start + 32]
        step = np.take_along_axis(part, np.abs(part).argmax(axis=1)[:, None], axis=1) / -8
        stored_rows[:, start : start + 32] = (
            np.clip(np.floor(part / step + 8.5), 0, 15) - 8
        ) * step.astype(np.float16)
    return stored_rows


def eight_bits(rows: np.ndarray) -> np.ndarray:
    """Each row: the multiple of a 127th of its largest magnitude that is nearest."""
    step = np.abs(rows).max(axis=1, keepdims=True) / 127
    return np.rint(rows / step) * step


def _nf4(rows: np.ndarray) -> np.ndarray:
    """Groups of 64 of the matrix read row by row; each value to the nearest of the levels."""
    levels = np.array(NF4_LEVELS, rows.dtype)
    flat = rows.reshape(-1).copy()
    for start in range(0, len(flat), 64):
        part = flat[start : start + 64]
        largest = np.abs(part).max()
        flat[start : start + 64] = (
            levels[np.abs(part[:, None] / largest - levels).argmin(axis=1)] * largest
        )
    return flat.reshape(rows.shape)


def with_weights(format: Rounding, inner: Engine = prefill) -> Engine:
    """The layers' matrices, but norms, hold only what the format holds."""

    def values(model):
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and ("layers." in name or ".h." in name):
                # [in, out]
                across = "Conv1D" in type(model.get_submodule(name.rpartition(".")[0])).__name__
                plain = (parameter.data.T if across else parameter.data).double().cpu().numpy()
                lower = torch.from_numpy(format(plain)).to(parameter)
                yield parameter, "data", (lower.T if across else lower).contiguous()

    return alter(replacing(values), inner)


def _e5m2(values: Tensor) -> Tensor:
    narrow = values.float().cpu().numpy().astype(ml_dtypes.float8_e5m2)
    return torch.from_numpy(narrow.astype(np.float32)).to(values)


# whose sums go another way
_eager = replacing(lambda model: [(model.config, "_attn_implementation", "eager")])


def logits_in_bfloat16(model, ids: Tensor) -> Tensor:
    """What the model computed is sent in bfloat16."""
    return prefill(model, ids).bfloat16().float()


def _in_bfloat16(inner: Engine) -> Engine:
    """An engine that loaded its own weights in bfloat16, whatever it is given. Rotary frequencies
    are no weights: rounded too, as `model.to(torch.bfloat16)` does, they are another function (`bug
    suspected`, model.rotary_emb).
    """

    def engine(model, ids):
        own = copy.deepcopy(model)
        for parameter in own.parameters():
            parameter.data = parameter.data.to(torch.bfloat16)
        return inner(own, ids)

    return engine


# A cache in float8, and in it one slot of an earlier request.
stale_slot_in_fp8 = cached(8, rewriting(fp8), left_by(another_prompt, PREFIX, -3))


def _tokens_in_layers(loaded: LoadedModel) -> bool:
    """True where the layers' maps are matrices. Experts are three-dimensional parameters, which
    engines quantise in ways of their own.
    """
    return loaded.model.config.model_type != "mixtral"


PRECISIONS: tuple[Mutation, ...] = tuple(
    Mutation(name, engine, applies=applies, is_precision=True)
    for name, engine, applies in (
        (
            "fp8 cache (e5m2), token by token",
            cached(range(5, 48), rewriting(_e5m2)),
            lambda _: True,
        ),
        ("fp8 cache, attention written out", alter(_eager, round_cache(fp8)), lambda _: True),
        ("weights in Q4_0", with_weights(q4_0), _tokens_in_layers),
        ("weights in NF4", with_weights(_nf4), _tokens_in_layers),
        ("weights of 8 bits", with_weights(eight_bits), _tokens_in_layers),
        ("logits in bfloat16", logits_in_bfloat16, single_precision),
        ("all of it in bfloat16", _in_bfloat16(prefill), single_precision),
    )
)
ON_TOP: tuple[Mutation, ...] = (
    Mutation("a stale slot in an fp8 cache", stale_slot_in_fp8, position=PREFIX),
    Mutation(
        "one head's output x 1.01 over weights in Q4_0",
        with_weights(q4_0, scaled_head(1.01)),
        applies=_tokens_in_layers,
    ),
    Mutation(
        "a stale slot in an engine in bfloat16",
        _in_bfloat16(overwriting(another_prompt, PREFIX, -3)),
        applies=single_precision,
    ),
)
