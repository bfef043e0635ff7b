"""16 bits alone on trial: faults of a given size and other kernels of the same function, each
side's error compared with randomized rounding (docs/explanation/calibration.md).

python -m benchmarks.verdicts.sixteen                # every model and dtype: the tables of the docs
python -m benchmarks.verdicts.sixteen --model "llama bfloat16" --prompts 10
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.verdicts.engines import (
    PREFIX,
    Engine,
    alter,
    attending,
    cached,
    hooking,
    interpolate,
    layers,
    left_by,
    prefill,
)
from benchmarks.verdicts.mutations import (
    MUTATIONS,
    Mutation,
    activated,
    another_prompt,
    final_norm,
    first_norm,
    head_of,
    in_a_batch,
    second_layer,
)
from benchmarks.verdicts.tiny_models import CONFIGS
from benchmarks.verdicts.trial import SHIPPED, TOKENS, model_named
from benchmarks.verdicts.variations import (
    VARIATIONS,
    in_float64,
    in_two_halves,
    norms_in_float64,
    same,
    scores_rounded,
    without_groups,
)
from core.checks.drawn import DRAWN_LIMITS, error_test
from core.checks.modules_in_16_bits import module_rounding_row
from core.errors import CaptureError
from core.evidence import PASSED
from core.inference.controls.drawn_roundings import RoundingDraws
from core.inference.controls.modules_alone import module_rounding
from core.inference.models.dtypes import in_float32
from core.inference.models.model import LoadedModel
from core.inference.models.torch_errors import quiet
from core.inference.paths.engines import PLAIN, RunnableSide, side_of, whole_side
from core.numerics.statistic import FloorTest, smallest_fault

DTYPES = ("bfloat16", "float16")
_TINY = [name for name in CONFIGS if name != "mixtral-ties"]
MODELS = (*(f"{name} {dtype}" for name in _TINY for dtype in DTYPES), SHIPPED[0])
SHARES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # of the whole fault
# ends of ranges, in roundings at the position where it is largest
SIZES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, np.inf)
PLACE = -5  # token at which faults of one token are
# Token by token through every prompt: these say nothing that chunks do not, and take most of the
# time.
_SLOW = ("decode", "static", "chunks of 1, 2, 3")

Share = Callable[[float], Engine]


def _towards(
    modules: Callable[[Any], Any],
    index,
    other: Callable[[Any, Any], Tensor],
    inner: Engine = prefill,
) -> Share:
    """Part of a module's output is moved by a share of the way to other(output, input)."""

    def of_share(share):
        def change(_, arguments, output):
            result = output.clone()
            result[index] = interpolate(output[index], other(output, arguments[0]), share)
            return result

        return alter(hooking(modules, change), inner)

    return of_share


def _norm(model) -> list[Any]:
    return [first_norm(layers(model)[1])]


def _two_tokens_swapped(output: Tensor, tokens: Tensor) -> Tensor:
    """The embeddings of the first two different tokens of the prompt are swapped."""
    first, second = tokens[0].unique()[:2]
    swapped = output.clone()
    for token, other in ((first, second), (second, first)):
        swapped[0, tokens[0] == token] = output[0, tokens[0] == other][:1]
    return swapped


def attention_reads_ahead(share: float) -> Engine:
    """One query of the first layer reads the value after its own."""

    def change(call):
        output, *rest = call.run()
        if call.module.layer_idx == 0:
            output = output.clone()
            groups = call.query.shape[1] // call.value.shape[1]
            other = call.value[:, :, PLACE + 1].repeat_interleave(groups, 1)
            output[:, PLACE] = interpolate(output[:, PLACE], other, share)
        return (output, *rest)

    return alter(attending(change))


def _of_another_step(output: Tensor, _: Tensor) -> Tensor:
    """The output of a norm whose weights are a tenth off, each by its own share."""
    generator = torch.Generator().manual_seed(0)
    moves = torch.randn(output.shape[-1], generator=generator).to(output)
    return output * (1 + 0.1 * moves)


def _softmax_by_exp2(query, key, value, mask, scaling: float) -> Tensor:
    """Softmax in powers of two, whose log2(e) is rounded to bfloat16."""
    log2e = float(torch.tensor(math.log2(math.e), dtype=torch.bfloat16))
    scores = (query.float() @ key.float().transpose(2, 3) * (scaling * log2e)).masked_fill(
        ~mask,
        -torch.inf,
    )
    weights = torch.exp2(scores - scores.amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True) @ value.float()


def _has_silu(loaded: LoadedModel) -> bool:
    """True of dense models with SiLU, whose scores are not capped either."""
    return loaded.model.config.model_type in ("llama", "mistral")


class SigmoidTable(torch.nn.Module):
    """SiLU whose sigmoid is read from a table of so many entries from -8 to 8."""

    def __init__(self, entries: int) -> None:
        super().__init__()
        self._step = 16 / entries

    def forward(self, x: Tensor) -> Tensor:
        places = (x.float() / self._step).round() * self._step
        return (x.float() * places.clamp(-8, 8).sigmoid()).to(x.dtype)


_HERE, _BEFORE = (slice(None), PLACE), (slice(None), PLACE - 1)
_TILE = slice(16, 32)
FAULTS: dict[str, Share] = {
    "attention reads ahead": attention_reads_ahead,
    "stale cache slot": lambda share: cached([PREFIX], left_by(another_prompt, PREFIX, -3, share)),
    "norm of the token before": _towards(_norm, _HERE, lambda output, _: output[_BEFORE]),
    "residual added twice": _towards(
        second_layer,
        _HERE,
        lambda output, x: output[_HERE] + x[_HERE],
    ),
    "embedding rows swapped": _towards(
        lambda model: [model.get_input_embeddings()],
        ...,
        _two_tokens_swapped,
    ),
    "tile of the head": _towards(
        head_of,
        (*_HERE, _TILE),
        lambda output, _: output[(*_BEFORE, _TILE)],
    ),
    "last chunk shifted": _towards(
        second_layer,
        (0, slice(-7, None)),
        lambda output, _: output[0, -8:-1],
    ),
    "another row of the batch": _towards(
        second_layer,
        (0, PLACE),
        lambda output, _: output[1, PLACE],
        in_a_batch,
    ),
    "stale final norm": _towards(final_norm, ..., _of_another_step),
}
SMALL = (  # faults of about the size of rounding
    Mutation("softmax by a rounded log2(e)", without_groups(_softmax_by_exp2), applies=_has_silu),
    *(
        Mutation(
            f"sigmoid from {entries} entries",
            alter(activated(SigmoidTable(entries))),
            applies=_has_silu,
        )
        for entries in (32, 64, 128, 256)
    ),
)
TWINS: dict[str, Engine] = {
    "scores rounded to 16 bits": scores_rounded,
    "products in two halves": in_two_halves,
    "norms in float64": norms_in_float64,
    "float64, rounded at the end": in_float64,
}


@dataclass(frozen=True)
class Tried:
    """One case on one model with so many prompts. size: of a fault in float32, in units of rounding
    at the position where it is largest, 0 of another way to compute the same; is_open: a module
    differs by more than its rounding, though the logits do not.
    """

    model: str
    prompts: int
    case: str
    size: float
    test: FloorTest
    is_open: bool = False

    @property
    def is_seen(self) -> bool:
        return not self.test.is_passed or self.is_open


def prompts_for(name: str, loaded: LoadedModel, count: int) -> list[tuple[int, ...]]:
    """TOKENS tokens each: random ones for random weights, Python's own sources for a model that
    learnt on such.
    """
    if name not in SHIPPED:
        generator = torch.Generator().manual_seed(1)
        return [
            tuple(torch.randint(1, loaded.token_limit, (TOKENS,), generator=generator).tolist())
            for _ in range(count)
        ]
    text = "\n".join(
        inspect.getsource(module) for module in (argparse, inspect, statistics, json.decoder)
    )
    ids = [
        token
        for line in text.splitlines(keepends=True)
        for token in loaded.tokenizer(line)["input_ids"]
    ]
    step = (len(ids) - TOKENS) // count
    return [tuple(ids[number * step : number * step + TOKENS]) for number in range(count)]


def cases_of(loaded: LoadedModel, shares: Sequence[float] = SHARES) -> list[Mutation]:
    """Faults at every size, and the trial's cases that are engines or paths and have logits of
    their own.
    """
    cases = [
        case
        for case in (*MUTATIONS, *VARIATIONS)
        if case.applies(loaded) and case.sample is None and case.base is None
    ]
    twin = same("scores rounded to 16 bits", scores_rounded)
    faults = [Mutation(name, make(share)) for name, make in FAULTS.items() for share in shares]
    small = [case for case in SMALL if case.applies(loaded)]
    return [*faults, *small, *(case for case in cases if not case.name.startswith(_SLOW)), twin]


def run_trial(
    name: str,
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    cases: Sequence[Mutation],
) -> tuple[list[Tried], list[FloorTest]]:
    """(every case that the model can run, every draw compared with the others)"""
    lengths = [len(ids) for ids in prompts]
    with quiet(), torch.inference_mode():
        able = [case for case in cases if _runs(case, loaded, prompts[0])]
        sides = [
            replace(side_of(case.path or case.engine or "prefill"), name=case.name) for case in able
        ]
        draws = RoundingDraws(loaded, prompts)
        errors = draws.errors(sides)
        rounding = np.mean([draw.squares for draw in draws.draws], axis=0)
        sizes = []
        with in_float32(loaded) as wide:
            plain = torch.cat([whole_side(PLAIN.run_on(wide), ids) for ids in prompts]).double()
            for case, side in zip(able, sides, strict=True):
                size = 0.0
                if case.changes(loaded):
                    logits = torch.cat(
                        [whole_side(side.run_on(wide), ids) for ids in prompts],
                    ).double()
                    fault = (logits - plain).nan_to_num(posinf=np.inf, nan=np.inf)
                    size = float(np.sqrt((fault.square().mean(1).cpu().numpy() / rounding).max()))
                sizes.append(size)
    trials = []
    for case, side, size in zip(able, sides, sizes, strict=True):
        test = error_test(errors[case.name], draws.draws, lengths, own=draws.own)
        is_open = test.is_passed and _has_an_open_module(loaded, prompts, side)
        trials.append(Tried(name, len(prompts), case.name, size, test, is_open))
    every = [(one, [other for other in draws.draws if other is not one]) for one in draws.draws]
    return trials, [error_test(one, others, lengths) for one, others in every]


def _has_an_open_module(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    side: RunnableSide,
) -> bool:
    if loaded.has_experts:
        return False
    with quiet(), torch.inference_mode(), suppress(CaptureError):
        rounding = module_rounding(loaded, prompts, side)
        return module_rounding_row(rounding, side.name, loaded.dtype).outcome != PASSED
    return False


def _runs(case: Mutation, loaded: LoadedModel, ids: Sequence[int]) -> bool:
    try:
        whole_side(side_of(case.path or case.engine or "prefill").run_on(loaded), ids)
    except CaptureError:
        return False
    return True


def summary(
    trials: Sequence[Tried],
    draws: dict[tuple[str, int], list[FloorTest]],
) -> Iterator[str]:
    """Lines of Markdown: one line per model and a number of prompts; faults that are seen at the
    end, in roundings.
    """
    kinds = ("at one position", "over all")
    columns = (
        "model | prompts | faults | seen | same function | accused | largest ratio | draws accused"
    )
    yield f"| {columns} | {' | '.join(kinds)} |"
    yield f"|{'---|' * (8 + len(kinds))}"
    for (model, count), of_draws in draws.items():
        own = [one for one in trials if (one.model, one.prompts) == (model, count)]
        faults, same = (
            [one for one in own if bool(one.size) == is_fault] for is_fault in (True, False)
        )
        limits = same[0].test.position.limit, DRAWN_LIMITS.over_all
        smallest = [f"{smallest_fault(limit):.2g}" for limit in limits]
        cells = [model, count, len(faults), sum(one.is_seen for one in faults), len(same)]
        cells += [sum(one.is_seen for one in same), f"{max(one.test.ratio for one in same):.2f}"]
        cells += [f"{sum(not test.is_passed for test in of_draws)} of {len(of_draws)}", *smallest]
        yield f"| {' | '.join(map(str, cells))} |"


def table(trials: Sequence[Tried]) -> Iterator[str]:
    """Lines of Markdown: a line a fault, a column a size, seen of planted, undecided among them."""
    ranges = list(itertools.pairwise(SIZES))
    ends = [
        f"{low:g} to {high:g}" if high < np.inf else f"{low:g} and more" for low, high in ranges
    ]
    yield f"| fault | {' | '.join(ends)} |"
    yield f"|{'---|' * (1 + len(ends))}"
    groups = {name: {name} for name in FAULTS} | {"the trial's": {case.name for case in MUTATIONS}}
    groups["about rounding"] = {case.name for case in SMALL}
    for group, names in (groups | {"together": {one.case for one in trials}}).items():
        cells = []
        for low, high in ranges:
            own = [one for one in trials if one.case in names and low < one.size <= high]
            seen = f"{sum(one.is_seen for one in own)} of {len(own)}" if own else ""
            if count := sum(one.is_open for one in own):
                seen += f", {count} undecided"
            cells.append(seen)
        yield f"| {group} | {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model",
        action="append",
        choices=MODELS,
        help="only these; may be given several times",
    )
    parser.add_argument(
        "--prompts",
        action="append",
        type=int,
        help="so many; may be given several times",
    )
    parser.add_argument(
        "--device",
        default="cpu",
        help="cpu or cuda; the tables of the docs are from a CPU",
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    trials = []
    draws = {}
    for name in options.model or MODELS:
        loaded, _ = model_named(name, options.device)
        for count in options.prompts or (2,):
            cases = cases_of(loaded)
            cases_of_model, draws[name, count] = run_trial(
                name,
                loaded,
                prompts_for(name, loaded, count),
                cases,
            )
            trials += cases_of_model
            for one in cases_of_model:
                if one.is_seen and not one.size:
                    print(
                        f"ACCUSED {name:24}{count:4} {one.case:52}{one.test.ratio:.2f}",
                        flush=True,
                    )
    print(*summary(trials, draws), "", *table(trials), sep="\n")
    return int(any(one.is_seen and not one.size for one in trials))


if __name__ == "__main__":
    raise SystemExit(main())
