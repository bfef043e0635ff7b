"""Trial of the causes: each injected in five strengths into real pairs of SmolLM2, complete rows and lists of twenty.

    python -m benchmarks.verdicts.causes

The pairs are those of the sample runs: the same prompt fresh and cached in bfloat16, alone and in a batch in float32. A
cause counts as named where it comes first of all that is claimed; on a clean pair nothing may be.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from core.judging.explain.hypotheses import causes_of
from core.judging.explain.rows import PairRows, complete_rows, rows_of_lists
from core.judging.explain.scoring import Cause
from core.numerics.formats import values_of
from core.runs.reader import RunReader
from core.runs.sparse.pairing import compare_sides
from core.runs.sparse.records import SparseResponse, SparseRow, SparseSide, sparse_rows

Values = NDArray[np.float64]
SAMPLES = Path(__file__).resolve().parents[2] / "sample_runs"
LISTED = 20


@dataclass(frozen=True, eq=False)
class Pair:
    """Logits of both sides of one prompt, [positions, vocab], and its tokens."""

    name: str
    dtype: str
    x: Values
    y: Values
    tokens: tuple[int, ...]


Inject = Callable[[Pair, float], tuple[Values, Values]]


@cache
def pair_of(name: str) -> Pair:
    """The first pair of a sample run."""
    with RunReader(SAMPLES / f"{name}.duckdb") as run:
        header = run.header
        prompt = header.prompts[0]
        sides = [
            np.array([values_of(run.at(side, 0, at), header.format) for at in range(prompt.positions)], np.float64)
            for side in (0, 1)
        ]
        return Pair(name, header.compute_dtype, sides[0], sides[1], tuple(prompt.token_ids or ()))


def complete(pair: Pair, x: Values, y: Values) -> PairRows:
    """The two sides as complete rows."""
    sides = (x, y)
    return complete_rows(
        ("reference", "variant"),
        pair.dtype,
        (pair.tokens,),
        [len(x)],
        x.shape[1],
        lambda side, _, position: sides[side][position],
    )


def lists(pair: Pair, x: Values, y: Values, tokens: tuple[int, ...] | None = None) -> PairRows:
    """The two sides as a server sends them: log-probabilities of the best tokens. tokens: of the variant."""
    sides = [
        SparseSide(name, (_response(values, pair.tokens if ids is None else ids),))
        for name, values, ids in (("reference", x, None), ("variant", y, tokens))
    ]
    return rows_of_lists(compare_sides(*sides), *sides)


def _response(values: Values, tokens: tuple[int, ...]) -> SparseResponse:
    rows = []
    for position, row in enumerate(values):
        best = np.argsort(-row, kind="stable")[:LISTED]
        best = best[np.isfinite(row[best])]
        sent = (row[best] - _log_sum(row)).astype(np.float32).astype(np.float64)
        given = tokens[position + 1] if position + 1 < len(tokens) else -1
        rows.append(SparseRow(position, tuple(zip(best.tolist(), sent.tolist(), strict=True)), len(best), given))
    return SparseResponse("made", "logprob", "token_id", tokens, sparse_rows(rows, "made"), vocab=values.shape[1])


def _log_sum(row: Values) -> float:
    top = float(row.max())
    return top + float(np.log(np.exp(row - top).sum()))


def _before(pair: Pair) -> list[dict[int, int]]:
    found, counts = [], {}
    for token in pair.tokens:
        counts[token] = counts.get(token, 0) + 1
        found.append(dict(counts))
    return found


def _in_text(pair: Pair, change: Callable[[Values, NDArray[np.int64]], Values]) -> tuple[Values, Values]:
    y = pair.y.copy()
    for row, counts in zip(y, _before(pair), strict=False):
        ids, times = np.array(list(counts)), np.array(list(counts.values()))
        row[ids] = change(row[ids], times)
    return pair.x, y


def temperature(pair: Pair, strength: float) -> tuple[Values, Values]:
    return pair.x, pair.y / strength


def constant(pair: Pair, strength: float) -> tuple[Values, Values]:
    shift = np.array([_log_sum(row) for row in pair.y]) if np.isinf(strength) else np.full(len(pair.y), -strength)
    return pair.x, pair.y - shift[:, None]


def shifted(pair: Pair, strength: float) -> tuple[Values, Values]:
    step = int(strength)
    return (pair.x[:-step], pair.y[step:]) if step > 0 else (pair.x[-step:], pair.y[:step])


def moved(pair: Pair, strength: float) -> tuple[Values, Values]:
    vocab = pair.y.shape[1]
    if np.isinf(strength):
        return pair.x, pair.y[:, np.random.default_rng(0).permutation(vocab)]
    return pair.x, np.roll(pair.y, int(strength), axis=1)


def capped(pair: Pair, strength: float) -> tuple[Values, Values]:
    return pair.x, strength * np.tanh(pair.y / strength)


def presence(pair: Pair, strength: float) -> tuple[Values, Values]:
    return _in_text(pair, lambda values, _: values - strength)


def frequency(pair: Pair, strength: float) -> tuple[Values, Values]:
    return _in_text(pair, lambda values, times: values - strength * times)


def repetition(pair: Pair, strength: float) -> tuple[Values, Values]:
    return _in_text(pair, lambda values, _: np.where(values > 0, values / strength, values * strength))


def biased(pair: Pair, strength: float) -> tuple[Values, Values]:
    y = pair.y.copy()
    often = np.argsort(-y.mean(axis=0))[:3]
    y[:, often] += strength
    return pair.x, y


def top_k(pair: Pair, strength: float) -> tuple[Values, Values]:
    ids = np.argsort(-pair.y, axis=1, kind="stable")[:, : int(strength)]
    kept = np.full(pair.y.shape, -np.inf)
    np.put_along_axis(kept, ids, np.take_along_axis(pair.y, ids, 1), 1)
    return pair.x, kept


def top_p(pair: Pair, strength: float) -> tuple[Values, Values]:
    kept = np.full(pair.y.shape, -np.inf)
    for row, made in zip(pair.y, kept, strict=True):
        order = np.argsort(-row, kind="stable")
        weights = np.exp(row[order] - row.max())
        count = int(np.searchsorted(np.cumsum(weights) / weights.sum(), strength)) + 1
        made[order[:count]] = row[order[:count]]
    return pair.x, kept


def cut(pair: Pair, strength: float) -> tuple[Values, Values]:
    y = pair.y.copy()
    y[:, -int(strength) :] = -np.inf
    return pair.x, y


_ROUNDED = {1: ml_dtypes.bfloat16, 2: np.float16, 3: ml_dtypes.float8_e4m3fn, 4: ml_dtypes.float8_e5m2}


def rounded(pair: Pair, strength: float) -> tuple[Values, Values]:
    return pair.x, pair.x.astype(np.float32).astype(_ROUNDED[int(strength)]).astype(np.float64)


def decimals(pair: Pair, strength: float) -> tuple[Values, Values]:
    return pair.x, np.round(pair.x, int(strength))


def gridded(pair: Pair, strength: float) -> tuple[Values, Values]:
    """So many bits a row with a scale and an offset of its own, as 8-bit caches of logits hold them."""
    low, high = pair.x.min(axis=1, keepdims=True), pair.x.max(axis=1, keepdims=True)
    step = (high - low) / (2**strength - 1)
    return pair.x, (low + step * np.round((pair.x - low) / step)).astype(np.float32).astype(np.float64)


def jumping(pair: Pair, strength: float) -> tuple[Values, Values]:
    y = pair.y.copy()
    noise = np.random.default_rng(1).normal(0, strength, y.shape[1])
    for row in (17, 40):
        y[row] += noise
    return pair.x, y


# name of the cause: (injection, five strengths, the sample pair, whether lists can show it)
INJECTIONS: dict[str, tuple[str, Inject, tuple[float, ...], str, bool]] = {
    "temperature": ("temperature", temperature, (1.001, 1.01, 1.1, 0.7, 2.0), "fresh-against-cached", True),
    "temperature, float32": ("temperature", temperature, (1.00001, 1.0001, 1.01, 0.7, 2.0), "batch-1-against-n", True),
    "constant": ("constant", constant, (0.1, 1.0, 5.0, 20.0, np.inf), "fresh-against-cached", False),
    "rows shifted": ("shifted rows", shifted, (1, 2, 3, -1, -2), "fresh-against-cached", True),
    "ids moved": ("moved ids", moved, (1, 7, 100, -3, np.inf), "fresh-against-cached", False),
    "soft cap": ("soft-capping", capped, (300.0, 100.0, 50.0, 30.0, 10.0), "fresh-against-cached", False),
    "presence": ("penalty", presence, (0.05, 0.5, 1.0, 2.0, 5.0), "fresh-against-cached", True),
    "frequency": ("penalty", frequency, (0.05, 0.5, 1.0, 2.0, 5.0), "fresh-against-cached", True),
    "repetition": ("penalty", repetition, (1.01, 1.05, 1.1, 1.3, 1.5), "fresh-against-cached", True),
    "logit bias": ("logit bias", biased, (0.2, 0.5, 1.0, 5.0, -5.0), "fresh-against-cached", True),
    "top-k": ("masking", top_k, (5, 20, 50, 1000, 20000), "fresh-against-cached", False),
    "top-p": ("masking", top_p, (0.3, 0.5, 0.9, 0.99, 0.999), "fresh-against-cached", False),
    "cut vocabulary": ("cut vocabulary", cut, (1, 16, 64, 1000, 20000), "fresh-against-cached", False),
    "rounded": ("rounded", rounded, (1, 2, 3, 4, 1), "batch-1-against-n", False),
    "bits a row": ("rounded", gridded, (4, 6, 8, 10, 12), "batch-1-against-n", False),
    "decimals": ("rounded", decimals, (1, 2, 3, 4, 5), "batch-1-against-n", False),
    "jumps": ("jumps", jumping, (1.0, 3.0, 10.0, 30.0, 100.0), "fresh-against-cached", False),
}
CLEAN = ("fresh-against-cached", "batch-1-against-n", "continuations-that-part", "where-it-starts", "injected-bug")


def tried(kind: str, strength: float, *, as_lists: bool) -> list[Cause]:
    """Causes that are claimed of a pair with one injected."""
    _, inject, _, name, _ = INJECTIONS[kind]
    pair = pair_of(name)
    x, y = inject(pair, strength)
    return causes_of(lists(pair, x, y) if as_lists else complete(pair, x, y))


def main() -> None:
    """Print the table of docs/causes.md."""
    out = sys.stdout.write
    out("| injected | strengths | named in complete rows | named in lists of 20 |\n|---|---|---|---|\n")
    for kind, (wanted, _, strengths, _, has_lists) in INJECTIONS.items():
        cells = []
        for as_lists in (False, True):
            if as_lists and not has_lists:
                cells.append("")
                continue
            found = [tried(kind, one, as_lists=as_lists) for one in strengths]
            named = [bool(one) and one[0].name == wanted for one in found]
            others = {one[0].name for one in found if one} - {wanted}
            missed = [f"{one:g}" for one, is_named in zip(strengths, named, strict=True) if not is_named]
            cell = f"{sum(named)} of {len(named)}" + (f", not {', '.join(missed)}" if missed else "")
            cells.append(cell + (f"; called {', '.join(sorted(others))}" if others else ""))
        out(f"| {kind} | {', '.join(f'{one:g}' for one in strengths)} | {' | '.join(cells)} |\n")
        sys.stdout.flush()
    for name in CLEAN:
        pair = pair_of(name)
        found = [causes_of(complete(pair, pair.x, pair.y)), causes_of(lists(pair, pair.x, pair.y))]
        out(f"clean {name}: {[[cause.name for cause in one] for one in found]}\n")


if __name__ == "__main__":
    main()
