"""Sides that can be run and judged: a path of the grammar, or any callable, made ready the same way; and two of them
compared.
"""

from __future__ import annotations

import difflib
import hashlib
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import CaptureError, UlpscopeError
from ...judging.divergence import ROW_ULP_SHIFT, Divergence
from ...numerics.formats import FloatFormat, spacings
from ..models.bits import bits_of, row_sums
from ..models.model import LoadedModel
from ..models.torch_errors import first_line
from ..watching.modules import traced_modules
from .batch import Emit, Run, ignore
from .hooks import ModuleTrace
from .paths import Path, open_path, parse_path

Engine = Callable[..., torch.Tensor]
"""(model, token_ids [positions]) -> logits [positions, vocab]; one with a third parameter `watch` is given a Watch."""
Open = Callable[[LoadedModel, ModuleTrace | None], AbstractContextManager[Run]]


@dataclass(frozen=True)
class RunnableSide:
    """Side that can be run on a model: a path or a callable, made ready the same way. block_sizes: values of its base,
    which may be those of blocks; hands_in: a side that hands in what its modules put out, so nobody has to
    follow the model's own; engine_path: of another engine, in a process of its own.
    """

    name: str
    open: Open
    path: Path | None = None
    hands_in: bool = False
    engine_path: Path | None = None

    @property
    def block_sizes(self) -> tuple[Any, ...]:
        return () if self.path is None else tuple(v for v in self.path.base.values if isinstance(v, int) and v > 1)

    @property
    def is_named(self) -> bool:
        """True where the name says all that is computed; a callable may be another one under the same name."""
        return self.path is not None or self.engine_path is not None

    @property
    def is_one_piece(self) -> bool:
        """True where a compiler makes its kernels, out of reach of whoever looks on."""
        return self.path is not None and self.path.is_one_piece

    @property
    def rows(self) -> int:
        """Rows of its batches; 1 of a callable, whose batches nobody knows."""
        return 1 if self.path is None else self.path.rows

    def run_on(self, loaded: LoadedModel, trace: ModuleTrace | None = None) -> Run:
        """Runs one prompt on the model, made ready for it and put back afterwards. `trace` follows the forwards."""

        def run(ids: Sequence[int], emit: Emit) -> None:
            with self.open(loaded, trace) as opened:
                opened(ids, emit)

        return run

    def with_modifier(self, name: str, value: Any) -> RunnableSide:
        """Return the same path with one modifier set to another value."""
        assert self.path is not None
        return side_of(str(self.path.with_modifier(name, value)))

    def value_of(self, name: str) -> Any:
        """Value of a modifier; None where the path has it not."""
        values = None if self.path is None else self.path.values_of(name)
        return None if values is None else values[0]


def side_of(given: str | Engine) -> RunnableSide:
    """A path by its name, or a callable under its own."""
    if isinstance(given, str):
        path = parse_path(given)
        is_other = path.engine is not None
        return RunnableSide(
            str(path),
            lambda loaded, trace: open_path(path, loaded, trace=trace),
            path=None if is_other else path,
            hands_in=is_other,
            engine_path=path if is_other else None,
        )
    name = getattr(given, "__name__", type(given).__name__)
    try:
        hands_in = "watch" in inspect.signature(given).parameters
    except (TypeError, ValueError):  # of some callables nobody can tell
        hands_in = False
    run_of = partial(_run_of, name, given, hands_in=hands_in)
    return RunnableSide(name, lambda loaded, trace: nullcontext(run_of(loaded, trace)), hands_in=hands_in)


PLAIN = side_of("prefill")


class Watch:
    """The third argument of a callable: `watch(name, tensor)` hands in what a module put out, [positions, features].

    name: of the embedding, a block, its direct part or what follows the blocks, as the model calls it; start: first
    position of the tensor. CaptureError for what is neither.
    """

    def __init__(self, engine: str, loaded: LoadedModel, positions: int, trace: ModuleTrace | None) -> None:
        self._engine, self._positions, self._trace = engine, positions, trace
        self._model = type(loaded.model).__name__
        try:
            self._names = list(traced_modules(loaded.model))
        except CaptureError:  # a model without blocks: nothing will be compared, and that is said where it would be
            self._names = []

    def __call__(self, name: str, tensor: torch.Tensor, start: int = 0) -> None:
        if self._names and name not in self._names:
            near = difflib.get_close_matches(str(name), self._names, 1)
            every = f"they are {', '.join(self._names[:3])}, ... {self._names[-1]}."
            which = f"did it mean '{near[0]}'?" if near else every
            raise CaptureError(
                f"'{self._engine}' hands in '{name}', which is no module of {self._model} that is compared; {which}"
            )
        is_tensor = isinstance(tensor, torch.Tensor)
        is_float = is_tensor and tensor.is_floating_point() and tensor.ndim == 2
        if not is_float or not 0 <= start < start + len(tensor) <= self._positions:
            came = f"{list(tensor.shape)} from position {start} on" if is_tensor else type(tensor).__name__
            raise CaptureError(
                f"'{self._engine}' hands in '{name}' as {came}; expected numbers [positions, features] within"
                f" {self._positions} positions."
            )
        if self._trace is not None:
            self._trace.hand_in(name, tensor, start)


def _run_of(name: str, engine: Engine, loaded: LoadedModel, trace: ModuleTrace | None, *, hands_in: bool) -> Run:
    def run(ids: Sequence[int], emit: Emit) -> None:
        given = {"watch": Watch(name, loaded, len(ids), trace)} if hands_in else {}
        try:
            logits = engine(loaded.model, torch.tensor(list(ids), dtype=torch.long, device=loaded.device), **given)
        except UlpscopeError:
            raise
        except Exception as error:  # whatever it raises: a control it cannot run is missing, no end of the judgement
            raise CaptureError(
                f"'{name}' failed in {loaded.dtype}: {type(error).__name__}: {first_line(error)}."
            ) from error
        if not isinstance(logits, torch.Tensor) or logits.ndim != 2 or len(logits) != len(ids) or logits.shape[1] < 2:
            came = list(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
            raise CaptureError(f"'{name}' gave {came}; expected logits [{len(ids)}, vocab].")
        is_exact = torch.promote_types(logits.dtype, loaded.torch_dtype) == loaded.torch_dtype
        emit(0, logits.to(loaded.device, loaded.torch_dtype if is_exact else logits.dtype))

    return run


def whole_side(run: Run, ids: Sequence[int]) -> torch.Tensor:
    """All logits of a prompt, as they came. -> [positions, vocab]"""
    pieces: list[torch.Tensor] = []
    run(ids, lambda _, logits: pieces.append(logits.clone()))  # a view would keep alive what it is a view of
    return torch.cat(pieces)


def known(logits: torch.Tensor) -> Run:
    """Gives logits that were computed elsewhere."""
    return lambda _, emit: emit(0, logits)


def answering(name: str, prompts: Sequence[Sequence[int]], answers: Sequence[torch.Tensor]) -> RunnableSide:
    """Return a side that gives what was recorded of each of these prompts, known as the objects that they are."""
    recorded = {id(ids): (ids, answer) for ids, answer in zip(prompts, answers, strict=True)}

    def run(ids: Sequence[int], emit: Emit) -> None:
        emit(0, recorded[id(ids)][1])

    return RunnableSide(name, lambda *_: nullcontext(run))


def divergence(
    plain: torch.Tensor,
    run: Run,
    ids: Sequence[int],
    row_ulps_of: FloatFormat | None = None,
    check: Callable[[torch.Tensor], None] = ignore,
) -> Divergence:
    """Divergence of a prompt's logits from `plain`, piece by piece; differences in float64, which holds those of
    float32 values to 2^-53. row_ulps_of: the dtype in whose row ULPs elements are counted too; check: sees each piece
    first.
    """
    squares, elements, mismatches = [], [], []
    counts: list[NDArray[np.int64]] = []
    first: tuple[int, float, float] | None = None

    def add(position: int, logits: torch.Tensor) -> None:
        nonlocal first
        check(logits)
        reference, variant = plain[position : position + len(logits)].double(), logits.double()
        apart = reference - variant
        is_finite = apart.isfinite()
        elements.append(is_finite.sum(1).cpu())
        mismatches.append(torch.zeros_like(elements[-1]))
        if not is_finite.all():
            apart = torch.where(is_finite, apart, 0.0)
            is_mismatch = ~is_finite & (reference != variant) & ~(reference.isnan() & variant.isnan())
            mismatches[-1] = is_mismatch.sum(1).cpu()
            if first is None and mismatches[-1].any():
                row, token = is_mismatch.nonzero()[0].tolist()
                first = token, float(reference[row, token]), float(variant[row, token])
        if row_ulps_of is not None:
            counts.append(_row_ulp_counts(reference, apart, is_finite, row_ulps_of))
        squares.append(row_sums(apart.square()))

    run(ids, add)
    sums = np.concatenate(squares), torch.cat(elements).numpy(), torch.cat(mismatches).numpy()
    return Divergence(*sums, first, row_ulps=np.concatenate(counts, axis=1) if counts else None)


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


def measure(
    loaded: LoadedModel, prompts: Sequence[Sequence[int]], sides: tuple[RunnableSide, RunnableSide]
) -> tuple[list[Divergence], list[str]]:
    """(divergence of each prompt, digest of each side's bits)"""
    hashes = [hashlib.sha256(), hashlib.sha256()]
    pair = divergences_of(loaded, prompts, sides, lambda side, logits: hashes[side].update(bits_of(logits).data))
    return pair, [digest.hexdigest() for digest in hashes]


def divergences_of(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    sides: tuple[RunnableSide, RunnableSide],
    see: Callable[[int, torch.Tensor], None] = ignore,
) -> list[Divergence]:
    """Compare two sides, one divergence a prompt. see: is shown (side, its logits)."""
    found = []
    for ids in prompts:
        plain = whole_side(sides[0].run_on(loaded), ids)
        see(0, plain)

        def check(logits: torch.Tensor, vocab: int = plain.shape[1]) -> None:
            if logits.shape[1] != vocab:
                raise CaptureError(
                    f"'{sides[1].name}' gave logits of {logits.shape[1]} tokens, '{sides[0].name}' of {vocab}; "
                    "both sides need the same vocabulary."
                )
            see(1, logits)

        found.append(divergence(plain, sides[1].run_on(loaded), ids, check=check))
    return found


def digest_of(loaded: LoadedModel, prompts: Sequence[Sequence[int]], side: RunnableSide) -> str:
    """sha256 of a side's bits over all prompts."""
    digest = hashlib.sha256()
    for ids in prompts:
        side.run_on(loaded)(ids, lambda _, logits: digest.update(bits_of(logits).data))
    return digest.hexdigest()
