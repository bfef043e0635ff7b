"""`layers`: what the modules of a captured run put out on both sides: which differs first, and how that grows."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ..errors import UsageError
from ..runs.reader import RunReader, StoredPair
from ..runs.store.store import open_store
from ..runs.views.layers import (
    NARROW,
    LayerSummary,
    ModuleFigures,
    count_at_first,
    layers_json,
    modules_of,
    says_little,
    summary_of,
)
from ..runs.views.request import asks_for, how_to_have
from ..text import number, out_of, percent, plural
from .terminal.console import JsonOption, StoreOption, out, print_json


def layers(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Id of a run, or a unique beginning of it.")],
    variant: Annotated[str | None, typer.Option(help="This variant only. Default: every one.")] = None,
    prompt: Annotated[int | None, typer.Option(help="This prompt only, 0-based. Default: all together.")] = None,
    blocks: Annotated[bool, typer.Option("--blocks", help="Only the stream after each block, and the logits.")] = False,
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Print which module's output differs first, and each module's difference beside its rounding floor.

    The run has to be captured with --layers:  ulpscope capture ... --layers
    """
    with RunReader(open_store(store).path_of(run_id)) as run:
        pairs = [pair for pair in run.pairs if variant in (None, pair.variant)]
        if not pairs:
            raise UsageError(f"no variant '{variant}'; there are {', '.join(pair.variant for pair in run.pairs)}.")
        if prompt is not None and not 0 <= prompt < len(run.header.prompts):
            raise UsageError(f"no prompt {prompt}; the run has 0 to {len(run.header.prompts) - 1}.")
        found = [(pair, layers_json(run, pair.index, prompt)) for pair in pairs]
        if all(figures is None for _, figures in found):
            if asks_for(run.header.provenance, "layers"):
                raise UsageError(
                    f"run '{run.run_id}' holds no outputs of modules: a compiler makes the kernels of its variants."
                )
            raise UsageError(
                f"run '{run.run_id}' holds no outputs of modules; {how_to_have('layers', run.header.provenance)}."
            )
        if as_json_:
            print_json({"run_id": run.run_id, "pairs": [figures for _, figures in found if figures is not None]})
            return
        for pair, figures in found:
            if figures is None:
                out.print(f"{pair.variant}: no outputs of modules; a compiler makes its kernels.", markup=False)
            else:
                _print_pair(run, pair, prompt, blocks)


def _print_pair(run: RunReader, pair: StoredPair, prompt: int | None, blocks: bool) -> None:
    table = run.layers(pair.index)
    table = table if prompt is None else table[table["prompt"] == prompt]
    modules = modules_of(table)
    summary = summary_of(modules)
    assert summary is not None
    names_prompt = len(run.header.prompts) > 1 and prompt is None
    shown = Table(title=f"{escape(pair.variant)} against {escape(pair.reference)}, {_where(run, summary, prompt)}")
    for column in (
        "module",
        "kind",
        "differ",
        "rms",
        "floor",
        "rms / floor",
        "max ULPs",
        "mean ULPs",
        "max row ULPs",
        "of",
        "first position",
    ):
        shown.add_column(column, justify="left" if column in ("module", "kind", "of") else "right", overflow="fold")
    for each in modules:
        if not blocks or each.kind in ("residual", "head"):
            shown.add_row(*_row(each, names_prompt))
    out.print(shown)
    counted = count_at_first(run, pair.index, summary.first)
    out.print(_sentence(summary, names_prompt, counted), markup=False, soft_wrap=True)


def _row(each: ModuleFigures, names_prompt: bool) -> list[str]:
    first = "" if each.first_position is None else f"{each.first_position}"
    return [
        escape(each.module),
        each.kind,
        percent(each.neq_share) if each.neq else "none",
        "NaN" if each.rms != each.rms else number(each.rms, 3),
        _known(each.floor_rms),
        _known(each.ratio),
        _known(each.max_ulps),
        _known(each.mean_ulps),
        "" if each.max_row_ulps is None else number(each.max_row_ulps, 3),
        each.dtype,
        f"{each.first_prompt}:{first}" if names_prompt and first else first,
    ]


def _known(value: float | None) -> str:
    """Blank if there is none: no floor was run, or nothing is finite."""
    if value == float("inf"):
        return "the floor is 0"
    return "" if value is None else number(value, 3)


def _where(run: RunReader, summary: LayerSummary, prompt: int | None) -> str:
    prompts = run.header.prompts if prompt is None else run.header.prompts[prompt : prompt + 1]
    total = sum(one.positions for one in prompts)
    if total == 1:
        return "its one position"
    return f"all {total:,} positions" if summary.positions == total else f"{summary.positions:,} of {total:,} positions"


def _sentence(summary: LayerSummary, names_prompt: bool, counted: tuple[int, int]) -> str:
    first = summary.first
    if first is None:
        return f"No module differs: {plural(summary.modules, 'output')}, equal on both sides."
    prompt = f"prompt {first.first_prompt}, " if names_prompt else ""
    said = (
        f"First to differ: {first.module} ({first.kind}), at {prompt}position {first.first_position}: "
        f"{out_of(*counted)} elements there. Overall {percent(summary.last.neq_share)} of {summary.last.module} differ."
    )
    if summary.largest is not None:
        said += f" Highest ratio to the noise floor: {summary.largest.module}, {number(summary.largest.ratio, 3)}x."
    if summary.largest is not None and (summary.largest.ratio or 0) > 1 and summary.largest.dtype in NARROW:
        said += f" {says_little(summary.largest.dtype)}"
    return said
