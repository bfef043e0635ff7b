"""Tables that say what a run is of: `run`, by which a file is known to be of this form, prompts,
sides with what makes equal ones known as equal, and continuations.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import zip_longest
from typing import Any

import numpy as np

from ...errors import StoreError
from ..file.database import FILE_VERSION, Database
from ..file.records import FIGURES, Generation, Prompt, RunHeader
from ..file.table import Table

RUN = Table(
    "run",
    """
    -- provenance of the run; exactly one row
    run_id VARCHAR -- the file name without .duckdb
    name VARCHAR -- what a person called it
    created TIMESTAMP -- when the capture or upload began, UTC
    kind VARCHAR -- capture: forwards run by ULPscope; upload: a dump from elsewhere; ops: probes of
    -- operations
    model VARCHAR -- folder or hub id of the model, empty if unknown
    revision VARCHAR -- hub revision, or sha256: and the digest of a local folder's weight files;
    -- empty if unknown
    compute_dtype VARCHAR -- dtype the logits were computed in; ULPs are counted in it; empty if
    -- lists do not show it
    vocab INTEGER -- logits per position, number of tokens, or other values per row; 0: of lists,
    -- if nothing says it
    positions INTEGER -- positions of all prompts together
    device VARCHAR -- cpu, cuda, ...; empty if unknown
    device_name VARCHAR -- processor or GPU name; empty if unknown
    seed HUGEINT NULL -- seed set before each side, null if none
    command VARCHAR -- command line that repeats the capture
    request VARCHAR NULL -- JSON object: the request of the capture; null if the run was not
    -- captured
    note VARCHAR -- free text, such as how the compute dtype was found
    versions VARCHAR -- JSON object: library or setting to its version or value
    file_version INTEGER -- version of this form of run file
    kept VARCHAR NULL -- what is kept of the logits: all; figures: none; null if a run of its kind
    -- has none
    """,
)


def insert_run(
    database: Database,
    created: datetime,
    versions: Mapping[str, str],
    **values: Any,
) -> None:
    """Insert the only row; `values`: the other columns, unchanged."""
    RUN.insert_row(
        database,
        created=created.astimezone(UTC).replace(tzinfo=None),
        versions=json.dumps(versions, sort_keys=True),
        file_version=FILE_VERSION,
        **values,
    )


def insert_header(database: Database, created: datetime, header: RunHeader, positions: int) -> None:
    """Insert the only row, of a run with sides."""
    about = {name: getattr(header, name) for name in ("name", "compute_dtype", "vocab")}
    about |= {"run_id": database.path.stem, "positions": positions, "kept": header.keep}
    insert_run(database, created, **about, **asdict(header.provenance))


def read_run(database: Database) -> dict[str, Any]:
    """Read the one row by its columns.

    StoreError if the file is not of the version that is read.
    """
    # the second row tells a file that only looks like a run
    rows = database.records("SELECT * FROM run_file.run LIMIT 2")
    if len(rows) != 1:
        raise StoreError(
            f"{database.file}: {len(rows) or 'no'} rows of provenance, a run file has one.",
        )
    version = rows[0].get("file_version")
    if version != FILE_VERSION:
        raise StoreError(
            f"{database.file}: a run file of version {version!r:.40}; this ULPscope reads version"
            f" {FILE_VERSION}. Capture or ingest it again, or export it as npz with the version"
            " that wrote it.",
        )
    # a build before may have had fewer columns, which are nullable
    unset = {column.name: None for column in RUN.columns if column.is_nullable}
    provenance = unset | rows[0]
    for name in RUN.names:
        if name not in provenance:
            raise StoreError(
                f"{database.file}: its table 'run' lacks the column '{name}'; the file is damaged.",
            )
    return provenance


PROMPT = Table(
    "prompt",
    """
    -- the token sequences of the run
    prompt INTEGER -- 0-based index
    positions INTEGER -- its length, number of positions
    """,
)

TOKEN = Table(
    "token",
    """
    -- the tokens fed to the model; empty if a dump brought none
    prompt INTEGER -- index of the prompt
    position INTEGER -- 0-based token index in its prompt
    token_id INTEGER NULL -- token id, null if unknown
    text VARCHAR NULL -- text of the token, null if unknown
    """,
)

VOCABULARY = Table(
    "vocabulary",
    """
    -- texts of the vocabulary as far as known, so that a viewer needs no tokenizer
    token_id INTEGER -- token id, the column of the logits
    text VARCHAR -- text of the token
    """,
)


def insert_prompts(database: Database, header: RunHeader) -> None:
    """Insert the prompts, their tokens and the vocabulary: what is known before the first logit."""
    tokens = []
    for index, prompt in enumerate(header.prompts):
        # a dump may bring ids alone, or texts alone
        both = enumerate(zip_longest(prompt.token_ids, prompt.token_texts))
        tokens += [(index, position, *token) for position, token in both]
    PROMPT.insert_records(database, header.prompts, prompt=np.arange(len(header.prompts)))
    if tokens:
        columns = map(list, zip(*tokens, strict=True))
        TOKEN.insert(database, **dict(zip(TOKEN.names, columns, strict=True)))
    vocabulary = VOCABULARY.rows(
        database,
        token_id=list(header.vocabulary),
        text=list(header.vocabulary.values()),
    )
    # whose texts follow: those of a large vocabulary are more than all figures
    if header.keep != FIGURES:
        database.insert(VOCABULARY.name, vocabulary)


def insert_used_vocabulary(database: Database, header: RunHeader) -> None:
    """Insert the texts of the tokens that stand in other tables: in prompts, among the best, in
    continuations.
    """
    sql = " UNION ".join(
        f"SELECT token_id FROM {table}" for table in ("token", "top_token", "generated_token")
    )
    ids = sorted(header.vocabulary.keys() & {row[0] for row in database.rows(sql)})
    if ids:
        VOCABULARY.insert(database, token_id=ids, text=[header.vocabulary[token] for token in ids])


def read_prompts(database: Database) -> tuple[Prompt, ...]:
    """Read the prompts in their order."""
    rows = database.rows(
        """SELECT positions, ids, texts FROM prompt LEFT JOIN (
               SELECT prompt,
                   list(token_id ORDER BY position) FILTER (token_id IS NOT NULL) AS ids,
                   list(text ORDER BY position) FILTER (text IS NOT NULL) AS texts
               FROM token GROUP BY prompt
           ) USING (prompt) ORDER BY prompt""",
    )
    # one object for each length, for there may be a million prompts
    without_tokens = cache(Prompt)
    prompts = []
    for positions, ids, texts in rows:
        prompt = without_tokens(positions)
        if ids or texts:
            prompt = Prompt(positions, tuple(ids or ()), tuple(texts or ()))
        prompts.append(prompt)
    return tuple(prompts)


SIDE = Table(
    "side",
    """
    -- one way the logits were computed; side 0 is the reference
    side INTEGER -- 0-based index
    name VARCHAR -- name of the side
    path VARCHAR -- path that computed it, empty if unknown
    compute_dtype VARCHAR -- dtype of the stored bits
    source_dtype VARCHAR -- dtype the array was given in; widening the stored bits restores it
    -- exactly
    sha256 VARCHAR -- SHA-256 of its stored bits, rows in order, little-endian
    values_sha256 VARCHAR -- what equal values are known by in any run: SHA-256 of its values as
    -- bits of values_dtype
    values_dtype VARCHAR -- bfloat16 if every value of the side is one, else float16 if every value
    -- is one, else float32
    bit_class INTEGER -- sides of the same number are bit-identical
    holds VARCHAR -- what its values are: logit, value (an embedding, a score), or of lists logprob
    k INTEGER NULL -- of lists: most values that were sent for a position; null: whole rows
    keys VARCHAR NULL -- of lists: token_id, or text if the engine sent texts only and token ids are
    -- made up
    """,
)


@dataclass(frozen=True)
class StoredSide:
    """A side as stored; `bit_class` is shared by bit-identical sides.

    sha256: of its values as bits of `sha256_dtype`, the dtype they are of, so that equal values
    have it in any run. stored_sha256: of the bits as they are stored.
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
    """Insert the sides. digests: of the stored bits, the same for sides of one class; values: of
    each side's values, and of which dtype; k, keys: of lists.
    """
    classes = list(dict.fromkeys(digests))
    values_sha256, values_dtype = map(list, zip(*values, strict=True))
    SIDE.insert_records(
        database,
        header.sides,
        side=np.arange(len(header.sides)),
        compute_dtype=header.compute_dtype,
        sha256=list(digests),
        values_sha256=values_sha256,
        values_dtype=values_dtype,
        bit_class=list(map(classes.index, digests)),
        holds=header.holds,
        k=k,
        keys=keys,
    )


def read_sides(database: Database) -> list[StoredSide]:
    """Read the sides in their order."""
    rows = database.rows(
        """SELECT side, name, path, source_dtype, values_sha256, values_dtype, sha256, bit_class,
               holds, k
           FROM side ORDER BY side""",
    )
    with database.decoding("list of sides"):
        return [StoredSide(*row) for row in rows]


GENERATION = Table(
    "generation",
    """
    -- prompts that every side continued greedily and freely; the prompt's tokens beyond
    -- given_positions are the reference's
    side INTEGER -- index of the side
    prompt INTEGER -- index of the prompt
    given_positions INTEGER -- positions that were given; the logits of the last of them chose the
    -- first generated token
    asked INTEGER -- tokens requested of the side; fewer if it ended its text
    text VARCHAR -- what it generated, as the tokenizer decodes it
    """,
)

GENERATED_TOKEN = Table(
    "generated_token",
    """
    -- what each side generated on its own, also after they diverge
    side INTEGER -- index of the side
    prompt INTEGER -- index of the prompt
    step INTEGER -- 0-based; step 0 follows the given prompt
    token_id INTEGER -- argmax of the side's own logits there, lowest id on ties
    """,
)

_GENERATIONS = """
WITH made AS (
    SELECT prompt, side, list(token_id ORDER BY step) AS tokens
    FROM generated_token GROUP BY prompt, side)
SELECT prompt, any_value(given_positions), any_value(asked),
    list(coalesce(tokens, []) ORDER BY side), list(text ORDER BY side)
FROM generation LEFT JOIN made USING (prompt, side) GROUP BY prompt ORDER BY prompt
"""


def insert_generation(database: Database, generation: Generation) -> None:
    """Insert the generation of one prompt."""
    for side, (tokens, text) in enumerate(zip(generation.tokens, generation.texts, strict=True)):
        place = {"side": side, "prompt": generation.prompt}
        GENERATION.insert_records(database, [generation], side=side, text=text)
        steps = np.arange(len(tokens))
        GENERATED_TOKEN.insert(database, **place, step=steps, token_id=list(tokens))


def read_generations(database: Database) -> dict[int, Generation]:
    """Read the generations by prompt; empty for a run that only scored given tokens."""
    rows = database.rows(_GENERATIONS)
    with database.decoding("generations"):
        return {
            prompt: Generation(prompt, given, most, tuple(map(tuple, tokens)), tuple(texts))
            for prompt, given, most, tokens, texts in rows
        }
