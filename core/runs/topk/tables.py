"""Runs of lists: sides of top tokens in the tables of all runs, written and read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ...errors import StoreError, UsageError
from ...numerics.topk import summary_of
from ..file.bounds import MAX_ROWS
from ..file.database import Database
from ..file.kept import FIGURES
from ..file.records import Prompt, Provenance, RunHeader, SideHeader
from ..store.store import Store
from ..tables.amounts import check_amounts
from ..tables.pairs import insert_pair
from ..tables.positions import SIDE_POSITION, TOP_TOKEN, list_position_rows
from ..tables.prompts import VOCABULARY, insert_prompts
from ..tables.run import insert_run
from ..tables.schema import create_tables
from ..tables.sides import RESPONSE, insert_sides
from ..tables.verdicts import insert_evidence
from .alignment import sequence
from .pairing import ListPair, vocabulary_size
from .records import UNKNOWN_TOKEN, Keys, ListRows, ListSide, Response, Values

if TYPE_CHECKING:
    from ..revision import PairVerdict

_MOST_VALUES = 16 * MAX_ROWS  # of 20 a row, 100,000 rows on eight sides; read whole, they take 400 MB
_BYTES_A_VALUE = 24  # in the file, uncompressed
_CHUNK_ROWS = 1 << 18  # read at a time
_PLACE = "WHERE side = ? AND prompt BETWEEN ? AND ?"


@dataclass(frozen=True)
class About:
    """Name and origin of a run of lists. command: that which sent the requests, '' for uploads."""

    name: str
    model: str = ""
    command: str = ""
    note: str = ""
    versions: dict[str, str] = field(default_factory=dict)


def write_lists(
    store: Store,
    about: About,
    sides: Sequence[ListSide],
    pairs: Sequence[ListPair],
    verdicts: Sequence[PairVerdict] = (),
    *,
    run_id: str | None = None,
) -> str:
    """Store aligned sides and their pairs as a run; it appears when it is whole. -> its id"""
    values = sum(len(response.rows.values) for side in sides for response in side.responses)
    if values > _MOST_VALUES:
        raise UsageError(
            f"{values:,} values are more than a run of lists holds ({_MOST_VALUES:,}); store whole rows as a dump of"
            " arrays."
        )
    created = datetime.now(UTC)
    store.sweep()
    partial = store.new_partial(about.name, created, run_id)
    new_id = partial.path.stem
    try:
        database = Database.to_write(partial.path, expected_bytes=values * _BYTES_A_VALUE)
        try:
            header = _header(about, sides, pairs)
            database.execute("BEGIN")
            create_tables(database)
            logits = {name: getattr(header, name) for name in ("name", "compute_dtype", "vocab", "kept")}
            insert_run(
                database, run_id=new_id, created=created, positions=header.rows, **logits, **asdict(header.provenance)
            )
            insert_prompts(database, header)
            if texts := _texts(sides):
                VOCABULARY.insert(database, token_id=list(texts), text=list(texts.values()))
            digests = [digest_of(side.values, side.responses) for side in sides]
            sent = [most_sent(side) for side in sides]
            insert_sides(database, header, digests, [(each, "float64") for each in digests], sent, sides[0].keys)
            for index, side in enumerate(sides):
                _insert_side(database, index, side)
            for index, pair in enumerate(pairs):
                verdict = next((each for each in verdicts if each.pair == index), None)
                named = (None, None, None) if verdict is None else (verdict.name, verdict.because, verdict.noise_ratio)
                places = [(place.prompt, place.position) for place in pair.positions]
                figures = [place.figures for place in pair.positions]
                ulps = list(zip(*(place.margin_ulps for place in pair.positions), strict=True))
                insert_pair(database, index, summary_of(figures), named)
                database.insert("position", list_position_rows(index, places, figures, ulps))
                if verdict is not None:
                    insert_evidence(database, index, np.array(places, np.int32), verdict.evidence, verdict.floors)
            check_amounts(database)
            database.execute("COMMIT")
            database.close()
        except BaseException as error:
            database.abandon()
            if isinstance(error, (pa.ArrowException, OverflowError, UnicodeError)):
                raise StoreError(f"run '{about.name!a}': its tokens or texts cannot be stored ({error}).") from error
            raise
        store.place(partial.path, new_id)
    finally:
        partial.remove()
    return new_id


def _header(about: About, sides: Sequence[ListSide], pairs: Sequence[ListPair]) -> RunHeader:
    dtypes = {pair.compute_dtype for pair in pairs}
    return RunHeader(
        about.name,
        (dtypes.pop() if len(dtypes) == 1 else None) or "",
        vocabulary_size(sides) or 0,
        tuple(_prompt([side.responses[index] for side in sides]) for index in range(len(sides[0].responses))),
        tuple(SideHeader(side.name, "", "float32") for side in sides),
        Provenance("upload", about.model, command=about.command, note=about.note, versions=about.versions),
        kept=FIGURES,
        k=max(map(most_sent, sides)),
        holds=sides[0].values,
    )


def most_sent(side: ListSide) -> int:
    """Most values that a side sent for a position; at least 1."""
    return max(1, *(int(np.diff(response.rows.offsets).max(initial=0)) for response in side.responses))


def _prompt(responses: Sequence[Response]) -> Prompt:
    """The reference's tokens, as far as a side sent rows. Texts are '' where unknown."""
    reference = responses[0]
    positions = max(1, *(int(response.rows.positions.max(initial=-1)) + 1 for response in responses))
    tokens = sequence(reference)[:positions]
    tokens = (*tokens, *[UNKNOWN_TOKEN] * (positions - len(tokens)))
    is_known = UNKNOWN_TOKEN not in tokens and reference.keys == "token_id"
    texts = tuple(reference.texts.get(token, "") for token in tokens)
    return Prompt(positions, tokens if is_known else (), texts if any(texts) else ())


def _texts(sides: Sequence[ListSide]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for side in sides:
        for response in side.responses:
            for token, text in response.texts.items():
                texts.setdefault(token, text)
    return texts


_ROW = ("best", "chosen", "missing", "full")
_SAME = (
    "format",
    "generated_from",
    "asked",
    "vocab",
    "cached",
    "model",
    "text",
)  # as `Response` and the table have them


def _insert_side(database: Database, index: int, side: ListSide) -> None:
    """Insert what a side sent, all responses at once: an insert costs 2 ms however small it is."""
    responses, rows = side.responses, [response.rows for response in side.responses]
    RESPONSE.insert(
        database,
        side=index,
        prompt=list(range(len(responses))),
        **{name: [getattr(response, name) for response in responses] for name in _SAME},
        is_start_known=[response.start_known for response in responses],
        is_processed=[response.processed for response in responses],
        tokens=[json.dumps(response.tokens) for response in responses],
        settings=[json.dumps(dict(response.settings), sort_keys=True) for response in responses],
        warnings=[json.dumps(response.warnings) for response in responses],
    )
    positions, best, chosen, missing, full, ids, values = (
        np.concatenate([getattr(each, name) for each in rows]) for name in ("positions", *_ROW, "token_ids", "values")
    )
    prompts = np.repeat(np.arange(len(rows)), [len(each) for each in rows])
    SIDE_POSITION.insert(
        database,
        side=index,
        prompt=prompts,
        position=positions,
        logsumexp=_logsumexp(side),
        best=best,
        chosen=pa.array(chosen.astype(np.int32), mask=chosen == UNKNOWN_TOKEN),
        missing=missing,
        is_full=full,
    )
    counts = np.concatenate([np.diff(each.offsets) for each in rows])
    TOP_TOKEN.insert(
        database,
        side=index,
        prompt=np.repeat(prompts, counts),
        position=np.repeat(positions, counts),
        rank=np.arange(len(values)) - np.repeat(np.cumsum(counts) - counts, counts),
        token_id=ids,
        logit=values,
    )


def _logsumexp(side: ListSide) -> float | list[float | None] | None:
    """What a value is less to be the logarithm of its probability; None if nothing says it."""
    if side.values != "logit":
        return 0.0 if side.values == "logprob" else None
    whole: list[Sequence[float]] = [
        response.rows.row(index)[1].tolist() if is_full else []
        for response in side.responses
        for index, is_full in enumerate(response.rows.full.tolist())
    ]
    return [float(np.logaddexp.reduce(values)) if len(values) else None for values in whole]


def digest_of(values: str, responses: Iterable[Response]) -> str:
    """SHA-256 of what a side sent: rows, values and tokens of every response, in order."""
    digest = hashlib.sha256(values.encode())
    for response in responses:
        digest.update(json.dumps([response.tokens, response.generated_from]).encode())
        for name in ("positions", "offsets", "token_ids", "values", "best", "chosen", "missing", "full"):
            digest.update(np.ascontiguousarray(getattr(response.rows, name)).data)
    return digest.hexdigest()


def read_sides(database: Database) -> tuple[ListSide, ...]:
    """What the sides of a run of lists sent. StoreError if that is not what their digests are of."""
    texts = dict(database.rows("SELECT token_id, text FROM vocabulary"))
    with database.decoding("lists"):
        sides = []
        for index, name, holds, keys, sha256 in _stored_sides(database):
            side = ListSide(name, tuple(responses_of(database, index, holds, keys, texts)))
            _check_digest(name, digest_of(holds, side.responses), sha256)
            sides.append(side)
        return tuple(sides)


def check_digests(database: Database) -> None:
    """StoreError if a side of a run of lists, however long, did not send what its digest is of."""
    with database.decoding("lists"):
        for index, name, holds, keys, sha256 in _stored_sides(database):
            _check_digest(name, digest_of(holds, responses_of(database, index, holds, keys, {})), sha256)


def _stored_sides(database: Database) -> list[tuple]:
    return database.rows("SELECT side, name, holds, keys, sha256 FROM side ORDER BY side")


def _check_digest(name: str, digest: str, expected: str) -> None:
    if digest != expected:
        raise ValueError(f"what side '{name:.40}' sent does not have its SHA-256")


def responses_of(
    database: Database, side: int, holds: Values, keys: Keys, texts: Mapping[int, str]
) -> Iterator[Response]:
    """The responses of a side, some hundred thousand rows read at a time."""
    counts = np.array(database.rows("SELECT positions FROM prompt ORDER BY prompt"), np.int64).ravel()
    chunk = (np.cumsum(counts) - counts) // _CHUNK_ROWS
    for number in np.unique(chunk):
        first, last = np.flatnonzero(chunk == number)[[0, -1]]
        yield from _read_responses(database, [side, first, last], holds, keys, texts)


def _read_responses(
    database: Database, place: list[int], holds: Values, keys: Keys, texts: Mapping[int, str]
) -> Iterator[Response]:
    def table(columns: str, name: str, order: str) -> list[np.ndarray]:
        asked = f"SELECT prompt, position, {columns} FROM {name} {_PLACE} ORDER BY prompt, {order}"
        return [column.to_numpy() for column in database.table(asked, place).columns]

    prompts, positions, *rows = table(
        f"best, coalesce(chosen, {UNKNOWN_TOKEN}) AS chosen, missing, is_full", "side_position", "position"
    )
    of_values, places, ids, values = table("token_id, logit", "top_token", "position, rank")
    places, starts = (each.astype(np.int64) << 32 | at for each, at in ((of_values, places), (prompts, positions)))
    ends = np.concatenate([[0], np.searchsorted(places, starts, "right")]).astype(np.int64)
    columns = ", ".join(["prompt", *_SAME, "is_start_known", "is_processed", "tokens", "settings", "warnings"])
    for about in database.table(f"SELECT {columns} FROM response {_PLACE} ORDER BY prompt", place).to_pylist():
        first, last = (int(np.searchsorted(prompts, about["prompt"], way)) for way in ("left", "right"))
        offsets = ends[first : last + 1]
        listed = slice(int(offsets[0]), int(offsets[-1]))
        tokens = tuple(json.loads(about["tokens"]))
        sent = (*ids[listed].tolist(), *rows[1][first:last].tolist(), *tokens) if texts else ()
        own = {int(token) for token in sent}
        best, chosen, missing, full = (column[first:last] for column in rows)
        yield Response(
            **{name: about[name] for name in _SAME},
            values=holds,
            keys=keys,
            tokens=tokens,
            rows=ListRows(
                positions[first:last].astype(np.int64),
                offsets - offsets[0],
                ids[listed].astype(np.int64),
                values[listed].astype(np.float64),
                best.astype(np.int64),
                chosen.astype(np.int64),
                missing.astype(np.int64),
                full.astype(np.bool_),
            ),
            start_known=about["is_start_known"],
            processed=about["is_processed"],
            texts={token: texts[token] for token in sorted(own & texts.keys())},
            settings=json.loads(about["settings"]),
            warnings=tuple(json.loads(about["warnings"])),
        )
