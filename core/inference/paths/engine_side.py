"""Sides of another engine: its rows as checked tensors, from a process that stays up for the next
prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

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
from .batch import Emit, Run
from .hooks import ModuleTrace

if TYPE_CHECKING:
    from .paths import Path

_DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_parts: dict[tuple[str, str], str] = {}  # by the name of a side and the dtype of its last model
OWN = "own"  # weights as in the file


def computes_in(path: Path, loaded: LoadedModel) -> str:
    """Return the dtype of the engine's weights: that of `weights:`, else the run's."""
    (weights,) = path.settings.get("weights", ("",))
    return _DTYPES.get(str(weights), loaded.dtype)


def not_here(engine: EngineDescription) -> str:
    """Return the sentence on an engine that is not installed."""
    return (
        f"{engine.engine} is not installed for this interpreter; name another by --engine"
        " (`engines` lists them)"
    )


def refusal(path: Path, engine: EngineDescription, loaded: LoadedModel) -> str | None:
    """Return why the engine of this path cannot run this model, and the fix, or None."""
    if not engine.is_here:
        return not_here(engine)
    dtype = computes_in(path, loaded)
    if dtype not in engine.dtypes:
        return f"{engine.engine} computes in {', '.join(engine.dtypes)}, not in {dtype}"
    return None


def not_stored(path: Path, loaded: LoadedModel) -> str | None:
    """Return why a run in the model's dtype cannot hold this engine's logits, and the fix, or
    None.
    """
    engine = path.engine
    if engine is None or engine.logits in ("", loaded.dtype):
        return None
    short = next((key for key, dtype in _DTYPES.items() if dtype == loaded.dtype), "f32")
    way = f"--dtype {engine.logits} --reference prefill+dtype:{loaded.dtype}"
    if "weights" in engine.modifiers:
        way += f" --variant {path}+weights:{short}"
    return (
        f"{engine.engine} gives its logits in {engine.logits}, which {loaded.dtype} cannot hold;"
        f" capture with {way}"
    )


def parts_of(name: str, dtype: str) -> str:
    """Return an engine's description of the parts of a side, "weights float32, kv float16"; "" if
    it has none.
    """
    return _parts.get((name, dtype), "")


def engine_run(path: Path, loaded: LoadedModel, trace: ModuleTrace | None) -> Run:
    """Load a model into the engine of a path. The run sends `emit` the logits of a prompt's token
    ids, and the trace the outputs of its modules; CaptureError at a gap.
    """
    engine = path.engine
    assert engine is not None
    modules = [] if trace is None else list(trace.modules)
    if modules and not engine.shows_modules:
        raise CaptureError(f"path '{path}': {engine.engine} does not send module outputs.")
    dtype = computes_in(path, loaded)
    model = FilePath(loaded.name)
    if Step("weights", (OWN,)) in path.modifiers:
        if not model.exists():
            raise CaptureError(
                f"path '{path}': the model has no local file; leave weights:own out.",
            )
        model = model.resolve()
    else:
        model = gguf_of(loaded, dtype) if engine.model == "gguf" else folder_of(loaded)
    process = registry.running(
        engine.name,
        {
            "model": str(model),
            "dtype": dtype,
            "base": [path.base.name, *path.base.values],
            "modifiers": {
                name: values[0] if values else True for name, values in path.settings.items()
            },
            "modules": modules,
        },
    )
    parts = process.about.get("parts")
    if isinstance(parts, dict):
        words = ", ".join(f"{part} {dtype}" for part, dtype in parts.items())
        _parts[str(path), loaded.dtype] = printable(words)[:200]
    vocab = loaded.vocab_size
    if process.about["vocab"] < vocab:
        raise CaptureError(
            f"path '{path}': {engine.engine} has {process.about['vocab']} tokens, the model"
            f" {vocab}; it runs another model.",
        )

    def logits_of(rows: EngineRows) -> Tensor:
        """Return rows in the model's dtype if that is exact; a padded vocabulary is cut."""
        logits = _tensor(rows, loaded)[:, :vocab]
        if logits.shape[1] != vocab:
            raise CaptureError(
                f"path '{path}': got rows of {logits.shape[1]} logits; expected {vocab}, the"
                " vocabulary.",
            )
        converted = logits.to(loaded.torch_dtype)
        wider = torch.promote_types(logits.dtype, converted.dtype)
        is_exact = torch.equal(converted.to(logits.dtype), logits)
        return converted if is_exact and wider in (logits.dtype, converted.dtype) else logits

    def run(token_ids: Sequence[int], emit: Emit) -> None:
        done = 0
        count = len(token_ids)
        try:
            for rows in process.run(token_ids):
                stop = rows.start + len(rows.bits)
                if not rows.module:
                    if rows.start != done or stop > count:
                        raise CaptureError(
                            f"path '{path}': got positions {rows.start} to {stop - 1}; expected"
                            f" {done} of {count}.",
                        )
                    emit(done, logits_of(rows))
                    done = stop
                elif trace is not None and rows.module in modules:
                    if not 0 <= rows.start < stop <= count:
                        raise CaptureError(
                            f"path '{path}': got '{rows.module}' for positions {rows.start} to"
                            f" {stop - 1} of {count}.",
                        )
                    trace.hand_in(rows.module, _tensor(rows, loaded), rows.start)
            if done < count:
                raise CaptureError(f"path '{path}': got {done} positions; expected {count}.")
        except BaseException:
            # also after Ctrl-C: it would send rows of this prompt next
            process.end()
            raise

    return run


def _tensor(rows: EngineRows, loaded: LoadedModel) -> Tensor:
    """Return a copy of the bits as a tensor on the model's device."""
    integers = np.array(rows.bits).view(f"i{rows.bits.itemsize}")
    return torch.from_numpy(integers).view(getattr(torch, rows.dtype)).to(loaded.device)
