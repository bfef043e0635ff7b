"""A common cause of a difference, of whole rows as of one log-probability per token."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from .numerics.arrays import Record, Values
from .text import floored_percent, number

EXPLAINED = 0.9  # of a row's squared difference


@dataclass(frozen=True)
class Cause:
    """A claimed cause: one sentence, fitted parameters, and what it explains and leaves.

    undo: of a cause that is fitted, `Undo` of `core/judging/explain/scoring.py`;
    explained: share of the squared difference over the scored rows, None for an observation;
    left_rms: in the values' unit; left_floors: in noise floors.
    """

    name: str
    says: str
    parameters: Record = field(default_factory=dict)
    undo: Any = None
    explained: float | None = None
    left_rms: float | None = None
    left_floors: float | None = None

    @property
    def is_fault(self) -> bool:
        """Whether it explains nearly all of the difference and sound sides do not have it."""
        is_most = self.explained is None or self.explained >= EXPLAINED
        return is_most and self.name not in (
            "upcast",
            "rounded",
            "other tokens",
            "sampler",
            "lag",
            "missing",
            "some tokens",
            "part of the sequences",
        )

    @property
    def names_positions(self) -> bool:
        """Whether its sentence says at which positions, or at how many."""
        return not {"position", "positions"}.isdisjoint(self.parameters)

    @property
    def text(self) -> str:
        if self.explained is None:
            return self.says
        floors = "" if self.left_floors is None else f", {number(self.left_floors, 3)} noise floors"
        share = f"{floored_percent(self.explained)} of the squared difference"
        return f"{self.says} Explains {share}; leaves {number(self.left_rms)} (rms){floors}."

    def score(self, total: Values, remaining: Values, tokens: float) -> Cause:
        """Return the cause with what it explains and leaves. total, remaining: squares of each row,
        over `tokens`.
        """
        explained = max(0.0, 1 - float(remaining.sum() / total.sum()))
        return replace(self, explained=explained, left_rms=math.sqrt(remaining.sum() / tokens))

    def to_json(self) -> Record:
        return {
            **{name: value for name, value in vars(self).items() if name != "undo"},
            "text": self.text,
        }
