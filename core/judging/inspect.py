"""Describe an untrusted file before it is stored, by its headers and the rows that a dump's compute dtype takes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..errors import DumpError, StoreError, UsageError
from ..numerics.formats import format_named
from ..runs.dumps.containers import open_container
from ..runs.dumps.dump import GIB, open_dump
from ..runs.dumps.reserved_keys import sides_of
from ..runs.file.bounds import MAX_SIDES
from ..runs.file.evidence import Check
from ..runs.importing import check_schema, is_run_file
from ..runs.reader import RunReader
from ..runs.store.cards import read_runs
from ..runs.store.store import Store
from ..runs.topk.alignment import aligned
from ..runs.topk.files import are_payloads, read_sides
from ..runs.topk.pairing import pairs_of, vocabulary_size
from ..runs.topk.payloads.bounded_json import is_payload
from ..runs.topk.tables import most_sent
from ..runs.topk.tokens import FORMAT, are_tokens
from ..text import plural, shown
from .ingest import ingest
from .lists import grid_words, sent_evidence

_MAX_BYTES = 64 * GIB  # as a dump may have
_LONGEST_NAME = 200  # characters of what a run file says of itself: a text there may be as long as it likes


@dataclass(frozen=True)
class Headers:
    """Kind of a file by its first bytes and headers. sides: of arrays, the dtype and shape of each by its name."""

    kind: Literal["run", "dump", "array", "responses"]
    sides: Mapping[str, str] = field(default_factory=dict)


def headers_of(path: Path) -> Headers:
    """Tell a run file, a dump, one array, and responses of an engine apart; DumpError for anything else."""
    if is_run_file(path):
        return Headers("run")
    if is_payload(path) or are_tokens([path]):
        return Headers("responses")
    container = open_container(path, _MAX_BYTES)
    sides, _ = sides_of(container)
    if not 1 <= len(sides) <= MAX_SIDES:
        held = f"holds {plural(len(sides), 'array')} of logits"
        raise DumpError(f"{container.name}: {held}; expected 1 to {MAX_SIDES} of [positions, vocab].")
    described = {
        name: f"{'bfloat16' if array.dtype.kind == 'V' else array.dtype.name} {list(array.shape)}"
        for name, array in sides.items()
    }
    return Headers("array" if len(sides) == 1 else "dump", described)


def understood(paths: Sequence[Path], **options: Any) -> dict[str, Any]:
    """Describe the run that `paths` would make, as JSON has it: one file, or two of one array each.

    options: of open_dump. DumpError or StoreError if it cannot be taken.
    """
    if any(is_run_file(path) for path in paths):
        if len(paths) != 1:
            raise UsageError("a run file stands for itself; give it alone.")
        described = _run(paths[0])
    elif are_tokens(paths):
        described = _tokens(paths)
    else:
        described = _responses(paths) if are_payloads(paths) else _dump(paths, **options)
    return {"files": [shown(path.name) for path in paths], **described}


def _dump(paths: Sequence[Path], **options: Any) -> dict[str, Any]:
    with open_dump(paths, **options) as dump:
        first = dump.prompts[0]
        return {
            "kind": "dump",
            "sides": [{"name": side.name, "source_dtype": side.source_dtype} for side in dump.sides],
            "prompts": len(dump.prompts),
            "positions": dump.rows,
            "vocab": dump.vocab,
            "compute_dtype": dump.compute_dtype,
            "dtype_reason": dump.dtype_reason,
            "tokens": "ids and texts" if first.token_texts else "ids" if first.token_ids else "none",
            "emitted": len(dump.generations),
            "meta": dump.meta,
            "warnings": list(dump.warnings),
            "logits_bytes": dump.rows * dump.vocab * format_named(dump.compute_dtype).itemsize * len(dump.sides),
        }


def _responses(paths: Sequence[Path]) -> dict[str, Any]:
    """processed: whether temperature, penalties or a mask are in a side's values, null if a payload does not say."""
    sides = aligned(read_sides(paths))
    pairs = pairs_of(sides)
    described = []
    for side in sides:
        flags = {response.processed for response in side.responses}
        described.append(
            {
                "name": side.name,
                "source_dtype": f"{side.values}s of at most {plural(most_sent(side), 'token')} per position",
                "formats": sorted({response.format for response in side.responses}),
                "processed": True if True in flags else False if flags == {False} else None,
            }
        )
    rows = [row for pair in pairs for row in sent_evidence(pair)]
    grids = zip(sides, pairs[0].grids, strict=False)
    return {
        "kind": "responses",
        "sides": described,
        "prompts": len(sides[0].responses),
        "positions": len(pairs[0].positions),
        "vocab": vocabulary_size(sides),
        "compute_dtype": pairs[0].compute_dtype,
        "dtype_reason": " ".join(f"{side.name}: {grid_words(grid)}." for side, grid in grids),
        "tokens": "ids" if pairs[0].keys == "token_id" else "texts",
        "warnings": list(dict.fromkeys(row.says for row in rows if row.check in (Check.PLACEHOLDERS, Check.CONTEXT))),
    }


def _tokens(paths: Sequence[Path]) -> dict[str, Any]:
    """Describe chosen tokens by the run that they make, in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="ulpscope-") as folder:
        store = Store(Path(folder))
        with RunReader(store.path_of(ingest(store, paths, run_id="RUN"))) as run:
            header = run.header
    sent = {"source_dtype": "log-probabilities of chosen tokens", "formats": [FORMAT], "processed": None}
    return {
        "kind": "responses",
        "sides": [{"name": side.name, **sent} for side in header.sides],
        "prompts": len(header.prompts),
        "positions": header.rows,
        "vocab": None,
        "compute_dtype": None,
        "dtype_reason": "",
        "tokens": "ids",
        "warnings": [header.provenance.note] if header.provenance.note else [],
    }


def _run(path: Path) -> dict[str, Any]:
    """Describe a run file by what it says of itself; StoreError if it is none."""
    check_schema(path)
    card = read_runs([path])[path]
    if isinstance(card, StoreError):
        raise card
    return {
        "kind": "run",
        "name": shown(card.name, _LONGEST_NAME),
        "model": shown(card.model, _LONGEST_NAME),
        "created": card.created.isoformat(),
        "sides": [{"name": shown(name, _LONGEST_NAME), "source_dtype": card.compute_dtype} for name in card.sides],
        "prompts": card.prompts,
        "positions": card.positions,
        "vocab": card.vocab,
        "compute_dtype": card.compute_dtype,
        "verdicts": list(card.pair_verdicts),
    }
