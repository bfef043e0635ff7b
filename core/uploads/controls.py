"""Controls that a team brings for its dump: a rerun, other neighbours, the pair in float32, a rounding floor. Each a dump of its own.

Only figures of them are kept, with the run whose verdict they decide; what is to be looked at is uploaded as a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from core.errors import DumpError
from core.numerics.divergence import compare
from core.numerics.formats import FLOAT32, FloatFormat
from core.runs.dumps import Dump, open_dump
from core.runs.figures import Figures
from core.runs.records import FAILED, NEIGHBOURS, NOTED, PASSED, RERUN, Evidence, RunHeader

Tick = Callable[[int], None]


@dataclass(frozen=True)
class Apart:
    """Two sides of the same positions. squares: mean square of the difference over elements finite on both, logits^2 [positions];
    is_same: every bit equal [positions]; neq: elements whose values differ; nonfinite: elements NaN or infinite on one side only.
    """

    squares: NDArray[np.float64]
    is_same: NDArray[np.bool_]
    neq: int
    nonfinite: int

    @property
    def rms(self) -> float:
        """Over all positions, in logits."""
        return float(np.sqrt(self.squares.mean()))


@dataclass(frozen=True)
class ModelControls:
    """What the model itself says of a dump's tokens, where it is at hand.

    own: mean squares of reorderings in the dump's dtype [seeds, positions]; own_rounding: of 16 bits against float32 [positions], None
    for a float32 dump or where it does not fit; float32: of reorderings in float32 [seeds, positions]; from_model: of each side of
    the run, by name, against the model's own prefill in the dump's dtype [positions]; errors: rms of each side, by name, against a
    forward in float64, logits, empty where that is not to be had; name: of the model; maps: linear maps that were reordered.
    """

    name: str
    own: NDArray[np.float64]
    own_rounding: NDArray[np.float64] | None
    float32: NDArray[np.float64]
    from_model: dict[str, NDArray[np.float64]]
    errors: dict[str, float]
    maps: int


@dataclass(frozen=True)
class Controls:
    """What was measured of the controls of a run. rerun, neighbours: of the sides that were called again, by name.

    float32: the pair in float32, by the variant's name; floor: mean squares of ways that are equal in exact arithmetic against the
    first of them, in float32 [ways, positions]; has_experts: a mixture of experts, whose rows share the experts' products.
    """

    rerun: dict[str, Apart]
    neighbours: dict[str, Apart]
    float32: dict[str, Apart]
    floor: NDArray[np.float64] | None = None
    floor_names: tuple[str, ...] = ()
    has_experts: bool = False
    model: ModelControls | None = None


NO_CONTROLS = Controls({}, {}, {})


def measure_controls(
    figures: Figures,
    *,
    rerun: Sequence[Path] = (),
    neighbours: Sequence[Path] = (),
    float32: Sequence[Path] = (),
    floor: Sequence[Path] = (),
    has_experts: bool = False,
    model: ModelControls | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Controls:
    """Reads the controls' dumps against the run. DumpError where one is not of the run's positions, sides or dtype."""
    header = figures.header
    with ExitStack() as stack:
        again, others, wide, ways = (
            stack.enter_context(_opened(paths, header, fmt, what, fewest)) if paths else None
            for paths, fmt, what, fewest in (
                (rerun, header.format, "a rerun", 1),
                (neighbours, header.format, "other neighbours", 1),
                (float32, FLOAT32, "the pair in float32", 2),
                (floor, FLOAT32, "a rounding floor in float32", 3),
            )
        )
        total = sum(dump.rows for dump in (again, others, wide, ways) if dump is not None)
        done = 0

        def tick(rows: int) -> None:
            nonlocal done
            done += rows
            if on_progress is not None:
                on_progress(done, total)

        rerun_of = _against_run(figures, again, tick) if again is not None else {}
        beside = _against_run(figures, others, tick) if others is not None else {}
        pairs = _pairs(figures.header, wide, tick) if wide is not None else {}
        squares, names = _floor(ways, tick) if ways is not None else (None, ())
    return Controls(rerun_of, beside, pairs, squares, names, has_experts, model)


def _opened(paths: Sequence[Path], header: RunHeader, fmt: FloatFormat, what: str, fewest: int) -> Dump:
    """A control's dump, in `fmt`, of as many positions and tokens as the run."""
    dump = open_dump(paths, compute_dtype=None if fmt is FLOAT32 else fmt.name, fewest_sides=fewest)
    try:
        name = " and ".join(path.name for path in paths)
        if dump.compute_dtype != fmt.name:  # detected: an upcast of 16-bit logits would be taken for a pair that does not shrink
            raise DumpError(
                f"{name}: {what} holds {dump.compute_dtype} values only ({dump.dtype_reason}); expected logits computed in {fmt.name}."
            )
        if (dump.rows, dump.vocab) != (header.rows, header.vocab):
            raise DumpError(
                f"{name}: {what} is of {dump.rows} positions x {dump.vocab} tokens; the run has {header.rows} x {header.vocab}."
            )
        ids, ours = ([i for prompt in prompts for i in prompt.token_ids] for prompts in (dump.prompts, header.prompts))
        if ids and ours and ids != ours:
            raise DumpError(f"{name}: {what} is of other token_ids than the run; a control is of the same tokens.")
        if len(dump.sides) < fewest:
            raise DumpError(f"{name}: {what} has {len(dump.sides)} sides; expected at least {fewest}.")
    except BaseException:
        dump.close()
        raise
    return dump


def _names_of(header: RunHeader, dump: Dump, *, only: bool) -> list[str]:
    """Which side of the run each side of the dump is: by name, or in order where as many have other names.

    only: every side of the dump must be one of the run's; else sides of other names are left out.
    """
    ours = [side.name for side in header.sides]
    theirs = [side.name for side in dump.sides]
    if set(theirs) <= set(ours) or (not only and len(set(theirs) & set(ours)) > 1):
        return theirs
    if len(theirs) == len(ours):
        return ours
    raise DumpError(
        f"sides {', '.join(repr(name) for name in theirs[:4])} of the control are not sides of the run; it has "
        f"{', '.join(repr(name) for name in ours[:4])}: name them alike."
    )


def _against_run(figures: Figures, dump: Dump, tick: Tick) -> dict[str, Apart]:
    """Each side of the dump against the side of the run that it repeats."""
    header = figures.header
    places = {side.name: index for index, side in enumerate(header.sides)}
    names = _names_of(header, dump, only=True)
    parts: dict[str, list[Apart]] = {name: [] for name in names}
    for row, sides in dump.chunks():
        for name, bits in zip(names, sides, strict=True):
            parts[name].append(_apart(figures.read_rows(places[name], row, row + len(bits)), bits, header.format))
        tick(len(sides[0]))
    return {name: _joined(found) for name, found in parts.items()}


def _pairs(header: RunHeader, dump: Dump, tick: Tick) -> dict[str, Apart]:
    """Every variant that the dump has, against its reference."""
    names = _names_of(header, dump, only=False)
    ours = [side.name for side in header.sides]
    if ours[0] not in names:
        raise DumpError(f"the pair in float32 lacks the reference '{ours[0]}'; it has {', '.join(map(repr, names[:4]))}.")
    variants = [name for name in names if name in ours[1:]]
    parts: dict[str, list[Apart]] = {name: [] for name in variants}
    for _, sides in dump.chunks():
        by_name = dict(zip(names, sides, strict=True))
        for name in variants:
            parts[name].append(_apart(by_name[ours[0]], by_name[name], FLOAT32))
        tick(len(sides[0]))
    return {name: _joined(found) for name, found in parts.items()}


def _floor(dump: Dump, tick: Tick) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Every further side against the first. -> mean squares [ways, positions], names of the ways"""
    parts: list[list[Apart]] = [[] for _ in dump.sides[1:]]
    for _, sides in dump.chunks():
        for found, bits in zip(parts, sides[1:], strict=True):
            found.append(_apart(sides[0], bits, FLOAT32))
        tick(len(sides[0]))
    joined = [_joined(found) for found in parts]
    if not any(one.neq for one in joined):
        raise DumpError(
            "the sides of the rounding floor are equal bit for bit, so they show no rounding: save the same logits computed with other "
            "batch sizes, kernels or orders of summation."
        )
    return np.stack([one.squares for one in joined]), tuple(side.name for side in dump.sides)


def _apart(reference: NDArray[np.unsignedinteger], variant: NDArray[np.unsignedinteger], fmt: FloatFormat) -> Apart:
    rows = compare(reference, variant, fmt)
    return Apart(
        rows.sum_squares / np.maximum(rows.finite, 1), np.asarray(rows.is_bit_identical), int(rows.neq.sum()),
        int(rows.nonfinite_mismatch.sum()),
    )  # fmt: skip


def _joined(parts: Sequence[Apart]) -> Apart:
    return Apart(
        np.concatenate([part.squares for part in parts]), np.concatenate([part.is_same for part in parts]),
        sum(part.neq for part in parts), sum(part.nonfinite for part in parts),
    )  # fmt: skip


def rerun_evidence(header: RunHeader, pair: int, controls: Controls, pair_rms: float) -> Iterator[Evidence]:
    """Does each side that was called again give the same bits? `pair_rms`: of the pair, in logits."""
    names = (header.sides[0].name, header.sides[pair + 1].name)
    called = [name for name in names if name in controls.rerun]
    if not called:
        return
    moved = [name for name in called if not controls.rerun[name].is_same.all()]
    control = " and ".join(f"'{name}'" for name in called) + ", uploaded again from another call"
    figures = {
        "not_repeatable": moved, "called_again": called, "pair_rms_logits": pair_rms,
        "rerun_rms_logits": max((controls.rerun[name].rms for name in moved), default=0.0),
        "rerun_neq": {name: controls.rerun[name].neq for name in called},
    }  # fmt: skip
    if moved:
        most = max(controls.rerun[name].rms for name in moved)
        beside = f" The pair is {pair_rms / most:.2f} times as far apart as a side from itself." if most > 0 else ""
        who = " and ".join(f"'{name}'" for name in moved)
        says = f"{who} does not give the same bits twice: a kernel in it is nondeterministic.{beside}"
        yield Evidence(RERUN, control, figures, FAILED, says)
        return
    rest = [name for name in names if name not in called]
    says = (
        "Each side gives the same bits when it is called again."
        if not rest
        else f"'{called[0]}' gives the same bits when it is called again; '{rest[0]}' was not called again."
    )
    yield Evidence(RERUN, control, figures, PASSED, says)


def neighbour_evidence(header: RunHeader, pair: int, controls: Controls) -> Iterator[Evidence]:
    """Do other requests in the other rows leave a side's bits alone?"""
    for name in (header.sides[0].name, header.sides[pair + 1].name):
        found = controls.neighbours.get(name)
        if found is None:
            continue
        control = f"'{name}' beside other requests, uploaded as a dump of its own"
        figures = {"bit_identical": bool(found.is_same.all()), "neq": found.neq, "rms_logits": found.rms}
        if found.is_same.all():
            yield Evidence(NEIGHBOURS, control, figures, PASSED, f"What the other rows hold does not change a bit of '{name}'.")
        elif controls.has_experts:
            says = (
                f"What the other rows hold changes bits of '{name}'; in a mixture of experts the rows share the experts' products, "
                "so that alone is no leak."
            )
            yield Evidence(NEIGHBOURS, control, figures, NOTED, says)
        else:
            says = (
                f"What the other rows hold changes the logits of '{name}'; if their number and length were the same, data leaks between "
                "rows. (A mixture of experts may do that; say so with --mixture-of-experts.)"
            )
            yield Evidence(NEIGHBOURS, control, figures, FAILED, says)
