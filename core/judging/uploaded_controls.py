"""Measure the dumps that come with an uploaded run: a rerun, other neighbours, the pair in float32,
a noise floor.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks.arrays_alone import LEAST_VALUES
from ..checks.drawn import DRAWN_LIMITS, Errors, Exact
from ..checks.pair import NoiseFloor
from ..errors import DumpError, UsageError
from ..numerics.arrays import Bits, Floats
from ..numerics.constant_rows import Filling
from ..numerics.divergence import compare
from ..numerics.formats import FLOAT32, FloatFormat, bits_of, narrow, values_of
from ..numerics.side_divergence import Divergence, SystematicError, concatenate, systematic_error
from ..numerics.statistic import Limits, rms_of
from ..places import place_in_words
from ..progress import Progress, no_progress
from ..runs.dumps.dump import CHUNK_BYTES_TOGETHER, LOGITS, VALUES, Dump, open_dump
from ..runs.file.records import RunHeader
from ..runs.measured import Measured
from ..text import multiple, number, plural, series
from ..verdict import Verdict
from .dump_controls import UploadedControls, judge_upload
from .validity import checks_of, first_mismatch
from .values import some_values

_Side = tuple[Dump | None, int]  # a dump and the place of a side in it; None: the run
_Couples = dict[Any, tuple[_Side, _Side]]
# of the spread of logits over the vocabulary; rounding to 16 bits moves them by a hundredth of it
_UNRELATED = 0.25
_CROSSED = 8  # paths of a floor of which each is compared with every other
_FIRST_ROWS = 64  # that tell the spread of logits
_LEAST_PATHS = 3  # distinct ones of a floor, the first among them
# An uploaded floor may not hold the fault on trial, which would make rounding of it (rms over rms).
FLOOR_START = 10.0  # its first path to the pair's float32 reference, over its other paths
# largest difference between two paths over the smallest: a fault in one path; real ones reach 5.5
FLOOR_KINDS = 8.0
FLOOR_UNEVEN = 50.0  # the same at one position; real ones reach 21
# of what precisions differ by, least shrinking from 16 bits to the floor; real ones 0.19 and more
FLOOR_SHRINKS = 0.02
# of a float32 run, over what logits vary by in a row; rounding reaches 4e-6 in 30 layers
FLOOR_OF_SPREAD = 1e-4
OTHER_PATH = 0.75  # share of positions at which two paths have to differ to be two
# trusted results that round alike at a position by luck are a smaller measure than draws
_TRUSTED_LIMITS = Limits(over_all=DRAWN_LIMITS.over_all, at_a_place=3.0)
_FEWEST_TRUSTED = 4


def measure_controls(
    figures: Measured,
    *,
    has_experts: bool = False,
    with_model: bool = False,
    on_progress: Progress = no_progress,
    **files: Sequence[Path],
) -> UploadedControls:
    """Compare the control dumps with the run. files: of `rerun`, `neighbours`, `float32`, `floor`
    and `exact`.

    DumpError if one has other positions, sides or another dtype.
    """
    header = figures.header
    is_short = not header.has_tokens and header.vocab < LEAST_VALUES
    if is_short and any(files.get(kind) for kind in ("floor", "float32", "exact")):
        raise UsageError(
            f"Rows of {plural(header.vocab, 'value')} are too short for a measure of each; use"
            " `ulpscope.close` with an exact result.",
        )
    if files.get("floor") and not files.get("float32") and header.format is not FLOAT32:
        raise UsageError(
            "A noise floor in float32 needs the pair in float32: give --float32 with --floor.",
        )
    with ExitStack() as stack:
        dumps = {
            kind: stack.enter_context(_open(paths, header, kind))
            for kind, paths in files.items()
            if paths
        }
        controls = UploadedControls(
            has_experts=has_experts,
            controls=frozenset([*dumps, *["model"] * with_model]),
        )
        ours = _sides_of(header, None)
        for kind in {"rerun", "neighbours"} & dumps.keys():
            sides = _sides_of(header, dumps[kind])
            controls.measured |= _compare(
                figures,
                {(kind, name): (ours[name], side) for name, side in sides.items()},
                header.format,
                on_progress,
            )
        if "exact" in dumps:
            errors, controls.exact = _exact(
                figures,
                dumps["exact"],
                on_progress,
                has_experts=has_experts,
            )
            # the run's own float32 goes first
            if "float32" not in dumps:
                controls.measured |= errors
        if "float32" in dumps:
            controls.measured |= _pairs(figures, dumps["float32"], on_progress)
        if "floor" in dumps:
            controls.floor = _floor(
                figures,
                dumps["floor"],
                dumps.get("float32"),
                controls.measured,
                on_progress,
            )
    return controls


def judge_dump(
    dump: Dump,
    figures: Measured,
    fillings: Sequence[Filling],
) -> list[Verdict]:
    """Judge every pair of a dump by itself, and by the exact result that came with it, if any.

    fillings: of every side.
    """
    uploads = UploadedControls(has_experts=dump.has_experts)
    if dump.exact:
        uploads = measure_controls(figures, has_experts=dump.has_experts, exact=[dump.exact])
    checks = checks_of(figures, fillings)
    return judge_upload(figures, checks, dump.generations, uploads)


def side_in_float32(
    figures: Measured,
    paths: Sequence[Path],
    name: str,
) -> NDArray[np.float32] | None:
    """Return the run's side `name` from the pair in float32 [positions, vocab]; None if it is not
    there.
    """
    with _open(paths, figures.header, "float32") as dump:
        if name not in (sides := _sides_of(figures.header, dump)):
            return None
        return np.concatenate(
            [values_of(bits[sides[name][1]], FLOAT32).copy() for _, bits in dump.chunks()],
        )


def _open(paths: Sequence[Path], header: RunHeader, kind: str) -> Dump:
    """Open a control's dump, which has the run's positions and tokens."""
    fmt = FLOAT32 if kind in ("float32", "floor", "exact") else header.format
    is_exact = kind == "exact"
    if is_exact and header.format is FLOAT32:
        raise UsageError(
            "An exact result is for runs in 16 bits; leave it out, and give --floor.",
        )
    # Detected: an upcast of 16-bit logits is no pair in float32. Trusted results in 16 bits are in
    # the file of an exact one.
    is_detected = fmt is FLOAT32 and not is_exact
    dump = open_dump(
        paths,
        compute_dtype=None if is_detected else fmt.name,
        holds=LOGITS if header.has_tokens else VALUES,
        fewest_sides={"float32": 2, "floor": _LEAST_PATHS}.get(kind, 1),
        as_exact=is_exact,
    )
    ids = [i for prompt in dump.prompts for i in prompt.token_ids]
    ours = [i for prompt in header.prompts for i in prompt.token_ids]
    wrong = ""
    if dump.compute_dtype != fmt.name:
        wrong = (
            f"holds {dump.compute_dtype} values only ({dump.dtype_reason}); expected logits"
            f" computed in {fmt.name}"
        )
    elif (dump.rows, dump.vocab) != (header.rows, header.vocab):
        wrong = (
            f"has {dump.rows} positions x {dump.vocab} tokens; expected {header.rows} x"
            f" {header.vocab} like the run"
        )
    elif ids and ours and ids != ours:
        wrong = "has other token_ids than the run"
    if wrong:
        raise DumpError(f"--{kind} {' and '.join(path.name for path in paths)} {wrong}.")
    return dump


def _sides_of(header: RunHeader, dump: Dump | None) -> dict[str, _Side]:
    """Return the dump's sides by the run's names, or in order if all differ; others are left out if
    two are known.
    """
    ours = [side.name for side in header.sides]
    theirs = [side.name for side in dump.sides] if dump else ours
    shared = {name: (dump, place) for place, name in enumerate(theirs) if name in ours}
    if len(shared) > 1 or len(shared) == len(theirs):
        return shared
    # with one name shared and another not, order would swap sides silently
    if not shared and len(theirs) == len(ours):
        return {name: (dump, place) for place, name in enumerate(ours)}
    quotes, own = (series([repr(name) for name in names[:4]]) for names in (theirs, ours))
    raise DumpError(f"The control has sides {quotes}; expected the run's {own}.")


def _compare(
    figures: Measured,
    couples: _Couples,
    fmt: FloatFormat,
    tick: Progress,
) -> dict[Any, Divergence]:
    """Compare both sides of each couple in `fmt`, by key."""
    sides = {side for couple in couples.values() for side in couple}
    dumps = list({dump for dump, _ in sides if dump})
    parts: dict[Any, list[Divergence]] = {key: [] for key in couples}
    # so that all chunks are of one size
    most = CHUNK_BYTES_TOGETHER // max([2, *(len(dump.sides) for dump in dumps)])
    for chunks in zip(*(dump.chunks(most) for dump in dumps), strict=True):
        row, rows = chunks[0]
        stop = row + len(rows[0])
        bits: dict[_Side, Bits] = {}
        for dump, (_, of_sides) in zip(dumps, chunks, strict=True):
            bits |= {(dump, place): each for place, each in enumerate(of_sides)}
        for side in sides - bits.keys():
            bits[side] = figures.read_rows(side[1], row, stop)
            if figures.header.format is not fmt:
                bits[side] = bits_of(values_of(bits[side], figures.header.format))
        for key, (reference, variant) in couples.items():
            with_errors = key[0] == "narrowing"
            parts[key].append(
                _divergence(bits[reference], bits[variant], fmt, with_errors=with_errors),
            )
        tick("reading controls", stop, figures.header.rows)
    return {key: concatenate(each) for key, each in parts.items()}


def _pairs(figures: Measured, dump: Dump, tick: Progress) -> dict[Any, Divergence]:
    """Compare each variant in float32 with its reference, and each side of the run with itself in
    float32.

    DumpError if it is not of the run's sides: another model's pair would shrink, or be equal,
    whatever the run holds.
    """
    header = figures.header
    ours = _sides_of(header, None)
    sides = _sides_of(header, dump)
    reference = header.sides[0].name
    if reference not in sides:
        raise DumpError(
            f"The pair in float32 has {series([repr(name) for name in sides])}, not '{reference}'.",
        )
    couples = {
        ("float32", name): (sides[reference], sides[name]) for name in sides if name != reference
    }
    if header.format is not FLOAT32:
        couples |= {("narrowing", name): (ours[name], side) for name, side in sides.items()}
    results = _compare(figures, couples, FLOAT32, tick)
    errors = [each for (kind, _), each in results.items() if kind == "narrowing"]
    if errors:
        _check_related(figures, errors, "The pair in float32 has")
    return results


def _check_related(figures: Measured, errors: Iterable[Divergence], start: str) -> None:
    """DumpError that begins so if all errors of the run's sides are larger than rounding's."""
    least = min(each.rms for each in errors)
    if least > _UNRELATED * _spread(figures):
        size = f"it differs from the run by {number(least)} logits (rms)"
        raise DumpError(f"{start} other weights or tokens: {size}.")


def _exact(
    figures: Measured,
    dump: Dump,
    tick: Progress,
    *,
    has_experts: bool,
) -> tuple[dict[Any, Divergence], Exact | None]:
    """Compare each side with the exact result; and, if there are trusted results, with their
    errors.

    dump: the exact result, then the trusted ones. DumpError if it is no more exact, or another
    model's.
    """
    header = figures.header
    file = dump.sides[0].name
    if all(narrow(bits[0], header.format) is not None for _, bits in dump.chunks()):
        raise DumpError(
            f"The exact result '{file}' holds {header.compute_dtype} values only, as the run does;"
            " expected one computed in float32 or float64.",
        )
    places = range(1, len(dump.sides))
    sides: dict[Any, _Side] = {place: (dump, place) for place in places}
    sides |= _sides_of(header, None)
    couples: _Couples = {("narrowing", key): (side, (dump, 0)) for key, side in sides.items()}
    errors = _compare(figures, couples, FLOAT32, tick)
    trusted = {place: errors.pop(("narrowing", place)) for place in places}
    _check_related(figures, errors.values(), f"The exact result '{file}' is of")
    if not trusted:
        return errors, None
    return errors, Exact(
        {name: _errors_of(each) for (_, name), each in errors.items()},
        [_errors_of(each) for each in _distinct(dump, trusted)],
        own_paths=dict,
        has_experts=has_experts,
        limits=_TRUSTED_LIMITS,
        wide="the exact result",
        roundings="trusted results",
    )


def _distinct(dump: Dump, trusted: Mapping[int, Divergence]) -> list[Divergence]:
    """Return the errors of trusted results, of equal ones once. DumpError if they are too few, or
    too unlike one another to be a measure.
    """
    by_squares = {each.squares.tobytes(): place for place, each in trusted.items()}
    names = {place: repr(dump.sides[place].name) for place in sorted(by_squares.values())}
    if len(names) < _FEWEST_TRUSTED:
        raise DumpError(
            f"'{dump.sides[0].name}' comes with {plural(len(names), 'distinct trusted result')};"
            f" expected none, or at least {_FEWEST_TRUSTED}.",
        )
    near, *_, far = sorted(names, key=lambda place: trusted[place].rms)
    if not trusted[near].rms:
        raise DumpError(
            f"The trusted result {names[near]} equals the exact one; expected one with rounding.",
        )
    ratio = trusted[far].rms / trusted[near].rms
    if ratio > DRAWN_LIMITS.over_all:
        raise DumpError(
            f"The trusted result {names[far]} is {multiple(ratio)} as far from the exact one as"
            f" {names[near]}: one of them is no rounding.",
        )
    return [trusted[place] for place in names]


def _errors_of(divergence: Divergence) -> Errors:
    is_finite = divergence.mismatches == 0
    return Errors(np.where(is_finite, divergence.squares, np.inf), divergence.system.size)


def _spread(figures: Measured) -> float:
    """Return the standard deviation over the vocabulary of the reference's first logits."""
    span = 0, min(_FIRST_ROWS, figures.header.rows)
    with np.errstate(invalid="ignore"):
        variances = some_values(figures, 0, span).var(axis=1)
    return rms_of(np.nan_to_num(variances))


def _floor(
    figures: Measured,
    dump: Dump,
    pair: Dump | None,
    measured: Mapping[tuple[str, str], Divergence],
    tick: Progress,
) -> NoiseFloor | str:
    """Return the noise floor of paths that compute the pair's reference in float32, or why they
    measure none.

    pair: in float32, None if the run is. DumpError if fewer than three are distinct, or if one is
    the variant itself.
    """
    header = figures.header
    names = [side.name for side in dump.sides]
    paths = range(len(names))
    reference = header.sides[0].name
    couples: _Couples = {}
    for name, side in _sides_of(header, pair).items():
        couples |= {(path, name): ((dump, path), side) for path in paths}
    of_paths = {
        (a, b): ((dump, a), (dump, b)) for a, b in combinations(paths, 2) if a == 0 or b < _CROSSED
    }
    results = _compare(figures, couples | of_paths, FLOAT32, tick)
    for path, name in couples:
        if not results[(path, name)].neq and results[(path, reference)].neq:
            raise DumpError(
                f"'{names[path]}' of the noise floor is the variant itself; expected another path.",
            )
    distinct = [b for b in paths if all(results[(a, b)].neq for a in range(b) if (a, b) in results)]
    if len(distinct) < _LEAST_PATHS:
        count = f"{len(distinct)} distinct of {len(names)} paths"
        raise DumpError(f"The noise floor has {count}; expected {_LEAST_PATHS} or more.")
    squares = {two: results[two].squares for two in of_paths if {*two} <= {*distinct}}
    floor = np.stack([squares[(0, path)] for path in distinct[1:]])
    widest = FLOOR_OF_SPREAD * _spread(figures)
    if ("narrowing", reference) in measured:
        finer = 2.0 ** (FLOAT32.mantissa_bits - header.format.mantissa_bits)
        widest = measured["narrowing", reference].rms / finer / FLOOR_SHRINKS
    size = rms_of(floor)
    start = results[(0, reference)].rms / size if size else 0.0
    width = size / widest if widest else np.inf
    doubt = _doubt(
        squares,
        names,
        header.lengths,
        start,
        width,
    )
    if doubt:
        return f"The uploaded floor {doubt}."
    moves = (floor > 0).sum(axis=0) >= 2
    floor[:, ~moves] = np.median(
        floor[:, moves],
        axis=1,
        keepdims=True,
    )
    used = ", ".join(repr(names[path]) for path in distinct)
    return NoiseFloor(floor, f"the uploaded floor: {used}")


@np.errstate(divide="ignore", invalid="ignore")
def _doubt(
    squares: Mapping[tuple[int, int], Floats],
    names: Sequence[str],
    lengths: list[int],
    start: float,
    width: float,
) -> str:
    """Say why paths may differ by more than rounding, '' if they do not: a floor with a fault makes
    rounding of it.

    squares: of every two paths [positions]; start: of the first path to the pair's reference over
    the floor; width: of the floor over rounding at most.
    """
    rms = {two: rms_of(each) for two, each in squares.items()}
    others = {two: each for two, each in squares.items() if (each > 0).mean() >= OTHER_PATH}
    threes = combinations(range(len(names)), 3)
    if not any({(a, b), (a, c), (b, c)} <= others.keys() for a, b, c in threes):
        return (
            f"is too narrow: no three paths differ from one another at {OTHER_PATH:.0%} of"
            " positions"
        )
    far = max(rms, key=rms.__getitem__)
    near = min(others, key=rms.__getitem__)
    least = np.min([np.where(each > 0, each, np.inf) for each in others.values()], axis=0)
    uneven = np.sqrt(np.max(list(squares.values()), axis=0) / least)
    row = np.argmax(uneven)
    a, b, c, d = (repr(names[path]) for path in (*far, *near))
    place = place_in_words(row, lengths)
    for ratio, most, says in (
        (
            start,
            FLOOR_START,
            "is of another pair: its first path differs from the float32 reference",
        ),
        (
            rms[far] / rms[near],
            FLOOR_KINDS,
            f"has paths of two kinds: over {c} and {d}, {a} and {b} differ",
        ),
        (
            uneven[row],
            FLOOR_UNEVEN,
            f"is uneven at {place}: two paths, over two others, differ",
        ),
        (width, 1.0, "is wider than float32 rounds: its paths differ"),
    ):
        if ratio > most:
            return f"{says} {multiple(ratio)} (rounding: up to {most:g}x)"
    return ""


def _divergence(
    reference: Bits,
    variant: Bits,
    fmt: FloatFormat,
    *,
    with_errors: bool,
) -> Divergence:
    """with_errors: `reference` is `variant` in 16 bits."""
    system = SystematicError()
    if with_errors:
        narrow, wide = (values_of(bits, fmt).astype(np.float64) for bits in (reference, variant))
        is_finite = np.isfinite(narrow) & np.isfinite(wide)
        exact = np.where(is_finite, wide, 0.0)
        system = systematic_error(np.where(is_finite, narrow, 0.0) - exact, exact)
    rows = compare(reference, variant, fmt)
    first = None
    for row in np.flatnonzero(rows.nonfinite_mismatch)[:1]:
        first = first_mismatch(values_of(reference[row], fmt), values_of(variant[row], fmt))
    return Divergence(
        rows.sum_squares / np.maximum(rows.finite, 1),
        rows.nonfinite_mismatch,
        first,
        int(rows.neq.sum()),
        bool(np.all(rows.bit_identical)),
        system=system,
        largest_row_ulps=float(np.nanmax(rows.max_row_ulps, initial=0.0)),
    )
