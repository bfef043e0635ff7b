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
    asked INTEGER -- tokens the side was asked for; fewer where it ended its text
    text VARCHAR -- what it generated, as the tokenizer decodes it
    """,
)

GENERATED_TOKEN = Table(
    "generated_token",
    """
    -- what each side generated on its own, beyond the place where they part too
    side INTEGER -- index of the side
    prompt INTEGER -- index of the prompt
    step INTEGER -- 0-based; step 0 follows the given prompt
    token_id INTEGER -- argmax of the side's own logits there, lowest id on ties
    """,
)


def insert_generation(database: Database, made: Generation) -> None:
    """Insert the generation of one prompt."""
    for side, (tokens, text) in enumerate(zip(made.tokens, made.texts, strict=True)):
        GENERATION.insert_row(
            database, side=side, prompt=made.prompt, given_positions=made.given_positions, asked=made.asked, text=text
        )
        steps = list(range(len(tokens)))
        GENERATED_TOKEN.insert(database, side=side, prompt=made.prompt, step=steps, token_id=list(tokens))


def read_generations(database: Database) -> dict[int, Generation]:
    """Read the generations by prompt; empty for a run that only scored given tokens."""
    tokens: dict[tuple[int, int], list[int]] = {}
    for prompt, side, token in database.rows(
        "SELECT prompt, side, token_id FROM generated_token ORDER BY prompt, side, step"
    ):
        tokens.setdefault((prompt, side), []).append(token)
    about: dict[int, list[tuple]] = {}
    for prompt, *row in database.rows(
        "SELECT prompt, given_positions, asked, text FROM generation ORDER BY prompt, side"
    ):
        about.setdefault(prompt, []).append(tuple(row))
    with database.decoding("generations"):
        return {
            prompt: Generation(
                prompt,
                rows[0][0],
                rows[0][1],
                tuple(tuple(tokens.get((prompt, side), ())) for side in range(len(rows))),
                tuple(row[2] for row in rows),
            )
            for prompt, rows in about.items()
        }
