"""Captures: run prompts down several paths of one model, every logit bit for bit into a sink."""

import hashlib
import json
import platform
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from torch import Tensor

from ...capture_request import CaptureRequest
from ...errors import CaptureError, UsageError
from ...progress import Progress, no_progress
from ...runs.file.records import (
    LONGEST_TOKEN,
    VALUE,
    Generation,
    Prompt,
    Provenance,
    RunHeader,
    SideHeader,
)
from ...runs.store.partial import is_passing
from ...runs.writer import RunWriter
from ...text import size
from ..controls.choices import following_choices
from ..models.devices import own_bits
from ..models.model import Ids, Inputs, LoadedModel, revision_of
from ..models.torch_errors import model_errors_stop, no_foreign_errors
from ..paths import engine_side
from ..paths.bases import without_cache
from ..paths.batch import CacheWatch, kv_parts, neighbour_rows, rows_of_a_chunk
from ..paths.hooks import ModuleTrace
from ..paths.paths import NamedPath, Path, check_path, open_path, sides_of
from ..watching.choices import ChoiceRecorder
from ..watching.layers import LayerCapture, LayerPlan, has_a_core_to_spare, plan_layers

# cached: a model's weights do not change during a process
_revision_of = cache(revision_of)


@dataclass(frozen=True)
class CapturePlan:
    """A checked capture. header: of its run; token_ids: of its prompts.

    has_kv: store figures of the KV caches; generations: the sides' continuations of each prompt, if
    any. Tokens beyond a generation's given positions are fed one by one, with the cache that the
    prompt left. layers: positions at which modules' outputs are compared, if they are.
    """

    request: CaptureRequest
    loaded: LoadedModel
    paths: tuple[Path, ...]
    token_ids: tuple[Ids, ...]
    header: RunHeader
    has_kv: bool
    generations: tuple[Generation, ...]
    layers: LayerPlan | None


def plan_capture(
    loaded: LoadedModel,
    prompts: Inputs,
    request: CaptureRequest,
    *,
    generations: Sequence[Generation] = (),
    command: str = "",
) -> CapturePlan:
    """Check all that can be checked before the first forward. A prompt is text, or token ids.

    prompts: in place of the request's; generations: see generation.py; command: stored in the run
    in place of the request, if another one made it.
    """
    if not 0 <= request.seed < 1 << 63:
        raise UsageError(f"--seed {request.seed}: expected a whole number from 0 to 2^63 - 1.")
    sides = sides_of(request)
    paths = tuple(side.path for side in sides)
    check_paths(loaded, paths, None)
    if not prompts:
        raise CaptureError("a capture needs at least one prompt.")
    if loaded.encoder is not None and (request.layers or request.mitigations):
        raise UsageError(
            "--layers and --mitigations compare tokens, and an encoder has rows of texts; leave"
            " them out.",
        )
    token_ids = tuple(loaded.tokens_of_all(prompts))
    lengths = [len(ids) for ids in token_ids]
    for positions in sorted(set(lengths)):
        check_paths(loaded, paths, positions)
    free = free_beside_weights(loaded)
    for path in paths:
        needed = path.working_bytes(loaded, max(lengths))
        if free is not None and needed > free:
            raise CaptureError(
                f"path '{path}': a batch of {path.rows} x {max(lengths)} positions needs at least"
                f" {size(needed)}; {loaded.device} has {size(free)} free. Lower batch:N, shorten"
                " the prompts or choose a narrower dtype.",
            )
        # the other rows of its batch are windows of real text
        if path.engine is None and path.rows > 1 and "neighbours" not in path.settings:
            for ids in token_ids:
                # CaptureError if there are none
                neighbour_rows(loaded, ids, 1)
    obstacle = without_cache(loaded, None)
    if obstacle and request.kv:
        raise CaptureError(f"{obstacle}, and leave --kv out.")
    # if not requested, caches are compared if a path reads one
    is_kv_wanted = any(path.reads_cache for path in paths) if request.kv is None else request.kv
    return CapturePlan(
        request,
        loaded,
        paths,
        token_ids,
        _header(loaded, sides, token_ids, request, command),
        obstacle is None and is_kv_wanted,
        tuple(generations),
        plan_layers(loaded, paths, lengths, request) if request.layers else None,
    )


def _header(
    loaded: LoadedModel,
    sides: Sequence[NamedPath],
    token_ids: Sequence[Ids],
    request: CaptureRequest,
    command: str,
) -> RunHeader:
    vocabulary = loaded.vocabulary()
    # temporary files of a page by their names only
    lists = [FilePath(each).name if is_passing(each) else each for each in request.prompt_lists]
    stored = replace(request, prompt_lists=tuple(lists))
    prompts = [
        Prompt(len(ids), ids, tuple(vocabulary.get(token, "") for token in ids))
        for ids in token_ids
    ]
    if loaded.encoder is not None:
        # a text a row, on a line of its own
        texts = [str(loaded.tokenizer.decode(list(ids))) for ids in token_ids]
        lines = tuple(f"{text[: LONGEST_TOKEN - 1]}\n" for text in texts)
        prompts = [Prompt(len(lines), token_texts=lines)]
    return RunHeader(
        name=request.name or _title(loaded, sides, request),
        compute_dtype=loaded.logits_dtype,
        vocab=loaded.vocab_size,
        prompts=tuple(prompts),
        sides=tuple(
            SideHeader(side.name, str(side.path), side.path.compute_dtype(loaded)) for side in sides
        ),
        provenance=Provenance(
            kind="capture",
            model=loaded.name,
            revision=loaded.revision,
            device=loaded.device,
            device_name=loaded.device_name,
            seed=request.seed,
            command=command or stored.typed(),
            request=None if command else stored.to_json(),
            versions=_versions(loaded, [side.path for side in sides]),
        ),
        vocabulary=vocabulary,
        keep=request.keep,
        holds="logit" if loaded.encoder is None else VALUE,
    )


def _title(loaded: LoadedModel, sides: Sequence[NamedPath], request: CaptureRequest) -> str:
    """Return a title of the model and its sides: the first few, and how many more."""
    model = FilePath(loaded.name).name
    repeat = request.repeat
    if repeat > 1:
        paths = ", ".join(dict.fromkeys(str(side.path) for side in sides[repeat - 1 :: repeat]))
        return f"{model}: {paths}, {repeat} calls"
    variants = ", ".join(side.name for side in sides[1:4])
    if len(sides) > 4:
        variants += f" and {len(sides) - 4} more"
    generated = f", {request.tokens} tokens generated" if request.tokens else ""
    return f"{model}: {sides[0].name} vs {variants}{generated}"


def run_capture(
    plan: CapturePlan,
    sink: RunWriter,
    on_progress: Progress = no_progress,
) -> list[str]:
    """Run every side into the sink: side 0 first, prompts in order, logits in chunks of about 8 MB.

    Nothing is forced to be deterministic; the seed is set before each side. Return a
    sentence for each part that failed besides the sides.
    """
    missing: list[str] = []
    for generation in plan.generations:
        sink.write_generation(generation)
    layers = None
    if plan.layers is not None:
        is_async = has_a_core_to_spare(plan.loaded)
        rows = sink.layers(plan.layers.positions, is_async=is_async)
        layers = LayerCapture(plan.loaded, plan.layers, plan.token_ids, rows)

    def tell(stage: str, rows_done: int = plan.header.rows) -> None:
        on_progress(stage, rows_done, plan.header.rows * len(plan.paths))

    for side, path in enumerate(plan.paths):
        torch.manual_seed(plan.request.seed)
        with torch_errors_stop(path):
            _run_side(plan, side, layers, sink, tell)
        if layers is not None and side == 0:
            try:
                with torch_errors_stop(path):
                    layers.floor(path, tell)
            except CaptureError as error:
                # the run has its sides without it
                missing.append(f"The modules have no noise floor: {error}")
    return missing


def _run_side(
    plan: CapturePlan,
    side: int,
    layers: LayerCapture | None,
    sink: RunWriter,
    tell: Callable[[str, int], None],
) -> None:
    """Write the rows of one side, prompt by prompt, each followed by its caches and choices."""
    path = plan.paths[side]
    watch = CacheWatch() if plan.has_kv else None
    outputs = layers.trace(side, path) if layers is not None else None
    trace: ModuleTrace | None = outputs
    choices = None
    following: AbstractContextManager[None] = nullcontext()
    # not in another process, nor compiled; positions of generated tokens are not told
    is_seen = path.engine is None and not path.is_one_piece and not plan.generations
    if is_seen and plan.loaded.has_experts:
        choices = ChoiceRecorder(max(map(len, plan.token_ids)))
        trace = trace or ModuleTrace()
        following = following_choices(plan.loaded, trace, choices.note)
    chunks = _Chunks(plan, side, sink)

    def emit(position: int, logits: Tensor) -> None:
        if outputs is not None:
            outputs.see_logits(position, logits)
        with no_foreign_errors():
            chunks.add(logits)
            tell(plan.header.sides[side].name, side * plan.header.rows + chunks.rows)

    with (
        open_path(path, plan.loaded, trace, watch) as run,
        nullcontext() if outputs is None else outputs.watching(),
        following,
    ):
        for prompt, ids in enumerate(plan.token_ids):
            with nullcontext() if outputs is None else outputs.of_prompt(prompt):
                if plan.generations:
                    # generated tokens are fed one by one after the prompt, as before
                    given = plan.generations[prompt].given_positions
                    rest = iter(ids[given:])
                    most = plan.generations[prompt].asked
                    run.continue_prompt(
                        ids[:given], most, lambda _, rest=rest: next(rest, None), emit
                    )
                else:
                    run(ids, emit)
            if watch is not None:
                for part in kv_parts(watch, prompt, getattr(torch, plan.header.compute_dtype)):
                    with no_foreign_errors():
                        sink.write_kv(side, part)
                watch.cache = watch.batch = None
            if choices is not None:
                with no_foreign_errors():
                    sink.write_choices(choices.take(side, prompt))
    with no_foreign_errors():
        chunks.finish()


class _Chunks:
    """Rows of one side on the device, written to the sink in chunks: one copy to the host for each.

    rows: those that came.
    """

    def __init__(self, plan: CapturePlan, side: int, sink: RunWriter) -> None:
        self._path = plan.paths[side]
        self._side = side
        self._sink = sink
        self._capacity = min(rows_of_a_chunk(plan.loaded), plan.header.rows)
        self._dtype = getattr(torch, plan.header.compute_dtype)
        self._waiting: list[Tensor] = []
        self.rows = self._written = 0

    def add(self, logits: Tensor) -> None:
        if torch.promote_types(logits.dtype, self._dtype) != self._dtype:
            raise CaptureError(
                f"path '{self._path}': the model gave {logits.dtype} logits; expected"
                f" {self._dtype}. Capture with --dtype float32.",
            )
        self.rows += len(logits)
        for piece in logits.to(self._dtype).split(self._capacity):
            is_whole = not self._waiting and len(piece) == self._capacity
            # a view would keep its base alive
            self._waiting.append(piece if is_whole else piece.clone())
            if sum(map(len, self._waiting)) >= self._capacity:
                self.finish()

    def finish(self) -> None:
        """Write the waiting rows."""
        if not self._waiting:
            return
        with torch_errors_stop(self._path):
            is_one = len(self._waiting) == 1
            bits = own_bits(self._waiting[0] if is_one else torch.cat(self._waiting))
        self._waiting.clear()
        self._sink.write(self._side, self._written, bits)
        self._written += len(bits)


def torch_errors_stop(path: Path) -> AbstractContextManager[None]:
    """Run torch; its errors inside become one sentence that names the path."""
    return model_errors_stop(
        f"path '{path}'",
        "shorten the prompts, lower batch:N, or choose a narrower dtype",
    )


def check_paths(loaded: LoadedModel, paths: Sequence[Path], positions: int | None) -> None:
    """CaptureError if a path cannot run prompts of `positions` tokens, or of any length if None."""
    for path in paths:
        if loaded.encoder is not None and (path.engine or path.base.name == "prefill"):
            raise CaptureError(f"path '{path}' needs a causal head; choose encode.")
        check_path(path, loaded, positions)
        if refusal := engine_side.not_stored(path, loaded):
            raise CaptureError(f"path '{path}': {refusal}.")


def free_beside_weights(loaded: LoadedModel) -> int | None:
    """Return the free bytes on the model's device, less its weights if not loaded yet; None if
    unknown.
    """
    free = loaded.free_bytes
    if free is not None and next(loaded.model.parameters()).is_meta:
        return max(0, free - loaded.weight_bytes)
    return free


def _versions(loaded: LoadedModel, paths: Sequence[Path]) -> dict[str, str]:
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
    if loaded.encoder is not None:
        versions["values"] = str(loaded.encoder)
    if loaded.weights:
        versions["weights"] = loaded.weights
    if loaded.is_on_cuda and torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    return versions | {
        path.engine.name: path.engine.version or "unknown" for path in paths if path.engine
    }


def environment_of(plan: CapturePlan) -> dict[str, Any]:
    """Return what determines the bits besides the request. The plan needs no weights."""
    request = plan.request
    loaded = plan.loaded
    about = plan.header.provenance
    config = loaded.model.config.to_dict()
    public = {name: value for name, value in config.items() if not name.startswith("_")}
    tokenizer = getattr(loaded.tokenizer, "backend_tokenizer", None)
    kind = type(loaded.tokenizer).__name__
    return {
        "revision": about.revision or _revision_of(request.model, request.revision),
        "config": _digest(json.dumps(public, sort_keys=True, default=str)),
        "tokenizer": kind if tokenizer is None else _digest(tokenizer.to_str()),
        "device": loaded.device,
        "device_name": loaded.device_name,
        "versions": dict(about.versions),
        "build": request.build,
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
