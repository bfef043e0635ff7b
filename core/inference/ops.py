"""Repeat torch operations, alone and in batches, and compare bits: one row per operation, dtype and
size.

A row of an operation is one element of the batch axis; its result depends on it and on inputs that
all rows share.
"""

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.pytorch_utils import Conv1D

from ..numerics.arrays import Bits
from ..numerics.differences import differences
from ..numerics.formats import FloatFormat, format_named
from ..progress import Progress, no_progress
from ..runs.tables.ops import OpRow, whole_row
from .models.devices import bits_of, integers_of, own_bits
from .models.torch_errors import first_line
from .paths.modifiers import SDPA

# around sizes at which kernels are known to change
_BATCHES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 32, 33, 64)
_MORE_BATCHES = (65, 128, 256, 512, 1024, 2048)
_POSITION_BATCHES = (3, 5, 8, 17, 33, 64)
# larger batches of long rows are skipped
_INPUT_BYTES = 128 << 20
# Another reduction order changes about one 16-bit result in a thousand, and a sum gives one result
# per row.
_ELEMENTS = 2048  # of a comparison, at least
_MOST_ROWS = 16  # tried as row 0 to reach them
# figures of a call that differs, by which calls are ordered
_WORST = ("worst_neq", "worst_max_ulps", "worst_batch", "worst_call", "worst_elements")
_REFUSALS = (RuntimeError, NotImplementedError, TypeError, ValueError)


Size = tuple[int, ...]
"""Numbers of the axes of an operation."""


@dataclass(frozen=True)
class Operation:
    """A torch operation. words: a size in words; rows, shared: axes of its inputs, `m k, k n` of
    two; modules: of a model.
    """

    name: str
    words: str
    rows: str
    shared: str
    run: Callable[..., Tensor]
    sizes: tuple[Size, ...]
    backend: str = ""
    is_on_cpu: bool = True
    modules: str = ""

    def axes(self, numbers: Size) -> dict[str, int]:
        """Return the axes of a size by name."""
        names = re.findall(r"{(\w)}", self.words)
        return dict(zip(names, numbers, strict=True))


Probes = tuple[tuple[Operation, Size], ...]


def _add_into(x: Tensor, places: Tensor, name: str) -> Tensor:
    """Add the values of each row into as many sums as there are places."""
    index = torch.arange(x.shape[1], device=x.device) * 7919 % len(places)
    if name == "scatter_add":
        index = index.expand_as(x)
    sums: Tensor = getattr(x.new_zeros(len(x), len(places)), name)(1, index, x)
    return sums


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    backend: SDPBackend,
) -> Tensor:
    is_causal = query.shape[2] > 1
    with sdpa_kernel([backend]):
        return functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal)


_TO = "{k} to {n}"
_WIDE = "width {w}"
_HEADS = "{h} heads, q {q}, kv {k}, width {d}"
_INTO = "{w} values into {p}"
_SQUARES = ((256, 256), (1024, 1024))
_WIDTHS = ((256,), (4096,), (32_768,))
_SUMS = ((256,), (4096,), (65_536,), (1_048_576,))
_NORMS = ((256,), (1024,), (4096,))
_BMM = ((1, 64, 256), (16, 64, 64), (64, 256, 64))
_HEAD_SIZES = ((8, 64, 64, 64), (8, 1, 512, 64), (8, 1, 2048, 64))
_ADDED = ((4096, 64), (16_384, 64))

OPERATIONS = (
    Operation(
        "mm",
        _TO,
        "k",
        "k n",
        torch.mm,
        (*_SQUARES, (4096, 4096)),
    ),
    Operation(
        "addmm",
        _TO,
        "k",
        "k n, n",
        lambda x, w, b: torch.addmm(b, x, w),
        (*_SQUARES, (4096, 1024)),
    ),
    Operation(
        "linear",
        _TO,
        "k",
        "n k",
        functional.linear,
        (*_SQUARES, (1024, 4096)),
    ),
    Operation(
        "bmm",
        "{m} x {k} by {n}",
        "m k, k n",
        "",
        torch.bmm,
        _BMM,
    ),
    Operation(
        "sum",
        _WIDE,
        "w",
        "",
        lambda x: x.sum(-1, keepdim=True),
        _SUMS,
    ),
    Operation(
        "mean",
        _WIDE,
        "w",
        "",
        lambda x: x.mean(-1, keepdim=True),
        _SUMS[:3],
    ),
    Operation(
        "softmax",
        _WIDE,
        "w",
        "",
        lambda x: x.softmax(-1),
        _WIDTHS,
    ),
    Operation(
        "log_softmax",
        _WIDE,
        "w",
        "",
        lambda x: x.log_softmax(-1),
        _WIDTHS,
    ),
    Operation(
        "rms_norm",
        _WIDE,
        "w",
        "w",
        lambda x, g: functional.rms_norm(x, x.shape[1:], g),
        _NORMS,
    ),
    Operation(
        "layer_norm",
        _WIDE,
        "w",
        "w, w",
        lambda x, g, b: functional.layer_norm(x, x.shape[1:], g, b),
        _NORMS,
    ),
    *(
        Operation(
            "sdpa",
            _HEADS,
            "h q d, h k d, h k d",
            "",
            partial(_attend, backend=SDPA[name]),
            _HEAD_SIZES,
            backend=name,
            is_on_cpu=name in ("math", "flash"),
        )
        for name in ("math", "flash", "efficient", "cudnn")
    ),
    Operation(
        "cumsum",
        _WIDE,
        "w",
        "",
        lambda x: x.cumsum(-1),
        _SUMS[1:],
    ),
    *(
        Operation(
            name,
            _INTO,
            "w",
            "p",
            partial(_add_into, name=name),
            _ADDED,
        )
        for name in ("scatter_add", "index_add")
    ),
    Operation(
        "topk",
        "20 of {w}",
        "w",
        "",
        lambda x: x.topk(20, dim=-1).values,
        _WIDTHS[1:],
    ),
)


def linear_operations(model: nn.Module) -> tuple[Operation, ...]:
    """Return `linear` at every (in, out) of a model, with the names of its modules."""
    modules: dict[tuple[int, int, bool], dict[str, None]] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            shape = (module.in_features, module.out_features, module.bias is not None)
        elif isinstance(module, Conv1D):
            # GPT-2's linear map
            shape = (module.nx, module.nf, True)
        else:
            continue
        modules.setdefault(shape, {})[name.rsplit(".", 1)[-1]] = None
    operations = []
    for (*size, has_bias), names in modules.items():
        name, shared = ("linear with bias", "n k, n") if has_bias else ("linear", "n k")
        about = name, _TO, "k", shared, functional.linear, (tuple(size),)
        operations.append(Operation(*about, modules=", ".join(names)))
    return tuple(operations)


@dataclass(frozen=True)
class ProbePlan:
    """Plan of probes. repeats: calls at each batch size after the first; seconds_each: limit of a
    probe.
    """

    device: torch.device
    dtypes: tuple[str, ...]
    probes: Probes
    repeats: int = 20
    is_quick: bool = False
    seconds_each: float = 1.0


def probes_of(
    device: torch.device,
    names: Sequence[str],
    is_quick: bool,
    of_model: Sequence[Operation] = (),
) -> Probes:
    """Return (operation, size) of all probes, each once. names: of operations, empty for all."""
    probes = {}
    for operation in (*OPERATIONS, *of_model):
        is_named = not names or operation.name in names or operation in of_model
        if is_named and (operation.is_on_cpu or device.type != "cpu"):
            for size in operation.sizes[:2] if is_quick else operation.sizes:
                probes[operation.name, operation.backend, size] = (operation, size)
    return tuple(probes.values())


def probe_all(
    plan: ProbePlan,
    on_progress: Progress = no_progress,
) -> Iterator[OpRow]:
    """Yield one row for each operation, size and dtype, in this order."""
    probes = [(operation, size, dtype) for operation, size in plan.probes for dtype in plan.dtypes]
    for done, (operation, size, dtype) in enumerate(probes):
        words = f"{operation.name} {operation.backend}".strip()
        in_words = operation.words.format(**operation.axes(size))
        on_progress(f"{words}, {in_words}, {dtype}", done, len(probes), "probes")
        yield probe(operation, size, dtype, plan)
    on_progress("probed", len(probes), len(probes), "probes")


def probe(operation: Operation, size: Size, dtype: str, plan: ProbePlan) -> OpRow:
    """Probe one operation in one dtype and size.

    The row has a refusal if torch does not support it.
    """
    about = whole_row(
        op=operation.name,
        backend=operation.backend,
        dtype=dtype,
        size=operation.words.format(**operation.axes(size)),
        modules=operation.modules,
    )
    began = time.monotonic()
    try:
        with torch.inference_mode():
            figures = _Probe(operation, size, format_named(dtype), plan).figures()
    except _REFUSALS as error:
        # other probes go on
        return about | {"refusal": first_line(error)}
    return about | figures | {"seconds": time.monotonic() - began}


class _Probe:
    """One operation with inputs of one size and dtype, the same bits on every machine."""

    def __init__(
        self,
        operation: Operation,
        size: Size,
        fmt: FloatFormat,
        plan: ProbePlan,
    ) -> None:
        self._run = operation.run
        self._format = fmt
        self._plan = plan
        axes = operation.axes(size)

        def shapes(inputs: str) -> list[list[int]]:
            each_input = inputs.split(", ") if inputs else ()
            return [[axes[axis] for axis in each.split()] for each in each_input]

        rows = shapes(operation.rows)
        most = max(1, _INPUT_BYTES // (4 * sum(map(prod, rows))))
        batches = _BATCHES if plan.is_quick else (*_BATCHES, *_MORE_BATCHES)
        self._batches = [batch for batch in batches if batch <= most]
        seed = hashlib.sha256(f"{operation.name} {size}".encode()).digest()
        draws = np.random.default_rng(list(seed))

        def values(*shape: int) -> Tensor:
            """Return values uniform in [-2, 2), whose sums round."""
            numbers = draws.random(shape, dtype=np.float32) * np.float32(4) - np.float32(2)
            return torch.from_numpy(numbers).to(plan.device, getattr(torch, fmt.name))

        self._rows = [values(max(self._batches) + _MOST_ROWS - 1, *shape) for shape in rows]
        self._shared = [values(*shape) for shape in shapes(operation.shared)]

    def figures(self) -> OpRow:
        figures, row_bits = self._repeats()
        alone = row_bits[1]
        figures["elements"] = alone.size
        if not figures["is_repeatable"]:
            return figures | {
                "note": "repeats differ, so batch sizes and row positions were not compared",
            }
        count = min(_MOST_ROWS, -(-_ELEMENTS // alone.size))
        for batch, bits in row_bits.items():
            others = [own_bits(self._call(row, batch)[0]).ravel() for row in range(1, count)]
            row_bits[batch] = np.concatenate([bits, *others])
        # batch sizes with equal bits, that of batch 1 first, with the distance to it
        classes: list[OpRow] = []
        for digest, batches in _equal(row_bits.items()).items():
            neq, max_ulps = self._distance(row_bits[1], row_bits[batches[0]])
            classes.append({"batches": batches, "digest": digest, "neq": neq, "max_ulps": max_ulps})
        # indices of a batch of copies of one row, in groups of equal bits
        positions: list[OpRow] = []
        for batch in _POSITION_BATCHES:
            if batch <= max(row_bits):
                copies = [rows[:1].repeat_interleave(batch, 0) for rows in self._rows]
                groups = _equal(enumerate(bits_of(self._run(*copies, *self._shared))))
                positions.append({"batch": batch, "groups": list(groups.values())})
        is_position_invariant = all(len(each["groups"]) == 1 for each in positions)
        return figures | {
            "rows_tried": count,
            "is_batch_invariant": len(classes) == 1,
            "batch_classes": classes,
            "batch_neq": max(each["neq"] for each in classes),
            "batch_max_ulps": max(each["max_ulps"] for each in classes),
            "is_position_invariant": is_position_invariant if positions else None,
            "row_positions": positions,
        }

    def _call(self, start: int, count: int) -> Tensor:
        """Return the result for `count` rows from `start` on, copied so that they are aligned like
        the first.
        """
        return self._run(
            *(rows[start : start + count].clone() for rows in self._rows),
            *self._shared,
        )

    def _repeats(self) -> tuple[OpRow, dict[int, Bits]]:
        """Call every batch size several times.

        Return (columns, row 0's bits of the first call by batch size).
        """
        row_bits: dict[int, Bits] = {}
        calls = differing = 0
        worst = (0,) * len(_WORST)
        note = ""
        ends = time.monotonic() + self._plan.seconds_each
        for batch in self._batches:
            try:
                first = self._call(0, batch)
                for number in range(1, self._plan.repeats + 1):
                    again = self._call(0, batch)
                    calls += 1
                    if not torch.equal(integers_of(first), integers_of(again)):
                        differing += 1
                        distance = self._distance(bits_of(first), bits_of(again))
                        worst = max(worst, (*distance, batch, number, first.numel()))
                    if time.monotonic() > ends:
                        break
            except _REFUSALS as error:
                if batch == 1:
                    raise
                note = f"batch {batch} was not compared: {first_line(error)}"
                break
            calls += 1
            row_bits[batch] = own_bits(first[0]).ravel()
        columns = {
            "is_repeatable": not differing,
            "calls": calls,
            "differing_calls": differing,
            "note": note,
            **dict(zip(_WORST, worst, strict=True)),
        }
        return columns, row_bits

    def _distance(self, a: Bits, b: Bits) -> tuple[int, int]:
        """Return (differing elements, largest distance in ULPs over those finite on both sides)."""
        figures = differences(a.reshape(1, -1), b.reshape(1, -1), self._format)
        return int(figures.neq[0]), int(figures.max_ulps[0])


def _equal(every: Iterable[tuple[int, Bits]]) -> dict[str, list[int]]:
    """Return the numbers whose bits are equal, by their digest."""
    groups: dict[str, list[int]] = {}
    for number, bits in every:
        groups.setdefault(hashlib.sha256(bits.tobytes()).hexdigest()[:16], []).append(number)
    return groups


def machine_settings(device: torch.device) -> dict[str, str]:
    """Versions and settings that may choose another kernel."""
    settings: dict[str, object] = {
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
    }
    if device.type == "cuda":
        settings |= {
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "tf32": torch.backends.cuda.matmul.allow_tf32,
            "reduced_precision": torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        }
    return {name: str(value) for name, value in settings.items()}
