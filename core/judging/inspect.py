"""Identify an untrusted file (dump or run file) by magic bytes and headers; read a dump's rows only as far as its
compute dtype needs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..errors import DumpError, StoreError, UsageError
from ..numerics.formats import format_named
from ..runs.dumps.containers import open_container
from ..runs.dumps.dump import Dump, open_dump
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
from ..runs.topk.payloads.plain_file import is_payload
from ..runs.topk.records import ListSide
from ..runs.topk.tables import most_sent
from ..runs.topk.tokens import FORMAT, are_tokens
from ..text import plural, shown
from .ingest import ingest
from .judge_lists import grid_words, judge_responses

Kind = Literal["run", "dump", "array", "responses"]
MAX_BYTES = 1 << 40  # the server's own limit comes first
_LONGEST_NAME = 200  # characters of what a run file says of itself: a text there may be as long as it likes


@dataclass(frozen=True)
class Headers:
    """Kind of a file by its first bytes and headers. sides: of arrays, the dtype and shape of each by its name."""

    kind: Kind
    sides: Mapping[str, str] = field(default_factory=dict)


def headers_of(path: Path) -> Headers:
    """A run file, a dump of two or more sides, an array that makes a pair with another file's, or responses of an
    engine. DumpError for anything else.
    """
    if is_run_file(path):
        return Headers("run")
    if is_payload(path) or are_tokens([path]):
        return Headers("responses")
    container = open_container(path, MAX_BYTES)
    sides, _ = sides_of(container)
    if not sides:
        raise DumpError(f"{container.name}: holds no logits; expected an array of [positions, vocab].")
    if len(sides) > MAX_SIDES:
        raise DumpError(f"{container.name}: holds {len(sides)} sides; expected at most {MAX_SIDES}.")
    described = {
        name: f"{'bfloat16' if array.dtype.kind == 'V' else array.dtype.name} {list(array.shape)}"
        for name, array in sides.items()
    }
    return Headers("array" if len(sides) == 1 else "dump", described)


def understood(
    paths: Sequence[Path],
    *,
    compute_dtype: str | None = None,
    reference: str | None = None,
    holds: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Describe the run that saving `paths` would make, as JSON has it. One file, or two of one array each.
    `on_progress(bytes read, bytes in all)`.

    kind: 'run', 'dump' or 'responses'. sides: name and source_dtype, the reference first; of responses what was sent.

    DumpError or StoreError where it cannot be taken.
    """
    if any(is_run_file(path) for path in paths):
        if len(paths) != 1:
            raise UsageError("a run file stands for itself; give it alone.")
        return _run(paths[0])
    if are_tokens(paths):
        return _tokens(paths)
    if are_payloads(paths):
        return _responses(paths)
    with open_dump(
        paths,
        compute_dtype=compute_dtype,
        reference=reference,
        holds=holds,
        max_bytes=MAX_BYTES,
        on_progress=on_progress,
    ) as dump:
        return _dump(paths, dump)


def _dump(paths: Sequence[Path], dump: Dump) -> dict[str, Any]:
    first = dump.prompts[0]
    return {
        "kind": "dump",
        "files": [shown(path.name) for path in paths],
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
    sides = aligned(read_sides(paths))
    pairs = pairs_of(sides)
    rows = [row for verdict in judge_responses(sides, pairs) for row in verdict.evidence]
    return {
        "kind": "responses",
        "files": [shown(path.name) for path in paths],
        "sides": [_side(side) for side in sides],
        "prompts": len(sides[0].responses),
        "positions": len(pairs[0].positions),
        "vocab": vocabulary_size(sides),
        "compute_dtype": pairs[0].compute_dtype,
        "dtype_reason": " ".join(
            f"{side.name}: {grid_words(grid)}" for side, grid in zip(sides, pairs[0].grids, strict=False)
        ),
        "tokens": "ids" if pairs[0].keys == "token_id" else "texts",
        "warnings": list(dict.fromkeys(row.says for row in rows if row.check in (Check.PLACEHOLDERS, Check.CONTEXT))),
    }


def _tokens(paths: Sequence[Path]) -> dict[str, Any]:
    """Describe chosen tokens by the run that they make, in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="ulpscope-") as folder:
        store = Store(Path(folder))
        with RunReader(store.path_of(ingest(store, paths, run_id="RUN"))) as run:
            header, note = run.header, run.header.provenance.note
            size = {"prompts": len(header.prompts), "rows": header.rows, "values": run.pairs[0].summary.finite}
            kind = "log-probabilities of chosen tokens"
            return {
                "kind": "responses",
                "files": [shown(path.name) for path in paths],
                "sides": [
                    {"name": side.name, "source_dtype": kind, "formats": [FORMAT], **size, "processed": None}
                    for side in header.sides
                ],
                "prompts": size["prompts"],
                "positions": header.rows,
                "vocab": None,
                "compute_dtype": None,
                "dtype_reason": "",
                "tokens": "ids",
                "warnings": [note] if note else [],
            }


def _side(side: ListSide) -> dict[str, Any]:
    """Describe what was sent for a side. processed: temperature, penalties or a mask are in the values, null if a
    payload does not say.
    """
    responses = side.responses
    flags = {response.processed for response in responses}
    return {
        "name": side.name,
        "source_dtype": f"{side.values}s of at most {plural(most_sent(side), 'token')} per position",
        "formats": sorted({response.format for response in responses}),
        "prompts": len(responses),
        "rows": sum(len(response.rows) for response in responses),
        "values": sum(len(response.rows.values) for response in responses),
        "processed": True if True in flags else False if flags == {False} else None,
    }


def _run(path: Path) -> dict[str, Any]:
    """Describe a run file by what it says of itself; StoreError if it is none."""
    check_schema(path)
    card = read_runs([path])[path]
    if isinstance(card, StoreError):
        raise card
    return {
        "kind": "run",
        "files": [shown(path.name)],
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
