"""Controls that a team brings for its dump: a rerun, other neighbours, the pair in float32, a rounding floor. Each a
dump of its own.

Only figures of them are kept, with the run whose verdict they decide; what is to be looked at is uploaded as a run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DumpError, UsageError
from ..numerics.divergence import compare
from ..numerics.formats import FLOAT32, FloatFormat, values_of
from ..runs.dumps.dump import CHUNK_BYTES_TOGETHER, LOGITS, Dump, open_dump
from ..runs.figures import Figures
from ..runs.file.records import RunHeader
from .divergence import Divergence, joined, means
from .validity import first_mismatch

Tick = Callable[[int], None]
_UPCAST = 0.98  # of logits that round back to the run's own bits; computed in float32, a third to two thirds do
_UNRELATED = 0.25  # of the spread of logits over the vocabulary; rounding to 16 bits moves them by a hundredth of it
_SWAPPED = 10.0
_CROSSED = 8  # sides of which each is held against every other
_LEAST_WAYS = 3  # distinct ones of a floor, the first among them


@dataclass(frozen=True)
class Ways:
    """An uploaded rounding floor: ways to compute the pair's reference in float32 that are equal in exact arithmetic,
    each once.

    names: of the ways, the first of the dump first; same: (a way that was left out, the one that it equals bit for
    bit); between: mean squares of two of them by name [positions], every two of the first few and each against the
    first; start: of the first against the pair's reference [positions]; spread: standard deviation of the first one's
    logits over the vocabulary.
    """

    names: tuple[str, ...]
    same: tuple[tuple[str, str], ...]
    between: dict[tuple[str, str], NDArray[np.float64]]
    start: NDArray[np.float64]
    spread: float

    @property
    def squares(self) -> NDArray[np.float64]:
        """Each further way against the first. [ways - 1, positions]"""
        return np.stack([self.between[(self.names[0], name)] for name in self.names[1:]])


@dataclass(frozen=True)
class UploadedControls:
    """Figures measured of the controls of a run. rerun, neighbours: of the sides that were called again, by name.

    float32: the pair in float32, by the variant's name; narrowing: mean squares of each side of the run against itself
    in float32, by name [positions], empty for a float32 run; floor: an uploaded one; has_experts: a mixture of experts,
    whose rows share the experts' products; given: which controls there were, `float32`, `floor` and `model` among them:
    no sentence asks for one of them again.
    """

    rerun: dict[str, Divergence]
    neighbours: dict[str, Divergence]
    float32: dict[str, Divergence]
    narrowing: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    floor: Ways | None = None
    has_experts: bool = False
    given: frozenset[str] = frozenset()


NO_CONTROLS = UploadedControls({}, {}, {})


def measure_controls(
    figures: Figures,
    *,
    rerun: Sequence[Path] = (),
    neighbours: Sequence[Path] = (),
    float32: Sequence[Path] = (),
    floor: Sequence[Path] = (),
    has_experts: bool = False,
    with_model: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> UploadedControls:
    """Reads the controls' dumps against the run. DumpError if one is not of the run's positions, sides or dtype."""
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

        if ways is not None and wide is None and header.format is not FLOAT32:
            raise UsageError("a rounding floor in float32 is for the pair in float32: give --float32 beside --floor.")
        rerun_of, beside = (_against_run(figures, dump, tick) if dump is not None else {} for dump in (again, others))
        pairs, narrowing = _pairs(figures, wide, tick) if wide is not None else ({}, {})
        floor_ways = _ways(figures, wide, ways, tick) if ways is not None else None
    named = {"rerun": rerun, "neighbours": neighbours, "float32": float32, "floor": floor, "model": with_model}
    given = frozenset(name for name, is_there in named.items() if is_there)
    return UploadedControls(rerun_of, beside, pairs, narrowing, floor_ways, has_experts, given)


def side_in_float32(figures: Figures, paths: Sequence[Path], name: str) -> NDArray[np.float32] | None:
    """Logits of the run's side `name` out of the dumps of the pair in float32 [positions, vocab]; None where it is not
    among them.
    """
    with _opened(paths, figures.header, FLOAT32, "the pair in float32", 2) as dump:
        names = _names_of(figures.header, dump, only=False)
        if name not in names:
            return None
        place = names.index(name)
        return np.concatenate([values_of(sides[place], FLOAT32).copy() for _, sides in dump.chunks()])


def _opened(paths: Sequence[Path], header: RunHeader, fmt: FloatFormat, what: str, fewest: int) -> Dump:
    """A control's dump, in `fmt`, of as many positions and tokens as the run."""
    dtype = None if fmt is FLOAT32 else fmt.name  # detected: an upcast of 16-bit logits is no pair in float32
    dump = open_dump(paths, compute_dtype=dtype, holds=LOGITS, fewest_sides=fewest)
    ids, ours = ([i for prompt in prompts for i in prompt.token_ids] for prompts in (dump.prompts, header.prompts))
    wrong = ""
    if dump.compute_dtype != fmt.name:
        wrong = f"holds {dump.compute_dtype} values only ({dump.dtype_reason}); expected logits computed in {fmt.name}"
    elif (dump.rows, dump.vocab) != (header.rows, header.vocab):
        wrong = f"is of {dump.rows} positions x {dump.vocab} tokens; the run has {header.rows} x {header.vocab}"
    elif ids and ours and ids != ours:
        wrong = "is of other token_ids than the run; a control is of the same tokens"
    elif len(dump.sides) < fewest:
        wrong = f"has {len(dump.sides)} sides; expected at least {fewest}"
    if wrong:
        dump.close()
        raise DumpError(f"{' and '.join(path.name for path in paths)}: {what} {wrong}.")
    return dump


def _names_of(header: RunHeader, dump: Dump, *, only: bool) -> list[str]:
    """The run's side that each side of the dump is: by name, or in order where as many have other names.

    only: every side of the dump must be one of the run's; else sides of other names are left out.
    """
    ours = [side.name for side in header.sides]
    theirs = [side.name for side in dump.sides]
    shared = set(theirs) & set(ours)
    if set(theirs) <= set(ours) or (not only and len(shared) > 1):
        return theirs
    if not shared and len(theirs) == len(ours):  # with one name shared and another not, order would swap sides silently
        return ours
    raise DumpError(
        f"sides {', '.join(repr(name) for name in theirs[:4])} of the control are not sides of the run; it has "
        f"{', '.join(repr(name) for name in ours[:4])}: name them alike."
    )


def _against_run(figures: Figures, dump: Dump, tick: Tick) -> dict[str, Divergence]:
    """Each side of the dump against the side of the run that it repeats."""
    header = figures.header
    places = {side.name: index for index, side in enumerate(header.sides)}
    names = _names_of(header, dump, only=True)
    parts: dict[str, list[Divergence]] = {name: [] for name in names}
    for row, sides in dump.chunks():
        for name, bits in zip(names, sides, strict=True):
            parts[name].append(_divergence(figures.read_rows(places[name], row, row + len(bits)), bits, header.format))
        tick(len(sides[0]))
    return {name: joined(found) for name, found in parts.items()}


def _pairs(figures: Figures, dump: Dump, tick: Tick) -> tuple[dict[str, Divergence], dict[str, NDArray[np.float64]]]:
    """(every variant that the dump has against its reference, by name; each side of the run against itself in float32
    [positions])

    DumpError if the two are not of the same sides: a pair of another model would shrink, or be equal, whatever the run
    holds.
    """
    header = figures.header
    names = _names_of(header, dump, only=False)
    ours = [side.name for side in header.sides]
    if ours[0] not in names:
        raise DumpError(
            f"the pair in float32 lacks the reference '{ours[0]}'; it has {', '.join(map(repr, names[:4]))}."
        )
    known = [name for name in names if name in ours]
    parts: dict[str, list[Divergence]] = {name: [] for name in known if name != ours[0]}
    cross: dict[tuple[str, str], list[NDArray[np.float64]]] = {}  # (side of the run, side in float32)
    upcast, spread = dict.fromkeys(known, 0), _Spread()
    for row, sides in dump.chunks():
        by_name = dict(zip(names, sides, strict=True))
        for name, of_name in parts.items():
            of_name.append(_divergence(by_name[ours[0]], by_name[name], FLOAT32))
        if header.format is not FLOAT32:
            wide = {name: values_of(by_name[name], FLOAT32) for name in known}
            spread.add(wide[ours[0]])
            for name in known:
                bits = figures.read_rows(ours.index(name), row, row + len(sides[0]))
                with np.errstate(over="ignore", invalid="ignore"):
                    narrowed = wide[name].astype(header.format.values).view(header.format.carrier)
                upcast[name] += int((narrowed == bits).sum())
                for other in known if len(known) <= _CROSSED else [name]:
                    squares = _mean_squares(values_of(bits, header.format), wide[other])
                    cross.setdefault((name, other), []).append(squares)
        tick(len(sides[0]))
    pairs = {name: joined(divergences) for name, divergences in parts.items()}
    if header.format is FLOAT32:
        return pairs, {}
    apart = {pair: np.concatenate(squares) for pair, squares in cross.items()}
    _refuse_other_sides(header, apart, known, spread.deviation)
    elements = header.rows * header.vocab
    if (share := min(upcast.values()) / elements) > _UPCAST:
        raise DumpError(
            f"the pair in float32 is the run's own {header.compute_dtype}, upcast: {share:.1%} of its logits round back"
            " to the run's bits; expected both sides computed in float32."
        )
    return pairs, {name: apart[(name, name)] for name in known}


class _Spread:
    """Standard deviation of logits over the vocabulary, of rows as they pass by."""

    def __init__(self) -> None:
        self._squares, self._elements = 0.0, 0

    def add(self, rows: NDArray[np.float32]) -> None:
        wide = rows.astype(np.float64)
        apart = np.where(np.isfinite(wide), wide - wide.mean(axis=1, keepdims=True), 0.0)
        self._squares += float(np.nansum(apart**2))
        self._elements += wide.size

    @property
    def deviation(self) -> float:
        return float(np.sqrt(self._squares / max(self._elements, 1)))


def _mean_squares(narrow: NDArray[np.float32], wide: NDArray[np.float32]) -> NDArray[np.float64]:
    """Mean squares of the differences that are numbers. [rows]"""
    with np.errstate(invalid="ignore"):
        squares = (narrow.astype(np.float64) - wide) ** 2
    is_number = np.isfinite(squares)
    return means(np.where(is_number, squares, 0.0).sum(axis=1), is_number.sum(axis=1))


def _refuse_other_sides(
    header: RunHeader, apart: dict[tuple[str, str], NDArray[np.float64]], known: Sequence[str], spread: float
) -> None:
    """spread: standard deviation of the reference's logits over the vocabulary."""
    rms = {pair: float(np.sqrt(squares.mean())) for pair, squares in apart.items()}
    if min(rms[(name, name)] for name in known) > _UNRELATED * spread:
        raise DumpError(
            f"the pair in float32 is not of the run's logits: they are {min(rms[(name, name)] for name in known):.3g}"
            f" apart, which is as much as logits vary over the vocabulary ({spread:.3g}); expected the same weights and"
            " tokens."
        )
    for name in known:
        nearest = min((other for other in known if (name, other) in rms), key=lambda other: rms[(name, other)])
        if rms[(name, nearest)] * _SWAPPED < rms[(name, name)]:
            raise DumpError(
                f"'{name}' in {header.compute_dtype} is nearer to '{nearest}' in float32 than to '{name}': are the"
                " names swapped?"
            )


def _ways(figures: Figures, pair: Dump | None, dump: Dump, tick: Tick) -> Ways:
    """The distinct ways of a floor's dump, every two of them against each other; beyond _CROSSED of them against the
    first alone.

    DumpError if fewer than three are distinct, or if one is the variant on trial.
    """
    names = [side.name for side in dump.sides]
    crossed = [(a, b) for b in range(len(names)) for a in range(b) if a == 0 or b < _CROSSED]
    squares: dict[tuple[int, int], list[NDArray[np.float64]]] = {two: [] for two in crossed}
    start, spread = [], _Spread()
    ours = [side.name for side in figures.header.sides]
    sides_of_pair = ours if pair is None else _names_of(figures.header, pair, only=False)
    digests, of_pair = [hashlib.sha256() for _ in names], [hashlib.sha256() for _ in sides_of_pair]
    max_bytes = CHUNK_BYTES_TOGETHER // max(len(names), len(sides_of_pair))  # so that chunks of both have as many rows
    chunks_of_pair = pair.chunks(max_bytes) if pair is not None else None
    for row, sides in dump.chunks(max_bytes):
        if chunks_of_pair is not None:
            on_trial = next(chunks_of_pair)[1]
        else:
            on_trial = [figures.read_rows(side, row, row + len(sides[0])) for side in range(len(ours))]
        values, pair_values = ([values_of(bits, FLOAT32) for bits in each] for each in (sides, on_trial))
        for digest, logits in zip((*digests, *of_pair), (*values, *pair_values), strict=True):
            digest.update((logits + np.float32(0)).tobytes())  # -0 and 0 are one way to say it
        for a, b in crossed:
            squares[(a, b)].append(_mean_squares(values[a], values[b]))
        start.append(_mean_squares(values[0], pair_values[sides_of_pair.index(ours[0])]))
        spread.add(values[0])
        tick(len(sides[0]))
    bits_of_pair = {name: digest.hexdigest() for name, digest in zip(sides_of_pair, of_pair, strict=True)}
    variants = set(bits_of_pair.values()) - {bits_of_pair[ours[0]]}
    first_of: dict[str, str] = {}
    same = []
    for name, bits in zip(names, [digest.hexdigest() for digest in digests], strict=True):
        if bits in variants:
            raise DumpError(
                f"'{name}' of the rounding floor is the variant on trial itself, bit for bit; a floor is of other ways"
                " to compute the reference."
            )
        if bits in first_of:
            same.append((name, first_of[bits]))
        first_of.setdefault(bits, name)
    kept = tuple(first_of.values())
    if len(kept) < _LEAST_WAYS:
        equal = ", ".join(f"'{name}' is '{first}'" for name, first in same)
        raise DumpError(
            f"the rounding floor has {len(kept)} distinct {'way' if len(kept) == 1 else 'ways'} ({equal}, bit for bit),"
            f" and equal ones show no rounding; expected at least {_LEAST_WAYS}: other batch sizes of decoding, kernels"
            " or orders of summation."
        )
    between = {
        (names[a], names[b]): np.concatenate(parts)
        for (a, b), parts in squares.items()
        if {names[a], names[b]} <= set(kept)
    }
    return Ways(kept, tuple(same), between, np.concatenate(start), spread.deviation)


def _divergence(
    reference: NDArray[np.unsignedinteger], variant: NDArray[np.unsignedinteger], fmt: FloatFormat
) -> Divergence:
    rows = compare(reference, variant, fmt)
    broken = np.flatnonzero(rows.nonfinite_mismatch)
    first = None
    if len(broken):
        first = first_mismatch(values_of(reference[broken[0]], fmt), values_of(variant[broken[0]], fmt))
    mismatches, is_same = np.asarray(rows.nonfinite_mismatch), bool(np.all(rows.bit_identical))
    ulps = rows.max_row_ulps[np.isfinite(rows.max_row_ulps)]
    return Divergence(
        rows.sum_squares,
        rows.finite,
        mismatches,
        first,
        int(rows.neq.sum()),
        is_same,
        largest_row_ulps=float(ulps.max()) if len(ulps) else None,
    )
