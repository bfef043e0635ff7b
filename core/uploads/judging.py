"""The verdict of an uploaded dump: the rungs that can be computed from it, those that its controls add, and what is still missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.numerics.formats import FLOAT32 as FLOAT32_FORMAT
from core.runs.figures import Figures
from core.runs.records import (
    FAILED,
    FLOAT32,
    MISSING,
    NEIGHBOURS,
    NOTED,
    OWN_DTYPE,
    PASSED,
    RERUN,
    SYMMETRY,
    Evidence,
    FloorRows,
    Generation,
    RunHeader,
)
from core.runs.revision import PairVerdict
from core.uploads.controls import NO_CONTROLS, Apart, Controls, neighbour_evidence, rerun_evidence
from core.uploads.validity import sampling, structure
from core.verdict import (
    BLOCKS,
    BUG_SUSPECTED,
    LARGEST_RATIO_16_BITS,
    SHRINKS_LIKE_ROUNDING,
    SHRINKS_TOO_MUCH,
    UNDECIDED,
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

FLOOR_START = 10.0  # the floor's first side may be so many floors away from the pair's reference in float32
WIDEST_FLOOR = (
    5.0  # between the ways of an uploaded floor; reorderings of a model agree to a tenth, real paths to a factor of two
)
MOVING_FLOOR = 0.9  # of positions that two ways must move
_FOREIGN = 10.0  # both sides further from the model's own logits than this many of its floors: the dump is of another model


def judge_upload(
    figures: Figures,
    validity: Sequence[Sequence[Evidence]],
    generations: Sequence[Generation],
    run_id: str,
    controls: Controls = NO_CONTROLS,
    earlier: Sequence[PairVerdict] = (),
) -> list[PairVerdict]:
    """One verdict a pair. `validity`: of every pair (core.uploads.validity), which is measured while the dump is read; `run_id`: of
    the run that will hold the verdict, for the command that supplies what is missing; `earlier`: what controls that were given before came to, which counts where none of
    now answers the same rung.
    """
    sampled = sampling(figures, generations)
    before = {verdict.pair: verdict for verdict in earlier}
    return [
        _pair(
            figures, pair, [*validity[pair], *(sampled[side] for side in (0, pair + 1) if side in sampled)], run_id, controls, before.get(pair)
        )
        for pair in range(len(figures.header.sides) - 1)
    ]  # fmt: skip


def _pair(
    figures: Figures, pair: int, evidence: list[Evidence], run_id: str, controls: Controls, before: PairVerdict | None
) -> PairVerdict:
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
        evidence += _narrowing(figures, pair, controls)
        if controls.model is not None:
            own = _own_dtype(figures, pair, squares, mismatch, controls, floors)
            evidence += own
            if any(row.outcome == MISSING for row in own):  # a dump of another model: its floor says nothing of this one
                controls = replace(controls, model=None)
            else:
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
    elif header.sides[pair + 1].name in controls.float32:
        evidence.append(_only_in_float32(header, controls.float32[header.sides[pair + 1].name]))
    if before is not None:
        ratio, first = _carried_over(evidence, floors, before, ratio, first)
    verdict = conclude(evidence, is_bit_identical=is_identical, noise_ratio=ratio, first_place=first)
    causes = [row.says for row in evidence if "cause" in row.figures] if verdict.name in (UNDECIDED, BUG_SUSPECTED) else []
    because = " ".join([*causes, verdict.because])
    return PairVerdict(pair, verdict.name, because, verdict.noise_ratio, verdict.evidence, tuple(floors))


def _carried_over(
    evidence: list[Evidence], floors: list[FloorRows], before: PairVerdict, ratio: float | None, first: tuple[int, int] | None
) -> tuple[float | None, tuple[int, int] | None]:  # fmt: skip
    """Adds what earlier controls came to on rungs that those of now leave open. -> noise ratio and first place, theirs where they decide"""
    for rung in (RERUN, NEIGHBOURS, OWN_DTYPE, SYMMETRY):
        if not any(row.rung == rung for row in evidence):
            evidence += [row for row in before.evidence if row.rung == rung]
    known = {floor.compute_dtype for floor in floors}
    is_open = not any(row.rung == FLOAT32 and row.outcome != MISSING for row in evidence)
    decided = [row for row in before.evidence if row.rung == FLOAT32 and row.outcome != MISSING]
    if is_open and decided:
        evidence[:] = [row for row in evidence if row.rung != FLOAT32] + decided
        ratio = before.noise_ratio
    floors += [
        floor for floor in before.floors if floor.compute_dtype not in known and (is_open or floor.compute_dtype != "float32")
    ]
    return ratio, first


def _only_in_float32(header: RunHeader, given: Apart) -> Evidence:
    """Sides that are equal in the run's dtype, beside the same in float32, without a floor."""
    control = f"the same pair in float32; in {header.compute_dtype} it is equal bit for bit"
    figures = {"neq": given.neq, "pair_rms_logits": given.rms}
    if not given.neq:
        return Evidence(FLOAT32, control, figures, PASSED, "The two sides are equal in float32 too.")
    says = f"In float32 the two sides are {given.rms:.3g} logits (rms) apart; whether that is rounding takes a floor."
    return Evidence(FLOAT32, control, figures, NOTED, says)


def _narrowing(figures: Figures, pair: int, controls: Controls) -> list[Evidence]:
    """Is one side further from itself in float32 than the other is? A fault of the 16-bit kernels alone does not show in float32."""
    header = figures.header
    names = (header.sides[0].name, header.sides[pair + 1].name)
    if any(name not in controls.narrowing for name in names):
        return []
    reference, variant = (float(np.sqrt(controls.narrowing[name].mean())) for name in names)
    control = f"each side in {header.compute_dtype} against itself in float32"
    measured = {"reference_to_float32_logits": reference, "variant_to_float32_logits": variant}
    low, high = sorted((reference, variant))
    if high <= LARGEST_RATIO_16_BITS * max(low, np.finfo(np.float64).tiny):
        says = f"Rounding to {header.compute_dtype} moves both sides about equally far from float32: {reference:.3g} and {variant:.3g} logits."
        return [Evidence(OWN_DTYPE, control, measured, PASSED, says)]
    further, near = (names[1], names[0]) if variant > reference else (names[0], names[1])
    times = three_digits(high / low) if low else "infinitely many"
    says = (
        f"'{further}' in {header.compute_dtype} is {times} times as far from itself in float32 as '{near}' is: more than rounding to "
        f"{header.compute_dtype} does, so what it computes there is another function."
    )
    return [Evidence(OWN_DTYPE, control, measured, FAILED, says)]


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
            "The same two sides computed in float32, with the same weights and tokens, would decide whether rounding explains it: "
            f"`{command} --float32 PAIR_IN_FLOAT32.npz`."
        )
        return None, [Evidence(FLOAT32, "the same pair in float32", {}, MISSING, says)]
    pair_squares, nonfinite = (squares, mismatch) if is_wide or given is None else (given.squares, given.nonfinite)
    floor, beside = controls.floor, "the uploaded floor: " + ", ".join(f"'{way}'" for way in controls.floor_names)
    maps, whose = 0, "the uploaded rounding floor"
    if floor is None and controls.model is not None:
        floor, maps = controls.model.float32, controls.model.maps
        whose = "this model's own rounding floor"
        beside = f"{len(floor)} reorderings of every linear map of {controls.model.name}"
    control = f"'{name}' against '{header.sides[0].name}' in float32"
    if controls.floor is not None:
        floor, doubt = _usable(controls, controls.floor)
        if doubt:
            return None, [Evidence(FLOAT32, f"{control}, beside {beside}", {}, MISSING, doubt)]
    if floor is not None and floor.mean() > 0:
        test = floor_test(pair_squares, floor, nonfinite=nonfinite)
        floors.append(FloorRows("float32", np.sqrt(pair_squares), np.sqrt(floor.mean(axis=0))))
        return test, [
            floor_evidence(
                test,
                FLOAT32,
                "float32",
                f"{control}, beside {beside}",
                pair_squares,
                floor.mean(axis=0),
                _lengths(header),
                maps,
                whose,
            )
        ]
    needs = f"A rounding floor in float32 would decide it: `{command} --floor WAYS_IN_FLOAT32.npz`, or `--model MODEL` where the model is at hand."
    if is_wide or given is None:
        says = f"The pair is in float32, and nothing says how far rounding goes there. {needs}"
        return None, [Evidence(FLOAT32, "a rounding floor in float32", {}, MISSING, says)]
    return None, [_shrink_row(figures, squares, pair_squares, nonfinite, control, needs)]


def _usable(controls: Controls, floor: NDArray[np.float64]) -> tuple[NDArray[np.float64], str]:
    """(the floor, with positions that its ways leave alone at the height of the median one; '' or why it decides nothing)"""
    start = controls.floor_start
    if start is not None and start.mean() > FLOOR_START**2 * floor.mean():
        return floor, (
            f"The uploaded floor is not of this pair: its first side is {three_digits(float(np.sqrt(start.mean() / floor.mean())))} times as far from "
            "the reference in float32 as its ways are from each other."
        )
    ratios = np.sqrt(floor.mean(axis=1))
    if ratios.max() > WIDEST_FLOOR * ratios.min():
        return floor, (
            f"The ways of the uploaded floor are {three_digits(float(ratios.max() / ratios.min()))} times as far apart from the first as one another: "
            "one of them is no mere reordering, or one hardly reorders."
        )
    moves = (floor > 0).sum(axis=0) >= 2
    if moves.mean() < MOVING_FLOOR:
        return floor, (
            f"The uploaded floor is too narrow: two of its ways differ at only {moves.mean():.0%} of the positions; bring ways that reorder every sum, "
            "such as other batch sizes of decoding or another attention kernel."
        )
    filled = floor.copy()
    filled[:, ~moves] = np.median(floor[:, moves], axis=1, keepdims=True)
    return filled, ""


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
        odd = test.share > SHRINKS_TOO_MUCH
        why = (
            "more than precision explains"
            if odd
            else f"{place_in_words(test.worst_row, _lengths(header))} stands far above the others there"
            if test.share >= SHRINKS_LIKE_ROUNDING
            else "too little to be clear, too much to be a plain fault"
        )
        says = f"{smaller}, {finer}: {why}. {needs}"
        return Evidence(FLOAT32, control, measured, MISSING, says)
    if test.stands_out:
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
