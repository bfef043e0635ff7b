"""A pair as a corpus: the right token, which comes next in the prompt, at every position."""

from __future__ import annotations

import numpy as np

from ...errors import UsageError
from ...numerics.corpus import ScoredTokens
from ...numerics.formats import values_of
from ..reader import RunReader

_ROW_BYTES = 32 << 20  # of a side's logits at a time


def score_pair(run: RunReader, pair: int) -> ScoredTokens:
    """Score every position of a pair with a next token, if its KL is defined.

    Raises:
        UsageError: the run has no whole rows, or no token ids.
    """
    header = run.header
    if header.k is not None or not run.has_all_logits or not all(prompt.token_ids for prompt in header.prompts):
        raise UsageError("--corpus needs the logits of whole rows and the token ids of the prompts.")
    figures = run.positions(pair)
    document, position = (figures[name].to_numpy(np.int64) for name in ("prompt", "position"))
    kl = figures["kl"].to_numpy(np.float64, na_value=np.nan)
    rows = np.flatnonzero((position < np.array(header.lengths)[document] - 1) & np.isfinite(kl))
    if not len(rows):
        raise UsageError("--corpus: no position has a next token and a KL.")
    targets = np.concatenate([prompt.token_ids[: prompt.positions] for prompt in header.prompts])[rows + 1]
    step, chosen = max(1, _ROW_BYTES // (header.vocab * header.format.itemsize)), []
    for side in (0, pair + 1):
        logits = np.empty(len(rows))
        for start in range(0, header.rows, step):
            part = slice(*np.searchsorted(rows, (start, start + step)))
            bits = run.read_rows(side, start, min(start + step, header.rows))
            logits[part] = values_of(bits[rows[part] - start, targets[part]], header.format)
        chosen.append(logits - run.logsumexp(side)[rows])
    is_same = ~figures["is_flip"].to_numpy(bool)[rows]
    return ScoredTokens(document[rows], position[rows], kl[rows], chosen[0], chosen[1], is_same)
