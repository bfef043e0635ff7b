"""Hypotheses that one side is one function of the other, value by value: a temperature, a constant, a soft cap."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ...text import number
from .rows import PairRows, RowPair, Values
from .scoring import Cause, halves, score

_LEAST_CONSTANT = 0.05  # a constant in logits that is more than a normaliser's
_OF_REST = 20.0  # a constant is so many times what it leaves


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
    """Whether probabilities of a side's complete rows sum to 1."""
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
