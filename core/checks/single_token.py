"""Does one token's logit differ in the same direction at most positions? Rounding prefers no token:
a bias, a stale row of the head or a changed embedding does.
"""

from typing import Annotated

import numpy as np

from ..evidence import FAILED, OWN_DTYPE, Check, CheckFigures, Dtype, Evidence, Limit, Subject
from ..numerics.arrays import Floats
from ..text import multiple

# Mean difference of a token over what chance makes of all tokens: of rounding up to 5.1, in 30
# families of tiny models (two dtypes, four paths, repeating prompts) and the sample runs.
LARGEST_SHIFT = 12.0
FEWEST_ROWS = 16  # of fewer, a mean says little
_LEAST_SPREAD = 0.25  # of the median token's: a token that hardly varies is no measure
_LEAST_VARIED = 1 / 64  # of its mean: two steps of bfloat16, the coarsest format
_NORMAL_MEDIAN = 0.6745  # of absolute values, in standard deviations


class SingleTokenFigures(CheckFigures):
    """A token whose logit differs in one direction at most positions."""

    compute_dtype: Dtype
    token: Annotated[int, "token id"]
    mean_logits: Annotated[float, "its mean difference from the others, logits"]
    ratio_to_chance: Annotated[float, "mean difference / what chance makes of all tokens"]
    largest_ratio_allowed: Limit
    positions: Annotated[int, "positions read"]


SINGLE_TOKEN = Check("a single token", OWN_DTYPE, SingleTokenFigures)


def single_token_row(subject: Subject, differences: Floats, logits: Floats) -> Evidence | None:
    """Return the row on such a token, None if there is none. differences: of some rows of all
    prompts, 0 if one side is not finite; logits: of one side there. [rows, vocab]
    """
    # of log-probabilities, a bias moves all others too
    centered = differences - np.median(differences, axis=1, keepdims=True)
    rows = _independent_rows(centered)
    if rows < FEWEST_ROWS:
        return None
    spread = centered.std(axis=0)
    # a value that hardly varies, as of a mask, is rounded alike in every row
    varies = (spread > 0) & (logits.std(axis=0) > _LEAST_VARIED * np.abs(logits.mean(axis=0)))
    if not varies.any():
        return None
    means = np.where(varies, centered.mean(axis=0), 0.0)
    least = _LEAST_SPREAD * np.median(spread[varies])
    sizes = np.abs(means) / np.maximum(spread, least) * np.sqrt(rows)
    # what is alike in all rows makes all means larger
    chance = max(float(np.median(sizes[varies])) / _NORMAL_MEDIAN, 1.0)
    token = int(sizes.argmax())
    ratio = float(sizes[token]) / chance
    if ratio <= LARGEST_SHIFT:
        return None
    mean = float(means[token])
    return Evidence(
        SINGLE_TOKEN,
        "mean differences of tokens compared with one another",
        SingleTokenFigures(
            compute_dtype=subject.dtype,
            token=token,
            mean_logits=mean,
            ratio_to_chance=ratio,
            largest_ratio_allowed=LARGEST_SHIFT,
            positions=len(differences),
        ),
        FAILED,
        f"Token {token} differs by {mean:+.3g} logits on average over {len(differences)} positions,"
        f" {multiple(ratio)} what chance makes of a token: rounding prefers none.",
    )


def _independent_rows(differences: Floats) -> float:
    """Return how many independent rows vary as these do: of k contexts that are repeated, k."""
    products = differences @ differences.T
    own = products.diagonal()
    total = own.sum()
    if not total:
        return 0.0
    # products of independent rows, by how evenly their squares are spread over the tokens
    shares = np.square(differences).sum(axis=0) / total
    expected = np.outer(own, own) * np.square(shares).sum()
    excess = np.square(products) - expected
    np.fill_diagonal(excess, 0.0)
    return float(total**2 / (np.square(own).sum() + max(excess.sum(), 0.0)))
