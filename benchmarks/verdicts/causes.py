"""Trial of the causes: each injected in several strengths into real pairs of SmolLM2, complete rows
and lists.

    python -m benchmarks.verdicts.causes

The pairs are those of the sample runs: the same prompt fresh and cached in bfloat16, alone and in a
batch in float32 (and that rounded to 16 bits). A cause counts as named if it comes first of all
that is claimed; on a clean pair nothing may be, in complete rows, in lists, or in any row alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from benchmarks.verdicts.rollouts import log_softmax, restricted
from core.cause import Cause
from core.judging.explain.causes import explain
from core.judging.explain.rows import PairRows, complete_rows, rows_of_lists
from core.numerics.formats import FORMATS, values_of
from core.numerics.top_tokens import largest
from core.responses.pairing import compare_sides
from core.responses.records import Response, ResponseSide, TopTokenRow, compress_rows
from core.runs.reader import RunReader

Values = NDArray[np.float64]
SAMPLES = Path(__file__).resolve().parents[2] / "sample_runs"
SIZES = (3, 5, 20)  # of lists
LISTED = 20


@dataclass(frozen=True, eq=False)
class Pair:
    """Logits of both sides of one prompt, [positions, vocab], and its tokens."""

    name: str
    dtype: str
    x: Values
    y: Values
    tokens: tuple[int, ...]


Inject = Callable[[Pair, float], Pair]


@cache
def pair_of(name: str) -> Pair:
    """The first pair of a sample run."""
    with RunReader(SAMPLES / f"{name}.duckdb") as run:
        header = run.header
        prompt = header.prompts[0]
        sides = [
            np.array(
                [values_of(run.at(side, 0, at), header.format) for at in range(prompt.positions)],
                np.float64,
            )
            for side in (0, 1)
        ]
        return Pair(name, header.compute_dtype, *sides, tuple(prompt.token_ids or ()))


def complete(pair: Pair) -> PairRows:
    """The two sides as complete rows."""
    sides = (pair.x, pair.y)
    return complete_rows(
        ("reference", "variant"),
        pair.dtype,
        (pair.tokens,),
        [(0, position) for position in range(len(pair.x))],
        pair.x.shape[1],
        lambda side, start, stop: sides[side][start:stop],
    )


def lists(pair: Pair, size: int = LISTED) -> PairRows:
    """The two sides as a server sends them: log-probabilities of the top tokens, or of the next one
    alone.
    """
    sides = [
        ResponseSide(name, (_response(logits, pair.tokens, size),))
        for name, logits in (("reference", pair.x), ("variant", pair.y))
    ]
    return rows_of_lists(compare_sides(*sides), *sides)


def _response(logits: Values, tokens: tuple[int, ...], size: int) -> Response:
    rows = []
    following = [*tokens[1:], *[-1] * len(logits)]
    # through float32, in which servers compute log-probabilities
    every = log_softmax(logits).astype(np.float32).astype(np.float64)
    for position, (row, logprobs) in enumerate(zip(logits, every, strict=True)):
        token = following[position]
        best = largest(row, size) if size > 1 else np.array([max(token, 0)])
        # a server sends no token of probability 0
        best = best[np.isfinite(row[best])]
        entries = tuple(zip(best.tolist(), logprobs[best].tolist(), strict=True))
        rows.append(TopTokenRow(position, entries, len(best), token))
    return Response("made", "token_id", tokens, compress_rows(rows, "made"), vocab=logits.shape[1])


def _changing(change: Callable[[Values, float], Values]) -> Inject:
    """The variant is change(its logits, strength)."""
    return lambda pair, strength: replace(pair, y=change(pair.y, strength))


def _in_text(change: Callable[[Values, NDArray[np.int64], float], Values]) -> Inject:
    """The logits of the tokens that stand in the text already are change(logits, how often they
    do, strength).
    """

    def inject(pair, strength):
        y = pair.y.copy()
        for at, row in enumerate(y):
            ids, times = np.unique(pair.tokens[: at + 1], return_counts=True)
            row[ids] = change(row[ids], times, strength)
        return replace(pair, y=y)

    return inject


def shift_rows(pair: Pair, strength: float) -> Pair:
    step = int(strength)
    if step > 0:
        return replace(pair, x=pair.x[:-step], y=pair.y[step:])
    return replace(pair, x=pair.x[-step:], y=pair.y[:step])


def _constant(y: Values, strength: float) -> Values:
    return log_softmax(y) if np.isinf(strength) else y + strength


def _biased(y: Values, strength: float) -> Values:
    return y + strength * np.isin(np.arange(y.shape[1]), largest(y.mean(axis=0), 3))


def _last_ids(value: float) -> Inject:
    def change(y, strength):
        return np.where(np.arange(y.shape[1]) < y.shape[1] - strength, y, value)

    return _changing(change)


_ROUNDED = {
    1: ml_dtypes.bfloat16,
    2: np.float16,
    3: ml_dtypes.float8_e4m3fn,
    4: ml_dtypes.float8_e5m2,
}


def round_values(pair: Pair, strength: float) -> Pair:
    narrow = pair.x.astype(np.float32).astype(_ROUNDED[int(strength)])
    return replace(pair, y=narrow.astype(np.float64))


def decimals(pair: Pair, strength: float) -> Pair:
    return replace(pair, y=np.round(pair.x, int(strength)))


def _masked_with(y: Values, strength: float, best: int = 20) -> Values:
    top = restricted(y, top_k=best)
    return np.where(np.isfinite(top), top, strength)


def _masked_ids(y: Values, strength: float) -> Values:
    """So many tokens from id 0 on, or of the middle."""
    first = 0 if strength < 5 else 20000
    masked = y.copy()
    masked[:, first : first + int(strength)] = -np.inf if strength < 3 else -1e9
    return masked


def banned(pair: Pair, strength: float) -> Pair:
    """Tokens of the text that a ban of repeated n-grams leaves out."""
    y = pair.y.copy()
    for at in range(5, len(y)):
        y[at, np.array(pair.tokens[max(0, at - int(strength)) : at])] = -np.inf
    return replace(pair, y=y)


def _repeated(y: Values, strength: float) -> Values:
    """One row at all positions from one on: the last, as an array that is filled by reference
    has.
    """
    start = int(strength * len(y))
    return np.concatenate([y[:start], np.repeat(y[-1:], len(y) - start, axis=0)])


def _swapped(y: Values, strength: float) -> Values:
    count = int(strength)
    swapped = y.copy()
    swapped[3 : 3 + count], swapped[-3 - count : -3] = y[-3 - count : -3], y[3 : 3 + count]
    return swapped


temperature = _changing(lambda y, strength: y / strength)
presence = _in_text(lambda logits, _, strength: logits - strength)
top_k = _changing(lambda y, strength: restricted(y, top_k=int(strength)))
biased = _changing(_biased)


def _and_temperature(other: Inject, size: float) -> Inject:
    """Another injection, and then a temperature."""
    return lambda pair, strength: temperature(other(pair, size), strength)


BF16, FLOAT32 = "fresh-against-cached", "batch-1-against-n"
# name: (causes, the first one first; injection; strengths; the sample pair; lists of how many that
# can show it)
INJECTIONS: dict[str, tuple[tuple[str, ...], Inject, tuple[float, ...], str, tuple[int, ...]]] = {
    "temperature": (("temperature",), temperature, (1.001, 1.01, 1.1, 0.7, 2.0), BF16, SIZES),
    "temperature, float32": (
        ("temperature",),
        temperature,
        (1.00001, 1.0001, 1.01, 0.7, 2.0),
        FLOAT32,
        SIZES,
    ),
    "constant": (("constant",), _changing(_constant), (0.1, 1.0, 5.0, 20.0, np.inf), BF16, ()),
    "rows shifted": (("shifted rows",), shift_rows, (1, 2, 3, -1, -2), BF16, (1, *SIZES)),
    "rows swapped": (("other rows",), _changing(_swapped), (1, 2, 5), BF16, ()),
    "one row repeated": (("repeated rows",), _changing(_repeated), (0.0, 0.1, 0.4), BF16, SIZES),
    "soft cap": (
        ("soft-capping",),
        _changing(lambda y, strength: strength * np.tanh(y / strength)),
        (300.0, 100.0, 50.0, 30.0, 10.0),
        BF16,
        (),
    ),
    "presence": (("penalty",), presence, (0.05, 0.5, 1.0, 2.0, 5.0), BF16, SIZES),
    "frequency": (
        ("penalty",),
        _in_text(lambda logits, times, strength: logits - strength * times),
        (0.05, 0.5, 1.0, 2.0, 5.0),
        BF16,
        SIZES,
    ),
    "presence and frequency": (
        ("penalty",),
        _in_text(lambda logits, times, strength: logits - 1.5 * strength - strength * times),
        (0.4, 1.0, 2.0),
        FLOAT32,
        SIZES,
    ),
    "repetition": (
        ("penalty",),
        _in_text(
            lambda logits, _, strength: np.where(logits > 0, logits / strength, logits * strength)
        ),
        (1.01, 1.05, 1.1, 1.3, 1.5),
        BF16,
        SIZES,
    ),
    "logit bias": (("logit bias",), biased, (0.2, 0.5, 1.0, 5.0, -5.0), BF16, SIZES),
    "bias and temperature": (
        ("temperature", "logit bias"),
        _and_temperature(biased, 5.0),
        (0.7, 0.9, 1.5),
        FLOAT32,
        SIZES,
    ),
    "presence and temperature": (
        ("temperature", "penalty"),
        _and_temperature(presence, 2.0),
        (0.7, 0.9, 1.5),
        FLOAT32,
        SIZES,
    ),
    "top-k": (("masking",), top_k, (5, 20, 50, 1000, 20000), BF16, ()),
    "top-k 20, a number": (
        ("masking",),
        _changing(_masked_with),
        (-1e4, -1e9, -65504.0, -3.4028235e38, -100.0),
        BF16,
        (),
    ),
    "top-k and temperature": (
        ("temperature", "masking"),
        _and_temperature(_changing(partial(_masked_with, best=50)), -1e9),
        (0.7, 2.0),
        BF16,
        (),
    ),
    "top-p": (
        ("masking",),
        _changing(lambda y, strength: restricted(y, top_p=strength)),
        (0.3, 0.5, 0.9, 0.99, 0.999),
        BF16,
        (),
    ),
    "tokens masked": (("masking",), _changing(_masked_ids), (1, 3, 100), BF16, ()),
    "n-grams banned": (("masking",), banned, (1, 3), BF16, ()),
    "cut vocabulary": (("cut vocabulary",), _last_ids(-np.inf), (1, 16, 64, 1000, 20000), BF16, ()),
    "padded with 0": (("padded vocabulary",), _last_ids(0.0), (8, 64, 1000), BF16, ()),
    "renormalized top-3": (("renormalized",), _and_temperature(top_k, 3), (1.0,), BF16, (3, 5)),
    "the same, temperature": (
        ("temperature", "renormalized"),
        _and_temperature(top_k, 3),
        (0.7, 2.0),
        FLOAT32,
        (3, 5),
    ),
    "rounded": (("rounded",), round_values, (1, 2, 3, 4, 1), FLOAT32, ()),
    "decimals": (("rounded",), decimals, (1, 2, 3, 4, 5), FLOAT32, ()),
}
OF_LISTS = ("renormalized top-3", "the same, temperature")
CLEAN = (BF16, FLOAT32, "continuations-that-part", "where-it-starts", "injected-bug")


def rounded_pair(pair: Pair, dtype: str) -> Pair:
    """Both sides rounded to a dtype of 16 bits."""
    x, y = (
        one.astype(np.float32).astype(FORMATS[dtype].values).astype(np.float64)
        for one in (pair.x, pair.y)
    )
    return replace(pair, dtype=dtype, x=x, y=y)


def inject_and_explain(kind: str, strength: float, size: int = 0) -> list[Cause]:
    """Causes that are claimed of a pair with one injected. size: of lists; 0: complete rows."""
    _, inject, _, name, _ = INJECTIONS[kind]
    pair = inject(pair_of(name), strength)
    return explain(lists(pair, size) if size else complete(pair)).causes


def _cell(kind: str, size: int) -> str:
    causes_expected, _, strengths, _, sizes = INJECTIONS[kind]
    if size not in (sizes if kind in OF_LISTS else (0, *sizes)):
        return ""
    causes = [[cause.name for cause in inject_and_explain(kind, one, size)] for one in strengths]
    # first of all that is claimed, and nothing expected is missing
    hits = [set(causes_expected) <= set(one) and one[0] in causes_expected for one in causes]
    missed = [f"{one:g}" for one, is_named in zip(strengths, hits, strict=True) if not is_named]
    others = sorted({name for one in causes for name in one} - set(causes_expected))
    cell = f"{sum(hits)} of {len(hits)}" + (f", not {', '.join(missed)}" if missed else "")
    return cell + (f"; also {', '.join(others)}" if others else "")


def claimed_of_clean(pair: Pair) -> dict[str, list[str]]:
    """False alarms: what is claimed of a pair into which nothing was injected."""
    causes = {"complete": explain(complete(pair)).causes}
    for size in (1, *SIZES):
        causes[f"lists of {size}"] = explain(lists(pair, size)).causes
    # a row alone has no text before it
    rows = [
        complete(replace(pair, tokens=(), x=pair.x[at : at + 1], y=pair.y[at : at + 1]))
        for at in range(len(pair.x))
    ]
    causes["rows alone"] = [cause for row in rows for cause in explain(row).causes]
    return {kind: [cause.name for cause in every] for kind, every in causes.items()}


def main() -> None:
    """Print the tables of docs/explanation/causes.md."""
    out = sys.stdout.write
    columns = " | ".join(
        ["injected", "strengths", "complete rows", *(f"lists of {size}" for size in SIZES)],
    )
    out(f"| {columns} |\n|{'---|' * (3 + len(SIZES))}\n")
    for kind, (_, _, strengths, _, _) in INJECTIONS.items():
        cells = " | ".join(_cell(kind, size) for size in (0, *SIZES))
        out(f"| {kind} | {', '.join(f'{one:g}' for one in strengths)} | {cells} |\n")
        sys.stdout.flush()
    pairs = {name: pair_of(name) for name in CLEAN}
    pairs |= {
        f"{FLOAT32}, {dtype}": rounded_pair(pairs[FLOAT32], dtype)
        for dtype in ("float16", "bfloat16")
    }
    for name, pair in pairs.items():
        out(f"clean {name}, {len(pair.x)} rows: {claimed_of_clean(pair)}\n")


if __name__ == "__main__":
    main()
