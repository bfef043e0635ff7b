"""Sparse sides: what engines sent of their rows, as they sent it. Figures are computed when a run is read.

Only `sparse_pair` says what follows from the rest, for lists of runs.
"""

from __future__ import annotations

from ..file.table import Table

SPARSE_SIDE = Table(
    "sparse_side",
    """
    -- a side of which engines sent some values a row; side 0 is the reference; filled in runs of kind sparse only
    side INTEGER -- 0-based index
    name VARCHAR -- name of the side
    holds VARCHAR -- what the values are: logit, logprob or prob
    keys VARCHAR -- token_id; or text where the engine sent texts only: token ids are places in sparse_text then
    """,
)

SPARSE_RESPONSE = Table(
    "sparse_response",
    """
    -- what a side's engine sent for one prompt
    side INTEGER -- index of the side
    prompt INTEGER -- index of the prompt
    format VARCHAR -- name of the payload's format
    is_start_known BOOLEAN -- false: position 0 scored the first generated token, and the prompt is not said
    generated_from INTEGER NULL -- first position computed while generating; null where all are of the prompt
    is_processed BOOLEAN NULL -- temperature, penalties or a mask are in the values; null where not said
    asked INTEGER NULL -- values a row that were asked for; null where not said
    vocab INTEGER NULL -- tokens of the vocabulary; null where not said
    cached INTEGER NULL -- tokens of the prompt that were read from a cache; null where not said
    model VARCHAR -- model as the payload names it
    text VARCHAR -- text that was generated
    settings VARCHAR -- JSON object: temperature and the like as the payload says them
    warnings VARCHAR -- JSON array: what its reader has to say of it
    """,
)

SPARSE_TOKEN = Table(
    "sparse_token",
    """
    -- the tokens of a response, prompt and generated ones
    side INTEGER -- index of the side
    prompt INTEGER -- index of the prompt
    position INTEGER -- 0-based token index
    token_id INTEGER NULL -- token id, null where not said
    """,
)

SPARSE_TEXT = Table(
    "sparse_text",
    """
    -- texts of tokens as far as a response has them
    side INTEGER -- index of the side
    prompt INTEGER -- index of the prompt
    token_id INTEGER -- token id
    text VARCHAR -- its text
    """,
)

SPARSE_ROW = Table(
    "sparse_row",
    """
    -- one row of which values were sent; it scores the next token
    side INTEGER -- index of the side
    prompt INTEGER -- index of the prompt
    position INTEGER -- 0-based token index
    best INTEGER -- values that are the best of the whole row
    chosen INTEGER NULL -- token that was emitted or is given next, null where not said
    missing INTEGER -- placeholders in place of values
    is_full BOOLEAN -- every token of the vocabulary has its value, or a placeholder
    """,
)

SPARSE_VALUE = Table(
    "sparse_value",
    """
    -- the values that were sent, best first in a row
    side INTEGER -- index of the side
    prompt INTEGER -- index of the prompt
    position INTEGER -- 0-based token index
    token_id INTEGER -- token id
    value DOUBLE -- logit, log-probability (nats) or probability, exactly as sent
    """,
)

SPARSE_PAIR = Table(
    "sparse_pair",
    """
    -- what follows from the reference and each variant, for lists of runs
    pair INTEGER -- 0-based index
    positions INTEGER -- positions at which both sides sent a row of equal context
    listed BIGINT -- values that both sides sent there
    differing BIGINT -- of them, those that differ
    flips INTEGER -- positions whose best token differs
    verdict VARCHAR NULL -- as in pair
    because VARCHAR NULL -- the verdict in a sentence, null: not judged
    """,
)

TABLES = (SPARSE_SIDE, SPARSE_RESPONSE, SPARSE_TOKEN, SPARSE_TEXT, SPARSE_ROW, SPARSE_VALUE, SPARSE_PAIR)
