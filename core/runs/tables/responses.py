"""What a server said of its answer to a prompt, beside the values that it sent."""

from __future__ import annotations

from ..file.table import Table

RESPONSE = Table(
    "response",
    """
    -- a server's answer to one prompt; filled in runs of lists only
    side INTEGER -- index of the side
    prompt INTEGER -- index of the prompt
    format VARCHAR -- name of the payload's format
    is_start_known BOOLEAN -- false: position 0 scored the first generated token, and the prompt is not said
    generated_from INTEGER NULL -- first position computed while generating; null if all are of the prompt
    is_processed BOOLEAN NULL -- temperature, penalties or a mask are in the values; null if not said
    asked INTEGER NULL -- values a row that were asked for; null if not said
    vocab INTEGER NULL -- tokens of the vocabulary; null if not said
    cached INTEGER NULL -- tokens of the prompt that were read from a cache; null if not said
    model VARCHAR -- model as the payload names it
    text VARCHAR -- text that was generated
    tokens VARCHAR -- JSON array: token ids of prompt and answer, -1 if not said
    settings VARCHAR -- JSON object: temperature and the like as the payload says them
    warnings VARCHAR -- JSON array: what its reader has to say of it
    """,
)
