"""Measure control dumps of an uploaded run: a rerun, other neighbours, the pair in float32, a noise floor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import combinations, product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DumpError, UsageError
from ..numerics.divergence import compare
from ..numerics.formats import FLOAT32, FloatFormat, values_of
from ..runs.dumps.dump import CHUNK_BYTES_TOGETHER, LOGITS, Dump, open_dump
from ..runs.figures import Figures
from ..runs.file.records import RunHeader
from ..text import joined as in_words
from .divergence import Divergence, joined, means
from .validity import first_mismatch

Tick = Callable[[int], None]
_UPCAST = 0.98  # of logits that round back to the run's own bits; computed in float32, a third to two thirds do
_UNRELATED = 0.25  # of the spread of logits over the vocabulary; rounding to 16 bits moves them by a hundredth of it
_SWAPPED = 10.0  # times nearer to another side in float32 than to itself
_CROSSED = 8  # sides of which each is compared with every other
_LEAST_PATHS = 3  # distinct ones of a floor, the first among them


@dataclass(frozen=True)
class FloorSamples:
    """An uploaded noise floor: paths that compute the pair's reference in float32 and are equal in exact arithmetic.

    names: of the distinct paths, the dump's first one first; between: mean squares of two paths by name [positions],
    every two of the first few and each against the first; start: of the first against the pair's reference [positions];
    spread: standard deviation of the first one's logits over the vocabulary.
    """

    names: tuple[str, ...]
    between: dict[tuple[str, str], NDArray[np.float64]]
    start: NDArray[np.float64]
    spread: float

    @property
    def squares(self) -> NDArray[np.float64]:
        """Mean squares of each further path against the first. [paths - 1, positions]"""
        return np.stack([self.between[(self.names[0], name)] for name in self.names[1:]])


@dataclass(frozen=True)
class UploadedControls:
    """Figures of a run's controls. rerun, neighbours: of the sides that were called again, by name.

    float32: the pair in float32, by the variant's name; narrowing: mean squares of each side against itself in float32
    by name [positions], empty for a float32 run; given: names of the controls, `model` among them.
    """

    rerun: dict[str, Divergence]
    neighbours: dict[str, Divergence]
    float32: dict[str, Divergence]
    narrowing: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    floor: FloorSamples | None = None
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
    """Compare the control dumps with the run. DumpError if one has other positions, sides or another dtype."""
    fmt = figures.header.format
    if floor and not float32 and fmt is not FLOAT32:
        raise UsageError("A noise floor in float32 needs the pair in float32: give --float32 with --floor.")
    with ExitStack() as stack:
        dumps = {
            name: stack.enter_context(_opened(files, figures.header, expected, what, fewest))
            for name, files, expected, what, fewest in (
                ("rerun", rerun, fmt, "a rerun", 1),
                ("neighbours", neighbours, fmt, "other neighbours", 1),
                ("float32", float32, FLOAT32, "the pair in float32", 2),
                ("floor", floor, FLOAT32, "a noise floor in float32", _LEAST_PATHS),
            )
            if files
        }
        total = sum(dump.rows for dump in dumps.values())
        done = 0

        def tick(rows: int) -> None:
            nonlocal done
            done += rows
            if on_progress is not None:
                on_progress(done, total)

        repeated, neighboured = (
            _against_run(figures, dumps[name], tick) if name in dumps else {} for name in ("rerun", "neighbours")
        )
        pairs, narrowing = _pairs(figures, dumps["float32"], tick) if float32 else ({}, {})
        samples = _floor(figures, dumps.get("float32"), dumps["floor"], tick) if floor else None
    given = frozenset([*dumps, *["model"] * with_model])
    return UploadedControls(repeated, neighboured, pairs, narrowing, samples, has_experts, given)


def side_in_float32(figures: Figures, paths: Sequence[Path], name: str) -> NDArray[np.float32] | None:
    """Return the run's side `name` from the pair in float32 [positions, vocab]; None if it is not there."""
    with _opened(paths, figures.header, FLOAT32, "the pair in float32", 2) as dump:
        names = _names_of(figures.header, dump, only=False)
        if name not in names:
            return None
        place = names.index(name)
        return np.concatenate([values_of(sides[place], FLOAT32).copy() for _, sides in dump.chunks()])


def _opened(paths: Sequence[Path], header: RunHeader, fmt: FloatFormat, what: str, fewest: int) -> Dump:
    """Open a control's dump, in `fmt`, with the run's positions and tokens."""
    dtype = None if fmt is FLOAT32 else fmt.name  # detected: an upcast of 16-bit logits is no pair in float32
    dump = open_dump(paths, compute_dtype=dtype, holds=LOGITS, fewest_sides=fewest)
    ids, ours = ([i for prompt in prompts for i in prompt.token_ids] for prompts in (dump.prompts, header.prompts))
    wrong = ""
    if dump.compute_dtype != fmt.name:
        wrong = f"holds {dump.compute_dtype} values only ({dump.dtype_reason}); expected logits computed in {fmt.name}"
    elif (dump.rows, dump.vocab) != (header.rows, header.vocab):
        wrong = f"has {dump.rows} positions x {dump.vocab} tokens; expected {header.rows} x {header.vocab} like the run"
    elif ids and ours and ids != ours:
        wrong = "has other token_ids than the run"
    if wrong:
        dump.close()
        raise DumpError(f"{' and '.join(path.name for path in paths)}: {what} {wrong}.")
    return dump


def _names_of(header: RunHeader, dump: Dump, *, only: bool) -> list[str]:
    """Return the run's side that each side of the dump is: by name, or in order if all names differ.

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
        f"The control has sides {in_words([repr(name) for name in theirs[:4]])}; expected the run's"
        f" {in_words([repr(name) for name in ours[:4]])}."
    )


def _walk(
    figures: Figures, sides: Sequence[int], dumps: Sequence[Dump], tick: Tick
) -> Iterator[list[list[NDArray[np.unsignedinteger]]]]:
    """Yield the same rows of some sides of the run, then of every side of each dump, as bits. [rows, vocab] each"""
    most = max(len(dump.sides) for dump in dumps)  # by which the chunks of all dumps have as many rows
    for parts in zip(*(dump.chunks(CHUNK_BYTES_TOGETHER // max(2, most)) for dump in dumps), strict=True):
        row, stop = parts[0][0], parts[0][0] + len(parts[0][1][0])
        yield [[figures.read_rows(side, row, stop) for side in sides], *(bits for _, bits in parts)]
        tick(stop - row)


def _against_run(figures: Figures, dump: Dump, tick: Tick) -> dict[str, Divergence]:
    """Compare each side of the dump with the side of the run that it repeats."""
    header = figures.header
    ours = [side.name for side in header.sides]
    names = _names_of(header, dump, only=True)
    chunks = [
        [_divergence(first, again, header.format) for first, again in zip(*sides, strict=True)]
        for sides in _walk(figures, [ours.index(name) for name in names], [dump], tick)
    ]
    return {name: joined(parts) for name, parts in zip(names, zip(*chunks, strict=True), strict=True)}


@np.errstate(over="ignore", invalid="ignore")
def _pairs(figures: Figures, dump: Dump, tick: Tick) -> tuple[dict[str, Divergence], dict[str, NDArray[np.float64]]]:
    """Return (each variant in float32 against its reference, each side of the run against itself in float32), by name.

    DumpError if it is not of the run's sides: another model's pair would shrink, or be equal, whatever the run holds.
    """
    header, fmt = figures.header, figures.header.format
    ours = [side.name for side in header.sides]
    names = _names_of(header, dump, only=False)
    known = [name for name in names if name in ours]
    if ours[0] not in known:
        raise DumpError(f"The pair in float32 has {in_words([repr(name) for name in known])}, not '{ours[0]}'.")
    parts: dict[str, list[Divergence]] = {name: [] for name in known if name != ours[0]}
    narrow = [] if fmt is FLOAT32 else known
    crossed = [two for two in product(narrow, narrow) if len(known) <= _CROSSED or two[0] == two[1]]
    squares: dict[tuple[str, str], list[NDArray[np.float64]]] = {two: [] for two in crossed}
    upcast, variances = dict.fromkeys(narrow, 0), []
    for of_run, of_dump in _walk(figures, [ours.index(name) for name in narrow], [dump], tick):
        bits, wide_bits = dict(zip(narrow, of_run, strict=True)), dict(zip(names, of_dump, strict=True))
        for name, of_name in parts.items():
            of_name.append(_divergence(wide_bits[ours[0]], wide_bits[name], FLOAT32))
        wide = {name: values_of(wide_bits[name], FLOAT32) for name in known}
        for name in narrow:
            upcast[name] += int((wide[name].astype(fmt.values).view(fmt.carrier) == bits[name]).sum())
        for name, other in crossed:
            squares[(name, other)].append(_mean_squares(values_of(bits[name], fmt), wide[other]))
        variances.append(np.nan_to_num(wide[ours[0]].var(axis=1, dtype=np.float64)))
    pairs = {name: joined(of_name) for name, of_name in parts.items()}
    if not narrow:
        return pairs, {}
    apart = {two: np.concatenate(each) for two, each in squares.items()}
    rms = {two: float(np.sqrt(each.mean())) for two, each in apart.items()}
    least = min(rms[(name, name)] for name in known)
    if least > _UNRELATED * np.sqrt(np.concatenate(variances).mean()):
        raise DumpError(
            f"The pair in float32 has other weights or tokens: it differs from the run by {least:.3g} logits (rms)."
        )
    for (name, other), far in rms.items():
        if far * _SWAPPED < rms[(name, name)]:
            raise DumpError(f"'{name}' in {fmt.name} is nearer to '{other}' in float32. Are the names swapped?")
    if min(upcast.values()) > _UPCAST * header.rows * header.vocab:
        raise DumpError(f"The pair in float32 is the run's own {fmt.name}, upcast. Compute both sides in float32.")
    return pairs, {name: apart[(name, name)] for name in known}


@np.errstate(invalid="ignore")
def _floor(figures: Figures, pair: Dump | None, dump: Dump, tick: Tick) -> FloorSamples:
    """Compare the distinct paths of a floor's dump with each other; beyond _CROSSED of them with the first alone.

    pair: in float32, None if the run is. DumpError if fewer than three are distinct, or if one is the variant itself.
    """
    ours = [side.name for side in figures.header.sides]
    names = [side.name for side in dump.sides]
    judged = _names_of(figures.header, pair, only=False) if pair else ours
    count, reference = len(names), len(names) + judged.index(ours[0])
    crossed = [(a, b) for a, b in combinations(range(count), 2) if a == 0 or b < _CROSSED]
    squares: dict[tuple[int, int], list[NDArray[np.float64]]] = {two: [] for two in crossed}
    is_equal = dict.fromkeys(combinations(range(count + len(judged)), 2), True)
    start, variances = [], []
    dumps, sides = ([dump, pair], []) if pair else ([dump], range(len(ours)))
    for of_run, *of_dumps in _walk(figures, sides, dumps, tick):
        paths, of_pair = of_dumps if pair else (of_dumps[0], of_run)
        values = [values_of(bits, FLOAT32) for bits in (*paths, *of_pair)]
        for two in [two for two, is_it in is_equal.items() if is_it]:
            is_equal[two] = np.array_equal(values[two[0]], values[two[1]], equal_nan=True)
        for two in crossed:
            squares[two].append(_mean_squares(values[two[0]], values[two[1]]))
        start.append(_mean_squares(values[0], values[reference]))
        variances.append(np.nan_to_num(values[0].var(axis=1, dtype=np.float64)))
    first = [next((a for a in range(b) if is_equal[(a, b)]), b) for b in range(count + len(judged))]
    variants = set(first[count:]) - {first[reference]}
    if copies := [name for name, each in zip(names, first, strict=False) if each in variants]:
        raise DumpError(f"'{copies[0]}' of the noise floor is the variant itself; expected paths of the reference.")
    distinct = tuple(name for place, name in enumerate(names) if first[place] == place)
    if len(distinct) < _LEAST_PATHS:
        raise DumpError(
            f"The noise floor has {len(distinct)} distinct of {count} paths; expected {_LEAST_PATHS} or more."
        )
    between = {(names[a], names[b]): np.concatenate(each) for (a, b), each in squares.items()}
    between = {two: each for two, each in between.items() if {*two} <= {*distinct}}
    spread = float(np.sqrt(np.concatenate(variances).mean()))
    return FloorSamples(distinct, between, np.concatenate(start), spread)


def _mean_squares(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return mean squares of the differences that are numbers. [rows]"""
    squares = (first.astype(np.float64) - second) ** 2
    is_number = np.isfinite(squares)
    return means(np.where(is_number, squares, 0.0).sum(axis=1), is_number.sum(axis=1))


def _divergence(
    reference: NDArray[np.unsignedinteger], variant: NDArray[np.unsignedinteger], fmt: FloatFormat
) -> Divergence:
    rows = compare(reference, variant, fmt)
    broken = np.flatnonzero(rows.nonfinite_mismatch)
    mismatch = [values_of(bits[broken[0]], fmt) for bits in (reference, variant)] if len(broken) else []
    ulps = rows.max_row_ulps[np.isfinite(rows.max_row_ulps)]
    return Divergence(
        rows.sum_squares,
        rows.finite,
        np.asarray(rows.nonfinite_mismatch),
        first_mismatch(*mismatch) if mismatch else None,
        int(rows.neq.sum()),
        bool(np.all(rows.bit_identical)),
        largest_row_ulps=float(ulps.max()) if len(ulps) else None,
    )
