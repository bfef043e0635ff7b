"""The JSON shape of the metric contract for sparse pairs: a number where a figure is exact, `[low, high]` where it is
bounded, null where it is unknown; a high bound that does not exist is null too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ...errors import UsageError
from ...numerics.grid import Grid, MarginUlps
from ...numerics.sparse import Interval
from ..sparse_run import KIND, SparseRun, SparseVerdict
from ..topk.pairing import ListPair, ListPosition
from ..topk.placeholders import clauses, without_placeholders
from ..topk.records import ListSide

FACTS = ("run_id", "name", "created", "kind", "model", "command", "note", "versions")  # of a run, before its figures
Bounded = float | list[float | None] | None


def bounded(interval: Interval | None) -> Bounded:
    """A number, `[low, high]`, or null."""
    if interval is None:
        return None
    return interval.low if interval.is_exact else [interval.low, interval.high]


def counted(answers: Sequence[bool | None]) -> int | list[int]:
    """Number of answers that are true, or bounds where some are unknown."""
    true, unknown = answers.count(True), answers.count(None)
    return [true, true + unknown] if unknown else true


def sparse_json(
    pairs: Sequence[ListPair],
    verdicts: Sequence[SparseVerdict] = (),
    *,
    variant: str | None = None,
    with_positions: bool = False,
) -> dict:
    """The object that `compare --json` prints. `variant` chooses the pair that `summary` speaks of; default: the first.

    UsageError where there is no such variant.
    """
    named = [pair for pair in pairs if variant in (None, pair.variant)]
    if not named:
        raise UsageError(f"no variant '{variant}'; there are {', '.join(pair.variant for pair in pairs)}.")
    chosen = named[0]
    judged = {found.variant: {"verdict": found.name, "because": found.because} for found in verdicts}
    unjudged = {"verdict": None, "because": None}
    result = {
        "reference": chosen.reference,
        "variant": chosen.variant,
        "compute_dtype": chosen.compute_dtype,
        "values": chosen.values,
        "keys": chosen.keys,
        "positions": len(chosen.positions),
        "vocab": chosen.vocab,
        **judged.get(chosen.variant, unjudged),
        "summary": summary_json(chosen),
        "ulp_histogram": None,
        "flips": [position_json(place, chosen) for place in chosen.positions if place.figures.is_flip],
        "prompts": [
            {
                "prompt": meeting.prompt,
                "parting": meeting.parting,
                "other_prompt_tokens": meeting.is_parting_in_prompt,
                "prompt_tokens_compared": meeting.is_prompt_checked,
                "only_reference": meeting.only_reference,
                "only_variant": meeting.only_variant,
            }
            for meeting in chosen.meetings
        ],
        "placeholders": placeholders_json(chosen),
        "grid": {chosen.reference: grid_json(chosen.grids[0]), chosen.variant: grid_json(chosen.grids[1])},
        "notes": list(chosen.notes),
    }
    if with_positions:
        result["by_position"] = [position_json(place, chosen) for place in chosen.positions]
    if len(pairs) > 1:
        result["pairs"] = [
            {
                "reference": pair.reference,
                "variant": pair.variant,
                **judged.get(pair.variant, unjudged),
                **summary_json(pair),
                "placeholders": placeholders_json(pair),
            }
            for pair in pairs
        ]
    return result


def side_json(side: ListSide) -> dict[str, Any]:
    """Describe what was sent for a side: formats, kinds of values, how many, and what the payloads say of themselves.

    processed: whether temperature, penalties or a mask are in the values, null where a payload does not say. full_rows:
    rows in which every token of the vocabulary has its value. missing: entries that were placeholders.
    """
    responses = side.responses
    flags = {response.processed for response in responses}
    return {
        "name": side.name,
        "formats": sorted({response.format for response in responses}),
        "values": side.values,
        "keys": side.keys,
        "models": sorted({response.model for response in responses if response.model}),
        "prompts": len(responses),
        "rows": sum(len(response.rows) for response in responses),
        "listed": sum(len(response.rows.values) for response in responses),
        "most_a_row": max(int(np.diff(response.rows.offsets).max(initial=0)) for response in responses),
        "missing": sum(int(response.rows.missing.sum()) for response in without_placeholders(side)[0].responses),
        "full_rows": sum(int(response.rows.full.sum()) for response in responses),
        "processed": True if True in flags else False if flags == {False} else None,
        "warnings": list(dict.fromkeys(warning for response in responses for warning in response.warnings)),
    }


def sparse_run_json(run: SparseRun, *, with_positions: bool = False) -> dict[str, Any]:
    """A stored run of sparse sides: provenance, sides, and the report of its first pair and the others' summaries."""
    header = run.header
    about = {
        "run_id": run.run_id,
        "name": header.name,
        "created": None if header.created is None else header.created.isoformat() + "Z",
        "kind": KIND,
        "model": header.model,
        "command": header.command,
        "note": header.note,
        "versions": header.versions,
    }
    report = sparse_json(run.pairs, run.verdicts, with_positions=with_positions)
    verdicts = [{"variant": found.variant, "verdict": found.name, "because": found.because} for found in run.verdicts]
    return {**about, "sides": [side_json(side) for side in run.sides], **report, "verdicts": verdicts}


def summary_json(pair: ListPair) -> dict[str, Any]:
    """Summary of a pair. ULPs of elements need both sides' logits, and log-probabilities are these but for a constant a
    row; so `max_abs` is of the values as they were sent.
    """
    figures = [place.figures for place in pair.positions]
    tops = [top for figure in figures for top in (figure.reference, figure.variant)]
    margins = [top.margin for top in tops if top.margin is not None]
    differing = pair.differing
    flips = counted([figure.is_flip for figure in figures])
    neq = _together([figure.neq for figure in figures], sum)
    return {
        "bit_identical": False if differing else None,
        "neq": bounded(neq),
        "neq_share": bounded(_scaled(neq, None if pair.vocab is None else pair.vocab * len(figures))),
        "max_abs": bounded(_together([figure.max_abs for figure in figures], max)),
        "max_ulps": None,
        "mean_ulps": None,
        "max_row_ulps": None,
        "rms_row_ulps": None,
        "nonfinite_mismatch": None,
        "flips": flips,
        "ties": counted([_is_tie(place) for place in pair.positions]),
        "near_ties": None,  # needs the magnitude of whole rows
        "could_flip": counted([figure.could_flip for figure in figures]),
        "mean_kl": bounded(_scaled(_together([figure.kl for figure in figures], math.fsum), len(figures))),
        "max_kl": bounded(_together([figure.kl for figure in figures], max)),
        "same_top1": _same(flips, len(figures)),
        "min_margin": _least(margins, len(margins) == len(tops)),
        "max_probability_change": bounded(_together([figure.max_probability_change for figure in figures], max)),
        "listed": pair.listed,
        "listed_that_differ": differing,
    }


def position_json(place: ListPosition, pair: ListPair) -> dict[str, Any]:
    """One position's figures, named as in the contract as far as there is the same figure."""
    figures = place.figures
    return {
        **({"prompt": place.prompt} if len(pair.meetings) > 1 else {}),
        "position": place.position,
        "generated": place.is_generated,
        "reference_token": figures.reference.token,
        "variant_token": figures.variant.token,
        "reference_text": pair.texts.get(-1 if figures.reference.token is None else figures.reference.token),
        "variant_text": pair.texts.get(-1 if figures.variant.token is None else figures.variant.token),
        "is_flip": figures.is_flip,
        "near_tie": None,
        "could_flip": figures.could_flip,
        "reference_margin": figures.reference.margin,
        "variant_margin": figures.variant.margin,
        "reference_margin_ulps": ulps_json(place.reference_ulps),
        "variant_margin_ulps": ulps_json(place.variant_ulps),
        "max_abs": bounded(figures.max_abs),
        "neq": bounded(figures.neq),
        "kl": bounded(figures.kl),
        "max_probability_change": bounded(figures.max_probability_change),
        "chosen_change": place.chosen_change,
        "variant_rank_of_reference": figures.variant_rank_of_reference,
        "reference_rank_of_variant": figures.reference_rank_of_variant,
        "reference_rest": bounded(figures.reference.rest),
        "variant_rest": bounded(figures.variant.rest),
    }


def placeholders_json(pair: ListPair) -> list[dict[str, Any]]:
    """Values of either side that are no values of a model: of which side, of what kind, at how many tokens."""
    return [{**asdict(one), "says": f"{clauses([one])[0]}."} for one in pair.placeholders]


def ulps_json(margin: MarginUlps | None) -> int | list[int] | None:
    """A margin in ULPs of the grid: a number where only one count is likely, else the counts between which it lies."""
    if margin is None:
        return None
    return margin.ulps if margin.low == margin.high else [margin.low, margin.high]


def grid_json(grid: Grid | None) -> dict[str, Any] | None:
    """Evidence of a side's 16-bit grid, null where none is shown."""
    if grid is None:
        return None
    return {
        "compute_dtype": grid.compute_dtype,
        "formats": list(grid.formats),
        "residual": grid.residual,
        "chance": grid.chance,
        "positions": grid.rows,
        "values": grid.values,
        "error_of_values": grid.error,
    }


def _is_tie(place: ListPosition) -> bool | None:
    margins = [place.figures.reference.margin, place.figures.variant.margin]
    if 0.0 in margins:
        return True
    return None if None in margins else False


def _together(intervals: Sequence[Interval | None], of: Callable[[list[float]], float]) -> Interval | None:
    """Sum or maximum of figures, of which some are bounds; None where no position has one."""
    there = [interval for interval in intervals if interval is not None]
    if not there:
        return None
    highs = [interval.high for interval in there if interval.high is not None]
    is_bounded = len(highs) == len(intervals)
    return Interval(of([interval.low for interval in there]), of(highs) if is_bounded else None)


def _scaled(total: Interval | None, of: int | None) -> Interval | None:
    """A mean over `of`; what has no figure counts as 0 below, and nothing bounds it above."""
    if total is None or of is None:
        return None
    return Interval(total.low / of, None if total.high is None else total.high / of)


def _same(flips: int | list[int], positions: int) -> float | list[float]:
    """Share of positions with the same best token."""
    if isinstance(flips, int):
        return 1 - flips / positions
    return [1 - flips[1] / positions, 1 - flips[0] / positions]


def _least(margins: Sequence[float], is_whole: bool) -> Bounded:
    """The smallest margin; where some are unknown it may be smaller still."""
    if not margins:
        return None
    return min(margins) if is_whole or min(margins) == 0 else [0.0, min(margins)]
