"""Placeholders: what servers send if they have no log-probability of the model.

With speculative decoding, servers send 0.0 and no list for drafted tokens; null, -9999.0 or -inf
for a token without a probability; probabilities in place of their logarithms. Such rows are emptied
before anything is compared.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..numerics.arrays import Flags
from ..numerics.top_tokens import TopTokenRows
from ..text import number, plural
from .records import ResponseSide

# of settings: drafted tokens that were accepted, as llama.cpp's timings say
DRAFTED = "draft_n_accepted"
# a rounded log-probability is at most so far above 0
ROUNDING = 1e-3
# a row's probabilities together, of log-probabilities rounded to bfloat16
_MOST_TOGETHER = 1.5

# of one token; the rest of its list holds values
MASKED = "masked"
MISSING = "missing"
CONTRADICTION = "contradiction"  # of one token too
_HEADS = {
    MASKED: "a mask (top-p or a grammar)",
    CONTRADICTION: "two values of one token",
    "out of range": "impossible values",
    "sum above 1": "impossible values",
    "probabilities": "probabilities in place of log-probabilities",
}


@dataclass(frozen=True)
class Placeholders:
    """Rows of one side that hold no values of a model.

    kind: 'probabilities', 'out of range', 'constant', 'no list', 'sum above 1', 'masked',
    'missing', 'certain' or 'contradiction'.
    tokens: such rows, of: all rows of the side. what: clause on their values.
    """

    side: str
    kind: str
    tokens: int
    of: int
    what: str

    @property
    def clause(self) -> str:
        head = _HEADS.get(self.kind, "placeholders")
        return (
            f"{head} at {self.tokens:,} of {plural(self.of, 'token')} of '{self.side}': {self.what}"
        )


def without_placeholders(side: ResponseSide) -> tuple[TopTokenRows, tuple[Placeholders, ...]]:
    """Return a side's rows, those of placeholders emptied, and what these are."""
    is_emptied = np.zeros(len(side.rows), np.bool_)
    placeholders = []
    for kind, rows, what in _kinds(side):
        rows = rows & ~is_emptied
        if rows.any():
            placeholders.append(
                Placeholders(
                    side.name,
                    kind,
                    int(rows.sum()),
                    len(rows),
                    what,
                )
            )
        if kind not in (MASKED, MISSING):
            is_emptied |= rows
    return side.rows.without_values(is_emptied), tuple(placeholders)


def _kinds(side: ResponseSide) -> Iterator[tuple[str, Flags, str]]:
    """(kind, rows of it, clause), the kind that says most first; a row is of the first kind that
    has it.
    """
    rows = side.rows
    responses = side.responses
    counts = rows.counts
    values = rows.values
    row_of = rows.row_of
    largest = rows.largest
    starts = np.array([one.generated_from for one in responses], np.float64)
    # NaN, of a response without generated tokens, is below nothing
    is_generated = rows.positions >= starts[side.prompts]
    has_values = counts > 0
    lacks_chosen = rows.missing > 0
    lacks_chosen[row_of[rows.token_ids == rows.targets[row_of]]] = False
    is_masked = lacks_chosen & has_values & ~is_generated
    yield MASKED, is_masked, "the prompt's own token has probability 0"
    if len(values):
        yield from _impossible(rows)
    has_drafts = any(int(response.settings.get(DRAFTED, "0")) for response in responses)
    of_drafts = "; turn speculative decoding off" if has_drafts else ""
    if has_values.sum() > 1 and values.min() == values.max():
        yield "constant", has_values, f"every value is {values[0] + 0.0}{of_drafts}"
    top_logprobs = max(response.top_logprobs or 0 for response in responses)
    entries = counts + rows.missing
    is_alone = np.zeros(len(rows), np.bool_)
    # a server may send lists of either
    for part in (is_generated, ~is_generated):
        alone = part & (entries == 1) & has_values
        lacks_lists = top_logprobs > 1 and not largest[alone].any()
        if has_drafts or lacks_lists or (entries[part] > 1).any():
            is_alone |= alone & (largest == 0)
    no_list = " and no list" if max(top_logprobs, int(entries.max(initial=0))) > 1 else ""
    yield "no list", is_alone, f"0.0 (probability 1){no_list}{of_drafts}"
    together = np.bincount(row_of, np.exp(np.minimum(values, 1.0)), minlength=len(rows))
    what = f"their probabilities add up to {number(float(together.max(initial=0.0)))}"
    yield "sum above 1", together > _MOST_TOGETHER, what
    is_missing = lacks_chosen & ~is_masked & (rows.targets >= 0)
    yield MISSING, is_missing, "null, -9999.0 or -inf for the emitted token"


def _impossible(rows: TopTokenRows) -> Iterator[tuple[str, Flags, str]]:
    """Yield rows with a value that no log-probability has; all rows if most have one."""
    has_values = rows.counts > 0
    largest = rows.largest
    is_impossible = largest > ROUNDING
    if not is_impossible.any():
        return
    is_positive = rows.values.min() >= 0
    if is_positive and np.bincount(rows.row_of, rows.values).max() <= 1 + 10 * ROUNDING:
        what = "all lie between 0 and 1, and no list adds up to more than 1"
        yield "probabilities", has_values, what
        return
    first = int(is_impossible.argmax())
    what = f"{largest[first]:+.4g} is no log-probability (position {rows.positions[first]:,})"
    what += "; all are positive" if is_positive else ""
    are_most = 2 * is_impossible.sum() > has_values.sum()
    yield "out of range", has_values if are_most else is_impossible, what
