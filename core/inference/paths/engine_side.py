"""Sides of another engine: its rows as checked tensors, from a process that stays up for the next
prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

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
        trace: ModuleTrace | None,
    ) -> None:
        self._name, self._loaded, self._trace = name, loaded, trace
        modules = [] if trace is None else list(trace.modules)
        if modules and not engine.shows_modules:
            raise CaptureError(f"path '{name}': {engine.engine} does not send module outputs.")
        base, *modifiers = steps
        dtype = computes_in(modifiers, loaded)
        model = Path(loaded.name)
        if Step("weights", (OWN,)) in modifiers:
            if not model.exists():
                raise CaptureError(
                    f"path '{name}': the model has no local file; leave weights:own out.",
                )
            model = model.resolve()
        else:
            model = gguf_of(loaded, dtype) if engine.model == "gguf" else folder_of(loaded)
        self._process = registry.running(
            engine.name,
            {
                "model": str(model),
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
        if isinstance(parts, dict):
            words = ", ".join(f"{part} {dtype}" for part, dtype in parts.items())
            _parts[name, loaded.dtype] = printable(words)[:200]
        if about["vocab"] < loaded.vocab_size:
            raise CaptureError(
                f"path '{name}': {engine.engine} has {about['vocab']} tokens, the model"
                f" {loaded.vocab_size}; it runs another model.",
            )

    def __call__(self, token_ids: Sequence[int], emit: Emit) -> None:
        """Send `emit` the logits of a prompt's token ids; CaptureError at a gap."""
        done = 0
        count = len(token_ids)
        try:
            for rows in self._process.run(token_ids):
                stop = rows.start + len(rows.bits)
                if not rows.module:
                    if rows.start != done or stop > count:
                        raise CaptureError(
                            f"path '{self._name}': got positions {rows.start} to {stop - 1};"
                            f" expected {done} of {count}.",
                        )
                    emit(done, self._logits(rows))
                    done = stop
                elif self._trace is not None and rows.module in self._trace.modules:
                    if not 0 <= rows.start < stop <= count:
                        raise CaptureError(
                            f"path '{self._name}': got '{rows.module}' for positions {rows.start}"
                            f" to {stop - 1} of {count}.",
                        )
                    self._trace.hand_in(rows.module, self._tensor(rows), rows.start)
            if done < count:
                raise CaptureError(f"path '{self._name}': got {done} positions; expected {count}.")
        except BaseException:
            # also after Ctrl-C: it would send rows of this prompt next
            registry.drop(self._process)
            raise

    def _logits(self, rows: EngineRows) -> Tensor:
        """Return rows in the model's dtype if that is exact; a padded vocabulary is cut."""
        vocab = self._loaded.vocab_size
        logits = self._tensor(rows)[:, :vocab]
        if logits.shape[1] != vocab:
            raise CaptureError(
                f"path '{self._name}': got rows of {logits.shape[1]} logits; expected {vocab}, the"
                " vocabulary.",
            )
        converted = logits.to(self._loaded.torch_dtype)
        wider = torch.promote_types(logits.dtype, converted.dtype)
        is_exact = torch.equal(converted.to(logits.dtype), logits)
        return converted if is_exact and wider in (logits.dtype, converted.dtype) else logits

    def _tensor(self, rows: EngineRows) -> Tensor:
        """Return a copy of the bits as a tensor on the model's device."""
        integers = np.array(rows.bits).view(f"i{rows.bits.itemsize}")
        values = torch.from_numpy(integers).view(getattr(torch, rows.dtype))
        return values.to(self._loaded.device)
