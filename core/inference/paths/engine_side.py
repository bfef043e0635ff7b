"""Sides of another engine: its rows as checked tensors, from a process that stays up for the next
prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...engines import registry
from ...engines.process import EngineDescription, EngineRows
from ...errors import CaptureError
from ...path_grammar import Step
from ...text import printable
from ..models.engine_files import folder_of, gguf_of
from ..models.model import LoadedModel
from .batch import Emit
from .hooks import ModuleTrace

_DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_parts: dict[tuple[str, str], str] = {}  # by the name of a side and the dtype of its last model
OWN = "own"  # weights as in the file


def computes_in(steps: Sequence[Step], loaded: LoadedModel) -> str:
    """Return the dtype of the engine's weights: that of `weights:`, else the run's."""
    weights = next((str(step.values[0]) for step in steps if step.name == "weights"), "")
    return _DTYPES.get(weights, loaded.dtype)


def not_here(engine: EngineDescription) -> str:
    """Return the sentence on an engine that is not installed."""
    return (
        f"{engine.engine} is not installed for this interpreter; name another by --engine"
        " (`engines` lists them)"
    )


def refusal(engine: EngineDescription, steps: Sequence[Step], loaded: LoadedModel) -> str | None:
    """Return why this engine cannot run this model, and the fix, or None."""
    if not engine.is_here:
        return not_here(engine)
    dtype = computes_in(steps, loaded)
    if dtype not in engine.dtypes:
        return f"{engine.engine} computes in {', '.join(engine.dtypes)}, not in {dtype}"
    return None


def not_stored(engine: EngineDescription, name: str, loaded: LoadedModel) -> str | None:
    """Return why a run in the model's dtype cannot hold this engine's logits, and the fix, or
    None.
    """
    if not engine.logits or engine.logits == loaded.dtype:
        return None
    short = next((key for key, dtype in _DTYPES.items() if dtype == loaded.dtype), "f32")
    way = f"--dtype {engine.logits} --reference prefill+dtype:{loaded.dtype}"
    if "weights" in engine.modifiers:
        way += f" --variant {name}+weights:{short}"
    return (
        f"{engine.engine} gives its logits in {engine.logits}, which {loaded.dtype} cannot hold;"
        f" capture with {way}"
    )


def parts_of(name: str, dtype: str) -> str:
    """Return an engine's description of the parts of a side, "weights float32, kv float16"; "" if
    it has none.
    """
    return _parts.get((name, dtype), "")


class EngineRun:
    """One engine with a model loaded.

    Calling it runs a prompt. trace: takes the outputs of its modules.
    """

    def __init__(
        self,
        name: str,
        engine: EngineDescription,
        steps: tuple[Step, ...],
        loaded: LoadedModel,
        trace: ModuleTrace | None = None,
    ) -> None:
        self._name, self._engine, self._loaded, self._trace = name, engine, loaded, trace
        modules = [] if trace is None else list(trace.modules)
        if modules and not engine.shows_modules:
            raise CaptureError(f"path '{name}': {engine.engine} does not send module outputs.")
        base, *modifiers = steps
        dtype = computes_in(modifiers, loaded)
        self._process = registry.running(
            engine.name,
            {
                "model": str(self._model(modifiers, dtype)),
                "dtype": dtype,
                "base": [base.name, *base.values],
                "modifiers": {
                    step.name: step.values[0] if step.values else True for step in modifiers
                },
                "modules": modules,
            },
        )
        about = self._process.about
        parts = about.get("parts")
        words = (
            [f"{part} {dtype}" for part, dtype in parts.items()] if isinstance(parts, dict) else []
        )
        _parts[name, loaded.dtype] = printable(", ".join(words))[:200]
        if about["vocab"] < loaded.vocab_size:
            raise CaptureError(
                f"path '{name}': {engine.engine} has {about['vocab']} tokens, the model"
                f" {loaded.vocab_size}; it runs another model.",
            )

    def __call__(self, token_ids: Sequence[int], emit: Emit) -> None:
        """Send `emit` the logits of a prompt's token ids; CaptureError at a gap."""
        done, is_whole = 0, False
        try:
            for rows in self._process.run([int(token) for token in token_ids]):
                if rows.module:
                    self._hand_in(rows, len(token_ids))
                    continue
                if rows.start != done or done + len(rows.bits) > len(token_ids):
                    raise CaptureError(
                        f"path '{self._name}': got positions {rows.start} to"
                        f" {rows.start + len(rows.bits) - 1}; expected {done} of {len(token_ids)}.",
                    )
                emit(done, self._logits(rows))
                done += len(rows.bits)
            is_whole = done == len(token_ids)
            if not is_whole:
                raise CaptureError(
                    f"path '{self._name}': got {done} positions; expected {len(token_ids)}.",
                )
        finally:
            if not is_whole:
                registry.drop(self._process)

    def _model(self, modifiers: Sequence[Step], dtype: str) -> Path:
        """Return the file or folder for the engine to load: the model's own, or a GGUF of the same
        weights.
        """
        own = Path(self._loaded.name)
        if any(step.name == "weights" and step.values == (OWN,) for step in modifiers):
            if own.exists():
                return own.resolve()
            raise CaptureError(
                f"path '{self._name}': the model has no local file; leave weights:own out.",
            )
        return (
            gguf_of(self._loaded, dtype)
            if self._engine.model == "gguf"
            else folder_of(self._loaded)
        )

    def _hand_in(self, rows: EngineRows, positions: int) -> None:
        """Pass the output of a module to the trace."""
        if self._trace is None or rows.module not in self._trace.modules:
            return
        if not 0 <= rows.start < rows.start + len(rows.bits) <= positions:
            raise CaptureError(
                f"path '{self._name}': got '{rows.module}' for positions {rows.start} to"
                f" {rows.start + len(rows.bits) - 1} of {positions}.",
            )
        self._trace.hand_in(
            rows.module,
            _tensor(rows.bits, rows.dtype).to(self._loaded.device),
            rows.start,
        )

    def _logits(self, rows: EngineRows) -> torch.Tensor:
        """Return rows on the model's device, in its dtype if that is exact; a padded vocabulary is
        cut.
        """
        bits = rows.bits[:, : self._loaded.vocab_size]
        if bits.shape[1] != self._loaded.vocab_size:
            raise CaptureError(
                f"path '{self._name}': got rows of {bits.shape[1]} logits; expected"
                f" {self._loaded.vocab_size}, the vocabulary.",
            )
        logits = _tensor(bits, rows.dtype).to(self._loaded.device)
        if logits.dtype == self._loaded.torch_dtype:
            return logits
        converted: Any = logits.to(self._loaded.torch_dtype)
        is_exact = torch.equal(converted.to(logits.dtype), logits) and torch.promote_types(
            logits.dtype,
            converted.dtype,
        ) in (logits.dtype, converted.dtype)
        return converted if is_exact else logits


def _tensor(bits: NDArray[np.unsignedinteger], dtype: str) -> torch.Tensor:
    """Return a copy of the bits as a tensor."""
    return torch.from_numpy(np.array(bits).view(f"i{bits.itemsize}")).view(getattr(torch, dtype))
