"""The sides of a run, with what makes equal ones known as equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..file.database import Database
from ..file.records import RunHeader
from ..file.table import Table

SIDE = Table(
    "side",
    """
    -- one way the logits were computed; side 0 is the reference
    side INTEGER -- 0-based index
    name VARCHAR -- name of the side
    path VARCHAR -- path that computed it, empty if unknown
    compute_dtype VARCHAR -- dtype of the stored bits
    source_dtype VARCHAR -- dtype the array was given in; widening the stored bits restores it exactly
    sha256 VARCHAR -- SHA-256 of its stored bits, rows in order, little-endian
    values_sha256 VARCHAR -- what equal values are known by in any run: SHA-256 of its values as bits of values_dtype
    values_dtype VARCHAR -- bfloat16 if every value of the side is one, else float16 if every value is one, else
    -- float32
    bit_class INTEGER -- sides of the same number are bit-identical
    holds VARCHAR -- what its values are: logit, or of lists logprob
    k INTEGER NULL -- of lists: most values that were sent for a position; null: whole rows
    keys VARCHAR NULL -- of lists: token_id, or text if the engine sent texts only and token ids are made up
    """,
)

RESPONSE = Table(
    "response",
    """
    -- a server's answer to one prompt; filled in runs of lists only
    side INTEGER -- index of the side
    prompt INTEGER -- index of the prompt
    format VARCHAR -- name of the payload's format
    is_start_known BOOLEAN -- false: position 0 scored the first generated token, and the prompt is not said
    generated_from INTEGER NULL -- first position computed while generating; null if all are of the prompt
    is_processed BOOLEAN NULL -- unused, null
    asked INTEGER NULL -- requested values per row; null if not known
    vocab INTEGER NULL -- tokens of the vocabulary; null if not said
    cached INTEGER NULL -- tokens of the prompt that were read from a cache; null if not said
    model VARCHAR -- model as the payload names it
    text VARCHAR -- text that was generated
    tokens VARCHAR -- JSON array: token ids of prompt and answer, -1 if not said
    settings VARCHAR -- JSON object: accepted drafts, or the name of a sequence
    warnings VARCHAR -- JSON array: what its reader has to say of it
    """,
)


@dataclass(frozen=True)
class StoredSide:
    """A side as stored; `bit_class` is shared by bit-identical sides.

    sha256: of its values as bits of `sha256_dtype`, the dtype they are of, so that equal values have it in any run.
    stored_sha256: of the bits as they are stored.
    """

    index: int
    name: str
    path: str
    source_dtype: str
    sha256: str
    sha256_dtype: str
    stored_sha256: str
    bit_class: int
    holds: str = "logit"
    k: int | None = None


def insert_sides(
    database: Database,
    header: RunHeader,
    digests: Sequence[str],
    values: Sequence[tuple[str, str]],
    k: list[int] | None = None,
    keys: str | None = None,
) -> None:
    """Insert the sides. digests: of the stored bits, the same for sides of one class; values: of each side's values,
    and of which dtype; k, keys: of lists.
    """
    classes = {digest: number for number, digest in enumerate(dict.fromkeys(digests))}
    SIDE.insert_records(
        database,
        header.sides,
        side=list(range(len(header.sides))),
        compute_dtype=header.compute_dtype,
        sha256=list(digests),
        values_sha256=[sha256 for sha256, _ in values],
        values_dtype=[dtype for _, dtype in values],
        bit_class=[classes[digest] for digest in digests],
        holds=header.holds,
        k=k,
        keys=keys,
    )


def read_sides(database: Database) -> list[StoredSide]:
    """Read the sides in their order."""
    rows = database.rows(
        """SELECT side, name, path, source_dtype, values_sha256, values_dtype, sha256, bit_class, holds, k
           FROM side ORDER BY side"""
    )
    with database.decoding("list of sides"):
        return [StoredSide(*row) for row in rows]
