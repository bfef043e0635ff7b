"""Runs of kind `ops`: what one machine's torch operations keep bit for bit. Records, and their one table in a run file.

Three questions to an operation, each asked of its bits: does a call repeat itself, is row 0 the same alone and among N
rows (*batch- invariant*), and is a row the same at every index of a batch (*position-invariant*). Such a run has no
sides and no logits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..command_name import COMMAND
from ..errors import StoreError, UsageError
from .file.database import SCHEMA_VERSION, Database, each_database
from .store.store import Store

KIND = "ops"
_SCHEMA = (Path(__file__).parent / "file" / "schema.sql").read_text()
_WORST = ("worst_batch", "worst_call", "worst_neq", "worst_elements", "worst_max_ulps")
_COLUMNS = (
    f"op, backend, dtype, size, modules, elements, calls, differing_calls, {', '.join(_WORST)}, batch_classes,"
    " row_positions, relative_rms, seconds, note, refusal, rows_tried"
)
_DECODING = (TypeError, ValueError, KeyError, AttributeError, UsageError)


@dataclass(frozen=True)
class Repeats:
    """The same call again and again: `calls` over all batch sizes, and how many gave other bits than the first at their
    batch size.

    worst_*: the call with most differing elements: its batch size, its 0-based number there, elements that differ,
    elements in all, largest distance in ULPs of the dtype. All 0 where none differs.
    """

    calls: int
    differing: int = 0
    worst_batch: int = 0
    worst_call: int = 0
    worst_neq: int = 0
    worst_elements: int = 0
    worst_max_ulps: int = 0


@dataclass(frozen=True)
class BatchClass:
    """Batch sizes among which row 0 is the same bit for bit.

    digest: the first 16 hexadecimal digits of the SHA-256 of these bits, of all rows tried; neq, max_ulps: elements of
    these rows that differ from batch size 1, and by how many ULPs of the dtype at most.
    """

    batches: tuple[int, ...]
    digest: str
    neq: int = 0
    max_ulps: int = 0

    def __post_init__(self) -> None:
        if not self.batches or not re.fullmatch("[0-9a-f]{1,64}", self.digest):
            raise UsageError(f"a class of batch sizes {self.batches} with the digest '{self.digest[:64]}' is none.")


@dataclass(frozen=True)
class RowPositions:
    """One row copied to every index of a batch of `batch`: the indices in groups of equal bits, that of index 0
    first.
    """

    batch: int
    groups: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        indices = [index for group in self.groups for index in group]
        if len(indices) != self.batch or sorted(indices) != list(range(self.batch)):
            raise UsageError(f"a batch of {self.batch} has each of its indices once, in one group.")


@dataclass(frozen=True)
class OpRow:
    """One operation in one dtype and size. backend: of attention, else ''; modules: those of a model that have this
    shape, else ''.

    elements: of one row's result; rows_tried: rows that were row 0 of batches of their own, over all of which classes
    are formed. repeats, classes and positions are None or empty where they were not asked, or no answer has a meaning;
    `note` says why. relative_rms: rms of row 0 alone to a float64 computation from the same inputs, over that one's
    rms. refusal: why the machine does not have the operation, else ''; nothing was measured then.
    """

    op: str
    backend: str
    dtype: str
    size: str
    modules: str = ""
    elements: int = 0
    repeats: Repeats | None = None
    classes: tuple[BatchClass, ...] = ()
    positions: tuple[RowPositions, ...] = ()
    relative_rms: float | None = None
    seconds: float = 0.0
    note: str = ""
    refusal: str = ""
    rows_tried: int = 1

    def __post_init__(self) -> None:
        batches = [batch for found in self.classes for batch in found.batches]
        if len(set(batches)) != len(batches):
            raise UsageError(f"{self.op}: a batch size is in one class, and once.")
        if self.refusal and (self.repeats or self.classes or self.positions):
            raise UsageError(f"{self.op}: refused, and yet measured.")
        if self.classes and 1 not in self.classes[0].batches:
            raise UsageError(f"{self.op}: the first class is that of batch size 1, not of {self.classes[0].batches}.")

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What it shares with the same probe of another machine."""
        return self.op, self.backend, self.dtype, self.size

    @property
    def is_repeatable(self) -> bool | None:
        return None if self.repeats is None else self.repeats.differing == 0

    @property
    def is_batch_invariant(self) -> bool | None:
        return len(self.classes) == 1 if self.classes else None

    @property
    def is_position_invariant(self) -> bool | None:
        return all(len(found.groups) == 1 for found in self.positions) if self.positions else None


@dataclass(frozen=True)
class OpsHeader:
    """Everything about the run but its rows. dtypes: those probed; seed: of the inputs, which are the same bits on
    every machine.
    """

    name: str
    device: str
    device_name: str
    dtypes: tuple[str, ...]
    seed: int
    command: str
    model: str = ""
    note: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    created: datetime | None = None


@dataclass(frozen=True)
class OpsRun:
    """One stored run of probes. `header.created` is UTC without a zone, as it lies in the file."""

    run_id: str
    header: OpsHeader
    rows: tuple[OpRow, ...]


def write_ops_run(store: Store, header: OpsHeader, rows: Sequence[OpRow], *, run_id: str | None = None) -> str:
    """Store the probes as an immutable run; it appears when it is whole. -> its id"""
    if not rows:
        raise UsageError("no operation was probed; nothing was stored.")
    created = header.created or datetime.now(UTC)
    store.sweep()
    partial = store.new_partial(header.name, created, run_id)
    new_id = partial.path.stem
    try:
        database = Database.to_write(partial.path, expected_bytes=0)
        try:
            database.execute("BEGIN")
            database.execute(_SCHEMA)
            _write_provenance(database, new_id, header, created)
            database.insert("op", _table(rows))
            database.execute("COMMIT")
            database.close()
        except BaseException:
            database.abandon()
            raise
        store.place(partial.path, new_id)
    finally:
        partial.remove()
    return new_id


def read_ops(store: Store, run_id: str) -> OpsRun:
    """A stored run of probes; StoreError for a run of another kind."""
    return ops_of(store.path_of(run_id))


def ops_of(path: Path) -> OpsRun:
    """The run of probes in this very file, whatever it is called."""
    database = Database.to_read(path)
    try:
        database.check_schema()
        return _read(database, database.path.stem)
    finally:
        database.abandon()


def list_ops_runs(store: Store) -> list[str]:
    """Ids of the store's runs of probes, newest first. What cannot be read is left to the gallery to tell."""
    found = each_database(
        store.paths(), lambda database: database.rows("SELECT created FROM run_file.run WHERE kind = ?", [KIND])
    )
    dated = [(rows[0][0], path.stem) for path, rows in found if not isinstance(rows, StoreError) and rows]
    return [run_id for _, run_id in sorted(dated, reverse=True)]


def _write_provenance(database: Database, run_id: str, header: OpsHeader, created: datetime) -> None:
    """The table `run`: no logits, so no vocabulary and no positions."""
    values = {
        "run_id": run_id,
        "name": header.name,
        "created": created.astimezone(UTC).replace(tzinfo=None),
        "kind": KIND,
        "model": header.model,
        "revision": "",
        "compute_dtype": ", ".join(header.dtypes),
        "vocab": 0,
        "positions": 0,
        "device": header.device,
        "device_name": header.device_name,
        "seed": header.seed,
        "command": header.command,
        "note": header.note,
        "versions": json.dumps(header.versions, sort_keys=True),
        "schema_version": SCHEMA_VERSION,
    }
    database.execute(
        f"INSERT INTO run ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})", list(values.values())
    )


def _table(rows: Sequence[OpRow]) -> pa.Table:
    """The table `op`. The three answers stand in columns of their own, for who has only SQL."""
    text, whole, yes = pa.string(), pa.int64(), pa.bool_()

    def worst(name: str) -> pa.Array:
        return pa.array([None if row.repeats is None else getattr(row.repeats, name) for row in rows], whole)

    return pa.table(
        {
            "probe": pa.array(range(len(rows)), pa.int32()),
            "op": pa.array([row.op for row in rows], text),
            "backend": pa.array([row.backend for row in rows], text),
            "dtype": pa.array([row.dtype for row in rows], text),
            "size": pa.array([row.size for row in rows], text),
            "modules": pa.array([row.modules for row in rows], text),
            "elements": pa.array([row.elements for row in rows], whole),
            "rows_tried": pa.array([row.rows_tried for row in rows], pa.int32()),
            "is_repeatable": pa.array([row.is_repeatable for row in rows], yes),
            "calls": worst("calls"),
            "differing_calls": worst("differing"),
            **{name: worst(name) for name in _WORST},
            "is_batch_invariant": pa.array([row.is_batch_invariant for row in rows], yes),
            "batch_classes": pa.array([json.dumps([asdict(found) for found in row.classes]) for row in rows], text),
            "batch_neq": pa.array([max((c.neq for c in row.classes), default=None) for row in rows], whole),
            "batch_max_ulps": pa.array([max((c.max_ulps for c in row.classes), default=None) for row in rows], whole),
            "is_position_invariant": pa.array([row.is_position_invariant for row in rows], yes),
            "row_positions": pa.array([json.dumps([asdict(found) for found in row.positions]) for row in rows], text),
            "relative_rms": pa.array([row.relative_rms for row in rows], pa.float64()),
            "seconds": pa.array([row.seconds for row in rows], pa.float64()),
            "note": pa.array([row.note for row in rows], text),
            "refusal": pa.array([row.refusal for row in rows], text),
        }
    )


def _read(database: Database, run_id: str) -> OpsRun:
    found = database.rows(
        "SELECT kind, name, created, model, compute_dtype, device, device_name, seed, command, note, versions FROM run"
    )[0]
    kind, name, created, model, dtypes, device, device_name, seed, command, note, versions = found
    if kind != KIND:
        raise StoreError(f"run '{run_id}' holds logits and no probes of operations; `{COMMAND} show` shows it.")
    rows = database.table(f"SELECT {_COLUMNS} FROM op ORDER BY probe").to_pylist()
    try:
        header = OpsHeader(
            name=name,
            device=device,
            device_name=device_name,
            dtypes=tuple(dtypes.split(", ")),
            seed=seed,
            command=command,
            model=model,
            note=note,
            versions={str(key): str(value) for key, value in json.loads(versions).items()},
            created=created,
        )
        return OpsRun(run_id, header, tuple(_row(row) for row in rows))
    except _DECODING as error:
        raise StoreError(f"{database.path.name}: its probes make no sense ({error}); the file is damaged.") from error


def _row(found: dict[str, Any]) -> OpRow:
    """One row of the table, by the names of its columns. The file may come from anybody, so every value is what its
    column says.
    """
    numbers = [found[name] for name in ("calls", "differing_calls", *_WORST)]
    return OpRow(
        op=_text(found["op"]),
        backend=_text(found["backend"]),
        dtype=_text(found["dtype"]),
        size=_text(found["size"]),
        modules=_text(found["modules"]),
        note=_text(found["note"]),
        refusal=_text(found["refusal"]),
        elements=int(found["elements"]),
        rows_tried=int(found["rows_tried"]),
        repeats=None if numbers[0] is None else Repeats(*map(int, numbers)),
        classes=tuple(
            BatchClass(tuple(map(int, c["batches"])), _text(c["digest"]), int(c["neq"]), int(c["max_ulps"]))
            for c in json.loads(found["batch_classes"])
        ),
        positions=tuple(
            RowPositions(int(p["batch"]), tuple(tuple(map(int, group)) for group in p["groups"]))
            for p in json.loads(found["row_positions"])
        ),
        relative_rms=None if found["relative_rms"] is None else float(found["relative_rms"]),
        seconds=float(found["seconds"]),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no text")
    return value
