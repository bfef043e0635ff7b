"""Two models over a corpus: the statistics of `llama-perplexity --kl-divergence` by their
definitions (tools/perplexity/perplexity.cpp), with intervals by a bootstrap over documents, whose
tokens are not independent.

base is the reference and Q the variant, as llama.cpp calls them; p: probability of the right token,
which comes next.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..rl.figures import Batch, Figure, Sequences, intervals
from .arrays import Flags, Floats

# llama.cpp leaves tokens that are less likely in the base out of KL
_LOWEST = -16.0
_DP_SHARES = (1.0, 0.999, 0.99, 0.95, 0.9, 0.75, 0.5, 0.25, 0.1, 0.05, 0.01, 0.001, 0.0)
_KLD_SHARES = tuple(share for share in _DP_SHARES if share not in (0.75, 0.25))
_LABELS = {1.0: "Maximum", 0.5: "Median", 0.0: "Minimum"}


@dataclass(frozen=True)
class ScoredTokens:
    """Scored positions of a corpus, document after document. [positions] each

    kl: nats; base, other: log-probability of the right token; is_same_top: both sides have one
    argmax; cut: right tokens that are less likely than a file says, which raised them.
    """

    document: NDArray[np.integer]
    position: NDArray[np.integer]
    kl: Floats
    base: Floats
    other: Floats
    is_same_top: Flags
    cut: int = 0

    @property
    def dp(self) -> Floats:
        """Change of the probability of the right token."""
        return np.exp(self.other) - np.exp(self.base)


def score_rows(
    base: NDArray[np.float32],
    other: NDArray[np.float32],
    targets: NDArray[np.integer],
) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    """Return kl, base, other and is_same_top of ScoredTokens from log-probabilities [rows, vocab],
    used as they are.

    They are not normalized again: a file of llama.cpp raises what is more than 16 below the
    largest, so that a row adds up to more than 1.
    """
    terms = np.where(base > _LOWEST, np.exp(base), 0) * (base - other)
    rows = np.arange(len(targets))
    of_base, of_other = (side[rows, targets].astype(np.float64) for side in (base, other))
    is_same = base.argmax(axis=1) == other.argmax(axis=1)
    return terms.sum(axis=1, dtype=np.float64), of_base, of_other, is_same


Value = Callable[[Batch], float]


def _error(name: str) -> Value:
    """Return the standard error of a mean as if tokens were independent."""
    return lambda b: b.deviation(name, f"{name}^2") / np.sqrt(b.tokens)


def _perplexity(name: str) -> Value:
    return lambda b: float(np.exp(b.mean(name)))


_Q, _BASE = _perplexity("nll"), _perplexity("base nll")


def _rms(b: Batch) -> float:
    return float(np.sqrt(b.mean("dp^2")))


def _difference_error(b: Batch) -> float:
    """Return the standard error of PPL(Q) - PPL(base), to first order."""
    q, base, ratio = (_error(name)(b) ** 2 for name in ("nll", "base nll", "ratio"))
    squares = _Q(b) ** 2 * q + _BASE(b) ** 2 * base - _Q(b) * _BASE(b) * (q + base - ratio)
    return float(np.sqrt(max(squares, 0.0)))


_Row = tuple[str, str, Value, Value | None]  # name, unit, value, llama.cpp's uncertainty
_MEANS: tuple[_Row, ...] = (
    ("Mean PPL(Q)", "", _Q, lambda b: _Q(b) * _error("nll")(b)),
    ("Mean PPL(base)", "", _BASE, lambda b: _BASE(b) * _error("base nll")(b)),
    ("Cor(ln(PPL(Q)), ln(PPL(base)))", "%", lambda b: 100 * b.pearson("nll", "base nll"), None),
    ("Mean ln(PPL(Q)/PPL(base))", "", lambda b: b.mean("ratio"), _error("ratio")),
    (
        "Mean PPL(Q)/PPL(base)",
        "",
        _perplexity("ratio"),
        lambda b: _perplexity("ratio")(b) * _error("ratio")(b),
    ),
    ("Mean PPL(Q)-PPL(base)", "", lambda b: _Q(b) - _BASE(b), _difference_error),
    ("Mean KLD", "nats", lambda b: b.mean("kl"), _error("kl")),
    ("Mean Δp", "%", lambda b: 100 * b.mean("dp"), lambda b: 100 * _error("dp")(b)),
    (
        "RMS Δp",
        "%",
        lambda b: 100 * _rms(b),
        lambda b: 100 * _error("dp^2")(b) / (2 * _rms(b)) if _rms(b) else 0.0,
    ),
    ("Same top p", "%", lambda b: 100 * b.mean("same"), lambda b: 100 * _error("same")(b)),
)


def _percentiles(
    name: str,
    unit: str,
    shares: tuple[float, ...],
    values: NDArray,
    place: NDArray,
) -> list[_Row]:
    """Return figures of `values`, linear between two of them. place: document of each, counted from
    0.
    """
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    documents = place[order]

    @lru_cache(maxsize=1)
    def ranks(batch: Batch) -> Floats:
        return np.cumsum(batch.weights[documents])

    def value(share: float, batch: Batch) -> float:
        ends = ranks(batch)
        rank = share * (ends[-1] - 1)
        low, high = ascending[np.searchsorted(ends, [np.floor(rank), np.ceil(rank)], side="right")]
        return float(low + (rank - np.floor(rank)) * (high - low))

    labels = [_LABELS.get(share, f"{share:.1%}") for share in shares]
    return [
        (f"{label} {name}", unit, partial(value, share), None)
        for label, share in zip(labels, shares, strict=True)
    ]


def statistics(tokens: ScoredTokens) -> list[dict[str, Any]]:
    """Return figures in llama.cpp's order: name, value, unit, uncertainty, low and high.

    uncertainty: what llama.cpp prints after ±, or None; low, high: 95 % interval over documents,
    None of a single one.
    """
    _, place, counts = np.unique(tokens.document, return_inverse=True, return_counts=True)
    nll = -tokens.other
    base = -tokens.base
    dp = tokens.dp
    values = {
        "nll": nll,
        "base nll": base,
        "ratio": nll - base,
        "kl": tokens.kl,
        "dp": dp,
        "dp^2": dp**2,
        "same": tokens.is_same_top.astype(np.float64),
    }
    values |= {f"{name}^2": each**2 for name, each in values.items()}
    values["nll*base nll"] = nll * base
    sums = {name: np.bincount(place, each).astype(np.float64) for name, each in values.items()}
    sequences = Sequences({"tokens": counts, **sums})
    rows = list(_MEANS)
    rows[7:7] = _percentiles("KLD", "nats", _KLD_SHARES, tokens.kl, place)
    rows[-2:-2] = _percentiles("Δp", "%", _DP_SHARES, 100 * dp, place)
    figures = [Figure(name, "", value, unit) for name, unit, value, _ in rows]
    batch = Batch(sequences)
    bounds = intervals(sequences, figures) if len(sequences) > 1 else [(None, None)] * len(figures)
    return [
        {
            "name": name,
            "value": value(batch),
            "unit": unit,
            "low": low,
            "high": high,
            "uncertainty": error(batch) if error else None,
        }
        for (name, unit, value, error), (low, high) in zip(rows, bounds, strict=True)
    ]
