"""Runs in Python: opened, or compared in memory; shown in a notebook, as tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .document.page import html_file
from .judging.ingest import compare_arrays, temporary_run
from .runs.dumps.arrays import foreign_errors
from .runs.importing import check_schema, is_run_file
from .runs.reader import RunReader
from .runs.rollouts.files import files_in
from .runs.store.store import open_store

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from torch import Tensor


class Run:
    """A run that is open.

    Args:
        reader: reads its figures, its logits, and by `query` any table of docs/reference/run_file.md.
    """

    def __init__(self, reader: RunReader) -> None:
        self.reader = reader

    def html(self) -> str:
        """Return the run as one HTML file."""
        return html_file(self.reader)


def open(*names: str | Path, store: str | Path | None = None, **taken_as: Any) -> Run:
    """Open a stored run, a run file, or what `ulpscope compare` reads: a dump, two of them, responses.

    Args:
        names: a run id or the beginning of one, or files.
        store: folder or URL of the runs; default: ULPSCOPE_STORE, then `runs/`.
        taken_as: compute_dtype, reference and holds of a dump, as of `ulpscope compare`.

    Raises:
        StoreError: no such run.
        DumpError: a file cannot be read as logits.
    """
    paths = [Path(name) for name in names]
    if len(paths) != 1 or paths[0].is_dir() or (paths[0].is_file() and not is_run_file(paths[0])):
        return Run(temporary_run(files_in(paths), **taken_as))
    if not paths[0].is_file():
        return Run(RunReader(open_store(store).path_of(str(names[0]))))
    check_schema(paths[0])
    return Run(RunReader(paths[0]))


def compare(reference: ArrayLike | Tensor, variant: ArrayLike | Tensor, **more: ArrayLike | Tensor) -> Run:
    """Compare logits in memory; nothing is stored.

    Args:
        reference, variant: [positions, vocab] or [prompts, positions, vocab], arrays or tensors in the dtype in which
            they were computed.
        more: what else a dump holds (docs/guides/upload.md): `token_ids`, `tokens` (texts), `prompt_lengths`,
            `compute_dtype`; under any other name, further variants.

    Raises:
        DumpError: they cannot be read as logits, or their shapes differ.
    """
    given = {"reference": reference, "variant": variant, **more}
    return Run(compare_arrays({name: _array(name, values) for name, values in given.items()}))


def _array(name: str, values: Any) -> NDArray[Any]:
    """Return an array, or the values of a tensor, bfloat16 as V2."""
    with foreign_errors(f"arrays: '{name}'", "an array or a tensor of numbers"):
        if type(values).__module__.partition(".")[0] != "torch":
            return np.asarray(values)
        import torch

        values = values.detach().cpu()
        return values.view(torch.int16).numpy().view("V2") if values.dtype is torch.bfloat16 else values.numpy()
