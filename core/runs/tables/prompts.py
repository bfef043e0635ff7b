"""The token sequences of a run, and the vocabulary as far as it is known."""

from __future__ import annotations

from functools import cache

from ..file.database import Database
from ..file.keep import FIGURES
from ..file.records import Prompt, RunHeader
from ..file.table import Table

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
    prompts = header.prompts
    lengths = [prompt.positions for prompt in prompts]
    PROMPT.insert(database, prompt=list(range(len(prompts))), positions=lengths)
    with_tokens = [(index, each) for index, each in enumerate(prompts) if each.token_ids or each.token_texts]
    if with_tokens:
        TOKEN.insert(
            database,
            prompt=[index for index, each in with_tokens for _ in range(each.positions)],
            position=[position for _, each in with_tokens for position in range(each.positions)],
            token_id=[token for _, each in with_tokens for token in each.token_ids or [None] * each.positions],
            text=[text for _, each in with_tokens for text in each.token_texts or [None] * each.positions],
        )
    if header.keep == FIGURES:  # whose texts follow: those of a large vocabulary are more than all figures
        "".join(header.vocabulary.values()).encode()  # what cannot be stored is refused now
    elif header.vocabulary:
        VOCABULARY.insert(database, token_id=list(header.vocabulary), text=list(header.vocabulary.values()))


def insert_used_vocabulary(database: Database, header: RunHeader) -> None:
    """Insert the texts of the tokens that stand in other tables: in prompts, among the best, in continuations."""
    sql = " UNION ".join(f"SELECT token_id FROM {table}" for table in ("token", "top_token", "generated_token"))
    ids = sorted(header.vocabulary.keys() & {row[0] for row in database.rows(sql)})
    if ids:
        VOCABULARY.insert(database, token_id=ids, text=[header.vocabulary[token] for token in ids])


def read_prompts(database: Database) -> tuple[Prompt, ...]:
    """Read the prompts in their order."""
    rows = database.rows(
        """SELECT positions, list(token_id ORDER BY position) FILTER (token_id IS NOT NULL),
               list(text ORDER BY position) FILTER (text IS NOT NULL)
           FROM prompt LEFT JOIN token USING (prompt) GROUP BY prompt, positions ORDER BY prompt"""
    )
    without_tokens = cache(Prompt)  # one of each length, for there may be a million
    return tuple(
        Prompt(positions, tuple(ids or ()), tuple(texts or ())) if ids or texts else without_tokens(positions)
        for positions, ids, texts in rows
    )
