"""The right token at every position of a corpus: of two files of llama.cpp's
`--kl-divergence-base`, or of a pair of a run. A few rows are read at a time; nothing is stored.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DumpError, UsageError
from ..numerics.arrays import Flags, Record
from ..numerics.corpus import ScoredTokens, score_rows
from ..numerics.formats import values_of
from ..progress import Progress, no_progress
from ..responses.bounded_json import begins
from ..text import clean
from .dumps.arrays import map_file
from .dumps.llamacpp_files import KLD_MAGIC, kld_rows
from .measured import Measured

_ROW_BYTES = 8 << 20  # of a side's log-probabilities at a time
_GROUPS = 8  # of positions
# --kl-divergence-base stores values down to so many nats below the largest of a row
_RANGE = 16.0


def are_logs(paths: Sequence[Path]) -> bool:
    """Return whether these are two files of --kl-divergence-base, by their first bytes."""
    return len(paths) == 2 and all(begins(path, KLD_MAGIC) for path in paths)


def score_logs(
    paths: Sequence[Path],
    on_progress: Progress = no_progress,
) -> ScoredTokens:
    """Score the right token at every row of both files, the first one the base.

    Raises:
        DumpError: a file is damaged, or the files are of other tokens.
    """
    sides = []
    for path in paths:
        with path.open("rb") as file:
            sides.append(kld_rows(clean(path.name), map_file(file)))
    (tokens, vocab, base), (other_tokens, other_vocab, other) = sides
    if vocab != other_vocab or not np.array_equal(tokens, other_tokens):
        sizes = " and ".join(f"{len(t):,} x {t.shape[1]:,} of {v:,}" for t, v, _ in sides)
        raise DumpError(
            f"{clean(paths[1].name)}: has other tokens than {clean(paths[0].name)} (chunks x"
            f" context of vocabulary: {sizes}). Expected one text, tokenizer and --ctx-size.",
        )
    first = tokens.shape[1] // 2
    targets = tokens[:, first + 1 :].reshape(-1)
    step = max(1, _ROW_BYTES // (4 * vocab))
    if targets.min() < 0 or targets.max() >= vocab:
        raise DumpError(
            f"{clean(paths[0].name)}: has a token beyond its vocabulary of {vocab:,}; the file is"
            " damaged.",
        )
    parts = []
    cut = 0
    for start in range(0, len(targets), step):
        stop = min(start + step, len(targets))
        rows = base(start, stop)
        other_rows = other(start, stop)
        right = targets[start:stop]
        parts.append(score_rows(rows, other_rows, right))
        cut += int((_is_cut(rows, right) | _is_cut(other_rows, right)).sum())
        on_progress("comparing", stop, len(targets))
    kl, of_base, of_other, is_same = (np.concatenate(column) for column in zip(*parts, strict=True))
    document, row = np.divmod(np.arange(len(targets)), tokens.shape[1] - 1 - first)
    return ScoredTokens(document, first + row, kl, of_base, of_other, is_same, cut)


def _is_cut(rows: NDArray[np.float32], targets: NDArray[np.integer]) -> Flags:
    """Return whether the right token has the value to which a file raises all less likely ones.
    [rows]
    """
    lowest = rows.min(axis=1)
    # a little less, because float32 rounds both ends
    is_full = rows.max(axis=1) - lowest > _RANGE - 0.001
    return is_full & (rows[np.arange(len(targets)), targets] == lowest)


def score_pair(run: Measured, pair: int) -> ScoredTokens:
    """Score every position of a pair with a next token, if its KL is defined.

    Raises:
        UsageError: the run has no whole rows, or no token ids.
    """
    header = run.header
    if (
        not header.has_tokens
        or not run.has_all_logits
        or not all(prompt.token_ids for prompt in header.prompts)
    ):
        raise UsageError(
            "--corpus needs the logits of whole rows and the token ids of the prompts.",
        )
    columns = run.columns(pair)
    document, position, is_flip = (
        columns[name].astype(np.int64) for name in ("prompt", "position", "is_flip")
    )
    kl = columns["kl"]
    rows = np.flatnonzero((position < np.array(header.lengths)[document] - 1) & np.isfinite(kl))
    if not len(rows):
        raise UsageError("--corpus: no position has a next token and a KL.")
    targets = np.concatenate([prompt.token_ids for prompt in header.prompts])[rows + 1]
    if targets.min() < 0 or targets.max() >= header.vocab:
        raise UsageError(
            f"--corpus: the prompts have token ids beyond the vocabulary of {header.vocab:,}.",
        )
    chosen = []
    for side in (0, pair + 1):
        logits = np.empty(len(rows))
        for start, bits in run.chunks(side):
            part = slice(*np.searchsorted(rows, (start, start + len(bits))))
            logits[part] = values_of(bits[rows[part] - start, targets[part]], header.format)
        chosen.append(logits - run.logsumexp(side)[rows])
    base, other = chosen
    return ScoredTokens(document[rows], position[rows], kl[rows], base, other, is_flip[rows] == 0)


def by_position(tokens: ScoredTokens) -> list[Record]:
    """Return figures by position in the document, in up to 8 groups of as many positions."""
    rows = []
    for group in np.array_split(np.unique(tokens.position), _GROUPS):
        if len(group):
            part = np.isin(tokens.position, group)
            change = tokens.other[part] - tokens.base[part]
            figures = {
                "mean_kld_nats": tokens.kl[part].mean(),
                "ln_ppl_ratio": -change.mean(),
                "mean_dp_percent": 100 * tokens.dp[part].mean(),
                "same_top_p_share": tokens.is_same_top[part].mean(),
            }
            row = {"positions": f"{group[0]} to {group[-1]}", "scored": int(part.sum())}
            rows.append(row | {name: float(figure) for name, figure in figures.items()})
    return rows
