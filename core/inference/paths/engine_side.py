"""Sides of another engine: its rows as tensors, checked, in a process that is kept for the next prompt."""

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
from ...text import printable
from ..models.engine_files import folder_of, gguf_of
from ..models.model import LoadedModel
from .batch import Emit
from .grammar import Step
from .hooks import ModuleTrace

_SIGNED = {"float16": np.int16, "bfloat16": np.int16, "float32": np.int32, "float64": np.int64}
_DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_parts: dict[tuple[str, str], str] = {}  # by a side's name and the dtype of the model that it last ran
OWN = "own"  # weights as they stand in the file


def computes_in(steps: Sequence[Step], loaded: LoadedModel) -> str:
    """The dtype of the engine's weights: as `weights:` says, else the run's."""
    asked = next((str(step.values[0]) for step in steps if step.name == "weights"), "")
    return _DTYPES.get(asked, loaded.dtype)


def not_here(engine: EngineDescription) -> str:
    """Sentence on an engine that its interpreter has not."""
    return f"{engine.engine} is not installed for this interpreter; see `engines`, or name one by --engine"


def refusal(engine: EngineDescription, steps: Sequence[Step], loaded: LoadedModel) -> str | None:
    """Reason why this engine cannot run this model, and what to do about it, or None."""
    if not engine.is_here:
        return not_here(engine)
    dtype = computes_in(steps, loaded)
    if dtype not in engine.dtypes:
        return f"{engine.engine} computes in {', '.join(engine.dtypes)}, not in {dtype}"
    return None


def not_stored(engine: EngineDescription, name: str, loaded: LoadedModel) -> str | None:
    """Reason why a run in the model's dtype cannot hold this engine's logits bit for bit, and what to do, or None."""
    if not engine.logits or engine.logits == loaded.dtype:
        return None
    short = next((key for key, dtype in _DTYPES.items() if dtype == loaded.dtype), "f32")
    way = f"--dtype {engine.logits} --reference prefill+dtype:{loaded.dtype}"
    if "weights" in engine.modifiers:
        way += f" --variant {name}+weights:{short}"
    return f"{engine.engine} gives its logits in {engine.logits}, which {loaded.dtype} cannot hold; capture with {way}"


def parts_of(name: str, dtype: str) -> str:
    """An engine's word on the parts of a side in a dtype, "weights float32, kv float16"; "" if it said nothing."""
    return _parts.get((name, dtype), "")


class EngineRun:
    """One engine made ready for a model. Calling it runs a prompt. trace: takes what its modules put out."""

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
            raise CaptureError(f"path '{name}': {engine.engine} shows nothing of its modules.")
        base, *modifiers = steps
        dtype = computes_in(modifiers, loaded)
        self._process, self.said = registry.running(
            engine.name,
            {
                "model": str(self._model(modifiers, dtype)),
                "dtype": dtype,
                "base": [base.name, *base.values],
                "modifiers": {step.name: step.values[0] if step.values else True for step in modifiers},
                "modules": modules,
            },
        )
        parts = self.said.get("parts")
        words = [f"{part} {dtype}" for part, dtype in parts.items()] if isinstance(parts, dict) else []
        _parts[name, loaded.dtype] = printable(", ".join(words))[:200]
        if self.said["vocab"] < loaded.vocab_size:
            raise CaptureError(
                f"path '{name}': {engine.engine} has {self.said['vocab']} tokens where the model has"
                f" {loaded.vocab_size}; it runs another model."
            )

    def __call__(self, token_ids: Sequence[int], emit: Emit) -> None:
        """Hand `emit` the logits of a prompt's token ids, as far as they come without a gap."""
        done, is_whole = 0, False
        try:
            for rows in self._process.run([int(token) for token in token_ids]):
                if rows.module:
                    self._hand_in(rows, len(token_ids))
                    continue
                if rows.start != done or done + len(rows.bits) > len(token_ids):
                    raise CaptureError(
                        f"path '{self._name}': positions {rows.start} to {rows.start + len(rows.bits) - 1} came where"
                        f" {done} was expected, of {len(token_ids)}."
                    )
                emit(done, self._logits(rows))
                done += len(rows.bits)
            is_whole = done == len(token_ids)
            if not is_whole:
                raise CaptureError(f"path '{self._name}': {done} positions came, expected {len(token_ids)}.")
        finally:
            if not is_whole:
                registry.drop(self._process)

    def _model(self, modifiers: Sequence[Step], dtype: str) -> Path:
        """File or folder that the engine loads: the model's own file or folder, or a GGUF of the very weights."""
        own = Path(self._loaded.name)
        if any(step.name == "weights" and step.values == (OWN,) for step in modifiers):
            if own.exists():
                return own.resolve()
            raise CaptureError(f"path '{self._name}': the model has no file of its own here; leave weights:own out.")
        return gguf_of(self._loaded, dtype) if self._engine.model == "gguf" else folder_of(self._loaded)

    def _hand_in(self, rows: EngineRows, positions: int) -> None:
        """Give the trace what a module put out."""
        if self._trace is None or rows.module not in self._trace.modules:
            return
        if not 0 <= rows.start < rows.start + len(rows.bits) <= positions:
            raise CaptureError(
                f"path '{self._name}': '{rows.module}' came for positions {rows.start} to"
                f" {rows.start + len(rows.bits) - 1} of {positions}."
            )
        self._trace.hand_in(rows.module, _tensor(rows.bits, rows.dtype).to(self._loaded.device), rows.start)

    def _logits(self, rows: EngineRows) -> torch.Tensor:
        """Rows on the model's device, in its dtype where that holds them; a padded vocabulary is cut."""
        bits = rows.bits[:, : self._loaded.vocab_size]
        if bits.shape[1] != self._loaded.vocab_size:
            raise CaptureError(
                f"path '{self._name}': rows of {bits.shape[1]} logits came; the vocabulary has"
                f" {self._loaded.vocab_size}."
            )
        logits = _tensor(bits, rows.dtype).to(self._loaded.device)
        if logits.dtype == self._loaded.torch_dtype:
            return logits
        narrowed: Any = logits.to(self._loaded.torch_dtype)
        is_exact = torch.equal(narrowed.to(logits.dtype), logits) and torch.promote_types(
            logits.dtype, narrowed.dtype
        ) in (logits.dtype, narrowed.dtype)
        return narrowed if is_exact else logits


def _tensor(bits: NDArray[np.unsignedinteger], dtype: str) -> torch.Tensor:
    """A copy of the bits as torch has them."""
    return torch.from_numpy(np.array(bits).view(_SIGNED[dtype])).view(getattr(torch, dtype))
