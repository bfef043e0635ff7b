"""Power of tests of closeness at equal false alarms.

    python -m benchmarks.closeness [--seeds N] [--first SEED]

Each seed has new inputs for every operation and dtype: sound kernels, of which none may be accused,
and each fault at ten sizes, in rms of the rounding of the reference. The others' limits are set to
0.1 % false alarms on the same sound kernels; ULPscope's are fixed. 50 seeds: a quarter of an hour.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from core.closeness.comparison import compare_errors
from core.closeness.operation import draws_of
from core.text import percent
from core.verdict import BUG_SUSPECTED, UNDECIDED

from .operations import OPERATIONS, Operation, cast, kernel
from .rivals import rivals_of

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_SIZES = [2.0**power for power in range(3, -7, -1)]
_FALSE_ALARMS = 1e-3
_OURS = "ULPscope: eight roundings", "ULPscope: one trusted result"
# eager functions that keep sums in 16 bits, which no kernel does
_KEEP_SUMS = {"online", "chunks", "split k", "plain", "reciprocal"}


@dataclass
class _Scores:
    """Scores of one operation in one dtype. sound, faulty: by test; a fault has its name and
    size.
    """

    sound: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    faulty: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    sizes: list[tuple[str, float]] = field(default_factory=list)
    accused: list[str] = field(default_factory=list)


def _sound_of(operation: Operation, dtype: torch.dtype) -> Iterator[tuple[str, torch.nn.Module]]:
    yield "reference as a kernel", kernel(operation.reference)
    for name, function in operation.sound.items():
        yield f"{name} as a kernel", kernel(function)
        if dtype is not torch.float32 and name not in _KEEP_SUMS:
            yield name, function


def _measure(scores: _Scores, operation: Operation, name: str, seed: int) -> None:
    dtype = _DTYPES[name]
    generator = torch.Generator().manual_seed(seed)
    inputs = cast(operation.inputs(generator), dtype)
    wide = cast(inputs, torch.float64)
    exact = operation.reference(*wide)
    expected = operation.reference(*inputs)
    draws = draws_of(operation.reference, inputs, dtype)
    rivals = rivals_of(name)

    def add(actual: Tensor, into: dict[str, list[float]]) -> bool:
        others = [each.double() for each in (actual, expected)]
        for rival, test in rivals.items():
            into[rival].append(test.score(*others, exact))
        for ours, trusted in zip(_OURS, (draws, expected), strict=True):
            answer = compare_errors(actual, trusted, exact, dtype=name).verdict
            into[ours].append(float(answer in (BUG_SUSPECTED, UNDECIDED)))
        return bool(into[_OURS[0]][-1] or into[_OURS[1]][-1])

    for kind, function in _sound_of(operation, dtype):
        if add(function(*inputs), scores.sound):
            scores.accused.append(f"{kind}, {name}, seed {seed}")
    narrow = cast(inputs, torch.float32)
    clean = operation.reference(*narrow).double()
    rounding = torch.stack([each.double() - exact for each in draws]).square().mean().sqrt()
    for fault, function in operation.faults.items():
        change = function(*wide) - exact
        for size in _SIZES:
            step = size * rounding / change.square().mean().sqrt()
            add((clean + step * change).to(dtype), scores.faulty)
            scores.sizes.append((fault, size))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--first", type=int, default=1000)
    options = parser.parse_args()
    table = {}
    for dtype in _DTYPES:
        for name, operation in OPERATIONS.items():
            scores = table[name, dtype] = _Scores()
            for seed in range(options.first, options.first + options.seeds):
                _measure(scores, operation, dtype, seed)
            print(f"{name}, {dtype}: {scores.accused or 'none accused'}", flush=True)
    _print(table)


def _print(table: dict[tuple[str, str], _Scores]) -> None:
    tests = list(next(iter(table.values())).sound)
    found: dict[str, dict[tuple[str, str], float]] = {test: {} for test in tests}
    for dtype in _DTYPES:
        cells = {key: scores for key, scores in table.items() if key[1] == dtype}
        for test in tests:
            limit = 0.5
            if test not in _OURS:
                sound = np.concatenate([each.sound[test] for each in cells.values()])
                limit = float(np.quantile(sound, 1 - _FALSE_ALARMS))
            for key, scores in cells.items():
                found[test][key] = float(np.mean(np.array(scores.faulty[test]) > limit))
    for dtype in _DTYPES:
        print(f"\n{dtype}: faults found at 0.1 % false alarms, of three faults at ten sizes")
        names = [name for name, of in table if of == dtype]
        print("| test | " + " | ".join(names) + " |")
        for test in tests:
            print(f"| {test} | " + " | ".join(percent(found[test][n, dtype]) for n in names) + " |")
    print("\nAs they are used: sound pairs accused, faults found")
    for test in tests:
        _print_as_used(test, table)
    best = [max(found[test][key] for test in tests if test not in _OURS) for key in table]
    for ours in _OURS:
        highest = sum(found[ours][key] >= most for key, most in zip(table, best, strict=True))
        print(f"{ours}: highest in {highest} of {len(table)} columns")
        lower = [key for key, most in zip(table, best, strict=True) if found[ours][key] < most]
        print(f"  lower in {lower}")


def _print_as_used(test: str, table: dict[tuple[str, str], _Scores]) -> None:
    limits = (0.5,)
    if test not in _OURS:
        limits = rivals_of("float32")[test].limits
    for limit in limits:
        sound = np.concatenate([np.array(each.sound[test]) > limit for each in table.values()])
        faulty = np.concatenate([np.array(each.faulty[test]) > limit for each in table.values()])
        print(f"| {test}, {limit:g} | {sound.sum()} of {sound.size} | {percent(faulty.mean())} |")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
