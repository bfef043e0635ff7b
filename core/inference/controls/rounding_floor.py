"""Rounding floor of DESIGN section 6: how far pure rounding moves this model's logits.

noise ratio = rms of the pair / rms of the floor, both in one dtype. Widened to float32 the model is the same function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import CaptureError
from ...judging.divergence import Divergence, mean_squares, pooled_rms, row_ulp_percentile
from ...judging.places import NotFinite
from ...numerics.formats import FloatFormat
from ..models.dtypes import in_float32
from ..models.model import LoadedModel
from ..models.token_text import token_texts
from ..models.torch_errors import foreign_errors_stop, quiet
from ..paths.batch import Run
from ..paths.engines import PLAIN, divergence, whole_side
from .reordering import reordered

EXACT_BYTES = 256 << 20  # of float64 logits at once
_PLAIN_BYTES = 256 << 20  # of plain logits at once: prompts that share a reordering share the permuting of the weights
_PERCENTILE = 0.999  # what the heatmap marks: of a vocabulary of 50,000, 50 logits of a row are beyond it


@dataclass(frozen=True)
class Floor:
    """Reorderings of prefill against prefill. maps: linear maps reordered; divergences: [seeds][prompts]."""

    maps: int
    seeds: tuple[int, ...]
    divergences: tuple[tuple[Divergence, ...], ...]

    @property
    def squares(self) -> NDArray[np.float64]:
        """Mean squares. [seeds, positions]"""
        return np.stack([mean_squares(of_seed) for of_seed in self.divergences])

    @property
    def rms(self) -> float:
        """rms over all seeds, prompts and positions, in logits."""
        return pooled_rms([one for of_seed in self.divergences for one in of_seed])

    @property
    def row_ulps(self) -> float | None:
        """99.9th percentile of the distances in row ULPs; None where they were not counted."""
        return row_ulp_percentile([one for of_seed in self.divergences for one in of_seed], _PERCENTILE)


def rounding_floor(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    *,
    row_ulps_of: FloatFormat | None = None,
    plain: Callable[[LoadedModel], Run] = PLAIN.run_on,
) -> Floor:
    """Prefill with its linear maps reordered, one order a seed, against prefill as it is, in the dtype of `loaded`.

    row_ulps_of: as of `divergence`; plain: runs prefill as it is, or knows what it gave. Of the logits only the plain
    ones are kept, and of many prompts only those of a few at a time.
    """
    check_prompts(loaded, prompts)
    if not seeds or len(set(seeds)) < len(seeds):
        raise CaptureError(f"rounding floor: seeds are {list(seeds)}; expected at least one, and none twice.")
    found: list[list[Divergence]] = [[] for _ in seeds]
    maps = 0
    out_of_memory = "shorten the prompts, choose a smaller model or another device"
    with (
        quiet(),
        foreign_errors_stop("rounding floor", out_of_memory),
        torch.inference_mode(),
        PLAIN.open(loaded, None) as run,
    ):
        for group in groups_of(loaded, prompts):
            as_it_is = [whole_side(plain(loaded), prompt) for prompt in group]
            for of_seed, seed in zip(found, seeds, strict=True):
                with reordered(loaded.model, seed) as reordering:
                    pairs = zip(as_it_is, group, strict=True)
                    of_seed += [divergence(side, run, prompt, row_ulps_of) for side, prompt in pairs]
                maps = max(maps, len(reordering))
    if not maps:
        raise CaptureError("rounding floor: no linear map ran that could be reordered; expected some.")
    return Floor(maps, tuple(seeds), tuple(map(tuple, found)))


def check_prompts(loaded: LoadedModel, prompts: Sequence[Sequence[int]]) -> None:
    """CaptureError where there is none, or one is empty or longer than the model's context."""
    if not prompts:
        raise CaptureError("a divergence is measured over at least one prompt; none was given.")
    for number, prompt in enumerate(prompts, start=1):
        if not len(prompt):
            raise CaptureError(f"prompt {number} of {len(prompts)} is empty; expected at least one token.")
        if loaded.context is not None and len(prompt) > loaded.context:
            raise CaptureError(
                f"prompt {number} of {len(prompts)} has {len(prompt)} tokens, the model's context is {loaded.context};"
                " shorten it."
            )


def groups_of(
    loaded: LoadedModel, prompts: Sequence[Sequence[int]], itemsize: int | None = None
) -> Iterator[list[Sequence[int]]]:
    """The prompts in order, so many at a time that their plain logits take about _PLAIN_BYTES. itemsize: of a logit"""
    group: list[Sequence[int]] = []
    rows = _PLAIN_BYTES // (loaded.vocab_size * (itemsize or loaded.torch_dtype.itemsize))
    for prompt in prompts:
        if group and sum(map(len, group)) + len(prompt) > rows:
            yield group
            group = []
        group.append(prompt)
    yield group


def not_finite_of(loaded: LoadedModel, found: Sequence[Divergence], sides: tuple[str, str]) -> NotFinite | None:
    """Logits that are NaN or infinite on one of two sides only, over all prompts; None where there are none."""
    first = next((one.first_mismatch for one in found if one.first_mismatch is not None), None)
    if first is None:
        return None
    token, *values = first
    text = token_texts(loaded.tokenizer, [token])[token] if loaded.tokenizer is not None else ""
    return NotFinite(np.concatenate([one.mismatches for one in found]), token, text, sides, (values[0], values[1]))


def own_rounding_of(
    loaded: LoadedModel, prompts: Sequence[Sequence[int]], plain: Callable[[LoadedModel], Run] = PLAIN.run_on
) -> NDArray[np.float64] | None:
    """Mean squares of a plain forward in 16 bits to the same one in float32; None where float32 does not fit.
    [positions]

    Of as many prompts as fit; the others are given the mean of those. plain: runs the plain forward, or knows it.
    """
    chosen = as_many_as(prompts, EXACT_BYTES // (loaded.torch_dtype.itemsize * loaded.vocab_size))
    narrow = [whole_side(plain(loaded), ids) for ids in chosen]
    try:
        with in_float32(loaded) as widened:
            found = [divergence(side, plain(widened), ids) for side, ids in zip(narrow, chosen, strict=True)]
    except CaptureError:
        return None
    of_prompt = {id(ids): mean_squares([one]) for ids, one in zip(chosen, found, strict=True)}
    mean = float(mean_squares(found).mean())
    return np.concatenate([of_prompt.get(id(ids), np.full(len(ids), mean)) for ids in prompts])


def as_many_as(prompts: Sequence[Sequence[int]], most: int) -> list[Sequence[int]]:
    """The prompts whose positions are at most `most` together; at least one."""
    chosen: list[Sequence[int]] = []
    for ids in prompts:
        if sum(map(len, chosen)) + len(ids) <= most or not chosen:
            chosen.append(ids)
    return chosen
