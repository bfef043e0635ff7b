"""Runs in Python: opened, or compared in memory; shown in a notebook, as tables and as figures."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .command_name import UNSTORED
from .document.page import html_cell, html_file
from .errors import DumpError, ExtraError, UsageError
from .judging.ingest import temporary_run
from .judging.stored import explain_pair
from .numerics.arrays import Record
from .rl.formats import files_in
from .rl.queries import figures_of
from .runs.dumps.arrays import foreign_errors
from .runs.dumps.shapes import HOLDS, LOGITS, PADDED, VALUES
from .runs.dumps.torch_files import as_array
from .runs.importing import check_schema, is_run_file
from .runs.queries import caches, choices, flips, kernels, layers
from .runs.reader import RunReader
from .runs.reports.issue_markdown import gravest_first
from .runs.reports.report_json import of_variant
from .runs.store.store import open_store
from .text import clean, legible, plural
from .verdict import Verdict

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go
    from numpy.typing import ArrayLike
    from torch import Tensor

_IN_MEMORY = "arrays.npz"


def _pairs(run: RunReader) -> list[Record]:
    rows = map(asdict, run.pairs)
    return [row | row.pop("summary") for row in rows]


def _distances(run: RunReader, pair: int) -> Record:
    histogram = run.histogram(pair)
    return {"distance": histogram.keys(), "elements": histogram.values()}


_OF_RUN: dict[str, Callable[[RunReader], Any]] = {
    "pairs": _pairs,
    "sides": lambda run: [asdict(side) for side in run.sides],
    "rollouts": lambda run: figures_of(run) if run.has_rollouts else [],
    "continuations": flips.continuations,
}
_OF_PAIR: dict[str, Callable[[RunReader, int], Any]] = {
    "positions": RunReader.positions,
    "flips": flips.flip_table,
    "checks": lambda run, pair: [row.to_json() for row in run.evidence(pair)],
    "ulps": _distances,
    "modules": layers.modules,
    "choices": choices.by_module,
    "kernels": kernels.side_by_side,
    "kv": lambda run, pair: caches.merge(run, pair, None, "layer", "kind", "head"),
    "mitigations": lambda run, pair: run.mitigations.get(pair, []),
}


class Run:
    """A run that is open; a notebook shows verdict, checks, tokens and flips. reader: figures and
    logits by position, and `query` for the tables of docs/reference/run_file.md.
    """

    def __init__(self, reader: RunReader) -> None:
        self.reader = reader

    def __repr__(self) -> str:
        run = self.reader
        parts = [] if run.run_id == UNSTORED else [run.run_id]
        for pair, answer in gravest_first(run, run.pairs):
            parts.append(f"{pair.variant}: {answer.name}")
        return legible(", ".join(parts))

    def _repr_html_(self) -> str:
        return html_cell(self.reader)

    @property
    def verdict(self) -> Verdict:
        """Verdict of the variant with the gravest one, with its checks, as `judge` returns it."""
        pair, answer = gravest_first(self.reader, self.reader.pairs)[0]
        about = answer.name, answer.sentence, answer.checks, pair.noise_ratio, pair.first_place
        return Verdict(*about, pair=pair.index)

    def html(self) -> str:
        """Return the run as one HTML file."""
        return html_file(self.reader, explain_pair)

    def to_pandas(self, table: str = "positions") -> pd.DataFrame:
        """Return a table: positions, flips, checks, ulps, modules, choices, kernels, kv or
        mitigations of every `variant`; or pairs, sides, rollouts (trainer vs. rollout) or
        continuations. No rows if the run has none.
        """
        import pandas as pd

        run = self.reader
        if table in _OF_RUN:
            return pd.DataFrame(_OF_RUN[table](run))
        if table not in _OF_PAIR:
            raise UsageError(f"no table '{table}'; there are {', '.join([*_OF_PAIR, *_OF_RUN])}.")
        read = _OF_PAIR[table]
        of_pair = {pair.variant: pd.DataFrame(read(run, pair.index)) for pair in run.pairs}
        return pd.concat(of_pair, names=["variant"]).reset_index("variant").reset_index(drop=True)

    def figure(
        self,
        name: str = "margins",
        variant: str | None = None,
        prompt: int | None = None,
    ) -> go.Figure:
        """Return a figure: margins, positions, ulps, noise floor, modules or choices; ratios,
        density or steps of trainer vs. rollout. variant: the one with the gravest verdict if None;
        prompt: of `positions`, `noise floor` and `choices`, the one with the most telling position
        if None.
        """
        try:
            from .plots.of_run import figure_of
        except ModuleNotFoundError as error:
            raise ExtraError("figures need plotly: pip install 'ulpscope[notebook]'.") from error

        run = self.reader
        ranked = [pair for pair, _ in gravest_first(run, run.pairs)]
        pair = of_variant(ranked, variant)[0].index
        prompts = len(run.header.prompts)
        if prompt is None:
            read = run.largest if run.header.is_long else run.positions
            prompt, _ = flips.telling_place(read(pair))
        if not 0 <= prompt < prompts:
            raise UsageError(
                f"no prompt {prompt}; the run has {plural(prompts, 'prompt')}, counted from 0.",
            )
        return figure_of(run, name, pair, prompt)


def open(
    *names: str | Path,
    store: str | Path | None = None,
    compute_dtype: str | None = None,
    reference: str | None = None,
    holds: str | None = None,
) -> Run:
    """Open a stored run by its id or the beginning of one, a run file, or files that `ulpscope
    compare` reads.

    Args:
        store: folder or URL of the runs; default: ULPSCOPE_STORE, then `runs/`.
        compute_dtype, reference, holds: of files, as of `ulpscope compare`.
    """
    if not names:
        raise UsageError("ulpscope.open needs a run id or files.")
    taken_as = {"compute_dtype": compute_dtype, "reference": reference, "holds": holds}
    path = Path(names[0])
    if len(names) != 1 or path.is_dir() or (path.is_file() and not is_run_file(path)):
        return Run(_reader_of(files_in(names), **taken_as))
    if any(taken_as.values()):
        raise UsageError(
            "compute_dtype, reference and holds are for files of logits; a stored run has its own.",
        )
    if path.is_file():
        check_schema(path)
    else:
        path = open_store(store).path_of(str(names[0]))
    return Run(RunReader(path))


def compare(
    reference: ArrayLike | Tensor,
    variant: ArrayLike | Tensor,
    *,
    compute_dtype: str | None = None,
    holds: str | None = None,
    **more: ArrayLike | Tensor,
) -> Run:
    """Compare logits in memory; nothing is stored.

    Args:
        reference, variant: [positions, vocab] or [prompts, positions, vocab], in the dtype that
            they were computed in; a tuple of [sequences, vocab] is the steps of `generate`, a list
            of [positions, vocab] has prompts.
        compute_dtype: of arrays of 16-bit patterns, or if it is not the arrays' own.
        holds: "padded" compares padded vocabularies over the tokens that all sides have; "logits"
            takes what looks like log-probabilities of chosen tokens for logits; "values" compares
            [rows, n] or [rows] that are no logits: embeddings, hidden states, scores.
        more: what else a dump holds (docs/guides/upload.md): `token_ids`, `tokens` (texts),
            `prompt_lengths`, `exact` (the exact result of 16-bit sides); under any other name a
            further variant.
    """
    given = {"reference": reference, "variant": variant, **more}
    arrays = {name: _array(name, each) for name, each in given.items()}
    with tempfile.TemporaryDirectory(prefix="ulpscope-") as folder:
        dump = Path(folder) / _IN_MEMORY
        np.savez(dump, **arrays)
        return Run(_reader_of([dump], compute_dtype=compute_dtype, holds=holds))


def _reader_of(files: Sequence[Path], **taken_as: Any) -> RunReader:
    """Return the run that files make, open.

    Its own file has no name any more: closed or killed, it leaves nothing.
    """
    try:
        with temporary_run(files, **taken_as) as run:
            return RunReader(run.path)
    except DumpError as error:
        says = str(error).removeprefix(f"{_IN_MEMORY}: ")
        for word in (LOGITS, PADDED, VALUES):
            says = says.replace(HOLDS.format(word), f"holds='{word}'")
        raise DumpError(says) from None


def _array(name: str, values: Any) -> Any:
    """Return an array, or the values of a tensor, bfloat16 as V2."""
    if isinstance(values, str | Path):
        raise UsageError(f"'{name}' is a file name; ulpscope.open('{values}', ...) reads files.")
    if hasattr(values, "keys"):
        fields = ", ".join(map(str, values.keys()))
        raise UsageError(
            f"'{name}' is a {type(values).__name__}; pass one of its fields: {clean(fields, 120)}.",
        )
    is_list = isinstance(values, list | tuple) and values
    if is_list and all(hasattr(each, "shape") for each in values):
        # the prompts of a list, or the steps of a tuple as `generate` returns them
        arrays = [_array(name, each) for each in values]
        forms = sorted({f"{each.shape} {each.dtype}" for each in arrays})
        if len(forms) > 1:
            raise UsageError(
                f"'{name}' has parts of {forms[0]} and {forms[1]}; pass parts of one shape and"
                " dtype.",
            )
        # steps of arrays with fewer axes are rows
        axes = arrays[0].ndim if isinstance(values, tuple) else 0
        if axes > 2:
            raise UsageError(
                f"'{name}' is a tuple of {len(values)} arrays {forms[0]}, as of layers; pass"
                " logits.",
            )
        return np.stack(arrays, axis=int(axes == 2))
    with foreign_errors(f"'{name}'", "an array or a tensor of numbers"):
        if not hasattr(values, "detach"):
            array = np.asarray(values)
            if array.dtype == object:
                kind = type(array.flat[0]).__name__
                raise UsageError(
                    f"'{name}' holds {kind} objects, not numbers; write responses by"
                    " json.dump(responses, file, default=vars) and pass the files to"
                    " ulpscope.open.",
                )
            if not array.ndim:
                raise UsageError(f"'{name}' is {values!r}: no array, and no option of compare.")
            return array
        dtype = str(values.dtype).removeprefix("torch.")
        if dtype.startswith("float8"):
            raise DumpError(f"'{name}' is {dtype}; pass it upcast: x.to(torch.bfloat16).")
        return as_array(values.cpu())
