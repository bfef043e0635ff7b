"""One order of every sum, whatever the batch, the row, the chunking, the cache and the threads (docs/invariant.md)."""

from __future__ import annotations

from .mode import Invariant, invariant_forwards, invariant_refusal

__all__ = ["Invariant", "invariant_forwards", "invariant_refusal"]
