"""The kernels that run on a path, from torch's profiler and, on a CPU, the verbose output of oneDNN
and MKL.

On CUDA the profiler names each kernel. On a CPU it knows operations only; oneDNN and MKL print the
implementation on standard output. Forward hooks assign every kernel to the innermost module.
"""

import ctypes
import os
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache, partial
from itertools import takewhile
from typing import IO, Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from ...runs.tables.kernels import KernelList, KernelRow
from ..models.model import LoadedModel
from ..models.torch_errors import model_errors_stop
from ..paths.batch import ignore
from ..paths.hooks import ModuleTrace
from ..paths.paths import Path, open_path

# else the profiler writes on standard error
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
# profiled of a path's many: the first four and the last four. An event takes about 1 KB in memory
FORWARDS = 8
_ENTER, _LEAVE = "\x1eenter ", "\x1eleave"
_MODULE = "module "
# oneDNN:
# onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_bf16,undef,
# src:bf16::blocked:ab::f0 ...,,,13x384:384x2048,0.05
_ONEDNN = re.compile(
    r"^onednn_verbose,(?:v\d+,)?(?:primitive,)?exec,cpu,"
    r"([^,]+),([^,]+),[^,]*,([^,]*),.*,([^,]*),([\d.e+-]+)$",
)
# MKL_VERBOSE SGEMM(T,N,2048,13,384,0x7ff...,...) 9.75us CNR:OFF ...
_MKL = re.compile(r"^MKL_VERBOSE ([A-Z]\w*)\(([^)]*)\) ([\d.]+)([num]?s)\b")
_UNITS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
_CPP_NAMES = {"float": "float32", "double": "float64", "Half": "float16"}
_CPP_NAMES |= {"long int": "int64", "long": "int64", "int": "int32"}
_MAKES_NOTHING = (
    "empty",
    "new_empty",
    "resize",
    "set_",
    "detach_",
    "_unsafe_view",
    "_local_scalar",
    "record_stream",
)
_TYPE = re.compile(r"\b(?:src|wei|dst)[^: ]*:([a-z]+\d+)")


Launches = defaultdict[tuple[str, str, str, str], list[float]]
"""(module, library, name, detail) of a kernel -> microseconds of each launch."""


class _ProfiledForwards(ModuleTrace):
    """Profiles the forwards of a model that are picked. A forward that a path announces may be
    several calls of the model, one for each slice of its logits.

    hooks: what marks the modules while a forward is profiled.
    """

    def __init__(self, device: str, hooks: Callable[..., AbstractContextManager[None]]) -> None:
        super().__init__()
        self._device, self._hooks = device, hooks
        self.picks: Collection[int] = ()
        self.count = 0
        self.launches = Launches(list)

    @contextmanager
    def forward(self, *_: int) -> Iterator[None]:
        """Profile a forward if it is picked; add its operations and kernels to `launches`."""
        self.count += 1
        if self.count - 1 not in self.picks:
            yield
            return
        activities = [ProfilerActivity.CPU]
        if self._device.startswith("cuda"):
            activities.append(ProfilerActivity.CUDA)
        with tempfile.TemporaryFile() as file:
            with (
                profile(activities=activities, record_shapes=True, acc_events=True) as profiler,
                _library_lines(self._device, file),
                self._hooks(file),
            ):
                yield
            _add_operations(profiler.events() or [], self.launches)
            file.seek(0)
            lines = file.read().decode(errors="replace").split("\n")
            _add_library_lines(lines, self.launches)


def kernels_of(
    loaded: LoadedModel,
    path: Path,
    ids: Sequence[int],
    number: int = 0,
    *,
    seed: int = 0,
) -> KernelList:
    """Profile the kernels of a path on one prompt. number: of the side in its run. CaptureError if
    it cannot run.

    Of many forwards, the first and the last are profiled, FORWARDS together. The kernels of a
    compiled model belong to no module; it runs once without the profiler.
    """
    total = len(path.forwards(loaded, len(ids)))
    half = FORWARDS // 2
    picks = [n for n in range(total) if not half <= n < total - half]
    # a compiler would compile hooks into the model
    says = not loaded.is_on_cuda  # where libraries print what they run
    hooks: Callable[..., AbstractContextManager[None]] = nullcontext
    if not path.is_one_piece:
        hooks = partial(_modules_say_their_names, loaded.model, says)
    forwards = _ProfiledForwards(loaded.device, hooks)
    _set_up_libraries()
    with (
        model_errors_stop(f"'{path}'", "choose a shorter prompt"),
        open_path(path, loaded, forwards) as run,
    ):
        if path.is_one_piece:
            run(ids, ignore)
            forwards.count = 0
        forwards.picks = picks
        torch.manual_seed(seed)
        run(ids, ignore)
    rows = tuple(
        KernelRow(*kernel, len(times), sum(times)) for kernel, times in forwards.launches.items()
    )
    return KernelList(number, rows, len(picks), total)


@cache
def _set_up_libraries() -> None:
    """Make MKL's first verbose call, which takes half a second of setup."""
    with tempfile.TemporaryFile() as file, _library_lines("cpu", file):
        torch.ones(2, 2) @ torch.ones(2, 2)


@contextmanager
def _modules_say_their_names(model: torch.nn.Module, says: bool, file: IO[bytes]) -> Iterator[None]:
    """Mark every module's forward by a range of the profiler, and by lines among those of the
    libraries.
    """
    ranges = []

    def say(line: str) -> None:
        if not says:
            return
        _libc().fflush(None)
        os.write(file.fileno(), (line + "\n").encode())

    def enter(name: str) -> None:
        ranges.append(record_function(_MODULE + name))
        ranges[-1].__enter__()
        say(_ENTER + name)

    def leave(*_: Any) -> None:
        say(_LEAVE)
        ranges.pop().__exit__(None, None, None)

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if name:
                hooks.enter_context(
                    module.register_forward_pre_hook(lambda *_, name=name: enter(name)),
                )
                hooks.enter_context(module.register_forward_hook(leave, always_call=True))
        yield


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


@contextmanager
def _library_lines(device: str, file: IO[bytes]) -> Iterator[None]:
    """Redirect the verbose output of oneDNN and MKL on a CPU to `file`."""
    if not device.startswith("cpu"):
        yield
        return
    sys.stdout.flush()
    _libc().fflush(None)
    stdout = os.dup(1)
    os.dup2(file.fileno(), 1)
    try:
        with ExitStack() as modes:
            for library in (torch.backends.mkldnn, torch.backends.mkl):
                if library.is_available():
                    modes.enter_context(library.verbose(library.VERBOSE_ON))
            yield
    finally:
        sys.stdout.flush()
        _libc().fflush(None)
        os.dup2(stdout, 1)
        os.close(stdout)


def _add_library_lines(lines: Sequence[str], launches: Launches) -> None:
    modules = [""]
    for line in lines:
        if line.startswith(_ENTER):
            modules.append(line.removeprefix(_ENTER))
        elif line.startswith(_LEAVE):
            modules = modules[:-1] or [""]
        elif match := _ONEDNN.match(line):
            primitive, implementation, memory, problem, milliseconds = match.groups()
            types = "/".join(dict.fromkeys(_TYPE.findall(memory)))
            kernel = "oneDNN", f"{primitive} {implementation}", f"{types} {problem}".strip()
            launches[modules[-1], *kernel].append(float(milliseconds) * 1e3)
        elif match := _MKL.match(line):
            name, arguments, time, unit = match.groups()
            # sizes and transpositions come before the first address
            sizes = ",".join(
                takewhile(lambda argument: not argument.startswith("0x"), arguments.split(",")),
            )
            launches[modules[-1], "MKL", name, sizes].append(float(time) * _UNITS[unit])


def _add_operations(events: Sequence[Any], launches: Launches) -> None:
    """Add operations that compute values, the outermost with its own kernel: `linear` is its
    `addmm`.
    """
    outermost: set[int] = set()
    for event in events:
        place, inside = "", False
        parent = event.cpu_parent
        while parent is not None:
            inside = inside or id(parent) in outermost
            if parent.name.startswith(_MODULE):
                place = parent.name.removeprefix(_MODULE)
                break
            parent = parent.cpu_parent
        for kernel in event.kernels or ():
            launches[place, "CUDA", kernel.name, event.name].append(float(kernel.duration))
        if inside:
            outermost.add(id(event))
        elif event.name.startswith("aten::") and _computes(event.name.removeprefix("aten::")):
            outermost.add(id(event))
            operation = place, "torch", event.name, _shapes(event)
            launches[operation].append(float(event.cpu_time_total))


def _shapes(event: Any) -> str:
    """Return `bfloat16 1x384, 384x2048` of an operation's tensors; a dtype is given if it
    changes.
    """
    dtypes = getattr(event, "input_dtypes", None) or ()
    last = ""
    parts = []
    for number, shape in enumerate(event.input_shapes or ()):
        if not shape:
            continue
        dtype = str(dtypes[number]).removeprefix("c10::") if number < len(dtypes) else ""
        dtype = _CPP_NAMES.get(dtype, dtype.lower())
        parts.append(("" if dtype in ("", last) else f"{dtype} ") + "x".join(map(str, shape)))
        last = dtype or last
    return ", ".join(parts)


@cache
def _computes(name: str) -> bool:
    """Return whether the operation has its own kernel that computes values; views and compositions
    do not.
    """
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return True
    if name.startswith(_MAKES_NOTHING):
        return False
    first = getattr(packet, packet.overloads()[0])
    if torch._C._dispatch_has_kernel_for_dispatch_key(first.name(), "CompositeImplicitAutograd"):
        return False
    return not any(
        result.alias_info is not None and not result.alias_info.is_write
        for result in first._schema.returns
    )
