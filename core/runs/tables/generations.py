"""Continuations of the prompts by the sides, each going on freely."""

from __future__ import annotations

from ..file.database import Database
from ..file.records import Generation
from ..file.table import Table

GENERATION = Table(
    "generation",
    """
    -- prompts that every side continued greedily and freely; the prompt's tokens beyond given_positions are the
    -- reference's
    side INTEGER -- index of the side
    prompt INTEGER -- index of the prompt
    given_positions INTEGER -- positions that were given; the logits of the last of them chose the first generated
    -- token
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
WITH made AS (SELECT prompt, side, list(token_id ORDER BY step) AS tokens FROM generated_token GROUP BY prompt, side)
SELECT prompt, any_value(given_positions), any_value(asked), list(coalesce(tokens, []) ORDER BY side),
    list(text ORDER BY side)
FROM generation LEFT JOIN made USING (prompt, side) GROUP BY prompt ORDER BY prompt
"""


def insert_generation(database: Database, generation: Generation) -> None:
    """Insert the generation of one prompt."""
    counts = {"given_positions": generation.given_positions, "asked": generation.max_tokens}
    for side, (tokens, text) in enumerate(zip(generation.tokens, generation.texts, strict=True)):
        GENERATION.insert_row(database, side=side, prompt=generation.prompt, text=text, **counts)
        steps = list(range(len(tokens)))
        GENERATED_TOKEN.insert(database, side=side, prompt=generation.prompt, step=steps, token_id=list(tokens))


def read_generations(database: Database) -> dict[int, Generation]:
    """Read the generations by prompt; empty for a run that only scored given tokens."""
    rows = database.rows(_GENERATIONS)
    with database.decoding("generations"):
        return {
            prompt: Generation(prompt, given_positions, max_tokens, tuple(map(tuple, tokens)), tuple(texts))
            for prompt, given_positions, max_tokens, tokens, texts in rows
        }
