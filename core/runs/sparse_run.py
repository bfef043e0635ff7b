"""Runs of kind `sparse`: what engines sent of their rows. Such a run has no complete logits; its figures are computed
when it is read, so that nothing stored can contradict what was sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import pyarrow as pa

from ..command_name import COMMAND
from ..errors import StoreError, UsageError
from .file.bounds import MAX_SIDES, MOST_ROWS
from .file.database import Database
from .store.store import Store
from .tables.amounts import check_amounts
from .tables.run import insert_run, read_run
from .tables.schema import check_tables, create_tables
from .tables.sparse import (
    SPARSE_PAIR,
    SPARSE_RESPONSE,
    SPARSE_ROW,
    SPARSE_SIDE,
    SPARSE_TEXT,
    SPARSE_TOKEN,
    SPARSE_VALUE,
)
from .topk.pairing import ListPair, compare_sides
from .topk.records import UNKNOWN_TOKEN, Keys, ListRows, ListSide, Response, Values

KIND = "sparse"
_ABOUT = ("name", "created", "model", "command", "note")
_BYTES_A_VALUE = 24  # in the file, uncompressed


@dataclass(frozen=True)
class SparseHeader:
    """Everything about the run but its sides. command: that which sent the requests, '' for uploads."""

    name: str
    model: str = ""
    command: str = ""
    note: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    created: datetime | None = None


@dataclass(frozen=True)
class SparseVerdict:
    """Verdict on one pair, and the sentence that says why. variant: name of the side."""

    variant: str
    name: str
    because: str


@dataclass(frozen=True)
class SparseRun:
    """One stored run of sparse sides, the reference first. `header.created` is UTC without a zone. verdicts: of the
    pairs that were judged, in order.
    """

    run_id: str
    header: SparseHeader
    sides: tuple[ListSide, ...]
    verdicts: tuple[SparseVerdict, ...] = ()

    @cached_property
    def pairs(self) -> tuple[ListPair, ...]:
        """The reference against every variant."""
        return pairs_of(self.sides)


def pairs_of(sides: Sequence[ListSide]) -> tuple[ListPair, ...]:
    """The first side against every other. UsageError for fewer than two, more than a run has, or equal names."""
    names = [side.name for side in sides]
    if not 2 <= len(sides) <= MAX_SIDES:
        raise UsageError(f"a run has 2 to {MAX_SIDES} sides, not {len(sides):,}.")
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"two sides are called '{twice[0]}'; every side of a run needs its own name.")
    return tuple(compare_sides(sides[0], side) for side in sides[1:])


def write_sparse_run(
    store: Store,
    header: SparseHeader,
    sides: Sequence[ListSide],
    *,
    verdicts: Sequence[SparseVerdict] = (),
    pairs: Sequence[ListPair] | None = None,
    run_id: str | None = None,
) -> str:
    """Store the sides as an immutable run; it appears when it is whole. -> its id

    pairs: of the sides, where they are compared already. DumpError where the sides cannot be compared, UsageError where
    they are more than a run holds: nothing is stored.
    """
    pairs = pairs_of(sides) if pairs is None else pairs
    values = sum(len(response.rows.values) for side in sides for response in side.responses)
    if values > MOST_ROWS[SPARSE_VALUE.name]:
        raise UsageError(
            f"{values:,} values are more than a run of sparse sides holds ({MOST_ROWS[SPARSE_VALUE.name]:,}); store"
            " whole rows as a dump of arrays."
        )
    created = header.created or datetime.now(UTC)
    store.sweep()
    partial = store.new_partial(header.name, created, run_id)
    new_id = partial.path.stem
    try:
        database = Database.to_write(partial.path, expected_bytes=values * _BYTES_A_VALUE)
        try:
            database.execute("BEGIN")
            create_tables(database)
            about = asdict(header) | {
                "created": created,
                "compute_dtype": pairs[0].compute_dtype or "",
                "vocab": pairs[0].vocab or 0,
                "positions": len(pairs[0].positions),
                "request": None,
            }
            insert_run(database, run_id=new_id, kind=KIND, revision="", device="", device_name="", seed=None, **about)
            _insert_sides(database, sides)
            _insert_pairs(database, pairs, {found.variant: found for found in verdicts})
            check_amounts(database)
            database.execute("COMMIT")
            database.close()
        except BaseException as error:
            database.abandon()
            if isinstance(error, (pa.ArrowException, OverflowError, UnicodeError)):
                raise StoreError(f"run '{header.name!a}': its tokens or texts cannot be stored ({error}).") from error
            raise
        store.place(partial.path, new_id)
    finally:
        partial.remove()
    return new_id


def is_sparse(path: Path) -> bool:
    """Return whether the run in this file is of sparse sides. StoreError for a file that is no run."""
    database = Database.to_read(path)
    try:
        return bool(read_run(database, "kind")["kind"] == KIND)
    finally:
        database.abandon()


def sparse_of(path: Path) -> SparseRun:
    """The run of sparse sides in this very file. StoreError for a run of another kind, or a damaged one."""
    database = Database.to_read(path)
    try:
        check_tables(database)
        check_amounts(database)
        about = read_run(database, "kind", "versions", *_ABOUT)
        if about["kind"] != KIND:
            raise StoreError(f"run '{path.stem}' holds whole rows of logits; `{COMMAND} show` shows it.")
        with database.decoding("sparse sides"):
            versions = {str(key): str(value) for key, value in json.loads(about["versions"]).items()}
            header = SparseHeader(versions=versions, **{name: about[name] for name in _ABOUT})
            sides = _read_sides(database)
            return SparseRun(path.stem, header, sides, _read_verdicts(database, sides))
    finally:
        database.abandon()


def _insert_sides(database: Database, sides: Sequence[ListSide]) -> None:
    SPARSE_SIDE.insert(
        database,
        side=list(range(len(sides))),
        name=[side.name for side in sides],
        holds=[side.values for side in sides],
        keys=[side.keys for side in sides],
    )
    for index, side in enumerate(sides):
        for prompt, response in enumerate(side.responses):
            _insert_response(database, {"side": index, "prompt": prompt}, response)


def _insert_response(database: Database, place: dict[str, int], response: Response) -> None:
    rows = response.rows
    SPARSE_RESPONSE.insert_row(
        database,
        **place,
        format=response.format,
        is_start_known=response.start_known,
        generated_from=response.generated_from,
        is_processed=response.processed,
        asked=response.asked,
        vocab=response.vocab,
        cached=response.cached,
        model=response.model,
        text=response.text,
        settings=json.dumps(dict(response.settings), sort_keys=True),
        warnings=json.dumps(list(response.warnings)),
    )
    if response.tokens:
        SPARSE_TOKEN.insert(
            database, **place, position=list(range(len(response.tokens))), token_id=_nullable(response.tokens)
        )
    if response.texts:
        SPARSE_TEXT.insert(database, **place, token_id=list(response.texts), text=list(response.texts.values()))
    if len(rows):
        SPARSE_ROW.insert(
            database,
            **place,
            position=rows.positions,
            best=rows.best,
            chosen=_nullable(rows.chosen.tolist()),
            missing=rows.missing,
            is_full=rows.full,
        )
    if len(rows.values):
        positions = np.repeat(rows.positions, np.diff(rows.offsets))
        SPARSE_VALUE.insert(database, **place, position=positions, token_id=rows.token_ids, value=rows.values)


def _nullable(tokens: Iterable[int]) -> list[int | None]:
    return [None if token == UNKNOWN_TOKEN else token for token in tokens]


def _insert_pairs(database: Database, pairs: Sequence[ListPair], verdicts: Mapping[str, SparseVerdict]) -> None:
    judged = [verdicts.get(pair.variant) for pair in pairs]
    SPARSE_PAIR.insert(
        database,
        pair=list(range(len(pairs))),
        positions=[len(pair.positions) for pair in pairs],
        listed=[pair.listed for pair in pairs],
        differing=[pair.differing for pair in pairs],
        flips=[sum(place.figures.is_flip is True for place in pair.positions) for pair in pairs],
        verdict=[None if found is None else found.name for found in judged],
        because=[None if found is None else found.because for found in judged],
    )


def _read_verdicts(database: Database, sides: Sequence[ListSide]) -> tuple[SparseVerdict, ...]:
    found = database.rows("SELECT pair, verdict, because FROM sparse_pair ORDER BY pair")
    if [row[0] for row in found] != list(range(len(sides) - 1)):
        raise ValueError("its pairs are not those of its sides")
    return tuple(
        SparseVerdict(sides[pair + 1].name, name, because or "") for pair, name, because in found if name is not None
    )


def _read_sides(database: Database) -> tuple[ListSide, ...]:
    named = database.rows("SELECT side, name, holds, keys FROM sparse_side ORDER BY side")
    if [row[0] for row in named] != list(range(len(named))) or len(named) < 2:
        raise ValueError("its sides are not numbered from 0 on")
    for _, _, values, keys in named:
        if values not in get_args(Values) or keys not in get_args(Keys):
            raise ValueError(f"a side of {values!r:.40} by {keys!r:.40}")
    columns = ", ".join(SPARSE_RESPONSE.names)
    found = database.rows(f"SELECT {columns} FROM sparse_response ORDER BY side, prompt")
    responses: dict[int, list[Response]] = {row[0]: [] for row in named}
    for row in found:
        about = dict(zip(SPARSE_RESPONSE.names, row, strict=True))
        side = about["side"]
        if about["prompt"] != len(responses[side]):
            raise ValueError(f"its prompts of side {side} are not numbered from 0 on")
        responses[side].append(_read_response(database, about, named[side][2], named[side][3]))
    return tuple(ListSide(name, tuple(responses[side])) for side, name, _, _ in named)


def _read_response(database: Database, about: dict[str, Any], values: Values, keys: Keys) -> Response:
    place = [about["side"], about["prompt"]]

    def table(name: str, columns: str, order: str) -> dict[str, np.ndarray]:
        asked = f"SELECT {columns} FROM {name} WHERE side = ? AND prompt = ? ORDER BY {order}"
        found = database.table(asked, place)
        return {column: found.column(column).to_numpy() for column in found.column_names}

    rows = table(
        "sparse_row", f"position, best, coalesce(chosen, {UNKNOWN_TOKEN}) AS chosen, missing, is_full", "position"
    )
    listed = table("sparse_value", "position, token_id, value", "position, value DESC, token_id")
    tokens = table("sparse_token", f"position, coalesce(token_id, {UNKNOWN_TOKEN}) AS token_id", "position")
    if np.any(np.diff(rows["position"]) <= 0) or tokens["position"].tolist() != list(range(len(tokens["position"]))):
        raise ValueError("its rows or tokens are not in order")
    positions = rows["position"].astype(np.int64)
    counts = np.searchsorted(listed["position"], positions, "right") - np.searchsorted(listed["position"], positions)
    best = rows["best"].astype(np.int64)
    if counts.sum() != len(listed["value"]) or np.any(best < 0) or np.any(best > counts):
        raise ValueError("its values are of other rows than it has")
    if len(positions) and (positions[0] < 0 or np.isnan(listed["value"]).any() or np.isposinf(listed["value"]).any()):
        raise ValueError("a position or value is none")
    same_row = np.diff(listed["position"]) == 0
    ids = listed["token_id"].astype(np.int64)
    made = ListRows(
        positions,
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        ids,
        listed["value"].astype(np.float64),
        best,
        rows["chosen"].astype(np.int64),
        rows["missing"].astype(np.int64),
        rows["is_full"].astype(np.bool_),
    )
    if np.any(ids < 0) or _has_twice(made, same_row):
        raise ValueError("a token stands twice in a row, or has no id")
    texts = database.rows("SELECT token_id, text FROM sparse_text WHERE side = ? AND prompt = ?", place)
    settings, warnings = json.loads(about["settings"]), json.loads(about["warnings"])
    return Response(
        about["format"],
        values,
        keys,
        tuple(tokens["token_id"].tolist()),
        made,
        about["is_start_known"],
        about["generated_from"],
        dict(texts),
        about["is_processed"],
        about["asked"],
        about["vocab"],
        about["model"],
        about["text"],
        about["cached"],
        {str(key): str(value) for key, value in settings.items()},
        tuple(str(warning) for warning in cast("list[object]", warnings)),
    )


def _has_twice(rows: ListRows, same_row: np.ndarray) -> bool:
    """Return whether a row lists a token twice."""
    if not same_row.any():
        return False
    return any(len(np.unique(rows.row(index)[0])) < len(rows.row(index)[0]) for index in range(len(rows)))
