"""Describe an untrusted file before it is stored, by its headers and the rows that a dump's compute dtype takes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..errors import DumpError, StoreError, UsageError
from ..numerics.formats import format_named
from ..runs.dumps.containers import open_container
from ..runs.dumps.dump import GIB, Dump, open_dump
from ..runs.dumps.reserved_keys import sides_of
from ..runs.file.bounds import MAX_SIDES
from ..runs.file.evidence import Check, SentFigures
from ..runs.importing import check_schema, is_run_file
from ..runs.reader import RunReader
from ..runs.store.cards import read_runs
from ..runs.store.store import Store
from ..runs.topk.files import are_payloads
from ..runs.topk.payloads.bounded_json import is_payload
from ..runs.topk.tokens import FORMAT, are_tokens
from ..text import clean, plural
from .ingest import ingest

_MAX_BYTES = 64 * GIB  # as a dump may have
_LONGEST_NAME = 200  # characters of what a run file says of itself: a text there may be as long as it likes


@dataclass(frozen=True)
class Headers:
    """Kind of a file by its first bytes and headers. sides: of arrays, the dtype and shape of each by its name."""

    kind: Literal["run", "dump", "array", "responses"]
    sides: Mapping[str, str] = field(default_factory=dict)


def headers_of(path: Path) -> Headers:
    """Return what a file is: a run, a dump, one array, or responses of an engine; DumpError for anything else."""
    if is_run_file(path):
        return Headers("run")
    if is_payload(path) or are_tokens([path]):
        return Headers("responses")
    container = open_container(path, _MAX_BYTES)
    sides, _ = sides_of(container)
    if not 1 <= len(sides) <= MAX_SIDES:
        problem = f"holds {plural(len(sides), 'array')} of logits"
        raise DumpError(f"{container.name}: {problem}; expected 1 to {MAX_SIDES} of [positions, vocab].")
    headers = {
        name: f"{'bfloat16' if array.dtype.kind == 'V' else array.dtype.name} {list(array.shape)}"
        for name, array in sides.items()
    }
    return Headers("array" if len(sides) == 1 else "dump", headers)


def describe(
    paths: Sequence[Path], *, on_progress: Callable[[int, int], None] = lambda *_: None, **taken_as: Any
) -> dict[str, Any]:
    """Describe the run that `paths` would make, as JSON has it: one file, or two of one array each.

    taken_as: compute_dtype, reference and holds of open_dump. DumpError or StoreError if it cannot be taken.
    """
    if any(is_run_file(path) for path in paths):
        if len(paths) != 1:
            raise UsageError("a run file stands for itself; give it alone.")
        facts = _run(paths[0])
    elif are_tokens(paths) or are_payloads(paths):
        facts = _responses(paths, **taken_as)
    else:
        with open_dump(paths, on_progress=on_progress, **taken_as) as dump:
            facts = _dump(dump)
    return {"files": [clean(path.name) for path in paths], **facts}


def _dump(dump: Dump) -> dict[str, Any]:
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


def _responses(paths: Sequence[Path], **taken_as: Any) -> dict[str, Any]:
    """Describe responses by the run that they make, in a folder that is gone afterwards.

    processed: whether temperature, penalties or a mask are in a side's values, null if a payload does not say.
    """
    with tempfile.TemporaryDirectory(prefix="ulpscope-") as folder:
        store = Store(Path(folder))
        path = store.path_of(ingest(store, paths, run_id="RUN", **taken_as))
        facts = _run(path)
        with RunReader(path) as run:
            sides = []
            for side in run.sides:
                responses = run.rows("response", side=side.index)
                flags = set(responses["is_processed"].dropna())
                values = f"{side.holds}s of at most {plural(side.k or 1, 'token')} per position"
                formats = sorted(set(responses["format"])) or [FORMAT]
                processed = True in flags if flags else None
                sides.append({"name": side.name, "source_dtype": values, "formats": formats, "processed": processed})
            keys, note = set(run.rows("side", side=0)["keys"]), run.header.provenance.note
            rows = [row for pair in run.pairs for row in run.evidence(pair.index)]
    grids = {row.side: f"{row.side}: {row.says}" for row in rows if row.check is Check.GRID}
    counts = [row.figures.positions for row in rows if isinstance(row.figures, SentFigures)]
    notes = [row.says for row in rows if row.check in (Check.PLACEHOLDERS, Check.CONTEXT)]
    return facts | {
        "kind": "responses",
        "sides": sides,
        "positions": max(counts, default=facts["positions"]),
        "dtype_reason": " ".join(grids.values()),
        "tokens": "ids" if "token_id" in keys else "texts",
        "warnings": list(dict.fromkeys([*notes, *[note] * bool(note)])),
    }


def _run(path: Path) -> dict[str, Any]:
    """Describe a run file by what it says of itself; StoreError if it is none."""
    check_schema(path)
    card = read_runs([path])[path]
    if isinstance(card, StoreError):
        raise card
    return {
        "kind": "run",
        "name": clean(card.name, _LONGEST_NAME),
        "model": clean(card.model, _LONGEST_NAME),
        "created": card.created.isoformat(),
        "sides": [{"name": clean(name, _LONGEST_NAME), "source_dtype": card.compute_dtype} for name in card.sides],
        **{name: getattr(card, name) for name in ("prompts", "positions", "vocab", "compute_dtype")},
        "verdicts": list(card.pair_verdicts),
    }
