"""Responses of servers in a run: their table, and what the sides sent read out of all tables."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from ...numerics.top_tokens import TopTokenRows
from ...responses.records import UNKNOWN_TOKEN, Keys, Response, ResponseSide
from ..file.database import Database
from ..file.table import Table

RESPONSE = Table(
    "response",
    """
    -- a server's answer to one prompt; filled in runs of lists only
    side INTEGER -- index of the side
    prompt INTEGER -- index of the prompt
    format VARCHAR -- name of the payload's format
    is_start_known BOOLEAN -- false: position 0 scored the first generated token, and the prompt is
    -- not said
    generated_from INTEGER NULL -- first position computed while generating; null if all are of the
    -- prompt
    is_processed BOOLEAN NULL -- unused, null
    asked INTEGER NULL -- requested values per row; null if not known
    vocab INTEGER NULL -- tokens of the vocabulary; null if not said
    cached INTEGER NULL -- tokens of the prompt that were read from a cache; null if not said
    model VARCHAR -- model as the payload names it
    text VARCHAR -- text that was generated
    tokens VARCHAR -- JSON array: token ids of prompt and answer, -1 if not said
    settings VARCHAR -- JSON object: accepted drafts, the name of a sequence, chosen values that
    -- lists contradict
    warnings VARCHAR -- JSON array: what its reader has to say of it
    """,
)

_CHUNK_ROWS = 1 << 18  # read at a time
_SIDES = "SELECT side, name, holds, keys, sha256 FROM side ORDER BY side"
_PLACE = "WHERE side = ? AND prompt BETWEEN ? AND ?"
# of the stored settings: values sent next to a list that has others, by position
CHOSEN = "chosen_values"
# of `Response` and of the table
SAME = ("format", "generated_from", "vocab", "cached", "model", "text")


def digest_of(responses: Iterable[Response]) -> str:
    """SHA-256 of what a side sent: rows, values and tokens of every response, in order."""
    digest = hashlib.sha256(b"logprob")
    for response in responses:
        digest.update(json.dumps([response.tokens, response.generated_from]).encode())
        for name, values in vars(response.rows).items():
            # runs of 1.0.0 have no chosen values, and their digests go without
            if name != "chosen" or np.isfinite(values).any():
                digest.update(np.ascontiguousarray(values).data)
        # digests of 1.0.0 hold a flag of each row, which no server set
        digest.update(bytes(len(response.rows)))
    return digest.hexdigest()


def read_sides(database: Database) -> tuple[ResponseSide, ...]:
    """Read what the sides of a run of responses sent.

    StoreError if that is not what their digests are of.
    """
    texts = dict(database.rows("SELECT token_id, text FROM vocabulary"))
    sides = []
    with database.decoding("lists"):
        for index, name, holds, keys, sha256 in database.rows(_SIDES):
            responses = tuple(responses_of(database, index, keys, texts))
            _check(responses, name, holds, sha256)
            sides.append(ResponseSide(name, responses))
    return tuple(sides)


def check_digests(database: Database) -> None:
    """Raise StoreError if a side of a run of responses, however long, did not send what its
    digest is of.
    """
    with database.decoding("lists"):
        for index, name, holds, keys, sha256 in database.rows(_SIDES):
            _check(responses_of(database, index, keys, {}), name, holds, sha256)


def _check(responses: Iterable[Response], name: str, holds: str, sha256: str) -> None:
    if holds != "logprob" or digest_of(responses) != sha256:
        raise ValueError(f"what side '{name:.40}' sent does not have its SHA-256")


def responses_of(
    database: Database,
    side: int,
    keys: Keys,
    texts: Mapping[int, str],
) -> Iterator[Response]:
    """Return the responses of a side, some hundred thousand rows read at a time."""
    sql = f"""SELECT min(prompt), max(prompt) FROM (
        SELECT prompt,
            (sum(positions) OVER (ORDER BY prompt) - positions) // {_CHUNK_ROWS} AS chunk
        FROM prompt) GROUP BY chunk ORDER BY chunk"""
    for prompts in database.rows(sql):
        yield from _read_responses(database, [side, *prompts], keys, texts)


def _read_responses(
    database: Database,
    place: list[int],
    keys: Keys,
    texts: Mapping[int, str],
) -> Iterator[Response]:
    def table(columns: str, name: str, order: str) -> list[np.ndarray]:
        sql = f"SELECT prompt, position, {columns} FROM {name} {_PLACE} ORDER BY prompt, {order}"
        arrays = [column.to_numpy() for column in database.table(sql, place).columns]
        return [array.astype(np.int64) if array.dtype.kind in "iu" else array for array in arrays]

    columns_of_rows = f"best, coalesce(chosen, {UNKNOWN_TOKEN}) AS chosen, missing"
    prompts, positions, best, targets, missing = table(columns_of_rows, "side_position", "position")
    of_values, places, ids, values = table("token_id, logit", "top_token", "position, rank")
    # prompt and position in one number, by which values find their row
    places, starts = (each << 32 | at for each, at in ((of_values, places), (prompts, positions)))
    ends = np.concatenate([[0], np.searchsorted(places, starts, "right")]).astype(np.int64)
    responses = database.table(f"SELECT * FROM response {_PLACE} ORDER BY prompt", place)
    for about in responses.to_pylist():
        first, last = np.searchsorted(prompts, [about["prompt"], about["prompt"] + 1])
        part, offsets = slice(first, last), ends[first : last + 1]
        entries = slice(*offsets[[0, -1]])
        settings = json.loads(about["settings"])
        chosen = settings.pop(CHOSEN, {})
        rows = TopTokenRows(
            positions[part],
            offsets - offsets[0],
            ids[entries],
            values[entries].astype(np.float64),
            best[part],
            targets[part],
            missing[part],
            np.array([chosen.get(f"{at}", np.nan) for at in positions[part]], np.float64),
        )
        tokens = tuple(json.loads(about["tokens"]))
        own = {*ids[entries].tolist(), *targets[part].tolist(), *tokens} if texts else set()
        yield Response(
            **{name: about[name] for name in SAME},
            keys=keys,
            tokens=tokens,
            rows=rows,
            start_known=about["is_start_known"],
            top_logprobs=about["asked"],
            texts={token: texts[token] for token in sorted(own & texts.keys())},
            settings=settings,
            warnings=tuple(json.loads(about["warnings"])),
        )
