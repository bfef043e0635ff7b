"""16 bits alone on trial: engines that hold bfloat16 weights and have nothing else, with 1, 10 and 100 prompts
(docs/verdict_calibration.md).

python -m benchmarks.verdicts.sixteen                                      # every model of 16 bits: the tables of
docs/verdict_calibration.md python -m benchmarks.verdicts.sixteen --model "llama bfloat16" --prompts 10
"""

from __future__ import annotations

import argparse
import inspect
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from benchmarks.verdicts.mutations import MUTATIONS, Mutation, scaled_value
from benchmarks.verdicts.tiny_models import CONFIGS
from benchmarks.verdicts.trial import SHIPPED, model_named
from benchmarks.verdicts.variations import VARIATIONS
from core.errors import CaptureError
from core.inference.controls.drawn_roundings import DRAWS, errors_of
from core.inference.models.model import LoadedModel
from core.inference.models.torch_errors import quiet
from core.inference.paths.engines import side_of
from core.judging.judge import DRAWN
from core.judging.statistic import FloorTest, floor_test

MODELS = (*(f"{name} bfloat16" for name in CONFIGS if name != "mixtral-ties"), "llama float16", SHIPPED[0])
COUNTS = (1, 10, 100)
TOKENS = 48
FACTORS = (1.01, 1.1, 1.3, 1.5, 2.0, 3.0)  # of one cached value vector of one head
# Token by token through every prompt: these say nothing that chunks do not, and take most of the time.
_SLOW = ("decode", "static", "chunks of 1, 2, 3")


@dataclass(frozen=True)
class Tried:
    """One case on one model with so many prompts."""

    model: str
    prompts: int
    case: str
    is_bug: bool
    test: FloorTest

    @property
    def is_seen(self) -> bool:
        return not self.test.is_passed


def prompts_for(name: str, loaded: LoadedModel, count: int) -> list[tuple[int, ...]]:
    """TOKENS tokens each: random ones for random weights, Python's own sources for the model that learnt on such."""
    if name not in SHIPPED:
        generator = torch.Generator().manual_seed(1)
        return [
            tuple(torch.randint(1, loaded.token_limit, (TOKENS,), generator=generator).tolist()) for _ in range(count)
        ]
    text = "\n".join(inspect.getsource(module) for module in (argparse, inspect, statistics, json.decoder))
    ids = [token for line in text.splitlines(keepends=True) for token in loaded.tokenizer(line)["input_ids"]]
    step = (len(ids) - TOKENS) // count
    return [tuple(ids[number * step : number * step + TOKENS]) for number in range(count)]


def cases_of(loaded: LoadedModel) -> list[Mutation]:
    """Those that are engines or paths by themselves and have logits of their own."""
    known = [
        case for case in (*MUTATIONS, *VARIATIONS) if case.applies(loaded) and case.sample is None and case.base is None
    ]
    return [case for case in known if not case.name.startswith(_SLOW)]


def run_trial(name: str, count: int, cases: Sequence[Mutation] | None = None) -> tuple[list[Tried], list[FloorTest]]:
    """(every case, every draw held against the others)"""
    loaded, _ = model_named(name)
    prompts = prompts_for(name, loaded, count)
    lengths = [len(ids) for ids in prompts]
    with quiet(), torch.inference_mode():
        able = [case for case in (cases_of(loaded) if cases is None else cases) if _runs(case, loaded, prompts[0])]
        found, drawn = errors_of(
            loaded, prompts, [side_of(case.path or case.engine or "prefill") for case in able], range(DRAWS)
        )
    tests = [
        Tried(name, count, case.name, case.changes(loaded), floor_test(one, drawn, DRAWN, lengths=lengths))
        for case, one in zip(able, found, strict=True)
    ]
    return tests, [
        floor_test(one, [*drawn[:k], *drawn[k + 1 :]], DRAWN, lengths=lengths) for k, one in enumerate(drawn)
    ]


def _runs(case: Mutation, loaded: LoadedModel, ids: Sequence[int]) -> bool:
    try:
        errors_of(loaded, [ids], [side_of(case.path or case.engine or "prefill")], [])
    except CaptureError:
        return False
    return True


def summary(tried: Sequence[Tried], draws: dict[tuple[str, int], list[FloorTest]]) -> Iterator[str]:
    """Lines of Markdown: a line a model and a number of prompts; faults that are seen at the end, in rms of the
    rounding.
    """
    yield (
        "| model | prompts | bugs | seen | same function | accused | largest ratio | draws accused | at one position |"
        " over all | of one token |"
    )
    yield f"|{'---|' * 11}"
    for (model, count), of_draws in draws.items():
        own = [one for one in tried if (one.model, one.prompts) == (model, count)]
        bugs, same = ([one for one in own if one.is_bug == is_bug] for is_bug in (True, False))
        sizes = [same[0].test.smallest_fault(kind) for kind in ("position", "", "token")]
        smallest = ["" if size is None else f"{size:.2g}" for size in sizes]
        yield (
            f"| {model} | {count} | {len(bugs)} | {sum(one.is_seen for one in bugs)} | {len(same)} |"
            f" {sum(one.is_seen for one in same)} | {max(one.test.ratio for one in same):.2f} |"
            f" {sum(not test.is_passed for test in of_draws)} of {len(of_draws)} | {' | '.join(smallest)} |"
        )


def missed(tried: Sequence[Tried]) -> Iterator[str]:
    """Lines of Markdown: a line a bug that is not seen with every number of prompts, a column a model and number of
    prompts.
    """
    columns = list(dict.fromkeys((one.model, one.prompts) for one in tried))
    found = {(one.case, one.model, one.prompts): one for one in tried if one.is_bug}
    yield f"| bug | {' | '.join(f'{model}, {count}' for model, count in columns)} |"
    yield f"|---|{'---|' * len(columns)}"
    for case in dict.fromkeys(case for case, _, _ in found):
        row = [found.get((case, model, count)) for model, count in columns]
        if any(one is not None and not one.is_seen for one in row):
            cells = ["" if one is None else f"{'seen' if one.is_seen else 'no'}, {one.test.ratio:.2f}" for one in row]
            yield f"| {case} | {' | '.join(cells)} |"


def limits(name: str, count: int) -> Iterator[str]:
    """Lines of Markdown: how far one cached value vector of one head must be scaled to be seen."""
    cases = [Mutation(f"{factor:g}", scaled_value(factor)) for factor in FACTORS]
    for one in run_trial(name, count, cases)[0]:
        position = next(places for places in one.test.places if places.kind == "position")
        first = f"{position.worst:.2f} at {position.worst_place % TOKENS}"
        yield (
            f"| {name} | {count} | {one.case} | {one.test.ratio:.2f} | {first} |"
            f" {'seen' if one.is_seen else 'below the limit'} |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=MODELS, help="only these; may be given several times")
    parser.add_argument("--prompts", action="append", type=int, help="only so many; may be given several times")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    tried: list[Tried] = []
    draws: dict[tuple[str, int], list[FloorTest]] = {}
    for name in given.model or MODELS:
        for count in given.prompts or COUNTS:
            found, draws[name, count] = run_trial(name, count)
            tried += found
            for one in found:
                if one.is_seen != one.is_bug:
                    print(
                        f"{'missed' if one.is_bug else 'ACCUSED':8}{name:24}{count:4} "
                        f" {one.case:52}{one.test.ratio:.2f}",
                        flush=True,
                    )
    print("", *summary(tried, draws), "", *missed(tried), "", sep="\n")
    print("| model | prompts | scaled by | ratio | worst position | |", f"|{'---|' * 6}", sep="\n")
    for name in given.model or MODELS:
        for count in given.prompts or COUNTS[:2]:
            print(*limits(name, count), sep="\n", flush=True)
    return int(any(one.is_seen and not one.is_bug for one in tried))


if __name__ == "__main__":
    raise SystemExit(main())
