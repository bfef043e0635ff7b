"""The verdict of an uploaded dump: the rungs that can be computed from it, those that its controls add, and what is still missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.numerics.formats import FLOAT32 as FLOAT32_FORMAT
from core.runs.figures import Figures
from core.runs.records import (
    FAILED,
    FLOAT32,
    MISSING,
    OWN_DTYPE,
    PASSED,
    Evidence,
    FloorRows,
    Generation,
    RunHeader,
)
from core.runs.revision import PairVerdict
from core.uploads.controls import NO_CONTROLS, Controls, neighbour_evidence, rerun_evidence
from core.uploads.validity import sampling, structure
from core.verdict import (
    BLOCKS,
    FloorTest,
    conclude,
    floor_evidence,
    floor_test,
    place_in_words,
    shrink_test,
    structure_evidence,
    structure_of,
    symmetry_evidence,
    three_digits,
)

_FOREIGN = 10.0  # both sides further from the model's own logits than this many of its floors: the dump is of another model


def judge_upload(
    figures: Figures,
    validity: Sequence[Sequence[Evidence]],
    generations: Sequence[Generation],
    run_id: str,
    controls: Controls = NO_CONTROLS,
) -> list[PairVerdict]:
    """One verdict a pair. `validity`: of every pair (core.uploads.validity), which is measured while the dump is read; `run_id`: of
    the run that will hold the verdict, for the command that supplies what is missing.
    """
    return [
        _pair(figures, pair, [*validity[pair], *sampling(figures, pair, generations)], run_id, controls)
        for pair in range(len(figures.header.sides) - 1)
    ]


def _pair(figures: Figures, pair: int, evidence: list[Evidence], run_id: str, controls: Controls) -> PairVerdict:
    header = figures.header
    positions = figures.positions(pair)
    squares = positions["rms"].to_numpy(float) ** 2
    mismatch = int(positions["nonfinite_mismatch"].sum())
    is_identical = bool(positions["bit_identical"].all())
    evidence += rerun_evidence(header, pair, controls, float(np.sqrt(squares.mean())))
    evidence += neighbour_evidence(header, pair, controls)
    floors: list[FloorRows] = []
    ratio: float | None = None
    first: tuple[int, int] | None = None
    has_floor = controls.floor is not None or controls.model is not None
    is_asked = header.sides[pair + 1].name in controls.float32 and has_floor  # sides equal in 16 bits may differ in float32
    if not is_identical or is_asked:
        if controls.model is not None:
            evidence += _own_dtype(figures, pair, squares, mismatch, controls, floors)
            evidence += _symmetry(figures, pair, controls)
        deciding, rows = _float32(figures, pair, squares, mismatch, controls, floors, run_id)
        evidence += rows
        if deciding is not None:
            ratio = deciding.ratio
        if deciding is not None and len(deciding.outliers):
            shown = structure_of(deciding.outliers, _lengths(header), BLOCKS)
            first = shown.first
            evidence.append(structure_evidence(shown, deciding, _lengths(header)))
        else:
            evidence += structure(figures, pair)
    verdict = conclude(evidence, is_bit_identical=is_identical, noise_ratio=ratio, first_place=first)
    return PairVerdict(pair, verdict.name, verdict.because, verdict.noise_ratio, verdict.evidence, tuple(floors))


def _float32(
    figures: Figures, pair: int, squares: NDArray[np.float64], mismatch: int, controls: Controls, floors: list[FloorRows], run_id: str
) -> tuple[FloorTest | None, list[Evidence]]:  # fmt: skip
    """The deciding rung: the pair in float32 against a floor in float32, or beside itself in 16 bits where there is none."""
    header = figures.header
    name = header.sides[pair + 1].name
    is_wide = header.format is FLOAT32_FORMAT
    given = controls.float32.get(name)
    command = f"python -m core verdict {run_id}"
    if not is_wide and given is None:
        says = (
            "Whether rounding explains it is undecided: this dump has no control. The same two sides computed in float32, with the same "
            f"weights and tokens, would decide it: `{command} --float32 PAIR_IN_FLOAT32.npz`."
        )
        return None, [Evidence(FLOAT32, "the same pair in float32", {}, MISSING, says)]
    pair_squares, nonfinite = (squares, mismatch) if is_wide or given is None else (given.squares, given.nonfinite)
    floor, beside = controls.floor, "the uploaded floor: " + ", ".join(f"'{way}'" for way in controls.floor_names)
    maps = 0
    if floor is None and controls.model is not None:
        floor, maps = controls.model.float32, controls.model.maps
        beside = f"{len(floor)} reorderings of every linear map of {controls.model.name}"
    control = f"'{name}' against '{header.sides[0].name}' in float32"
    if floor is not None and floor.mean() > 0:
        test = floor_test(pair_squares, floor, nonfinite=nonfinite)
        floors.append(FloorRows("float32", np.sqrt(pair_squares), np.sqrt(floor.mean(axis=0))))
        return test, [
            floor_evidence(
                test, FLOAT32, "float32", f"{control}, beside {beside}", pair_squares, floor.mean(axis=0), _lengths(header), maps
            )
        ]
    needs = f"A rounding floor in float32 would decide it: `{command} --floor WAYS_IN_FLOAT32.npz`, or `--model MODEL` where the model is at hand."
    if is_wide or given is None:
        says = f"Whether rounding explains it is undecided: the pair is in float32, and nothing says how far rounding goes there. {needs}"
        return None, [Evidence(FLOAT32, "a rounding floor in float32", {}, MISSING, says)]
    return None, [_shrink_row(figures, squares, pair_squares, nonfinite, control, needs)]


def _shrink_row(
    figures: Figures, squares: NDArray[np.float64], wide: NDArray[np.float64], nonfinite: int, control: str, needs: str
) -> Evidence:
    header = figures.header
    test = shrink_test(squares, wide, header.format.mantissa_bits + 1)
    prompt, position = header.places()[test.worst_row]
    measured: dict[str, Any] = {
        "compute_dtype": "float32", "pair_rms_logits": float(np.sqrt(wide.mean())), "own_dtype_rms_logits": float(np.sqrt(squares.mean())),
        "times_smaller_in_float32": test.shrink if np.isfinite(test.shrink) else None, "times_finer_float32_is": test.full,
        "positions_that_move_in_own_dtype": test.moved, "worst_position_ratio": test.worst, "worst_position": [prompt, position],
        "nonfinite_mismatch": nonfinite,
    }  # fmt: skip
    control = f"{control}, beside the same pair in {header.compute_dtype}; no floor"
    if nonfinite:
        says = f"In float32, {nonfinite:,} logits are NaN or infinite on one side and not on the other."
        return Evidence(FLOAT32, control, measured, FAILED, says)
    if not np.isfinite(test.shrink):
        says = f"In float32 the two sides are equal, so their difference in {header.compute_dtype} is rounding."
        return Evidence(FLOAT32, control, measured, PASSED, says)
    smaller = f"In float32 the pair is {three_digits(test.shrink)} times smaller than in {header.compute_dtype}"
    finer = f"which is {test.full:,.0f} times coarser"
    if test.outcome == PASSED:
        return Evidence(FLOAT32, control, measured, PASSED, f"{smaller}, {finer}: it shrinks as rounding does.")
    if test.outcome == MISSING:
        says = f"Whether rounding explains it is undecided. {smaller}, {finer}: too little to be clear, too much to be a plain fault. {needs}"
        return Evidence(FLOAT32, control, measured, MISSING, says)
    if test.share >= 0.05:
        where = place_in_words(test.worst_row, _lengths(header))
        says = f"{smaller} on the whole, but {where} does not shrink with it: it stands {three_digits(test.worst)} times above the median position in float32."
        return Evidence(FLOAT32, control, measured, FAILED, says)
    says = f"{smaller}, {finer}: rounding shrinks with the precision, and this does not, so the two sides compute different functions."
    return Evidence(FLOAT32, control, measured, FAILED, says)


def _own_dtype(
    figures: Figures, pair: int, squares: NDArray[np.float64], mismatch: int, controls: Controls, floors: list[FloorRows]
) -> list[Evidence]:
    """In 16 bits: is the dump of this model at all, and is the pair within its floor?"""
    header, model = figures.header, controls.model
    assert model is not None
    names = (header.sides[0].name, header.sides[pair + 1].name)
    floor = model.own.mean(axis=0) if model.own_rounding is None else np.maximum(model.own.mean(axis=0), model.own_rounding)
    far = {name: float(np.sqrt(model.from_model[name].mean() / max(floor.mean(), np.finfo(float).tiny))) for name in names}
    control = f"both sides against {model.name}'s own prefill in {header.compute_dtype}, in rounding floors"
    measured: dict[str, Any] = {
        f"{who}_noise_ratio": far[name] for who, name in zip(("reference", "variant"), names, strict=True)
    }
    if min(far.values()) > _FOREIGN:
        says = (
            f"Neither side is what {model.name} computes for these tokens: they are {three_digits(min(far.values()))} and {three_digits(max(far.values()))} of its "
            "rounding floors away. Another checkpoint, other weights (quantised?), or other token ids; its floor says nothing of this dump."
        )
        return [Evidence(OWN_DTYPE, control, measured, MISSING, says)]
    near, other = sorted(names, key=far.__getitem__)
    if far[other] > _FOREIGN:
        says = (
            f"'{near}' is what {model.name} computes, {far[near]:.2f} rounding floors away; '{other}' is not: {three_digits(far[other])} floors away, where "
            f"rounding stays below {_FOREIGN:g}."
        )
        return [Evidence(OWN_DTYPE, control, measured, FAILED, says)]
    if header.format is FLOAT32_FORMAT:
        return []
    test = floor_test(squares, model.own, nonfinite=mismatch, is_16_bits=True, own_rounding=model.own_rounding)
    floors.append(FloorRows(header.compute_dtype, np.sqrt(squares), np.sqrt(floor)))
    control = f"'{names[1]}' against '{names[0]}', beside {len(model.own)} reorderings of every linear map of {model.name} in {header.compute_dtype}"
    return [floor_evidence(test, OWN_DTYPE, header.compute_dtype, control, squares, floor, _lengths(header), model.maps)]


def _symmetry(figures: Figures, pair: int, controls: Controls) -> list[Evidence]:
    """Which side is further from the truth? Of two that only round, neither."""
    header, model = figures.header, controls.model
    assert model is not None
    names = (header.sides[0].name, header.sides[pair + 1].name)
    if any(name not in model.errors for name in names):
        return []
    control = f"both sides as uploaded against {model.name} in float64"
    return [symmetry_evidence(control, names, (model.errors[names[0]], model.errors[names[1]]))]


def _lengths(header: RunHeader) -> list[int]:
    return [prompt.positions for prompt in header.prompts]
