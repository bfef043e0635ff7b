"""Rounding floor of DESIGN section 6: how far pure rounding moves this model's logits, and a pair measured with the
same rule.

noise ratio = rms of the pair / rms of the floor, both in one dtype. In float32 the same weights make the microscope:
bfloat16 and float16 values are float32 values too, so the widened model is the same function and only its rounding is
finer.

Measured on sample_runs/model (3 layers, hidden 384), three prompts of 48
tokens, two CPU cores; rms of the difference to prefill, in logits:

| | bfloat16 | float32 | noise ratios |
|---|---|---|---|
| 4 reorderings of its 22 linear maps | 1.4e-2 .. 1.5e-2 | 2.4e-6 .. 2.7e-6 | 1 |
| decode | 1.7e-2 | 2.5e-6 | 1.1 and 1.0 |
| prefill+attn:eager | 2.9e-2 | 1.4e-6 | 1.9 and 0.5 |
| bug: one cached value of one head scaled by 1.01 | 2.0e-2 | 1.4e-3 | 1.3 and 560 |

A reordered prefill costs a plain one and one pass that permutes the weights (about 5 ms for these 10 million): 3.1
times the plain one at 48 tokens in bfloat16, 1.6 times at 480; 2.5 and 1.3 times in float32. Prompts measured together
share that pass. Decode keeps the permuted weights and costs 2.2 times the plain one in bfloat16 and 1.7 in float32:
what is left is that every operation passes through Python, about 2 ms a token whatever the size of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import CaptureError
from ...judging.divergence import ROW_ULP_SHIFT, Divergence, mean_squares, pooled_rms, row_ulp_percentile
from ...judging.ladder.nonfinite import NotFinite
from ...numerics.formats import LOGIT_FORMATS, FloatFormat, spacings
from ...text import size
from ..models import memory
from ..models.bits import row_sums
from ..models.dtype_conversion import converted, converted_bytes
from ..models.model import LoadedModel
from ..models.token_text import token_texts
from ..models.torch_errors import foreign_errors_stop, quiet
from ..paths.batch import Emit, Run
from ..paths.paths import open_path, parse_path
from .reordering import reordered

_PLAIN_BYTES = (
    256 << 20
)  # of plain logits at once: prompts that share a reordering share the cost of permuting the weights
EXACT_BYTES = 256 << 20  # of float64 logits at once
_PERCENTILE = 0.999  # what the heatmap marks: of a vocabulary of 50,000, 50 logits of a row are beyond it
_REMEDY = "shorten the prompts, choose a smaller model or another device"


@dataclass(frozen=True)
class Floor:
    """Reorderings of one path against the path itself. maps: linear maps reordered; divergences: [seeds][prompts]."""

    path: str
    compute_dtype: str
    maps: int
    seeds: tuple[int, ...]
    divergences: tuple[tuple[Divergence, ...], ...]

    @property
    def rms(self) -> float:
        """rms over all seeds, prompts and positions, in logits."""
        return pooled_rms([one for of_seed in self.divergences for one in of_seed])

    @property
    def row_ulps(self) -> float | None:
        """99.9th percentile of the distances in row ULPs, over all seeds, prompts and positions; None where the model
        is not in its own dtype.
        """
        return row_ulp_percentile([one for of_seed in self.divergences for one in of_seed], _PERCENTILE)

    @property
    def rms_by_seed(self) -> tuple[float, ...]:
        """rms of each seed over all prompts and positions, in logits: how much the floor itself varies."""
        return tuple(map(pooled_rms, self.divergences))


def rounding_floor(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    path: str = "prefill",
    *,
    dtype: str | None = None,
    plain: Callable[[LoadedModel], Run] | None = None,
) -> Floor:
    """The path with its linear maps reordered, one order a seed, against the path as it is; prompts are token ids.

    dtype: 'float32' to widen the weights meanwhile, None for the model's own; plain: runs the path as it is, or knows
    what it gave. Of the logits, only the plain side is kept, and of many prompts only that of a few at a time.
    """
    steps = parse_path(path)
    check_prompts(loaded, prompts)
    if not seeds or len(set(seeds)) < len(seeds):
        raise CaptureError(f"rounding floor: seeds are {list(seeds)}; expected at least one, and none twice.")
    found: list[list[Divergence]] = [[] for _ in seeds]
    maps = 0
    fmt = LOGIT_FORMATS.get(loaded.dtype) if dtype in (None, loaded.dtype) else None
    with _computing(loaded, dtype, f"rounding floor of '{steps}'") as model, open_path(steps, model) as run:
        run_plain = run if plain is None else plain(model)
        for group in groups_of(model, prompts):
            as_it_is = [whole_side(run_plain, prompt) for prompt in group]
            forwards = sum(steps.forwards(len(prompt)) for prompt in group)
            for number, seed in enumerate(seeds):
                keep = _spare_bytes(model) if forwards > 1 else 0
                with reordered(model.model, seed, keep_bytes=keep) as reordering:
                    pairs = zip(as_it_is, group, strict=True)
                    found[number] += [divergence(side, run, prompt, fmt) for side, prompt in pairs]
                maps = max(maps, len(reordering))
        if not maps:
            raise CaptureError(
                f"rounding floor of '{steps}': no linear map ran that could be reordered; expected some."
            )
        compute_dtype = steps.compute_dtype(model)
    return Floor(str(steps), compute_dtype, maps, tuple(seeds), tuple(map(tuple, found)))


@contextmanager
def in_float32(loaded: LoadedModel) -> Iterator[LoadedModel]:
    """Compute the same function in float32 inside: every weight keeps its value, and the original bits are put back."""
    if loaded.dtype != "float32":
        needed, free = converted_bytes(loaded, "float32"), memory.free_bytes(torch.device(loaded.device))
        if free is not None and needed > free:
            raise CaptureError(
                f"model '{loaded.name}': its weights in float32 take another {size(needed)}, {loaded.device}"
                f" has {size(free)} free; choose a smaller model or another device."
            )
    with converted(loaded, "float32") as widened:
        yield widened


@contextmanager
def _computing(loaded: LoadedModel, dtype: str | None, where: str) -> Iterator[LoadedModel]:
    if dtype not in (None, loaded.dtype, "float32"):
        raise CaptureError(
            f"{where}: {loaded.dtype} weights cannot be computed with in {dtype} unrounded; expected float32."
        )
    with quiet(), foreign_errors_stop(where, _REMEDY), torch.inference_mode():
        if dtype in (None, loaded.dtype):
            yield loaded
        else:
            with in_float32(loaded) as widened:
                yield widened


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
    """The prompts in order, so many at a time that their plain logits take about _PLAIN_BYTES, and one at least.

    itemsize: of a logit; the model's own where it is None.
    """
    group: list[Sequence[int]] = []
    rows = _PLAIN_BYTES // (loaded.vocab_size * (itemsize or loaded.torch_dtype.itemsize))
    for prompt in prompts:
        if group and sum(map(len, group)) + len(prompt) > rows:
            yield group
            group = []
        group.append(prompt)
    yield group


def _spare_bytes(loaded: LoadedModel) -> int:
    """Bytes that permuted weights may take between the forwards of a path: half of those free, the rest is for the
    forwards.
    """
    return (memory.free_bytes(torch.device(loaded.device)) or 0) // 2


def whole_side(run: Run, ids: Sequence[int]) -> torch.Tensor:
    """All logits of a prompt, as they came. -> [positions, vocab]"""
    kept: list[torch.Tensor] = []

    # a view would keep alive what it is a view of, for every piece
    run(ids, lambda _, logits: kept.append(logits.clone()))
    return torch.cat(kept)


def divergence(plain: torch.Tensor, run: Run, ids: Sequence[int], row_ulps_of: FloatFormat | None = None) -> Divergence:
    """Divergence of a prompt's logits from `plain`, piece by piece; differences in float64, which holds those of
    float32 values to 2^-53. row_ulps_of: the dtype in whose row ULPs elements are counted too.
    """
    squares, elements, mismatches = [], [], []
    counts: list[NDArray[np.int64]] = []
    first: tuple[int, float, float] | None = None

    def add(position: int, logits: torch.Tensor) -> None:
        nonlocal first
        reference, variant = plain[position : position + len(logits)].double(), logits.double()
        is_finite = reference.isfinite() & variant.isfinite()
        is_same = (reference == variant) | (reference.isnan() & variant.isnan())
        apart = torch.where(is_finite, reference - variant, 0.0)
        if row_ulps_of is not None:
            counts.append(_row_ulp_counts(reference, apart, is_finite, row_ulps_of))
        squares.append(row_sums(apart.square()))
        elements.append(is_finite.sum(1).cpu())
        is_mismatch = ~is_finite & ~is_same
        mismatches.append(is_mismatch.sum(1).cpu())
        if first is None and mismatches[-1].any():
            row, token = is_mismatch.nonzero()[0].tolist()
            first = token, float(reference[row, token]), float(variant[row, token])

    run(ids, add)
    found = np.concatenate(squares), torch.cat(elements).numpy(), torch.cat(mismatches).numpy()
    return Divergence(*found, first, row_ulps=np.concatenate(counts, axis=1) if counts else None)


def _row_ulp_counts(
    reference: torch.Tensor, apart: torch.Tensor, is_finite: torch.Tensor, fmt: FloatFormat
) -> NDArray[np.int64]:
    """Count finite elements [rows, vocab] by how many row ULPs they are apart, as `Divergence.row_ulps`."""
    largest = torch.where(reference.isfinite(), reference.abs(), -1.0).amax(1).cpu().numpy()
    steps = torch.from_numpy(spacings(np.maximum(largest, 0.0), fmt)).to(apart.device)
    bins = (apart.abs() / steps[:, None]).float().view(torch.int32) >> ROW_ULP_SHIFT
    bins = bins.flatten() if is_finite.all() else bins[is_finite]
    counts = torch.bincount(bins).cpu().numpy()
    seen = np.flatnonzero(counts)
    return np.stack([seen, counts[seen]])


def known(logits: torch.Tensor) -> Run:
    """Gives logits that were computed elsewhere."""
    return lambda _, emit: emit(0, logits)


def not_finite_of(loaded: LoadedModel, found: Sequence[Divergence], sides: tuple[str, str]) -> NotFinite | None:
    """Logits that are NaN or infinite on one of two sides only, over all prompts; None where there are none."""
    first = next((one.first_mismatch for one in found if one.first_mismatch is not None), None)
    if first is None:
        return None
    token, *values = first
    text = token_texts(loaded.tokenizer, [token])[token] if loaded.tokenizer is not None else ""
    return NotFinite(np.concatenate([one.mismatches for one in found]), token, text, sides, (values[0], values[1]))


def _prefill(loaded: LoadedModel) -> Run:
    def run(ids: Sequence[int], emit: Emit) -> None:
        with open_path(parse_path("prefill"), loaded) as opened:
            opened(ids, emit)

    return run


def own_rounding_of(
    loaded: LoadedModel, prompts: Sequence[Sequence[int]], plain: Callable[[LoadedModel], Run] = _prefill
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
    known = {id(ids): mean_squares([one]) for ids, one in zip(chosen, found, strict=True)}
    mean = float(mean_squares(found).mean())
    return np.concatenate([known.get(id(ids), np.full(len(ids), mean)) for ids in prompts])


def as_many_as(prompts: Sequence[Sequence[int]], most: int) -> list[Sequence[int]]:
    """The prompts whose positions are at most `most` together; at least one."""
    chosen: list[Sequence[int]] = []
    for ids in prompts:
        if sum(map(len, chosen)) + len(ids) <= most or not chosen:
            chosen.append(ids)
    return chosen
