"""Sides that can be run and judged: a path of the grammar or any callable; and their comparison."""

from __future__ import annotations

import difflib
import hashlib
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from ...checks.arrays_alone import ROW_ULPS
from ...checks.single_logit import LARGEST_PEAK
from ...errors import CaptureError, UlpscopeError
from ...numerics.arrays import Floats, Ints
from ...numerics.formats import LOGIT_FORMATS, FloatFormat, spacings
from ...numerics.side_divergence import ROW_ULP_SHIFT, Divergence, concatenate, peaks_of
from ..models.devices import bits_of, row_sums
from ..models.model import LoadedModel
from ..models.module_state import restore_state
from ..models.torch_errors import first_line
from ..watching.modules import traced_modules
from .batch import Emit, Run, ignore
from .hooks import ModuleTrace
from .paths import Path, open_path, parse_path

Engine = Callable[..., torch.Tensor]
"""(model, token_ids [positions]) -> logits [positions, vocab]; if it has a third parameter `watch`,
it gets a Watch.
"""
Prompts = Sequence[Sequence[int]]
"""Token ids of each prompt."""
Open = Callable[[LoadedModel, ModuleTrace | None], AbstractContextManager[Run]]


@dataclass(frozen=True)
class RunnableSide:
    """Side that can be run on a model: a path or a callable. block_sizes: values of its base that
    may be block sizes; hands_in: it reports its module outputs, so the model's own need no hooks;
    engine_path: of another engine, in its own process.
    """

    name: str
    open: Open
    path: Path | None = None
    hands_in: bool = False
    engine_path: Path | None = None

    @property
    def block_sizes(self) -> list[int]:
        values = () if self.path is None else self.path.base.values
        return [int(value) for value in values if int(value) > 1]

    @property
    def is_named(self) -> bool:
        """True if the name identifies the computation; a callable may be another one under the same
        name.
        """
        return self.path is not None or self.engine_path is not None

    @property
    def is_plain(self) -> bool:
        """True if it is one forward of the whole prompt and nothing else, as `PLAIN`."""
        return str(self.path) in ("prefill", "encode")

    @property
    def is_one_piece(self) -> bool:
        """True if it is compiled, so that hooks do not see its modules."""
        return self.path is not None and self.path.is_one_piece

    def run_on(self, loaded: LoadedModel, trace: ModuleTrace | None = None) -> Run:
        """Return a run of one prompt on the model, which is restored afterwards.

        `trace` follows the forwards.
        """

        def run(ids: Sequence[int], emit: Emit) -> None:
            with self.open(loaded, trace) as compute:
                compute(ids, emit)

        return run


def side_of(source: str | Engine) -> RunnableSide:
    """Return the side of a path's name, or of a callable."""
    if isinstance(source, str):
        path = parse_path(source)
        is_other = path.engine is not None
        return RunnableSide(
            str(path),
            lambda loaded, trace: open_path(path, loaded, trace=trace),
            path=None if is_other else path,
            hands_in=is_other,
            engine_path=path if is_other else None,
        )
    name = getattr(source, "__name__", type(source).__name__)
    try:
        hands_in = "watch" in inspect.signature(source).parameters
    except (TypeError, ValueError):
        # some callables have no signature
        hands_in = False
    run_of = partial(_run_of, name, source, hands_in=hands_in)
    return RunnableSide(
        name,
        lambda loaded, trace: nullcontext(run_of(loaded, trace)),
        hands_in=hands_in,
    )


# of an encoder its row of values: `encode` is the same base, and a capture refuses `prefill` there
PLAIN = side_of("prefill")


class Watch:
    """The third argument of a callable: `watch(name, tensor)` reports a module's output,
    [positions, features].

    name: of the embedding, a block, its direct child or a module after the blocks, as in the model;
    start: first position of the tensor. CaptureError for any other name or tensor.
    """

    def __init__(
        self,
        engine: str,
        loaded: LoadedModel,
        positions: int,
        trace: ModuleTrace | None,
    ) -> None:
        self._engine, self._positions, self._trace = engine, positions, trace
        self._model = type(loaded.model).__name__
        try:
            self._names = list(traced_modules(loaded.model))
        except CaptureError:
            # a model without blocks: its modules are not compared
            self._names = []

    def __call__(self, name: str, tensor: torch.Tensor, start: int = 0) -> None:
        if self._names and name not in self._names:
            near = difflib.get_close_matches(str(name), self._names, 1)
            every = f"they are {', '.join(self._names[:3])}, ... {self._names[-1]}."
            hint = f"did it mean '{near[0]}'?" if near else every
            raise CaptureError(
                f"'{self._engine}' reports '{name}', which is not a compared module of"
                f" {self._model}; {hint}",
            )
        is_tensor = isinstance(tensor, torch.Tensor)
        is_float = is_tensor and tensor.is_floating_point() and tensor.ndim == 2
        if not is_float or not 0 <= start < start + len(tensor) <= self._positions:
            came = (
                f"{list(tensor.shape)} from position {start} on"
                if is_tensor
                else type(tensor).__name__
            )
            raise CaptureError(
                f"'{self._engine}' reports '{name}' as {came}; expected numbers [positions,"
                f" features] within {self._positions} positions.",
            )
        if self._trace is not None:
            self._trace.hand_in(name, tensor, start)


def _run_of(
    name: str,
    engine: Engine,
    loaded: LoadedModel,
    trace: ModuleTrace | None,
    *,
    hands_in: bool,
) -> Run:
    def run(ids: Sequence[int], emit: Emit) -> None:
        restore_state(loaded.start)
        keywords = {"watch": Watch(name, loaded, len(ids), trace)} if hands_in else {}
        try:
            logits = engine(
                loaded.model,
                torch.tensor(list(ids), dtype=torch.long, device=loaded.device),
                **keywords,
            )
        except UlpscopeError:
            raise
        # of any kind: a control that fails is missing, and judging continues
        except Exception as error:
            raise CaptureError(
                f"'{name}' failed in {loaded.dtype}: {type(error).__name__}: {first_line(error)}.",
            ) from error
        if (
            not isinstance(logits, torch.Tensor)
            or logits.ndim != 2
            or len(logits) != len(ids)
            or logits.shape[1] < 2
        ):
            came = list(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
            raise CaptureError(f"'{name}' gave {came}; expected logits [{len(ids)}, vocab].")
        is_exact = torch.promote_types(logits.dtype, loaded.torch_dtype) == loaded.torch_dtype
        emit(0, logits.to(loaded.device, loaded.torch_dtype if is_exact else logits.dtype))

    return run


def whole_side(run: Run, ids: Sequence[int]) -> torch.Tensor:
    """Return all logits of a prompt. [positions, vocab]"""
    pieces: list[torch.Tensor] = []
    # a view would keep its base alive
    run(ids, lambda _, logits: pieces.append(logits.clone()))
    return torch.cat(pieces)


def answering(name: str, prompts: Prompts, answers: Sequence[torch.Tensor]) -> RunnableSide:
    """Return a side that emits the recorded answer to each of these prompts, identified by
    object.
    """
    answer_of = {id(ids): (ids, answer) for ids, answer in zip(prompts, answers, strict=True)}

    def run(ids: Sequence[int], emit: Emit) -> None:
        emit(0, answer_of[id(ids)][1])

    return RunnableSide(name, lambda *_: nullcontext(run))


def divergence(
    plain: torch.Tensor,
    run: Run,
    ids: Sequence[int],
    row_ulps_of: FloatFormat | None = None,
    peaks_in: FloatFormat | None = None,
    check: Callable[[torch.Tensor], None] = ignore,
) -> Divergence:
    """Return the divergence of a prompt's logits from `plain`, in pieces; differences in float64,
    which holds those of float32 values to 2^-53. row_ulps_of, peaks_in: dtype of a histogram in row
    ULPs, of peaks; check: called with each piece first.
    """
    squares, mismatches = [], []
    counts: list[Ints] = []
    peaks: list[Floats] = []
    first: tuple[int, float, float] | None = None

    def add(position: int, logits: torch.Tensor) -> None:
        nonlocal first
        check(logits)
        reference, variant = plain[position : position + len(logits)].double(), logits.double()
        difference = reference - variant
        is_finite = difference.isfinite()
        elements = is_finite.sum(1).cpu()
        mismatches.append(torch.zeros_like(elements))
        if not is_finite.all():
            difference = torch.where(is_finite, difference, 0.0)
            is_mismatch = (
                ~is_finite & (reference != variant) & ~(reference.isnan() & variant.isnan())
            )
            mismatches[-1] = is_mismatch.sum(1).cpu()
            if first is None and mismatches[-1].any():
                row, token = is_mismatch.nonzero()[0].tolist()
                first = token, float(reference[row, token]), float(variant[row, token])
        if row_ulps_of is not None:
            counts.append(_row_ulp_counts(reference, difference, is_finite, row_ulps_of))
        if peaks_in is not None:
            peaks.append(_peaks(reference, difference, peaks_in))
        squares.append(row_sums(difference.square()) / elements.clamp_min(1).numpy())

    run(ids, add)
    row_ulps = np.concatenate(counts, axis=1) if counts else None
    return Divergence(
        np.concatenate(squares),
        torch.cat(mismatches).numpy(),
        first,
        peaks=np.concatenate(peaks) if peaks else None,
        row_ulps=row_ulps,
    )


def _spacings(reference: torch.Tensor, fmt: FloatFormat) -> Floats:
    """Return the row ULP of each row."""
    largest = torch.where(reference.isfinite(), reference.abs(), -1.0).amax(1).cpu().numpy()
    return spacings(np.maximum(largest, 0.0), fmt)


def _peaks(
    reference: torch.Tensor,
    difference: torch.Tensor,
    fmt: FloatFormat,
) -> Floats:
    """Return `peaks_of` of rows that may have one beyond LARGEST_PEAK, 0 of others."""
    least = ROW_ULPS[fmt.name][2] * _spacings(reference, fmt)
    largest = difference.abs().amax(1).cpu().numpy()
    rows = np.flatnonzero(largest > LARGEST_PEAK * least)
    peaks = np.zeros(len(least))
    peaks[rows] = peaks_of(difference[rows].cpu().numpy(), least[rows])
    return peaks


def _row_ulp_counts(
    reference: torch.Tensor,
    difference: torch.Tensor,
    is_finite: torch.Tensor,
    fmt: FloatFormat,
) -> Ints:
    """Count finite elements [rows, vocab] by their difference in row ULPs, for
    `Divergence.row_ulps`.
    """
    steps = torch.from_numpy(_spacings(reference, fmt)).to(difference.device)
    bins = (difference.abs() / steps[:, None]).float().view(torch.int32) >> ROW_ULP_SHIFT
    bins = bins.flatten() if is_finite.all() else bins[is_finite]
    counts = torch.bincount(bins).cpu().numpy()
    nonzero = np.flatnonzero(counts)
    return np.stack([nonzero, counts[nonzero]])


def measure(
    loaded: LoadedModel,
    prompts: Prompts,
    sides: tuple[RunnableSide, RunnableSide],
) -> tuple[Divergence, list[str]]:
    """Return (divergence, digest of each side's bits)."""
    hashes = [hashlib.sha256(), hashlib.sha256()]
    fmt = LOGIT_FORMATS.get(loaded.dtype)
    pair = divergence_of(
        loaded,
        prompts,
        sides,
        lambda side, logits: hashes[side].update(bits_of(logits).data),
        fmt,
    )
    return pair, [digest.hexdigest() for digest in hashes]


def divergence_of(
    loaded: LoadedModel,
    prompts: Prompts,
    sides: tuple[RunnableSide, RunnableSide],
    see: Callable[[int, torch.Tensor], None] = ignore,
    peaks_in: FloatFormat | None = None,
) -> Divergence:
    """Compare two sides over all prompts. see: called with (side, its logits); peaks_in: as of
    `divergence`.
    """
    divergences = []
    for ids in prompts:
        plain = whole_side(sides[0].run_on(loaded), ids)
        see(0, plain)

        def check(logits: torch.Tensor, vocab: int = plain.shape[1]) -> None:
            if logits.shape[1] != vocab:
                raise CaptureError(
                    f"'{sides[1].name}' gave logits of {logits.shape[1]} tokens, '{sides[0].name}'"
                    f" of {vocab}; both sides need the same vocabulary.",
                )
            see(1, logits)

        divergences.append(
            divergence(plain, sides[1].run_on(loaded), ids, peaks_in=peaks_in, check=check),
        )
    return concatenate(divergences)


def digest_of(loaded: LoadedModel, prompts: Prompts, side: RunnableSide) -> str:
    """Return the sha256 of a side's bits over all prompts."""
    digest = hashlib.sha256()
    for ids in prompts:
        side.run_on(loaded)(ids, lambda _, logits: digest.update(bits_of(logits).data))
    return digest.hexdigest()
