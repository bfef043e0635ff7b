"""The gallery: one card a run file, read in under a millisecond each; what cannot be read is listed by name with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from core.errors import StoreError
from core.runs.store import Store, each_database


@dataclass(frozen=True)
class RunCard:
    """A run at a glance. Counts are over all its pairs; `max_ulps` in ULPs of the compute dtype; `bytes` on disk."""

    run_id: str
    name: str
    created: datetime
    kind: str
    model: str
    compute_dtype: str
    device: str
    prompts: int
    positions: int
    vocab: int
    pairs: int
    bit_identical_pairs: int
    flips: int
    max_ulps: int
    max_neq_share: float
    verdicts: str
    sides: tuple[str, ...]
    bytes: int
    is_read_only: bool


@dataclass(frozen=True)
class BrokenRun:
    """A file in the store that is not a readable run."""

    path: Path
    reason: str


def list_runs(store: Store) -> tuple[list[RunCard], list[BrokenRun]]:
    """All runs of a store, newest first, and the files that are none."""
    cards: list[RunCard] = []
    broken: list[BrokenRun] = []
    for path, opened in each_database(store.paths()):
        if isinstance(opened, StoreError):
            broken.append(BrokenRun(path, str(opened)))
            continue
        try:
            row = opened.rows(
                """SELECT name, created, kind, model, compute_dtype, device, positions, vocab,
                          (SELECT count(*) FROM prompt), (SELECT count(*) FROM pair), (SELECT count(*) FROM pair WHERE bit_identical),
                          (SELECT coalesce(sum(flips), 0) FROM pair), (SELECT coalesce(max(max_ulps), 0) FROM pair),
                          (SELECT coalesce(max(neq_share), 0) FROM pair),
                          (SELECT coalesce(string_agg(DISTINCT verdict, ', '), '') FROM pair),
                          (SELECT list(name ORDER BY side) FROM side)
                   FROM run"""
            )[0]
            size = path.stat().st_size
        except (StoreError, OSError, IndexError) as error:
            broken.append(BrokenRun(path, str(error)))
            continue
        cards.append(
            RunCard(
                run_id=path.stem, name=row[0], created=row[1], kind=row[2], model=row[3], compute_dtype=row[4], device=row[5],
                positions=row[6], vocab=row[7], prompts=row[8], pairs=row[9], bit_identical_pairs=row[10], flips=int(row[11]),
                max_ulps=row[12], max_neq_share=row[13], verdicts=row[14], sides=tuple(row[15]), bytes=size,
                is_read_only=not store.is_writable(path),
            )  # fmt: skip
        )
    return sorted(cards, key=lambda card: (card.created, card.run_id), reverse=True), broken
