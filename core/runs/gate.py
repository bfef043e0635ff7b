"""The gate of `compare --fail-on`: what a team declares unacceptable."""

from __future__ import annotations

from dataclasses import dataclass

from core.errors import UsageError
from core.numerics.totals import Summary


def percent(share: float) -> str:
    """`74.9%`; what is not nothing never reads as 0.0%, and what is not all never as 100.0%."""
    if 0 < share < 0.0005:
        return "<0.1%"
    return ">99.9%" if 0.9995 <= share < 1 else f"{share:.1%}"


@dataclass(frozen=True)
class Gate:
    """`bits`, `flips`, or `ulps:N` with `limit` N: more than N ULPs, or a NaN or infinity on one side only, fails."""

    kind: str
    limit: int = 0

    @classmethod
    def parse(cls, text: str) -> Gate:
        kind, colon, limit = text.partition(":")
        if kind in ("bits", "flips") and not colon:
            return cls(kind)
        if kind == "ulps" and limit.isascii() and limit.isdigit():
            return cls(kind, int(limit))
        raise UsageError(f"--fail-on '{text}' is not known; expected bits, flips or ulps:N.")

    def failure(self, summary: Summary, variant: str) -> str | None:
        """A sentence if the pair fails this gate, else None."""
        if self.kind == "bits" and not summary.bit_identical:
            what = (
                f"{summary.neq} values differ"
                if summary.neq
                else "all values are equal, but zeros differ in sign or NaNs in their bits"
            )
            return f"bits: {variant} is not bit-identical to its reference ({what})."
        if self.kind == "flips" and summary.flips:
            return f"flips: {variant} has another argmax at {summary.flips} position{'' if summary.flips == 1 else 's'}."
        if self.kind == "ulps" and summary.max_ulps > self.limit:
            return f"ulps:{self.limit}: {variant} is up to {summary.max_ulps} ULPs from its reference."
        if self.kind == "ulps" and summary.nonfinite_mismatch:
            return f"ulps:{self.limit}: {variant} has {summary.nonfinite_mismatch} NaN or infinite values that its reference has not."
        return None
