"""`kernels`: what a captured run holds of the kernels of its pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ..errors import UsageError
from ..runs.reader import RunReader, StoredPair
from ..runs.store.store import open_store
from ..runs.views.kernels import (
    KernelPair,
    KernelPlace,
    in_words,
    is_multiplied,
    place_in_words,
    records_of,
    side_by_side,
)
from ..runs.views.layers import kernels_where_it_starts
from ..runs.views.request import asks_for, how_to_have
from ..text import three_digits
from .terminal.console import JsonOption, StoreOption, out, print_json

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Id of a run, or a unique beginning of it.")]
VariantOption = Annotated[str | None, typer.Option(help="This variant only. Default: every one.")]


def kernels(
    run_id: RunArgument,
    variant: VariantOption = None,
    differing: Annotated[
        bool, typer.Option("--differing", help="Only kernels of one side, or launched more often by one.")
    ] = False,
    modules: Annotated[
        bool, typer.Option("--modules", help="A kernel apart for each kind of module in which it runs.")
    ] = False,
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Print what ran where two sides begin to differ, then which kernels each launched, side by side, and in which
    module.

    The run has to be captured with --kernels:  ulpscope capture ... --kernels
    """
    with RunReader(_path(store, run_id)) as run:
        found = []
        asked = _pairs(run, variant)
        for pair in asked:
            lists = run.kernels.get(0), run.kernels.get(pair.index + 1)
            if lists[0] is None or lists[1] is None:
                continue
            pairs = side_by_side(lists[0], lists[1], by_module=modules)
            shown = [each for each in pairs if not differing or each.only or is_multiplied(each)]
            names = (pair.reference, pair.variant)
            said = in_words(side_by_side(lists[0], lists[1]), names)  # of all, whatever is shown
            place = kernels_where_it_starts(run, pair.index)
            found.append((pair, shown, said, place))
        if not found:
            raise UsageError(f"run '{run.run_id}' holds no kernels; {_how(run, 'kernels', bool(run.kernels))}.")
        if as_json_:
            listed = [
                {
                    "reference": p.reference,
                    "variant": p.variant,
                    "where_it_starts": None if place is None else _record(place),
                    "kernels": records_of(rows),
                }
                for p, rows, _, place in found
            ]
            print_json({"run_id": run.run_id, "pairs": listed})
            return
        for pair, rows, said, place in found:
            out.print(_start(run, pair, place).replace("`", "'"), markup=False, soft_wrap=True)
            _print_kernels(pair, rows, said)
        _say_missing(asked, [pair for pair, *_ in found], "kernels")


def _path(store: str | Path | None, run_id: str) -> Path:
    return open_store(store).path_of(run_id)


def _pairs(run: RunReader, variant: str | None) -> list[StoredPair]:
    pairs = [pair for pair in run.pairs if variant in (None, pair.variant)]
    if not pairs:
        raise UsageError(f"no variant '{variant}'; there are {', '.join(pair.variant for pair in run.pairs)}.")
    return pairs


def _how(run: RunReader, extra: str, has_others: bool) -> str:
    """Clause on how to obtain what `extra` records; of a run that was asked for it or has it of other sides only, why
    it is missing.
    """
    about = run.header.provenance
    if has_others or asks_for(about, extra):
        return f"they were asked for and could not be had{f': {about.note}' if about.note else ''}".rstrip(".")
    return how_to_have(extra, about)


def _say_missing(pairs: list[StoredPair], found: list[StoredPair], what: str) -> None:
    for pair in pairs:
        if pair not in found:
            out.print(f"{pair.variant}: no {what}; they could not be had.", markup=False, soft_wrap=True)


def _start(run: RunReader, pair: StoredPair, place: KernelPlace | None) -> str:
    """The sentence on where the pair begins to differ, or on why there is none."""
    if place is not None:
        return place_in_words(place, (pair.reference, pair.variant), is_one_prompt=len(run.header.prompts) == 1)
    if run.layers(pair.index).empty:
        how = how_to_have("layers", run.header.provenance)
        return f"Where the two sides begin to differ is not in this run, which holds no outputs of modules; {how}"
    return "No module that was compared differs."


def _record(place: KernelPlace) -> dict[str, object]:
    return {
        "module": place.module,
        "prompt": place.prompt,
        "position": place.position,
        "kernels": records_of(place.pairs),
    }


def _print_kernels(pair: StoredPair, rows: list[KernelPair], said: str) -> None:
    shown = Table(title=f"Launches a forward, {escape(pair.reference)} and {escape(pair.variant)}")
    for column in ("kernel", "by", "in", "reference", "variant", "ratio", "µs", "µs"):
        shown.add_column(column, justify="left" if column in ("kernel", "by", "in") else "right", overflow="fold")
    for each in rows:
        shown.add_row(
            escape(each.name),
            each.library,
            escape("; ".join(place or "the model itself" for place in each.places[:2])),
            f"{each.reference_launches:.4g}",
            f"{each.variant_launches:.4g}",
            "" if each.ratio is None else three_digits(each.ratio),
            f"{each.reference_microseconds:,.0f}",
            f"{each.variant_microseconds:,.0f}",
        )
    out.print(shown)
    out.print(said.replace("`", "'"), markup=False, soft_wrap=True)
