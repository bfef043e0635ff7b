"""Hypotheses about a pair, each a small model with few parameters: fitted to every other row, scored on those between.

A hypothesis is claimed where, after undoing it, more than half of the scored rows keep at most a tenth of their squared
difference, and most of the single differences that it speaks of shrink to a third. Rounding cannot pass that: its
differences have either sign and no order. A hypothesis about some tokens (a penalty, a bias) is held to that at these
tokens, and the others have to be a third as far apart. Observations (a sampler, jumps, a coarser dtype) say what is
seen, and explain no share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ...runs.sparse.pairing import extra_first_token
from ...text import number, plural
from .rows import Listed, Mask, PairRows, RowPair, Values

EXPLAINED = 0.9  # of a row's squared difference
SHRUNK, SHRUNK_SHARE = 1 / 3, 0.6  # to what single differences shrink, and how many of them
_LEAST_ROWS = 4  # of either half
_LEAST_TOKENS = 4  # of a row that is fitted with a constant of its own
_LEAST_CONSTANT = 0.05  # a constant in logits that is more than a normaliser's
_OF_REST = 20.0  # a constant is so many times what it leaves
_NOTICED = 6.0  # times what is left of a row in the middle: a token that a hypothesis moves by more is spoken of
_FEW = 0.5  # of a row's tokens are few
_SEEN = 3  # rows in which a biased token has to stand
_STEADY = 0.3  # of a bias, how far it may vary
_ABOVE_NOISE = 4.0  # times the middle difference of other tokens
_MOST_SHIFT = 3  # rows
_COLUMNS = 96  # tokens whose ids are looked for
_JUMP_SHARE, _JUMP_ROWS = 0.9, 0.1
_JUMP_FACTOR, _JUMP_FACTOR_OF_LISTS = 10.0, 20.0  # times the middle position
_LEAST_LEVELS, _MOST_LEVELS = 8, 1 << 16  # of an evenly spaced grid
_SAME_LEVEL, _OFF_GRID = 1e-7, 0.02  # of the widest gap; of a step
_SIXTEEN = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
_COARSER = {**_SIXTEEN, "float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2}

Undo = Callable[[RowPair], Values]


@dataclass(frozen=True)
class Cause:
    """One cause that is claimed. parameters: as fitted; explained: share of the squared difference over the scored
    rows, None for an observation; rows, rows_scored: at how many of them it explains nine tenths; left_rms: what is
    left, in the values' unit; left_floors: over the pair's rounding floor, where it has one. says: one sentence.
    """

    name: str
    says: str
    parameters: dict[str, float | int | str | list[int]] = field(default_factory=dict)
    explained: float | None = None
    rows: int = 0
    rows_scored: int = 0
    left_rms: float | None = None
    left_floors: float | None = None


@dataclass(frozen=True)
class _Score:
    explained: float
    rows: int
    rows_scored: int
    left_rms: float

    def cause(self, name: str, says: str, **parameters: float | int | str | list[int]) -> Cause:
        share, left = _share(self.explained), number(self.left_rms)
        says += f"; it explains {share} of the squared difference and leaves {left} (rms)."
        return Cause(name, says, parameters, self.explained, self.rows, self.rows_scored, self.left_rms)


def _share(share: float) -> str:
    """Never rounded up: `99.99 %` is not all."""
    return f"{math.floor(share * 1e4) / 1e2:.2f} %"


def halves(rows: Sequence[RowPair], least_tokens: int = _LEAST_TOKENS) -> tuple[list[RowPair], list[RowPair]] | None:
    """(rows to fit, rows to score), None where there are too few of either."""
    usable = [row for row in rows if len(row.x) >= least_tokens]
    fitted, scored = usable[::2], usable[1::2]
    return None if min(len(fitted), len(scored)) < _LEAST_ROWS else (fitted, scored)


def _centred(values: Values, has_constant: bool) -> Values:
    return values - np.median(values) if has_constant and len(values) else values


def score(rows: Sequence[RowPair], undo: Undo, has_constant: bool) -> _Score | None:
    """Share of the difference that is gone after undoing a hypothesis, None where that is below the bar."""
    before = after = 0.0
    explained = scored = tokens = 0
    shrunk: list[NDArray[np.bool_]] = []
    for row in rows:
        apart, left = _centred(row.y - row.x, has_constant), _centred(undo(row), has_constant)
        squares, rest = float((apart**2).sum()), float((left**2).sum())
        before, after, tokens = before + squares, after + rest, tokens + len(left)
        scored += squares > 0
        explained += squares > 0 and rest <= (1 - EXPLAINED) * squares
        spoken_of = np.abs(apart - left) > _NOTICED * np.median(np.abs(left)) if len(left) else np.zeros(0, bool)
        shrunk.append(np.abs(left[spoken_of]) <= SHRUNK * np.abs(apart[spoken_of]))
    together = np.concatenate(shrunk) if shrunk else np.zeros(0, bool)
    if not scored or 2 * explained <= scored or not len(together) or together.mean() < SHRUNK_SHARE:
        return None
    return _Score(1 - after / before, explained, scored, math.sqrt(after / max(tokens, 1)))


def scale(pair: PairRows) -> Iterator[Cause]:
    """variant = factor x reference, as a temperature of 1 / factor on the variant makes it."""
    if (split := halves(pair.rows)) is None:
        return
    slopes = []
    for row in split[0]:
        x, y = row.x - row.x.mean(), row.y - row.y.mean()
        if (spread := float(x @ x)) > 0:
            slopes.append(float(x @ y) / spread)
    factor = float(np.median(slopes)) if slopes else 0.0
    if factor <= 0:
        return
    found = score(split[1], lambda row: row.y - factor * row.x, True)
    if found is not None:
        kind = "logits" if pair.values == "logit" else "log-probabilities, up to a constant a position,"
        yield found.cause(
            "temperature",
            f"The {kind} of '{pair.variant}' are {factor:.4g} times those of '{pair.reference}', as a temperature of"
            f" {1 / factor:.3g} on '{pair.variant}' makes them (or of {factor:.3g} on '{pair.reference}')",
            factor=factor,
            temperature=1 / factor,
        )


def constant(pair: PairRows) -> Iterator[Cause]:
    """variant = reference + one number at each position, as log-probabilities are logits less their log-sum."""
    if (split := halves(pair.rows)) is None:
        return
    found = score(split[1], lambda row: row.y - row.x - np.median(row.y - row.x), False)
    if found is None:
        return
    constants = np.array([np.median(row.y - row.x) for row in split[1]])
    size = float(np.median(np.abs(constants)))
    if size < max(_LEAST_CONSTANT, _OF_REST * found.left_rms if pair.has_constants else 0.0):
        return
    middle = number(float(np.median(constants)))
    normalised = [name for name, side in zip(pair.names, (0, 1), strict=True) if _is_normalised(pair, side)]
    why = (
        f": '{normalised[0]}' holds log-probabilities, and the other side logits"
        if len(normalised) == 1
        else ", as other values in the rest of each row make it"
        if pair.has_constants
        else ""
    )
    yield found.cause(
        "constant",
        f"'{pair.variant}' is '{pair.reference}' plus one number at each position ({middle} in the middle){why}",
        constant=float(np.median(constants)),
    )


def _is_normalised(pair: PairRows, side: int) -> bool:
    """Return whether probabilities of a side's complete rows sum to 1."""
    if not pair.is_full:
        return False
    for prompt, position in pair.places[:8]:
        listed = pair.at(side, prompt, position)
        if listed is None:
            return False
        finite = listed.values[np.isfinite(listed.values)]
        if not len(finite):
            return False
        top = float(finite.max(initial=0.0))
        if abs(top + math.log(float(np.exp(finite - top).sum()))) > 0.05:
            return False
    return True


def soft_capping(pair: PairRows) -> Iterator[Cause]:
    """variant = cap x tanh(reference / cap), or the other way round."""
    if pair.values != "logit" or (split := halves(pair.rows)) is None:
        return
    for side in (1, 0):

        def undo(row: RowPair, cap: float, side: int = side) -> Values:
            plain, capped = (row.x, row.y) if side else (row.y, row.x)
            return capped - cap * np.tanh(plain / cap)

        def error(cap: float) -> float:
            return float(np.median([np.abs(undo(row, cap)).mean() for row in split[0]]))

        caps = np.geomspace(2.0, 400.0, 54)
        best = float(min(caps, key=error))
        for width in (1.05, 1.01, 1.002, 1.0004):
            best = float(min((best * width**step for step in range(-5, 6)), key=error))
        found = score(split[1], lambda row: undo(row, best), False)  # noqa: B023  (used before the next turn)
        if found is not None and best < 390:
            yield found.cause(
                "soft-capping",
                f"The logits of '{pair.names[side]}' are those of '{pair.names[1 - side]}' capped softly at {best:.4g},"
                " cap x tanh(logit / cap)",
                cap=best,
            )
            return


def shifted_rows(pair: PairRows) -> Iterator[Cause]:
    """The variant's rows are the reference's, read some rows early or late."""
    scored: dict[int, list[tuple[float, float]]] = {}
    places = pair.places[:: max(1, len(pair.places) // 96)]
    for shift in range(-_MOST_SHIFT, _MOST_SHIFT + 1):
        if shift == 0:
            continue
        found = []
        for prompt, position in places:
            own, other = pair.at(1, prompt, position), pair.at(0, prompt, position)
            there = pair.at(0, prompt, position + shift)
            if own is not None and other is not None and there is not None:
                found.append((_distance(own, other), _distance(own, there)))
        scored[shift] = found

    def left(found: Sequence[tuple[float, float]]) -> float:
        return sum(after for _, after in found) / max(sum(before for before, _ in found), 1e-300)

    usable = {shift: found for shift, found in scored.items() if len(found) >= 2 * _LEAST_ROWS}
    if not usable:
        return
    shift = min(usable, key=lambda one: left(usable[one][::2]))
    rows = [(before, after) for before, after in usable[shift][1::2] if before > 0]
    explained = sum(after <= (1 - EXPLAINED) * before for before, after in rows)
    if not rows or 2 * explained <= len(rows) or left(rows) > 1 - EXPLAINED:
        return
    rest = math.sqrt(sum(after for _, after in rows) / len(rows))
    when = "late" if shift > 0 else "early"
    says = (
        f"'{pair.variant}' holds at each position what '{pair.reference}' holds {plural(abs(shift), 'position')}"
        f" {'further on' if shift > 0 else 'before'}: its rows are {plural(abs(shift), 'row')} {when}"
    )
    yield _Score(1 - left(rows), explained, len(rows), rest).cause("shifted rows", says, rows=shift)


def _distance(one: Listed, other: Listed) -> float:
    """Mean squared difference of two rows over their best tokens, up to a constant; 64 where they share too few."""
    lists = [_best(listed) for listed in (one, other)]
    ids, here, there = np.intersect1d(lists[0].token_ids, lists[1].token_ids, return_indices=True)
    if not len(ids) or 2 * len(ids) < min(len(listed.token_ids) for listed in lists):
        return 64.0
    apart = lists[0].values[here] - lists[1].values[there]
    return float(np.minimum((apart - np.median(apart)) ** 2, 64.0).mean())


def _best(listed: Listed, count: int = 256) -> Listed:
    values = np.where(np.isnan(listed.values), -np.inf, listed.values)
    if len(values) <= count:
        kept = np.flatnonzero(np.isfinite(values))
    else:
        kept = np.argpartition(-values, count)[:count]
        kept = kept[np.isfinite(values[kept])]
    return Listed(listed.token_ids[kept], values[kept])


def other_tokens(pair: PairRows) -> Iterator[Cause]:
    """A token in front of one side's prompt that the other side's lacks: a BOS, or two."""
    for prompt, (one, other) in enumerate(zip(*pair.tokens, strict=False)):
        found = extra_first_token(one, other)
        if found is None:
            continue
        side, is_doubled = found
        token = (one, other)[side][0]
        again, is_so = ("once more ", "doubled") if is_doubled else ("", "missing")
        yield Cause(
            "other tokens",
            f"Prompt {prompt} has token {token} {again}in front on '{pair.names[side]}' and not on"
            f" '{pair.names[1 - side]}': a BOS that is {is_so} on one side.",
            {"token": token, "prompt": prompt},
        )
        return


def moved_ids(pair: PairRows) -> Iterator[Cause]:
    """Tokens stand at other ids: shifted by some, or permuted."""
    if not pair.is_full or (split := halves(pair.rows)) is None:
        return
    x, y = (_whole(pair, side, split[0]) for side in (0, 1))
    vocab = x.shape[1]
    columns = np.unique(np.linspace(0, vocab - 1, min(vocab, _COLUMNS)).astype(int))
    columns = columns[np.ptp(x[:, columns], axis=0) > 0]
    if not len(columns):
        return
    distances = (x[:, columns] ** 2).sum(0)[:, None] + (y**2).sum(0)[None, :] - 2 * x[:, columns].T @ y
    there = distances.argmin(axis=1)
    own = distances[np.arange(len(columns)), columns]
    moved = (there != columns) & (distances.min(axis=1) <= (1 - EXPLAINED) * own)
    if moved.mean() < 0.5:
        return
    x, y = (_whole(pair, side, split[1]) for side in (0, 1))
    before = ((y[:, columns] - x[:, columns]) ** 2)[:, moved].sum(axis=1)
    after = ((y[:, there] - x[:, columns]) ** 2)[:, moved].sum(axis=1)
    if not before.sum():
        return
    left, explained = float(after.sum() / before.sum()), int((after <= (1 - EXPLAINED) * before).sum())
    if left > 1 - EXPLAINED or 2 * explained <= len(before):
        return
    steps, counts = np.unique(there[moved] - columns[moved], return_counts=True)
    shift = int(steps[counts.argmax()])
    is_shift = counts.max() >= 0.9 * moved.sum()
    rest = math.sqrt(float(after.sum()) / (len(after) * int(moved.sum())))
    says = (
        f"Tokens of '{pair.variant}' stand at ids {abs(shift)} {'higher' if shift > 0 else 'lower'} than on"
        f" '{pair.reference}'"
        if is_shift
        else f"Tokens of '{pair.variant}' stand at other ids than on '{pair.reference}': the vocabulary is permuted, as"
        f" token {columns[moved][0]} there is {there[moved][0]}"
    )
    yield _Score(1 - left, explained, len(before), rest).cause(
        "moved ids", says, **({"ids": shift} if is_shift else {})
    )


def _whole(pair: PairRows, side: int, rows: Sequence[RowPair]) -> Values:
    """Complete rows of a side, what is not finite as 0. [rows, vocab]"""
    found = [pair.at(side, row.prompt, row.position) for row in rows]
    values = np.array([listed.values for listed in found if listed is not None])
    return np.where(np.isfinite(values), values, 0.0)


def masked(pair: PairRows) -> Iterator[Cause]:
    """One side leaves out all but its best tokens (top-k, top-p), or the end of the vocabulary."""
    for side in (1, 0):
        masks = [mask for mask in pair.masks[side] if len(mask.masked_ids) and mask.kept]
        if not masks or 2 * len(masks) <= len(pair.masks[side]):
            continue
        name = pair.names[side]
        yield from _cut(masks, name) or _sampled(masks, name)


def _cut(masks: Sequence[Mask], name: str) -> list[Cause]:
    """Ids that are missing in every row, from one on to the last: a vocabulary that ends earlier."""
    always = masks[0].masked_ids
    for mask in masks[1:]:
        always = np.intersect1d(always, mask.masked_ids)
    if not len(always) or any(len(mask.masked_ids) != len(always) for mask in masks):
        return []
    first, last = int(always[0]), int(always[-1])
    if len(always) != last - first + 1:
        return []
    says = (
        f"'{name}' has no token from id {first:,} on ({plural(len(always), 'token')}): its vocabulary is cut or padded."
    )
    return [Cause("cut vocabulary", says, {"first": first, "tokens": len(always)})]


def _sampled(masks: Sequence[Mask], name: str) -> list[Cause]:
    best = [mask for mask in masks if mask.are_best]
    if len(best) < EXPLAINED * len(masks):
        return []
    kept = [mask.kept for mask in best]
    if len(set(kept)) == 1:
        says = f"'{name}' keeps the {kept[0]} best tokens of each row and masks the rest, as top-k {kept[0]} does."
        return [Cause("masking", says, {"top_k": kept[0]})]
    mass = min(mask.mass for mask in best)
    says = (
        f"'{name}' keeps {min(kept):,} to {max(kept):,} best tokens of a row, with at least {mass:.3g} of its"
        " probability, and masks the rest, as top-p or min-p does."
    )
    return [Cause("masking", says, {"top_p": mass})]


def penalty(pair: PairRows) -> Iterator[Cause]:
    """The tokens that stand in the text already are moved, and the others are not."""
    split = halves([row for row in pair.rows if row.before], 8)
    if split is None:
        return
    weights: dict[str, Callable[[RowPair], Values]] = {
        "presence": lambda row: np.ones(len(row.x)),
        "frequency": lambda row: np.array([row.before.get(token, 0) for token in row.token_ids.tolist()], float),
    }
    if pair.values == "logit":
        weights["repetition of positive logits"] = lambda row: np.maximum(row.x, 0.0)
        weights["repetition"] = _by_repetition
    best: tuple[float, str, float, _Score] | None = None
    for name, weight in weights.items():
        strengths = []
        for row in split[0]:
            affected = _in_text(row)
            apart, size = _from_others(row, affected), weight(row)
            usable = affected & (size != 0)
            strengths += (apart[usable] / size[usable]).tolist()
        if not strengths:
            continue
        strength = float(np.median(strengths))
        found = _score_at(split[1], _in_text, lambda row: strength * weight(row))  # noqa: B023  (used at once)
        if found is not None and (best is None or found.left_rms < best[0]):
            best = found.left_rms, name, strength, found
    if best is None:
        if _are_moved(split[1]):
            yield Cause(
                "penalty",
                f"On '{pair.variant}' the tokens that stand in the text already are moved to one side, and the others"
                " are not, as a penalty moves them; its form does not show in these values.",
                {"kind": "unknown"},
            )
        return
    _, name, strength, found = best
    kind = name.split()[0]
    told = {
        "presence": f"by {strength:.4g} each, as a presence penalty of {-strength:.4g} moves them",
        "frequency": f"by {strength:.4g} for each time, as a frequency penalty of {-strength:.4g} moves them",
        "repetition": f"in proportion, as a repetition penalty of {_penalty_of(strength):.4g} moves them",
    }[kind]
    yield found.cause(
        "penalty",
        f"On '{pair.variant}' the tokens that stand in the text already, and no others, are moved {told}",
        kind=kind,
        strength=_penalty_of(strength) if kind == "repetition" else -strength,
    )


def _are_moved(rows: Sequence[RowPair]) -> bool:
    """Return whether the tokens of the text are moved to one side by more than others are, in most rows."""
    seen = moved = 0
    for row in rows:
        affected = _in_text(row)
        if affected.sum() < 2 or affected.mean() > _FEW or not (row.y != row.x).any():
            continue
        apart = _from_others(row, affected)
        noise = float(np.sqrt((apart[~affected] ** 2).mean()))
        is_one_sided = abs(int(np.sign(apart[affected]).sum())) == int(affected.sum())
        seen += 1
        moved += is_one_sided and noise <= SHRUNK * float(np.sqrt((apart[affected] ** 2).mean()))
    return seen >= _LEAST_ROWS and 2 * moved > seen


def _by_repetition(row: RowPair) -> Values:
    """Logits as a repetition penalty moves them, for each part that it takes: a positive one is divided by it, a
    negative one multiplied, which is nearly the same part where the penalty is near 1.
    """
    return np.where(row.x > 0, row.x, -row.x)


def _penalty_of(strength: float) -> float:
    """The penalty p that takes a share 1 - 1 / p of a positive logit."""
    return 1 / (1 + strength) if strength > -1 else math.inf


def _in_text(row: RowPair) -> NDArray[np.bool_]:
    return np.array([token in row.before for token in row.token_ids.tolist()], bool)


def _from_others(row: RowPair, affected: NDArray[np.bool_]) -> Values:
    """Differences less the middle one of the tokens that a hypothesis does not speak of."""
    apart = row.y - row.x
    others = apart[~affected]
    return apart - (np.median(others) if len(others) else 0.0)


def _score_at(
    rows: Sequence[RowPair], affected_of: Callable[[RowPair], NDArray[np.bool_]], moves: Callable[[RowPair], Values]
) -> _Score | None:
    """The score of a hypothesis that moves some tokens, at these; None where it is below the bar, or others are moved
    as well. The share that it explains is of all tokens.
    """
    before = after = 0.0
    explained = scored = tokens = 0
    for row in rows:
        affected = affected_of(row)
        if not affected.any() or affected.mean() > _FEW or not (row.y != row.x).any():
            continue
        apart = _from_others(row, affected)
        left = apart - np.where(affected, moves(row), 0.0)
        noise = float(np.sqrt((apart[~affected] ** 2).mean()))
        squares, rest = float((apart[affected] ** 2).mean()), float((left[affected] ** 2).mean())
        scored += 1
        explained += squares > 0 and rest <= (1 - EXPLAINED) * squares and noise <= SHRUNK * math.sqrt(squares)
        before, after, tokens = before + float((apart**2).sum()), after + float((left**2).sum()), tokens + len(left)
    if scored < _LEAST_ROWS or 2 * explained <= scored:
        return None
    return _Score(1 - after / before, explained, scored, math.sqrt(after / tokens))


def bias(pair: PairRows) -> Iterator[Cause]:
    """A logit bias: the same few tokens are moved by the same amount wherever they stand."""
    split = halves(pair.rows, 8)
    if split is None:
        return
    found: dict[int, list[float]] = {}
    sizes = []
    for row in split[0]:
        apart = row.y - row.x - np.median(row.y - row.x)
        sizes.append(float(np.median(np.abs(apart))))
        for token, value in zip(row.token_ids.tolist(), apart.tolist(), strict=True):
            found.setdefault(token, []).append(value)
    noise = float(np.median(sizes))
    fixed = {}
    for token, values in found.items():
        middle = float(np.median(values))
        is_seen = len(values) >= _SEEN and abs(middle) > _ABOVE_NOISE * noise + 1e-4
        if is_seen and np.median(np.abs(np.array(values) - middle)) <= _STEADY * abs(middle):
            fixed[token] = middle
    if not fixed or len(fixed) > 64:
        return

    def affected(row: RowPair) -> NDArray[np.bool_]:
        return np.array([token in fixed for token in row.token_ids.tolist()], bool)

    def moves(row: RowPair) -> Values:
        return np.array([fixed.get(token, 0.0) for token in row.token_ids.tolist()])

    score_of = _score_at(split[1], affected, moves)
    if score_of is None:
        return
    ids = sorted(fixed, key=lambda token: -abs(fixed[token]))
    shown = ", ".join(f"{token} by {fixed[token]:.4g}" for token in ids[:5])
    yield score_of.cause(
        "logit bias",
        f"On '{pair.variant}' the same tokens are moved wherever they stand: {shown}{', ...' if len(ids) > 5 else ''}",
        tokens=ids[:64],
        largest=fixed[ids[0]],
    )


def coarser(pair: PairRows) -> Iterator[Cause]:
    """One side is the other rounded to a coarser format, or to so many decimals."""
    if (split := halves(pair.rows, 1)) is None:
        return
    for side in (1, 0):
        coarser_rows = [row.y if side else row.x for row in split[0]]
        for name, rounded in _roundings(pair, coarser_rows):

            def undo(row: RowPair, side: int = side, rounded: Rounding = rounded) -> Values:
                fine, coarse = (row.x, row.y) if side else (row.y, row.x)
                return coarse - rounded(fine, coarse)

            found = score(split[1], undo, False)
            if found is not None and found.explained > 0.99:
                yield found.cause(
                    "rounded", f"'{pair.names[side]}' is '{pair.names[1 - side]}' rounded to {name}", to=name
                )
                return


Rounding = Callable[[Values, Values], Values]
"""(finer values, the coarser ones they may have become) -> the finer ones, rounded."""


def _roundings(pair: PairRows, coarser_rows: Sequence[Values]) -> Iterator[tuple[str, Rounding]]:
    if pair.values == "logit":
        for name, dtype in _COARSER.items():
            if name != pair.dtype:
                yield name, partial(_rounded_to, dtype)
    for places in range(1, 7):
        yield plural(places, "decimal"), partial(_to_decimals, places)
    grids = [grid_of(row) for row in coarser_rows] if pair.is_full else []
    levels = [grid.levels for grid in grids if grid is not None]
    if levels and 2 * len(levels) > len(grids):
        bits = max(1, math.ceil(math.log2(max(levels))))
        yield f"even steps, as {plural(bits, 'bit')} a row with a scale hold them", _to_grid


def _rounded_to(dtype: Any, fine: Values, _: Values) -> Values:
    return np.asarray(fine.astype(np.float32).astype(dtype), np.float64)


def _to_decimals(places: int, fine: Values, _: Values) -> Values:
    return np.asarray(np.round(fine, places), np.float64)


@dataclass(frozen=True)
class UniformGrid:
    """Evenly spaced values: start + step x 0 .. levels - 1."""

    start: float
    step: float
    levels: int


def grid_of(row: Values) -> UniformGrid | None:
    """The evenly spaced grid that all values of a row lie on, None where there is none of at most 2^16 levels."""
    held = np.unique(row)
    if not _LEAST_LEVELS <= len(held) <= len(row) // 2:
        return None
    gaps = np.diff(held)
    held = held[np.concatenate(([True], gaps > _SAME_LEVEL * gaps.max()))]  # a level that was rounded in two ways
    step = float(np.diff(held).min())
    if (held[-1] - held[0]) / step > _MOST_LEVELS:
        return None
    level = np.concatenate(([0], np.cumsum(np.round(np.diff(held) / step))))
    step = float(level @ (held - held[0]) / (level @ level))
    if np.abs(held - held[0] - step * level).max() > _OFF_GRID * step:
        return None
    return UniformGrid(float(held[0]), step, int(level[-1]) + 1)


def _to_grid(fine: Values, coarse: Values) -> Values:
    if (grid := grid_of(coarse)) is None:
        return fine
    level = np.clip(np.round((fine - grid.start) / grid.step), 0, grid.levels - 1)
    return np.asarray(grid.start + grid.step * level, np.float64)


def upcast(pair: PairRows) -> Iterator[Cause]:
    """Observation: the values of one side lie on a 16-bit grid, and the other's do not."""
    if not pair.is_full or pair.dtype != "float32":
        return
    sides = [np.concatenate([row.x for row in pair.rows]), np.concatenate([row.y for row in pair.rows])]
    for name, dtype in _SIXTEEN.items():
        on_grid = [bool((side.astype(np.float32).astype(dtype).astype(np.float64) == side).all()) for side in sides]
        side = 1 if on_grid[1] else 0
        if on_grid[0] != on_grid[1] and np.ptp(sides[side]) > 0:  # a constant is of every dtype
            yield Cause(
                "upcast",
                f"Every value of '{pair.names[side]}' is one of {name}, and those of '{pair.names[1 - side]}' are not:"
                f" it was computed in or saved as {name} and widened.",
                {"dtype": name},
            )
            return


def sampler(pair: PairRows) -> Iterator[Cause]:
    """Observation: tokens that were emitted are not the best ones, which greedy decoding would have emitted."""
    for side in (0, 1):
        seen = [one for one in pair.emitted if one[0] == side]
        other = [one for one in seen if one[3] != one[4]]
        if len(other) >= 2 or (other and len(seen) < 8):
            _, prompt, position, best, chosen = other[0]
            yield Cause(
                "sampler",
                f"'{pair.names[side]}' emitted another token than its best at {len(other):,} of"
                f" {plural(len(seen), 'position')}, first at position {position} of prompt {prompt} ({chosen} in place"
                f" of {best}): it sampled, or a penalty or mask stood between.",
                {"positions": len(other), "position": position, "prompt": prompt},
            )


def jumps(pair: PairRows) -> Iterator[Cause]:
    """Observation: nearly all of the difference lies at a few positions, and the others are close."""
    rows = [row for row in pair.rows if len(row.x)]
    sizes = np.array([float(np.sqrt((_centred(row.y - row.x, pair.has_constants) ** 2).mean())) for row in rows])
    places = [(row.prompt, row.position) for row in rows]
    if len(sizes) < 20:
        return
    order = np.argsort(-sizes)
    squares = sizes[order] ** 2
    few = int(np.searchsorted(np.cumsum(squares), _JUMP_SHARE * squares.sum()) + 1)
    middle = float(np.median(sizes))
    factor = _JUMP_FACTOR if pair.is_full else _JUMP_FACTOR_OF_LISTS
    if few > _JUMP_ROWS * len(sizes) or middle <= 0 or sizes[order[few - 1]] < factor * middle:
        return
    listed = ", ".join(f"{places[i][1]}" for i in sorted(order[: min(few, 5)]))
    yield Cause(
        "jumps",
        f"{few} of {len(sizes)} positions ({listed}{', ...' if few > 5 else ''}) hold {_JUMP_SHARE:.0%} of the squared"
        f" difference, up to {number(float(sizes[order[0]]) / middle, 2)} times the middle one: as another route of an"
        " expert, or a fault at single positions, makes it.",
        {"positions": [int(places[i][1]) for i in order[:few]]},
    )


HYPOTHESES: tuple[Callable[[PairRows], Iterator[Cause]], ...] = (
    other_tokens,
    shifted_rows,
    moved_ids,
    scale,
    constant,
    soft_capping,
    coarser,
    penalty,
    bias,
    masked,
    upcast,
    sampler,
    jumps,
)


_BENT = ("temperature", "soft-capping")
# What another cause brings with it: where that is claimed, this says nothing more.
_IMPLIED: tuple[tuple[str, set[str]], ...] = (
    ("logit bias", {"penalty"}),
    ("sampler", {"shifted rows"}),
    ("upcast", {"temperature", "constant", "soft-capping", "penalty", "logit bias", "rounded"}),
)


def causes_of(pair: PairRows) -> list[Cause]:
    """Every cause that is claimed: those that explain most first, then observations. Empty: no simple cause found."""
    found = [cause for hypothesis in HYPOTHESES for cause in hypothesis(pair)]
    names = {cause.name for cause in found}
    found = [cause for cause in found if not any(cause.name == weak and names & strong for weak, strong in _IMPLIED)]
    bent = [cause for cause in found if cause.name in _BENT]  # a line and a curve: the better one
    best = max((cause.explained or 0.0 for cause in bent), default=0.0)
    found = [cause for cause in found if cause not in bent or (cause.explained or 0.0) >= best]
    return sorted(found, key=lambda cause: -(2.0 if cause.name == "other tokens" else cause.explained or 0.0))
