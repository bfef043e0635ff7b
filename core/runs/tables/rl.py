"""Sampled tokens of RL: sequences, and what the rollout engine and the trainer say of each of their
tokens.
"""

from ..file.table import Table

SEQUENCE = Table(
    "sequence",
    """
    -- a response of RL and where it comes from; filled in runs of chosen tokens only
    prompt INTEGER -- index of the prompt that holds its tokens
    name VARCHAR NULL -- its name in the file
    step BIGINT NULL -- training step
    environment VARCHAR NULL -- environment or data source
    reward DOUBLE NULL -- reward
    stop_reason VARCHAR NULL -- why it ended
    weight_version VARCHAR NULL -- versions of the rollout's weights
    sampling VARCHAR NULL -- JSON: sampling settings; of prime-rl and miles the rank
    prompt_token_ids VARCHAR NULL -- JSON array: tokens before the response
    routed_experts VARCHAR NULL -- experts that the rollout recorded, JSON or base64 of a .npy file:
    -- [tokens of prompt and response, layers, experts]
    """,
)

CHOSEN_TOKEN = Table(
    "chosen_token",
    """
    -- one sampled token; values are log-probabilities, nats; filled in runs of chosen tokens only
    prompt INTEGER -- index of the sequence
    position INTEGER -- 0-based index in the response
    token_id INTEGER -- the token
    is_trained BOOLEAN -- false: masked out of the loss, so in no figure
    reference DOUBLE NULL -- of the rollout engine, side 0; null if missing
    variant DOUBLE NULL -- of the trainer, side 1; null if missing
    old_policy DOUBLE NULL -- of the policy before the update
    reference_policy DOUBLE NULL -- of the reference policy
    entropy DOUBLE NULL -- entropy of the trainer's distribution, nats
    advantage DOUBLE NULL -- advantage
    token_version DOUBLE NULL -- version of the weights that sampled it
    """,
)

MISMATCH = Table(
    "mismatch",
    """
    -- figures over all tokens, computed when the run is stored; filled in runs of chosen tokens
    -- only
    name VARCHAR -- figures of a framework, histogram, density, bars, steps, heaviest, explained,
    -- tokens, by a quantity
    content VARCHAR -- JSON: rows by the names of their columns; explained: shares; tokens: counts
    """,
)
