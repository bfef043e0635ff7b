"""Judge the answers of a server in several states: is a difference from the cold answer rounding?

HTTP shows no noise floor, so the scale is the server's own. The noise: what cold requests show that
sum in another order (other shapes, other neighbors). The size of a fault: what a wrong block of
tokens in the prompt does to the same rows. Between them, a fault in some requests stands out from
its fellows; one in all requests that is smaller may be a cache of lower precision: undecided.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import comb

import numpy as np

from ..cause import Cause
from ..checks.responses import response_rows
from ..checks.state import (
    BEYOND,
    BITWISE,
    NOT_AVAILABLE,
    RESULTS,
    UNDECIDED,
    WITHIN,
    StateFigures,
    state_row,
)
from ..errors import DumpError
from ..evidence import Evidence
from ..numerics.arrays import Flags, Floats, Ints
from ..numerics.grid import sent_error
from ..numerics.top_tokens import TopTokenFigures, TopTokenRows, compare_rows
from ..responses.alignment import align, prompt_tokens
from ..responses.pairing import ResponsePair, pairs_of
from ..responses.placeholders import without_placeholders
from ..responses.records import ResponseSide
from ..text import out_of, plural
from ..verdict import Verdict
from .axes import AXES, SAME, TOKENS, Axis, neighbors_of
from .conclude import conclude

# of the largest noise of cold requests: 2,000 draws of five of 50 rounds of llama.cpp (float16
# cache, 30 prompts), idle or busy: 99 % are below 4.8, the largest is 6.5. Beyond is undecided at
# first.
LIMIT = 5.0
# between two sizes: the larger ones are no tail of the noise. Of the same faults in bfloat16 it is
# less, then they count as noise, and are reported of their own axis.
_GAP = 10.0
# of the sizes: so many are noise if a few are faults, or if those of every second axis are
_FEW, _MANY = 0.8, 0.4
_USUAL = 0.6  # quantile of cold sizes that a fault of one of two axes does not reach
# of a fault: below it, few sizes after a gap are those of a float16 cache, or of another kernel
_LEAST_FAULT = 0.05
_GROUP_GAP = 5.0  # between requests that are beyond and their fellows
# of the median that a wrong block does: a cache in fp8 does 0.08, in 4 bits 0.3, positions off by
# one 0.6 to 1.3
_FAULT = 0.5
_LEAST_SEEN = 0.5  # of the prompts: wrong blocks beyond the limit
_CHANCE = 1e-3  # that one of the groups is that of the requests beyond
_PAGES = (16, 32, 64, 128, 256)


@dataclass
class StateAnswers:
    """Answers of one server. cold: the reference; wrong_blocks: to prompts of which a block is
    another one's; sides: by axis; is_cold: nothing of the reference came from a cache.

    missing: why the server cannot be asked so; failed: why it did not answer; both by axis.
    """

    cold: ResponseSide
    wrong_blocks: ResponseSide
    is_cold: bool
    sides: dict[str, ResponseSide] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Scale:
    """noise: largest of cold requests, nats, None if it cannot be measured; error: of values as
    they are sent; fault: least typical size that no cache of lower precision makes; wrong_block:
    what a wrong block does to the first generated row, median nats, None if it is unknown;
    block_sizes: what it does to requests. [prompts]
    """

    noise: float | None
    error: float
    fault: float
    wrong_block: float | None
    block_sizes: Floats

    @property
    def limit(self) -> float:
        return LIMIT * max(self.noise or 0.0, self.error)


def judge_state(
    state: StateAnswers,
    sides: Sequence[ResponseSide],
) -> tuple[tuple[ResponseSide, ...], tuple[ResponsePair, ...], list[Verdict]]:
    """Judge every axis. sides: the reference and the comparable axes, aligned.

    Return them with their pairs and verdicts, the worst axes first. The last verdict has the rows
    of axes without a comparable side too.
    """
    pairs = pairs_of(sides)
    axes = {axis.name: axis for axis in AXES}
    sizes = {pair.variant: sizes_of(pair, axes[pair.variant].has_values) for pair in pairs}
    # tokens alone have no size that noise could have
    controls = {
        name: each
        for name, each in sizes.items()
        if not axes[name].is_warm and axes[name].has_values
    }
    blocks = _block_rows(state)
    wrong_block = float(np.median([rows[0] for rows in blocks])) if blocks else None
    cold = np.concatenate([*controls.values(), np.empty(0)])
    usual = np.quantile(np.append(cold[cold > 0], 0.0), _USUAL)
    # no cache of lower precision makes it
    fault = _FAULT * (wrong_block or 0.0)
    if fault <= LIMIT * usual:
        # a wrong block does no more than cold requests do
        fault = np.inf
    scale = _Scale(
        noise_of(cold, fault) if state.is_cold else None,
        sent_error(sides[0].rows.values),
        fault,
        wrong_block,
        np.array([np.nanmax(rows) for rows in blocks]),
    )
    judged = []
    for pair, side in zip(pairs, sides[1:], strict=True):
        axis = axes[pair.variant]
        figures = _judge_axis(
            axis,
            sizes[axis.name],
            _open_requests(axis, pair, sides[0]),
            side,
            scale,
        )
        others = [each for name, each in controls.items() if name != axis.name]
        rest = np.nanmax(np.concatenate([*others, np.zeros(1)]))
        worst = figures.worst_nats or 0.0
        # a gap above all other cold axes, and more than a float16 cache does
        makes_noise = 0 < _GAP * rest < worst and worst >= _LEAST_FAULT * fault
        if axis.name in controls and figures.result == WITHIN and makes_noise:
            figures.result = UNDECIDED
            figures.reason = f"the other cold axes differ more than {_GAP:.0f} times less"
        row = state_row(figures, axis.meaning)
        verdict = conclude(
            [row, *response_rows(pair, has_other_inputs=False)],
            is_bit_identical=figures.result == BITWISE,
            noise_ratio=figures.noise_ratio,
            causes=[Cause("", row.says)],
        )
        judged.append((RESULTS.index(figures.result), side, pair, verdict))
    judged.sort(key=lambda each: each[0])
    _, variants, pairs, verdicts = zip(*judged, strict=True)
    numbered = [replace(verdict, pair=index) for index, verdict in enumerate(verdicts)]
    evidence = (*numbered[-1].evidence, *_missing_rows(state, sizes))
    numbered[-1] = replace(numbered[-1], evidence=evidence)
    return (sides[0], *variants), pairs, numbered


def _missing_rows(state: StateAnswers, sizes: dict[str, Floats]) -> Iterator[Evidence]:
    for axis in AXES:
        if axis.name not in sizes:
            result = NOT_AVAILABLE if axis.name in state.missing else UNDECIDED
            reasons = state.failed | state.missing
            reason = reasons.get(axis.name, "its answers cannot be compared").rstrip(".")
            yield state_row(
                StateFigures(axis=axis.name, result=result, reason=reason), axis.meaning
            )


def sizes_of(pair: ResponsePair, has_values: bool = True) -> Floats:
    """Return the largest RMS difference of a row of each request, nats, NaN if no row was compared.
    [prompts]
    """
    largest = np.full(len(pair.meetings), np.nan)
    np.fmax.at(largest, pair.prompts, _pair_sizes(pair, has_values))
    return largest


def _pair_sizes(pair: ResponsePair, has_values: bool) -> Floats:
    """Return the RMS difference of each row, nats, NaN if it was not compared. has_values: else
    tokens alone are. [rows]

    Another token that was emitted counts half of its distance from the top, if the reference emits
    top tokens only: so much at least some logit has moved.
    """
    one, other = pair.rows
    sizes = _row_sizes(one, other, pair.figures)
    if not has_values:
        sizes[:] = 0.0
    # of equal values either may be emitted
    is_top = one.target_values == one.largest
    if is_top[(one.targets >= 0) & (one.counts > 0)].all():
        is_other = (one.targets != other.targets) & (one.targets >= 0) & (other.targets >= 0)
        for row in np.flatnonzero(is_other & (one.counts > 0)):
            tokens, values = one.row(int(row))
            emitted = values[tokens == other.targets[row]]
            gap = values[0] - (emitted[0] if len(emitted) else values[-1])
            sizes[row] = np.fmax(sizes[row], gap / 2)
    return sizes


def _open_requests(axis: Axis, pair: ResponsePair, cold: ResponseSide) -> Flags:
    """Return which requests lack values of a row that was asked for and the cold answer has, or
    differ in a token by an unknown size. [prompts]
    """
    rows, _ = without_placeholders(cold)
    starts = np.array([each.start for each in pair.meetings])[cold.prompts]
    # of other inputs no row is compared
    ends = [np.inf if each.is_parting_in_prompt else each.end for each in pair.meetings]
    given = TOKENS // 2 if axis.is_continued else 0
    is_asked = (rows.positions >= starts + given) & (rows.positions < starts + axis.tokens)
    if axis.has_prompt_rows:
        is_asked |= rows.positions < starts
    is_asked &= (rows.counts > 0) & (rows.positions < np.array(ends)[cold.prompts])

    sizes = _pair_sizes(pair, axis.has_values)
    is_known = ~np.isnan(sizes)
    known = pair.prompts[is_known] << 32 | pair.positions[is_known]
    is_lacking = is_asked & ~np.isin(cold.prompts << 32 | rows.positions, known)
    is_unsized = pair.differs_in_tokens & ~(sizes > 0)
    is_open = np.zeros(len(pair.meetings), np.bool_)
    is_open[cold.prompts[is_lacking]] = True
    is_open[pair.prompts[is_unsized]] = True
    return is_open


def _row_sizes(one: TopTokenRows, other: TopTokenRows, figures: TopTokenFigures) -> Floats:
    """Return the RMS difference of each row, nats; of lists without a common token the spread of
    the first, which at least one value has moved; NaN without values. [rows]
    """
    lasts = np.append(one.values, np.nan)[one.offsets[1:] - 1]
    sizes = np.where(
        figures.common > 0,
        figures.rms.filled(0.0),
        one.largest - lasts,
    )
    sizes[(one.counts == 0) | (other.counts == 0)] = np.nan
    return sizes


def noise_of(sizes: Floats, fault: float) -> float | None:
    """Return the largest size of the cold requests that is no fault, nats, None if all are equal.

    A fault may be among them, so sizes after a gap are left out: a few, or more of them if the
    limit would hide a fault. A float16 cache rounds or does not, which is a gap too, lower.
    """
    sizes = np.sort(sizes[sizes > 0])
    if not len(sizes):
        return None
    rank = np.arange(len(sizes)) / len(sizes)
    is_gap = np.append(np.inf, sizes[1:] / sizes[:-1]) >= _GAP
    is_cut = is_gap & (rank >= _FEW) & (sizes >= _LEAST_FAULT * fault)
    is_cut |= is_gap & (rank >= _MANY) & (LIMIT * sizes >= fault)
    # without a cut the place before the first one is the last
    return float(sizes[is_cut.argmax() - 1])


def _block_rows(state: StateAnswers) -> list[Floats]:
    """Return what a wrong block of tokens does to the generated rows before which both sides have
    the same tokens, nats; one array a prompt, without prompts that have no such block.
    """
    try:
        sides = align([state.cold, state.wrong_blocks])
    except DumpError:
        return []
    blocks = []
    for cold, wrong in zip(*(side.responses for side in sides), strict=True):
        ours = cold.rows.part(np.isin(cold.rows.positions, wrong.rows.positions))
        theirs = wrong.rows.part(np.isin(wrong.rows.positions, ours.positions))
        if not len(ours):
            continue
        is_same = (ours.targets == theirs.targets) & (ours.targets >= 0)
        is_next = is_same[:-1] & (np.diff(ours.positions) == 1)
        # the row at which they part is the last one of equal tokens
        rows = 1 + int(np.cumprod(is_next).sum())
        sizes = _row_sizes(ours, theirs, compare_rows(ours, theirs))[:rows]
        has_block = sizes[0] > 0 or prompt_tokens(cold) != prompt_tokens(wrong)
        if has_block and not np.isnan(sizes[0]):
            blocks.append(sizes)
    return blocks


def _judge_axis(
    axis: Axis,
    sizes: Floats,
    is_open: Flags,
    side: ResponseSide,
    scale: _Scale,
) -> StateFigures:
    """Return the figures of an axis with its result. sizes, is_open: [prompts]"""
    is_known = ~np.isnan(sizes)
    cached = np.array([-1 if each.cached is None else each.cached for each in side.responses])
    worst = float(sizes[is_known].max(initial=0.0))
    is_beyond = is_known & (sizes > scale.limit)
    blocks = scale.block_sizes
    seen = (blocks > scale.limit).sum()
    result = UNDECIDED
    where = reason = ""
    is_of_hits = axis.before == (SAME,)  # without them it is no other axis than the cold one
    if is_of_hits and (cached < 0).all():
        reason = "the server reports no cache hits"

    if is_of_hits and not cached.any() and not is_beyond.any():
        result = NOT_AVAILABLE
        reason = "the server read nothing from its cache"
    elif not (is_known | is_open).any():
        result = NOT_AVAILABLE
        reason = "no row can be compared"
    elif is_open.any() and not is_beyond.any():
        share = out_of(int(is_open.sum()), len(is_open))
        reason = f"{share} requests lack rows of the cold one, or have other tokens"
    elif not worst:
        result = BITWISE
    elif is_beyond.any():
        # what was not read from the cache is no fellow
        is_fellow = is_known & ~is_beyond
        if axis.is_warm:
            is_fellow &= cached != 0
        where = _group(axis, side, cached, is_beyond, is_fellow)
        if is_fellow.any() and sizes[is_beyond].min() < _GROUP_GAP * sizes[is_fellow].max():
            where = ""
        size = np.median(sizes[is_beyond])
        is_of_a_group = where and scale.noise and size >= _LEAST_FAULT * scale.fault
        if size >= scale.fault or is_of_a_group:
            result = BEYOND
        elif not scale.noise:
            reason = "no cold requests show how far rounding goes"
        elif not is_fellow.any():
            reason = "fewer bits in the cache, or a fault in all requests"
        else:
            reason = "few requests, and a wrong block of tokens does more"
    elif not len(blocks):
        reason = "no wrong block could be measured"
    elif seen < _LEAST_SEEN * len(blocks):
        reason = f"a wrong block would be seen in {seen} of {plural(len(blocks), 'prompt')} only"
    elif worst >= scale.fault:
        reason = "it is half of what a wrong block does, and cold requests differ as much"
    else:
        result = WITHIN
    return StateFigures(
        axis=axis.name,
        result=result,
        requests=int(is_known.sum()),
        requests_beyond=int(is_beyond.sum()),
        worst_nats=worst,
        noise_nats=scale.noise,
        noise_ratio=worst / scale.noise if scale.noise else None,
        largest_ratio_allowed=LIMIT if scale.noise else None,
        wrong_block_nats=scale.wrong_block,
        where=where,
        reason=reason,
    )


def _group(
    axis: Axis,
    side: ResponseSide,
    cached: Ints,
    is_beyond: Flags,
    is_fellow: Flags,
) -> str:
    """Return what the requests beyond have in common and their fellows have not, '' if there is
    nothing, or if that may be chance.
    """
    count = is_beyond.sum()
    if comb(count + is_fellow.sum(), count) * _CHANCE < 1:
        return ""
    lengths = np.array([len(prompt_tokens(each) or ()) for each in side.responses])
    in_flight = np.array([neighbors_of(number) for number in range(len(lengths))])
    ranges = [
        (axis.is_warm, cached, "if at least {:,} tokens come from the cache"),
        (axis.has_neighbors, in_flight, "if at least {:,} other requests are in flight"),
        (lengths.all(), lengths, "if the prompt has at least {:,} tokens"),
        (lengths.all(), -lengths, "if the prompt has at most {:,} tokens"),
    ]
    for is_asked, values, words in ranges:
        least = values[is_beyond].min()
        if is_asked and least > values[is_fellow].max():
            return f"only {words.format(abs(least))}"
    for page in _PAGES:
        rest = np.unique(lengths[is_beyond] % page)
        if len(rest) == 1 and rest[0] not in lengths[is_fellow] % page:
            return f"only if the prompt's length is {rest[0]} modulo {page}"
    return ""
