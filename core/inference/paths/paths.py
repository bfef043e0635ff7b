"""Paths: mathematically equivalent ways to compute the logits of given tokens.
`base+modifier+modifier`.

A base is added in `bases.py`, a modifier in `modifiers.py`, each by one entry. Users read
docs/reference/paths.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ...capture_request import CaptureRequest
from ...engines.process import EngineDescription
from ...errors import CaptureError, UsageError
from ...path_grammar import Step, Value
from ..models.model import LoadedModel, dimension, is_widened
from ..models.module_state import restore_state
from . import engine_side
from .bases import BASES, without_cache
from .batch import CacheWatch, Emit, PromptBatch, ignore, rows_of_a_chunk
from .caches import AnyCache
from .grammar import read_steps, swept_paths
from .hooks import ModuleTrace
from .modifiers import MODIFIERS, Others, dtype_of
from .sliced_head import columns_at_once

Choose = Callable[[Tensor], int | None]
"""logits [1, vocab] of a position -> the token that follows it, or None to end."""


@dataclass(frozen=True)
class Path:
    """A base and its modifiers, in canonical order: equal steps make equal paths and one `str`.
    engine: None for transformers.
    """

    base: Step
    modifiers: tuple[Step, ...] = ()
    engine: EngineDescription | None = field(default=None, hash=False)

    def __str__(self) -> str:
        steps = "+".join(map(str, (self.base, *self.modifiers)))
        return steps if self.engine is None else f"{self.engine.name}:{steps}"

    @property
    def settings(self) -> Others:
        """Modifiers and their values."""
        return {step.name: step.values for step in self.modifiers}

    def with_modifier(self, name: str, *values: Value) -> Path:
        """Return the same path with one modifier set to these values."""
        others = [step for step in self.modifiers if step.name != name]
        return parse_path(str(replace(self, modifiers=(*others, Step(name, values)))))

    @property
    def rows(self) -> int:
        """Sequences in the batch."""
        return int(self.settings.get("batch", (1,))[0])

    @property
    def padding(self) -> tuple[int, int]:
        """Tokens before and after every row."""
        if self.engine is not None:
            return 0, 0
        side, count = self.settings.get("pad", ("left", 0))
        return (int(count), 0) if side == "left" else (0, int(count))

    @property
    def is_one_piece(self) -> bool:
        """True if it is compiled, so that hooks do not see its modules."""
        return self.engine is None and "compile" in self.settings

    def forwards(self, loaded: LoadedModel, positions: int) -> list[int]:
        """Return the columns of each forward for a prompt, padding included, by walking it without
        computing.
        """
        # `walk`: a forward of every prefix
        if self.engine is not None and self.base.name not in BASES:
            return list(range(1, positions + 1))
        left, right = self.padding
        prompt = (0,) * positions
        counting = _Counting(loaded, prompt, left_padding=left, right_padding=right)
        BASES[self.base.name].compute(counting, ignore, *self.base.values)
        return counting.columns_of_forwards

    def logits_bytes(self, loaded: LoadedModel, positions: int) -> int:
        """Return the bytes of the logits on the device at once, for a prompt of `positions`
        tokens.
        """
        columns = max(self.forwards(loaded, positions))
        if not self.is_one_piece:
            columns = min(columns, columns_at_once(self.rows, loaded.row_bytes))
        return self.rows * columns * loaded.row_bytes

    def working_bytes(self, loaded: LoadedModel, positions: int) -> int:
        """Return a lower bound of a forward's bytes without weights: logits, one layer's
        activations, its cache.
        """
        # an engine has a process of its own
        if self.engine is not None:
            return rows_of_a_chunk(loaded) * loaded.row_bytes
        text = loaded.text_config
        hidden = dimension(text, "hidden_size")
        wide = dimension(text, "intermediate_size") or 4 * hidden
        heads = dimension(text, "num_attention_heads") or 1
        kv_heads = dimension(text, "num_key_value_heads") or heads
        layers = dimension(text, "num_hidden_layers") or 1
        columns = max(self.forwards(loaded, positions))
        elements = columns * (2 * hidden + wide)
        if self.reads_cache:
            of_token = layers * 2 * kv_heads * (hidden // heads)
            elements += (positions + sum(self.padding)) * of_token
        elements_bytes = self.rows * elements * loaded.torch_dtype.itemsize
        return self.logits_bytes(loaded, positions) + elements_bytes

    @property
    def reads_cache(self) -> bool:
        """True if any of its forwards reads the keys and values of an earlier one."""
        # the cache of an engine is not visible
        return self.engine is None and BASES[self.base.name].reads_cache

    def compute_dtype(self, loaded: LoadedModel) -> str:
        """Return the dtype in which this path computes logits; the model's dtype holds them
        exactly.
        """
        if self.engine is not None:
            return engine_side.computes_in(self, loaded)
        return dtype_of(loaded, self.settings)

    def contradiction(self) -> str | None:
        """Return a fault of the path for any model, and the fix, or None."""
        if self.engine is not None:
            values = {step.name: step.values[0] for step in self.modifiers if step.values}
            refused = self.engine.contradiction(self.base.name, values)
            return f"{self.engine.engine} refuses it: {refused}" if refused else None
        others = self.settings
        (row,) = others.get("row", (-1,))
        (rows,) = others.get("batch", (0,))
        if int(row) >= int(rows):
            return f"row:{row} needs a batch of at least {int(row) + 1}; add batch:N"
        if "neighbours" in others and not rows:
            return f"neighbours:{others['neighbours'][0]} needs other rows; add batch:N"
        return None

    def refusal(self, loaded: LoadedModel, positions: int | None = None) -> str | None:
        """Return why this model cannot run so many tokens (None: any) on this path, and the fix,
        or None.
        """
        if self.engine is not None:
            return engine_side.refusal(self, self.engine, loaded)
        others = self.settings
        reasons = [BASES[self.base.name].refuse(loaded, positions, *self.base.values)]
        reasons += [MODIFIERS[name].refuse(loaded, others, *of) for name, of in others.items()]
        return next(filter(None, reasons), None)

    def cannot_continue(self, loaded: LoadedModel, positions: int | None) -> str | None:
        """Return why this path cannot generate after so many tokens (None: any), and the fix, or
        None.
        """
        if self.engine is not None:
            return f"{self.engine.engine} cannot generate tokens; use a path of transformers"
        if self.padding[1]:
            return "padding after the prompt leaves no place for generated tokens; choose pad:left"
        return without_cache(loaded, positions)


def parse_path(text: str) -> Path:
    """Parse `prefill+batch:8` or `llamacpp:decode+kv:f32`. UsageError lists the choices."""
    path = Path(*read_steps(text))
    if contradiction := path.contradiction():
        raise UsageError(f"path '{text}': {contradiction}.")
    return path


@dataclass(frozen=True)
class NamedPath:
    """One side of a capture: its name and its path."""

    name: str
    path: Path


def sides_of(request: CaptureRequest) -> tuple[NamedPath, ...]:
    """Return the sides of a request, the reference first; each path once per repeat, as requests to
    a server.

    With block or prefix reuse call 1 of `blocks:16` finds no cache and is a prefill; the later ones
    are `blocks:16`. Refuses engines that are not installed.
    """
    repeat = request.repeat
    reference = parse_path(request.reference)
    if repeat < 1:
        raise UsageError(f"--repeat {repeat}: expected at least 1.")
    variants = [parse_path(text) for text in request.variants]
    for text in request.sweeps:
        swept = map(parse_path, swept_paths(request.reference, text))
        variants += [path for path in swept if path != reference]
    if not variants and repeat == 1:
        default = {"decode": "prefill", "encode": "encode+batch:8"}.get(str(reference), "decode")
        variants = [parse_path(default)]
    paths = [reference, *variants]
    for path in paths:
        if paths.count(path) > 1:
            raise UsageError(
                f"path '{path}' is given twice; the sides of a run need different paths.",
            )
        if path.engine is not None and not path.engine.is_here:
            raise CaptureError(f"path '{path}': {engine_side.not_here(path.engine)}.")
    if repeat == 1:
        return tuple(NamedPath(str(path), path) for path in paths)
    sides = []
    for path in paths:
        calls = [path] * repeat
        if path.base.name in ("blocks", "reuse"):
            # the first call fills the cache that the later ones read
            calls[0] = replace(path, base=Step("prefill"))
        sides += [NamedPath(f"{path} call {number}", call) for number, call in enumerate(calls, 1)]
    return tuple(sides)


@dataclass(frozen=True)
class _Counting(PromptBatch):
    """Stands in for a batch: counts the forwards of a base and computes none."""

    columns_of_forwards: list[int] = field(default_factory=list)

    def forward(
        self,
        start: int,
        stop: int,
        emit: Emit,  # noqa: ARG002
        cache: AnyCache | None = None,  # noqa: ARG002
    ) -> None:
        self.columns_of_forwards.append(self.column_after(stop) - self.column(start))


@dataclass(frozen=True)
class OpenPath:
    """A model prepared for a path. model: as before the modifiers, for its dtype is the run's.

    Calling it runs a prompt and checks dtype, width and order of each piece.
    """

    path: Path
    batch: PromptBatch
    model: LoadedModel

    def __call__(self, token_ids: Sequence[int], emit: Emit) -> None:
        """Send `emit` the logits of a prompt's token ids."""
        self._run(replace(self.batch, prompt=tuple(token_ids)), emit)

    def continue_prompt(
        self,
        token_ids: Sequence[int],
        count: int,
        choose: Choose,
        emit: Emit,
    ) -> None:
        """Run a prompt, then continue token by token with its cache, like a serving engine.
        choose(logits[1, vocab]) returns the next token, or None to end, at most `count` times.
        Other rows continue their own texts.
        """
        watch = self.batch.watch or CacheWatch()
        batch = replace(self.batch, prompt=tuple(token_ids), watch=watch, room=count)
        last: Tensor | None = None

        def keep_last(position: int, logits: Tensor) -> None:
            nonlocal last
            # a view would keep its base alive
            last = logits[-1:].clone()
            emit(position, logits)

        self._run(batch, keep_last)
        assert watch.cache is not None
        assert last is not None
        own: list[int] = []
        while (token := choose(last)) is not None:
            own.append(token)
            if len(own) == count:
                return
            last = batch.step(own, watch.cache)
            # running states are those of the token that was fed last
            watch.batch = replace(batch, prompt=(*batch.prompt, *own))
            position = batch.positions + len(own) - 1
            emit(position, self._checked(position, position, last))

    def _run(self, batch: PromptBatch, emit: Emit) -> None:
        check_path(self.path, self.model, batch.positions)
        limit = batch.loaded.token_limit
        highest = int(batch.token_ids.max())
        if highest >= limit:
            raise CaptureError(
                f"path '{self.path}': token {highest} is outside the vocabulary of {limit}.",
            )
        restore_state(self.model.start)
        done = 0

        def check_emit(position: int, logits: Tensor) -> None:
            nonlocal done
            checked = self._checked(position, done, logits)
            done += len(logits)
            emit(position, checked)

        BASES[self.path.base.name].compute(batch, check_emit, *self.path.base.values)
        expected = batch.loaded.rows_of(batch.prompt)
        if done != expected:
            raise CaptureError(
                f"path '{self.path}': the model gave logits of {done} positions; expected"
                f" {expected}.",
            )

    def _checked(self, position: int, done: int, logits: Tensor) -> Tensor:
        """Return a piece in the model's dtype, or in float32 if its head computes in it;
        CaptureError if it is not the one that follows.
        """
        label = f"path '{self.path}'"
        loaded = self.batch.loaded
        if logits.dtype not in (loaded.torch_dtype, torch.float32):
            came = str(logits.dtype).removeprefix("torch.")
            raise CaptureError(
                f"{label}: the model gave {came} logits; expected {loaded.dtype}. Capture in"
                f" {came}.",
            )
        if logits.ndim != 2 or logits.shape[1] != loaded.vocab_size:
            raise CaptureError(
                f"{label}: logits are {list(logits.shape)}; expected [rows, {loaded.vocab_size}].",
            )
        if position != done:
            raise CaptureError(f"{label}: the model gave no logits of position {done}.")
        own = self.model.torch_dtype
        # a head that computes in float32 keeps its bits
        if logits.dtype == torch.float32 != own and not is_widened(logits, own):
            return logits
        # exact, or the path was refused
        return logits.to(own)


@contextmanager
def open_path(
    path: Path,
    loaded: LoadedModel,
    trace: ModuleTrace | None = None,
    watch: CacheWatch | None = None,
) -> Iterator[Any]:
    """Prepare the model for the path; changes of modifiers apply to the whole process until the end
    of the `with`. watch: gets the cache of each forward, which then always makes one; trace:
    follows the forwards. -> an OpenPath, or the run of another engine's path
    """
    check_path(path, loaded, None)
    if path.engine is not None:
        yield engine_side.engine_run(path, loaded, trace)
        return
    with ExitStack() as stack:
        batch = PromptBatch(loaded, watch=watch, trace=trace)
        for step in path.modifiers:
            batch = stack.enter_context(MODIFIERS[step.name].change(batch, *step.values))
        yield OpenPath(path, batch, loaded)


def check_path(path: Path, loaded: LoadedModel, positions: int | None) -> None:
    """CaptureError if the model cannot run so many tokens (None: any) on this path."""
    if refusal := path.refusal(loaded, positions):
        raise CaptureError(f"path '{path}': {refusal}.")
