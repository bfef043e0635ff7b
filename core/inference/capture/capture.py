"""Captures: prompts down several paths of one model, every logit bit for bit into a sink."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Protocol

import numpy as np
import tokenizers
import torch
import transformers
from numpy.typing import NDArray

from ...capture_request import CaptureRequest
from ...errors import CaptureError, UsageError
from ...runs.file.kept import ALL
from ...runs.file.records import Generation, Prompt, Provenance, RunHeader, SideHeader
from ...runs.tables.kv_cache import KvPart
from ...text import size
from ..controls.judging_session import JudgingSession
from ..models import memory
from ..models.bits import own_bits
from ..models.model import LoadedModel
from ..models.torch_errors import first_line, foreign_errors_stop, no_foreign_errors, quiet
from ..paths.bases import without_cache
from ..paths.cache_watch import CacheWatch, kv_parts
from ..paths.neighbours import neighbour_rows
from ..paths.paths import Emit, OpenPath, Path, open_path, rows_of_a_chunk
from ..paths.sides import NamedPath, sides_of
from ..watching.layers import FLOOR_SEEDS, LayerCapture, LayerPlan, LayerSink, has_a_core_to_spare, plan_layers


class Sink(Protocol):
    """Takes the sides in order, each from row 0 upward without gaps; the arrays are the sink's to keep."""

    def write(self, side: int, row: int, bits: NDArray[np.unsignedinteger]) -> None:
        """Write rows of a side. bits: [rows, vocab], unsigned carriers of the compute dtype, for the rows from `row`
        on.
        """

    def write_kv(self, side: int, part: KvPart) -> None:
        """The keys or values of one layer after one prompt."""

    def layers(self, chosen: Sequence[Sequence[int]], *, is_beside: bool) -> LayerSink:
        """A sink for the outputs of the model's modules at the chosen positions of each prompt; asked for where the
        plan has them.

        is_beside: there is a core to spare, so that they can be compared while forwards go on.
        """

    def write_generation(self, generation: Generation) -> None:
        """The tokens with which the sides went on freely from a prompt."""


@dataclass(frozen=True)
class Progress:
    """Progress of a capture. rows are counted over all sides; seconds since the capture began."""

    side: int
    side_name: str
    rows_done: int
    rows_total: int
    seconds: float


@dataclass(frozen=True)
class CapturePlan:
    """A capture whose every argument has been checked: `header` is the run it makes, `token_ids` the prompts' tokens.

    has_kv: keep figures of the key/value caches; generations: for each prompt that was generated what the sides made of
    it, else empty. Tokens beyond a generation's given positions are fed one by one, with the cache that the prompt
    left. layers: at which positions the modules' outputs are compared; None: they are not.
    """

    loaded: LoadedModel
    paths: tuple[Path, ...]
    token_ids: tuple[tuple[int, ...], ...]
    seed: int
    header: RunHeader
    has_kv: bool = False
    generations: tuple[Generation, ...] = ()
    layers: LayerPlan | None = None


def plan_capture(
    loaded: LoadedModel,
    prompts: Sequence[str | Sequence[int]],
    reference: str,
    variants: Sequence[str],
    *,
    name: str | None = None,
    command: str = "",
    request: CaptureRequest | None = None,
    seed: int = 0,
    repeat: int = 1,
    kv: bool | None = None,
    generations: Sequence[Generation] = (),
    layers: bool = False,
    layer_floor: int = FLOOR_SEEDS,
    layer_positions: Sequence[int] = (),
    keep: str = ALL,
) -> CapturePlan:
    """Check everything that can be known before the first forward. A prompt is text, or the token ids themselves.

    request: what the run keeps of how it was asked for, in place of `command`, the text of some other command.

    `repeat` calls every path so many times; see core.inference.paths.sides. `kv`: compare the key/value caches; None:
    where a path reads one. `generations`, one a prompt: what the sides made of its first positions; see
    core.inference.generating.generation. `layers`: compare the outputs of the model's modules too, beside a rounding
    floor of `layer_floor` reorderings; where that would take too much disk, at the `layer_positions` of each prompt and
    others evenly spread. `keep`: of core.runs.file.kept, what the run keeps of its logits.
    """
    if not 0 <= seed < 1 << 63:
        raise UsageError(f"--seed {seed}: expected a whole number from 0 to 2^63 - 1.")
    sides = sides_of(reference, variants, repeat)
    paths = tuple(side.path for side in sides)
    check_paths(loaded, paths, None)
    if not prompts:
        raise CaptureError("a capture needs at least one prompt.")
    token_ids = tuple(
        tokens_of(loaded, prompt, f"prompt {n} of {len(prompts)}") for n, prompt in enumerate(prompts, start=1)
    )
    for positions in sorted({len(ids) for ids in token_ids}):
        check_paths(loaded, paths, positions)
    _check_batches(loaded, paths, token_ids)
    vocabulary = loaded.vocabulary()
    header = RunHeader(
        name=name or f"{FilePath(loaded.name).name}: {_in_short(sides, repeat)}",
        compute_dtype=loaded.dtype,
        vocab=loaded.vocab_size,
        prompts=tuple(Prompt(len(ids), ids, tuple(vocabulary[token] for token in ids)) for ids in token_ids),
        sides=tuple(SideHeader(side.name, str(side.path), side.path.compute_dtype(loaded)) for side in sides),
        provenance=Provenance(
            kind="capture",
            model=loaded.name,
            revision=loaded.revision,
            device=loaded.device,
            device_name=loaded.device_name,
            seed=seed,
            command=request.typed() if request else command,
            request=request.to_json() if request else None,
            versions=_versions(loaded) | _engine_versions(paths),
        ),
        vocabulary=vocabulary,
        kept=keep,
    )
    can_keep = without_cache(loaded, None)
    if kv and can_keep:
        raise CaptureError(f"{can_keep}, and leave --kv out.")
    has_kv = can_keep is None and (any(path.reads_cache for path in paths) if kv is None else kv)
    if layers and generations:
        raise UsageError(
            "modules are compared where prompts are scored, not where they are continued; leave --layers out."
        )
    other = next((path for path in paths if path.engine is not None and not path.engine.shows_modules), None)
    if layers and other is not None:
        raise UsageError(f"'{other}' shows nothing of its modules; leave --layers out.")
    lengths = [len(ids) for ids in token_ids]
    looked_at = plan_layers(loaded, lengths, paths[0], layer_floor, layer_positions) if layers else None
    return CapturePlan(loaded, paths, token_ids, seed, header, has_kv, tuple(generations), looked_at)


def _in_short(sides: Sequence[NamedPath], repeat: int) -> str:
    """The sides in a title: the first few, and how many more."""
    if repeat > 1:
        called = ", ".join(dict.fromkeys(str(side.path) for side in sides[repeat - 1 :: repeat]))
        return f"{called}, {repeat} calls"
    shown = ", ".join(side.name for side in sides[1:4])
    return f"{sides[0].name} against {shown}" + (f" and {len(sides) - 4} more" if len(sides) > 4 else "")


def run_capture(
    plan: CapturePlan,
    sink: Sink,
    on_progress: Callable[[Progress], None] | None = None,
    session: JudgingSession | None = None,
) -> list[str]:
    """Run every side of the plan into the sink: side 0 first, prompts one after another, logits in chunks of about 8
    MB.

    Kernels are the ones an engine would use (nothing is forced to be deterministic: what they do is the subject),
    seeded anew for every side so that a side does not depend on those before it. session: of a judgement to come, which
    shares the floor of the modules. -> sentences on what is less than was planned, beside the sides
    """
    began = time.perf_counter()
    rows_total = plan.header.rows * len(plan.paths)
    rows_done = 0
    missing: list[str] = []

    def tell(side: int, stage: str) -> None:
        if on_progress is not None:
            on_progress(Progress(side, stage, rows_done, rows_total, time.perf_counter() - began))

    for generation in plan.generations:
        sink.write_generation(generation)
    layers = None
    if plan.layers is not None:
        layers = LayerCapture(
            plan.loaded,
            plan.layers,
            plan.token_ids,
            sink.layers(plan.layers.positions, is_beside=has_a_core_to_spare(plan.loaded)),
        )
    with quiet(), torch.inference_mode():
        for side, path in enumerate(plan.paths):
            torch.manual_seed(plan.seed)
            gather = _Gather(plan, side, sink)

            def emit(_: int, logits: torch.Tensor, side: int = side, gather: _Gather = gather) -> None:
                nonlocal rows_done
                with no_foreign_errors():
                    gather.add(logits)
                    rows_done += len(logits)
                    tell(side, plan.header.sides[side].name)

            with torch_errors_stop(path):
                _run_side(plan, side, layers, emit, sink)
            gather.finish()
            if layers is not None and side == 0:
                try:
                    with torch_errors_stop(path):
                        layers.floor(path, lambda stage: tell(0, stage), session)
                except CaptureError as error:  # the sides are what was asked for; they come first
                    missing.append(f"The modules have no rounding floor: {error}")
    return missing


def shares_floor(plan: CapturePlan, *, judge: bool, remedies: bool) -> bool:
    """True where what is asked for beside the sides has use for reorderings of prefill."""
    return judge or (remedies and str(plan.paths[0]) == "prefill")


def _run_side(plan: CapturePlan, side: int, layers: LayerCapture | None, emit: Emit, sink: Sink) -> None:
    """The rows of one side, in order, prompt after prompt, each followed by the caches it left."""
    watch = CacheWatch() if plan.has_kv else None
    trace = layers.trace(side, plan.paths[side]) if layers is not None else None

    def see(position: int, logits: torch.Tensor) -> None:
        if trace is not None:
            trace.see_logits(position, logits)
        emit(position, logits)

    with (
        open_path(plan.paths[side], plan.loaded, watch, trace) as opened,
        nullcontext() if trace is None else trace.watching(),
    ):
        for prompt, ids in enumerate(plan.token_ids):
            with nullcontext() if trace is None else trace.of_prompt(prompt):
                _run_prompt(opened, ids, plan.generations[prompt] if plan.generations else None, see)
            if watch is not None:
                for part in kv_parts(watch, prompt, plan.loaded.torch_dtype):
                    with no_foreign_errors():
                        sink.write_kv(side, part)
                watch.cache = watch.place = None


def _run_prompt(opened: OpenPath, ids: Sequence[int], generation: Generation | None, emit: Emit) -> None:
    """All positions of `ids`; those that were generated are fed one by one after the prompt, as when they were."""
    if generation is None:
        return opened(ids, emit)
    rest = iter(ids[generation.given_positions :])
    return opened.continued(ids[: generation.given_positions], generation.asked, lambda _: next(rest, None), emit)


class _Gather:
    """Rows of one side on the device, handed to the sink a chunk at a time: one copy to the host for hundreds of
    tokens.
    """

    def __init__(self, plan: CapturePlan, side: int, sink: Sink) -> None:
        self._plan, self._side, self._sink = plan, side, sink
        self._capacity = min(rows_of_a_chunk(plan.loaded), plan.header.rows)
        self._waiting: torch.Tensor | None = None
        self._filled = 0
        self._row = 0

    def add(self, logits: torch.Tensor) -> None:
        while len(logits):
            if self._filled == 0 and len(logits) >= self._capacity:
                self._write(logits[: self._capacity])  # a whole chunk already: no copy on the device
                logits = logits[self._capacity :]
                continue
            with torch_errors_stop(self._plan.paths[self._side]):
                if self._waiting is None:
                    self._waiting = torch.empty(
                        (self._capacity, logits.shape[1]), dtype=logits.dtype, device=logits.device
                    )
                taken = logits[: self._capacity - self._filled]
                self._waiting[self._filled : self._filled + len(taken)] = taken
            self._filled += len(taken)
            logits = logits[len(taken) :]
            if self._filled == self._capacity:
                self.finish()

    def finish(self) -> None:
        """Write what is waiting. The next chunk gets a buffer of its own, because this one is the sink's now."""
        if self._waiting is not None and self._filled:
            self._write(self._waiting[: self._filled])
        self._waiting, self._filled = None, 0

    def _write(self, logits: torch.Tensor) -> None:
        with torch_errors_stop(self._plan.paths[self._side]):
            bits = own_bits(logits)
        self._sink.write(self._side, self._row, bits)
        self._row += len(bits)


def torch_errors_stop(path: Path) -> AbstractContextManager[None]:
    """Turn what torch raises inside into one sentence that names the path."""
    return foreign_errors_stop(f"path '{path}'", "shorten the prompts, lower batch:N, or choose a narrower dtype")


def tokens_of(loaded: LoadedModel, prompt: str | Sequence[int], where: str) -> tuple[int, ...]:
    """The tokens of a prompt, which is text or the token ids themselves; refused where the model cannot take them."""
    if isinstance(prompt, str):
        try:
            with quiet():
                ids = tuple(int(token) for token in loaded.tokenizer(prompt)["input_ids"]) if prompt else ()
        except Exception as error:  # a lone surrogate, for instance, is text to Python and to no tokenizer
            raise CaptureError(
                f"{where}: the tokenizer cannot read it ({first_line(error)}); expected plain text."
            ) from error
    else:
        ids = tuple(int(token) for token in prompt)
    if not ids:
        raise CaptureError(f"{where} is empty; expected at least one token.")
    if loaded.context is not None and len(ids) > loaded.context:
        raise CaptureError(
            f"{where} has {len(ids)} tokens, the model's context is {loaded.context}; shorten the prompt."
        )
    for position, token in enumerate(ids):
        if not 0 <= token < loaded.token_limit:
            raise CaptureError(
                f"{where}: token {token} at position {position} is not among the model's {loaded.token_limit}."
            )
    return ids


def check_paths(loaded: LoadedModel, paths: Sequence[Path], positions: int | None) -> None:
    """Every path can be taken, by prompts of so many tokens, or of any length where `positions` is None."""
    for path in paths:
        refusal = path.refusal(loaded, positions) or path.cannot_be_stored(loaded)
        if refusal:
            raise CaptureError(f"path '{path}': {refusal}.")


def _check_batches(loaded: LoadedModel, paths: Sequence[Path], token_ids: Sequence[Sequence[int]]) -> None:
    """Neighbours can be had and the logits of every path fit, before the first forward."""
    longest = max(len(ids) for ids in token_ids)
    free = memory.free_bytes(torch.device(loaded.device))
    for path in paths:
        needed = path.working_bytes(loaded, longest)
        if free is not None and needed > free:
            raise CaptureError(
                f"path '{path}': a batch of {path.rows} x {longest} positions takes at least {size(needed)},"
                f" {loaded.device} has {size(free)} free; lower batch:N, shorten the prompts or choose a"
                " narrower dtype."
            )
    if any(path.has_real_neighbours for path in paths):
        for ids in token_ids:
            neighbour_rows(loaded.tokenizer, ids, 1)


def _engine_versions(paths: Sequence[Path]) -> dict[str, str]:
    """Engine name -> its version."""
    return {path.engine.name: path.engine.version or "unknown" for path in paths if path.engine is not None}


def _versions(loaded: LoadedModel) -> dict[str, str]:
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "numpy": np.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "attention": str(getattr(loaded.model.config, "_attn_implementation", "")),
    }
    if loaded.weights:
        versions["weights"] = loaded.weights
    if loaded.device.startswith("cuda") and torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    return versions
