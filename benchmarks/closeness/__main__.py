"""Power of tests of closeness at equal false alarms.

    python -m benchmarks.closeness [--seeds N] [--first SEED]

Each seed has new inputs for every operation and dtype: sound kernels, of which none may be accused,
and each fault at ten sizes, in rms of the rounding of the reference. Every test's limit is set to
0.1 % false alarms on the same sound kernels; of ULPscope only that of the errors' size, places and
directions keep theirs. 50 seeds: half an hour.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial

import pandas as pd
import torch

from core.closeness.comparison import compare_errors
from core.closeness.operation import draws_of
from core.text import percent
from core.verdict import BUG_SUSPECTED, UNDECIDED

from .operations import OPERATIONS, Operation, cast, kernel
from .rivals import rivals_of

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_SIZES = [2.0**power for power in range(3, -7, -1)]
_FALSE_ALARMS = 1e-3
_LIMIT = 2.0  # of ULPscope, for the ratio of all errors
_OURS = "ULPscope: eight roundings", "ULPscope: one trusted result"
# eager functions that keep sums in 16 bits, which no kernel does
_KEEP_SUMS = {"online", "chunks", "split k", "plain", "reciprocal"}


def _sound_of(operation: Operation, dtype: torch.dtype) -> Iterator[tuple[str, torch.nn.Module]]:
    yield "reference as a kernel", kernel(operation.reference)
    for name, function in operation.sound.items():
        yield f"{name} as a kernel", kernel(function)
        if dtype is not torch.float32 and name not in _KEEP_SUMS:
            yield name, function


def _scores(operation: Operation, name: str, seed: int) -> Iterator[tuple[str, str, float]]:
    """Yield (kernel, '' of a fault; test; score) of every pair of a seed."""
    dtype = _DTYPES[name]
    generator = torch.Generator().manual_seed(seed)
    inputs = cast(operation.inputs(generator), dtype)
    wide = cast(inputs, torch.float64)
    exact = operation.reference(*wide)
    expected = operation.reference(*inputs)
    draws = draws_of(partial(operation.reference, *inputs), dtype)

    def of_tests(kind, actual):
        others = [each.double() for each in (actual, expected)]
        for rival, test in rivals_of(name).items():
            yield kind, rival, test.score(*others, exact)
        for ours, trusted in zip(_OURS, (draws, expected), strict=True):
            found = compare_errors(actual, trusted, exact, dtype=name)
            is_accused = found.verdict in (BUG_SUSPECTED, UNDECIDED)
            yield kind, ours, max(found.ratio / _LIMIT, float(is_accused))

    for kind, function in _sound_of(operation, dtype):
        yield from of_tests(kind, function(*inputs))
    clean = operation.reference(*cast(inputs, torch.float32)).double()
    rounding = torch.stack([each.double() - exact for each in draws]).square().mean().sqrt()
    for function in operation.faults.values():
        change = function(*wide) - exact
        for size in _SIZES:
            step = size * rounding / change.square().mean().sqrt()
            yield from of_tests("", (clean + step * change).to(dtype))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--first", type=int, default=1000)
    options = parser.parse_args()
    rows = []
    for dtype in _DTYPES:
        for name, operation in OPERATIONS.items():
            accused = {}
            for seed in range(options.first, options.first + options.seeds):
                for kind, test, score in _scores(operation, dtype, seed):
                    rows.append((dtype, name, test, bool(kind), score))
                    if kind and test in _OURS and score >= 1:
                        accused[f"{kind}, {dtype}, seed {seed}"] = True
            print(f"{name}, {dtype}: {list(accused) or 'none accused'}", flush=True)
    _print(pd.DataFrame(rows, columns=["dtype", "operation", "test", "is_sound", "score"]))


def _print(scores: pd.DataFrame) -> None:
    sound, faulty = scores[scores.is_sound], scores[~scores.is_sound]
    limits = sound.groupby(["dtype", "test"]).score.quantile(1 - _FALSE_ALARMS)
    limit = limits.loc[pd.MultiIndex.from_frame(faulty[["dtype", "test"]])].to_numpy()
    keys = ["dtype", "operation", "test"]
    found = faulty.assign(score=faulty.score > limit).groupby(keys, sort=False).score.mean()
    # [tests, (dtype, operation)]
    found = found.unstack(["dtype", "operation"])
    for dtype in _DTYPES:
        print(f"\n{dtype}: faults found at 0.1 % false alarms, of three faults at ten sizes")
        print(f"| test | {' | '.join(found[dtype].columns)} |")
        for test, shares in found[dtype].iterrows():
            print(f"| {test} | {' | '.join(map(percent, shares))} |")
    print("\nAs they are used: sound pairs accused, faults found")
    for test in found.index:
        alarms, hits = (each[each.test == test].score for each in (sound, faulty))
        for limit in (1.0,) if test in _OURS else rivals_of("float32")[test].limits:
            # ULPscope's score is 1 for what it suspects
            is_beyond = pd.Series.ge if test in _OURS else pd.Series.gt
            accused = is_beyond(alarms, limit).sum()
            share = percent(is_beyond(hits, limit).mean())
            print(f"| {test}, {limit:g} | {accused} of {len(alarms)} | {share} |")
    best = found.drop(index=list(_OURS)).max()
    for ours in _OURS:
        is_highest = found.loc[ours] >= best
        print(f"{ours}: highest in {is_highest.sum()} of {len(best)} columns")
        print(f"  lower in {[key[::-1] for key in best.index[~is_highest]]}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
