"""Call an operation again and again, alone and in batches, and look at the bits: one record for each dtype and size."""

from __future__ import annotations

import hashlib
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from ... import text
from ...numerics.elements import distances, mismatch_mark
from ...numerics.formats import FloatFormat, format_named
from ...runs.tables.ops import BatchClass, OpRow, Repeats, RowPositions
from ..models import memory
from ..models.bits import bits_of, own_bits
from ..models.torch_errors import first_line, foreign_errors_stop, is_out_of_memory
from .inputs import Inputs, Outline
from .operations import OPERATIONS, Operation, batches_of

POSITION_BATCHES = (2, 3, 5, 8, 17, 33, 64)
_QUICK_POSITION_BATCHES = (3, 5, 8, 17)
# A kernel that sums in another order changes about one 16-bit result in a thousand, and a sum gives one result a row.
_ELEMENTS = 2048  # that a class should rest on
_MOST_ROWS = 16  # that are tried as row 0 to come to them
_RUNS_DIFFER = "repeats differ, so bits of different batch sizes or indices say nothing"
_SUMS_ROWS = "its result sums over the batch"
_REFUSALS = (RuntimeError, NotImplementedError, TypeError, ValueError)

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class ProbePlan:
    """Plan of a run of probes: what is probed and how hard. repeats: calls at each batch size beyond the first;
    seconds_each: after which a probe repeats no more (each batch size is called twice at least); seconds_in_all: after
    which no further probe begins, None for no such limit.
    """

    device: torch.device
    dtypes: tuple[str, ...]
    probes: tuple[tuple[Operation, tuple[int, ...]], ...]
    repeats: int = 20
    seed: int = 0
    is_quick: bool = False
    seconds_each: float = 1.0
    seconds_in_all: float | None = None

    @property
    def total(self) -> int:
        return len(self.dtypes) * len(self.probes)


def probes_of(
    device: torch.device,
    names: Sequence[str],
    is_quick: bool,
    of_model: Sequence[Operation] = (),
    table: Sequence[Operation] = OPERATIONS,
) -> tuple[tuple[Operation, tuple[int, ...]], ...]:
    """(operation, size) of everything to probe. names: of operations, empty for all; a size that a model has too is
    probed once.
    """
    found = {}
    for operation in (*table, *of_model):
        if device.type in operation.devices and (not names or operation.name in names or operation in of_model):
            for size in (
                operation.sizes[: operation.quick] if is_quick and operation not in of_model else operation.sizes
            ):
                found[operation.name, operation.backend, size] = (operation, size)
    return tuple(found.values())


def probe_all(plan: ProbePlan, on_progress: Progress | None = None) -> Iterator[OpRow]:
    """One row for each operation, size and dtype, in this order; ends early where the time is used up."""
    began = time.monotonic()
    done = 0
    for operation, size in plan.probes:
        for dtype in plan.dtypes:
            if plan.seconds_in_all is not None and time.monotonic() - began > plan.seconds_in_all:
                return
            words = f"{operation.name} {operation.backend}".strip()
            if on_progress is not None:
                on_progress(f"{words}, {operation.size_words(size)}, {dtype}", done, plan.total)
            yield probe(operation, size, dtype, plan)
            done += 1
    if on_progress is not None:
        on_progress("probed", done, plan.total)


def probe(operation: Operation, size: tuple[int, ...], dtype: str, plan: ProbePlan) -> OpRow:
    """Probe one operation in one dtype and size for everything that is asked of it."""
    began = time.monotonic()
    row = _Bare(operation, size, dtype)
    batches = batches_of(operation, size, plan.is_quick)
    count = max(batches) + (_MOST_ROWS - 1 if operation.has_rows else 0)
    lack = _lack_of_memory(operation, size, count, plan.device)
    if lack:
        return row.refused(lack)
    with torch.inference_mode(), foreign_errors_stop(f"{operation.name} {row.size} in {dtype}", "probe smaller sizes"):
        given = operation.inputs(plan.seed, count, size).to(plan.device, getattr(torch, dtype))
        refusal = _refusal(operation, given)
        if refusal:
            return row.refused(refusal)
        called = _call_at(operation, given, batches, row.format, plan)
        if 1 not in called.row_bits:
            return row.refused(called.note)
        try:
            found = _examined(operation, given, called, row.format, plan)
        except _REFUSALS as error:  # the probes before it and after it are worth having
            return row.refused(f"it failed after {called.repeats.calls} calls: {first_line(error)}")
    return replace(
        found,
        op=operation.name,
        backend=operation.backend,
        dtype=dtype,
        size=row.size,
        modules=operation.modules,
        seconds=time.monotonic() - began,
    )


def _examined(operation: Operation, given: Inputs, called: _Called, fmt: FloatFormat, plan: ProbePlan) -> OpRow:
    """Evaluate the calls of a probe, with classes and positions where these have a meaning."""
    alone = called.row_bits[1]
    has_answer = operation.has_rows and not called.repeats.differing
    tried = min(_MOST_ROWS, -(-_ELEMENTS // alone.size)) if has_answer else 1
    sizes = _QUICK_POSITION_BATCHES if plan.is_quick else POSITION_BATCHES
    why = "" if has_answer else _SUMS_ROWS if not operation.has_rows else _RUNS_DIFFER
    return OpRow(
        "",
        "",
        fmt.name,
        "",
        elements=alone.size,
        repeats=called.repeats,
        classes=_classes(_bits_of_rows(operation, given, called.row_bits, tried), fmt) if has_answer else (),
        positions=(
            tuple(_positions(operation, given, n) for n in sizes if n <= max(called.row_bits)) if has_answer else ()
        ),
        relative_rms=_relative_rms(operation, given, alone, fmt),
        note="; ".join(part for part in (why, called.note) if part),
        rows_tried=tried,
    )


@dataclass(frozen=True)
class _Bare:
    """Operation, size and dtype of a row, before anything is measured."""

    operation: Operation
    numbers: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> str:
        return self.operation.size_words(self.numbers)

    @property
    def format(self) -> FloatFormat:
        return format_named(self.dtype)

    def refused(self, why: str) -> OpRow:
        about = self.operation
        return OpRow(about.name, about.backend, self.dtype, self.size, about.modules, refusal=why)


@dataclass(frozen=True)
class _Called:
    """Results of a probe's calls. row_bits: row 0's bits of the first call at each batch size, [elements] each; note:
    batch sizes that could not be called.
    """

    row_bits: dict[int, NDArray[np.unsignedinteger]]
    repeats: Repeats
    note: str


def _lack_of_memory(operation: Operation, size: tuple[int, ...], batch: int, device: torch.device) -> str:
    """A sentence where the inputs would not fit, else ''."""
    outline = operation.make(Outline(), batch, *size)
    needed = 3 * sum(
        tensor.nbytes for tensor in (*outline.rows, *outline.shared)
    )  # float32, the dtype's, and the result
    for where in {torch.device("cpu"), device}:
        free = memory.free_bytes(where)
        if free is not None and needed > free:
            return f"its inputs take {text.size(needed)}, {where} has {text.size(free)} free"
    return ""


def _refusal(operation: Operation, given: Inputs) -> str:
    """Reason that torch gives where it does not have the operation here, in a sentence without its full stop; '' where
    it does.
    """
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            operation.run(given.first(1))
            return ""
        except _REFUSALS as error:
            if is_out_of_memory(error):
                return "out of memory"
            reasons = [first_line(warning.message) for warning in told if isinstance(warning.message, Warning)]
            return ": ".join([first_line(error), *reasons[-1:]])


def _call_at(operation: Operation, given: Inputs, batches: Sequence[int], fmt: FloatFormat, plan: ProbePlan) -> _Called:
    """Every batch size, `plan.repeats` times beyond the first call or as often as its share of the time allows."""
    row_bits: dict[int, NDArray[np.unsignedinteger]] = {}
    calls, differing, worst, notes = 0, 0, (0, 0, 0, 0, 0), []
    for batch in batches:
        part = given.first(batch)
        ends = time.monotonic() + plan.seconds_each / len(batches)
        try:
            first = operation.run(part)
            calls += 1
            row_bits[batch] = own_bits(first[0] if operation.has_rows else first).ravel()
            for number in range(1, plan.repeats + 1):
                again = operation.run(part)
                calls += 1
                if not torch.equal(_whole(first), _whole(again)):
                    differing += 1
                    neq, max_ulps = _apart(bits_of(first), bits_of(again), fmt)
                    worst = max(
                        worst, (batch, number, neq, first.numel(), max_ulps), key=lambda found: (found[2], found[4])
                    )
                if time.monotonic() > ends:
                    break
        except _REFUSALS as error:
            row_bits.pop(batch, None)
            notes.append(
                f"batch {batch} was not compared: {'out of memory' if is_out_of_memory(error) else first_line(error)}"
            )
            if is_out_of_memory(error):
                break
    return _Called(row_bits, Repeats(calls, differing, *worst), "; ".join(notes))


def _bits_of_rows(
    operation: Operation, given: Inputs, row_bits: dict[int, NDArray[np.unsignedinteger]], tried: int
) -> dict[int, NDArray[np.unsignedinteger]]:
    """Bits at each batch size of `tried` rows, each of which is row 0 of a batch of its own. [tried * elements] each"""
    return {
        batch: np.concatenate(
            [bits, *(own_bits(operation.run(given.window(start, batch))[0]).ravel() for start in range(1, tried))]
        )
        for batch, bits in row_bits.items()
    }


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """Bits of a tensor as integers on the same device, so that NaN equals NaN and -0 is not +0."""
    return tensor.contiguous().view({2: torch.int16, 4: torch.int32}[tensor.dtype.itemsize])


def _apart(a: NDArray[np.unsignedinteger], b: NDArray[np.unsignedinteger], fmt: FloatFormat) -> tuple[int, int]:
    """(elements whose values differ, largest distance in ULPs over those finite on both sides)"""
    found = distances(a, b, fmt)
    finite = found[found != mismatch_mark(fmt)]
    return int(np.count_nonzero(found)), int(finite.max(initial=0))


def _classes(row_bits: dict[int, NDArray[np.unsignedinteger]], fmt: FloatFormat) -> tuple[BatchClass, ...]:
    """Batch sizes of equal bits, in order of first appearance."""
    groups: dict[str, list[int]] = {}
    for batch, bits in row_bits.items():
        groups.setdefault(_digest(bits), []).append(batch)
    apart = {digest: _apart(row_bits[1], row_bits[batches[0]], fmt) for digest, batches in groups.items()}
    return tuple(BatchClass(tuple(batches), digest, *apart[digest]) for digest, batches in groups.items())


def _digest(bits: NDArray[np.unsignedinteger]) -> str:
    return hashlib.sha256(np.ascontiguousarray(bits).tobytes()).hexdigest()[:16]


def _positions(operation: Operation, given: Inputs, batch: int) -> RowPositions:
    """Compare copies of one row at every index of a batch at once: the row is its own neighbours."""
    whole = _whole(operation.run(given.copies(batch))).reshape(batch, -1)
    if bool((whole == whole[:1]).all()):
        return RowPositions(batch, (tuple(range(batch)),))
    groups: dict[bytes, list[int]] = {}
    for index, row in enumerate(whole.cpu().numpy()):
        groups.setdefault(row.tobytes(), []).append(index)
    return RowPositions(batch, tuple(map(tuple, groups.values())))


def _relative_rms(
    operation: Operation, given: Inputs, alone: NDArray[np.unsignedinteger], fmt: FloatFormat
) -> float | None:
    """Rms of the result for one row to the same in float64 from the same inputs, over that one's rms; None where it has
    none.
    """
    exact = (operation.exact or operation.run)(given.first(1).to(given.rows[0].device, torch.float64))
    reference = (exact[0] if operation.has_rows else exact).double().cpu().numpy().ravel()
    if not alone.size or not np.isfinite(reference).all() or not reference.any():
        return None
    values = alone.view(fmt.values).astype(np.float64)
    return (
        float(np.sqrt(np.mean((values - reference) ** 2) / np.mean(reference**2)))
        if np.isfinite(values).all()
        else None
    )


def machine_settings(device: torch.device) -> dict[str, str]:
    """Versions, and every setting that may choose another kernel."""
    said = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "mkldnn": str(torch.backends.mkldnn.is_available()),
        "mkl": str(torch.backends.mkl.is_available()),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic_algorithms": str(torch.are_deterministic_algorithms_enabled()),
    }
    if device.type == "cuda":
        matmul = torch.backends.cuda.matmul
        said |= {
            "cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version()),
            "capability": ".".join(map(str, torch.cuda.get_device_capability(device))),
            "tf32": str(matmul.allow_tf32),
            "reduced_precision_reduction_bf16": str(matmul.allow_bf16_reduced_precision_reduction),
            "reduced_precision_reduction_fp16": str(matmul.allow_fp16_reduced_precision_reduction),
        }
    return said
