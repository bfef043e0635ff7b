"""Costs of what a planned capture will run beside its sides (floors, kernels, remedies, judging), and how long all of
it takes on this machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..controls.drawn_roundings import DRAWS
from ..controls.judge_model import SEEDS, SEEDS_OF_MODULES
from ..controls.judging_session import JudgingSession
from ..controls.precisions.lower_precision import most_work
from ..controls.remedies import BATCHES, FLOOR_SEEDS, PRICE_TOKENS, REMEDIES, least_tokens, most_tokens, without_batch
from ..models.model import LoadedModel
from ..paths.paths import Path, parse_path
from ..watching.layers import is_one_piece
from .capture import CapturePlan, shares_floor
from .costs import Costs, walk
from .throughput import LEAST_TURNS, MOST_TURNS

KERNELS, REMEDIES_, JUDGE = ("kernels", "remedies", "judge")
WITHIN = 3  # the factor by which an estimate may be wrong: what the kernels of a path cost is known when they have run
_SLOWER = {
    "floor of the modules": 2.5,
    "kernels": 2.0,
    "remedies": 1.5,
    "judging": 1.5,
    "precisions": 1.5,
}  # than plain forwards: docs/where_it_starts.md
_BYTES, _WIDTH = 64 << 20, 512
_PLAIN = parse_path("prefill")


@dataclass(frozen=True)
class Work:
    """Forwards of the model, and tokens that they compute, every row of a batch with its padding."""

    forwards: int = 0
    tokens: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.forwards + other.forwards, self.tokens + other.tokens)

    def __mul__(self, times: int) -> Work:
        return Work(self.forwards * times, self.tokens * times)


@dataclass(frozen=True)
class StageCost:
    """Cost of one stage beside the sides: at least and at most, for a clock decides how often remedies are timed, and
    what a judge finds, which rungs he climbs. is_bound: of work that is done only if something is found, and then up to
    `most`, which is more than it will be.
    """

    name: str
    least: Work
    most: Work
    is_bound: bool = False


@dataclass(frozen=True)
class Speed:
    """Speed of this machine, in the model's dtype, as busy as it is: weights read, and products computed, a second;
    seconds of one module's call.
    """

    bytes_per_second: float
    flops_per_second: float
    module_seconds: float


def stages_of(plan: CapturePlan, beside: Sequence[str]) -> list[StageCost]:
    """Stages that the plan runs beside its sides, with their costs; beside: some of KERNELS, REMEDIES_, JUDGE."""
    found = []
    is_shared = shares_floor(plan, judge=JUDGE in beside, remedies=REMEDIES_ in beside)
    shared = 0 if plan.layers is None or not is_shared else plan.layers.seeds  # reorderings that the session keeps
    if plan.layers is not None and plan.layers.seeds:
        floor = _over(plan, _PLAIN) * (plan.layers.seeds + (plan.paths[0] != _PLAIN) + bool(shared))
        found.append(StageCost("floor of the modules", floor, floor))
    if KERNELS in beside:
        sides = [_of(plan, path, plan.token_ids[0]) * (1 + is_one_piece(path)) for path in plan.paths]
        found.append(StageCost("kernels", _sum(sides), _sum(sides)))
    variants = list(dict.fromkeys(plan.paths[1:]))
    if REMEDIES_ in beside:
        ends = [
            _remedies(plan, variants, shared, *end) for end in ((LEAST_TURNS, least_tokens), (MOST_TURNS, most_tokens))
        ]
        found.append(StageCost("remedies", ends[0], ends[1]))
    if JUDGE in beside:
        keeps = JudgingSession(plan.loaded, plan.token_ids).keeps(3)  # the reference, a variant and plain prefill
        judged = [_judging(plan, path, shared, is_first=not i, keeps=keeps) for i, path in enumerate(plan.paths[1:])]
        least = _sum([_over(plan, path) for path in plan.paths])
        found.append(StageCost("judging", least, _sum(judged)))
        found.append(StageCost("precisions", Work(), _precisions(plan, variants), is_bound=True))
    return found


def _of(plan: CapturePlan, path: Path, ids: Sequence[int]) -> Work:
    columns = walk(path, plan.loaded, len(ids))
    return Work(len(columns), path.rows * sum(columns))


def _over(plan: CapturePlan, path: Path) -> Work:
    """A path for all prompts."""
    return _sum([_of(plan, path, ids) for ids in plan.token_ids])


def _sum(parts: Sequence[Work]) -> Work:
    return sum(parts, Work())


def _remedies(
    plan: CapturePlan, variants: Sequence[Path], shared: int, turns: int, tokens_of: Callable[[Path, int], int]
) -> Work:
    """Work of the remedies with so many turns of the clock, and walks of as many tokens of a path as tokens_of says.

    shared: reorderings of prefill that are known by then.
    """
    reference = plan.paths[0]
    seeds = max(0, FLOOR_SEEDS - (shared if reference == _PLAIN else 0))
    found = _over(plan, reference) * (seeds + bool(seeds))
    applied = [remedy for remedy in REMEDIES if not remedy.lacks(plan.loaded, reference)]
    for variant in variants:
        tried = [remedy for remedy in applied if not remedy.lacks(plan.loaded, variant)]
        found += (_over(plan, reference) + _over(plan, variant)) * (
            len(tried) - 1
        )  # the pair as it is has been captured
        sides = [reference, variant]
        found += _sum([_timed(plan, path, plan.token_ids[0], most_tokens) for path in sides])
        found += _sum([_timed(plan, path, plan.token_ids[0], tokens_of) for path in dict.fromkeys(sides)]) * (
            (1 + turns) * len(tried)
        )
    if any(remedy.name == "invariant" for remedy in applied):
        for path in map(parse_path, without_batch(plan.paths)):
            text = [0] * PRICE_TOKENS
            if path.refusal(plan.loaded, PRICE_TOKENS):
                continue
            found += _timed(plan, path, text, most_tokens)
            one = _timed(plan, path, text, tokens_of) * (2 * (1 + turns))
            found += _sum([Work(one.forwards, one.tokens * batch) for batch in BATCHES])
    return found


def _timed(plan: CapturePlan, path: Path, ids: Sequence[int], tokens_of: Callable[[Path, int], int]) -> Work:
    return _of(plan, path, ids[: tokens_of(path, len(ids))])


def _judging(plan: CapturePlan, variant: Path, shared: int, *, is_first: bool, keeps: bool) -> Work:
    """Every rung that can be climbed, but those in float64 of a mixture of experts; see
    core.inference.controls.judge_model.

    shared: reorderings of prefill that are known by then; keeps: are logits kept, so that a path is computed once in
    each dtype? What the session keeps of the reference and of the plain prefill is computed for the first variant only.
    """
    reference, plain, own = _over(plan, plan.paths[0]), _over(plan, _PLAIN), _over(plan, variant)
    is_plain = plan.paths[0] == _PLAIN
    dtypes = 1 + (plan.loaded.dtype != "float32")  # the model's own, and float32
    again = 0 if keeps else 1
    found = own * dtypes  # measured, in float32; the call that was captured is its rerun
    if variant.rows > 1:
        found += own * (3 + again)  # other neighbours, another row, and that row against this one
    found += own * (2 + again)  # every sum in one order, over the modules; against float64
    found += reference + plain * (SEEDS_OF_MODULES + (not is_plain))  # over the modules
    if is_first:
        found += reference * (1 + again)  # every sum in one order; against float64
        found += plain * (SEEDS * dtypes - min(shared, SEEDS) + 1)  # floors, and in float64
        found += plain * (again * (dtypes + 2 * (dtypes - 1)) + (not again and not is_plain) * dtypes)
        found += plain * (DRAWS * (dtypes - 1))  # roundings to 16 bits drawn anew
    if is_first or not keeps:
        found += reference * dtypes
    return found


def _precisions(plan: CapturePlan, variants: Sequence[Path]) -> Work:
    """Work of what only a side beyond its floor is asked: its modules one at a time, and the search for a lower
    precision.
    """
    lengths = [len(ids) for ids in plan.token_ids]
    found = Work()
    for variant in variants:
        for path in [variant] if plan.paths[0] == _PLAIN else [plan.paths[0], variant]:
            of_side = _over(plan, path)
            found += of_side + _over(plan, _PLAIN) * 2
            found += Work(*most_work(plan.loaded, lengths, (of_side.forwards, of_side.tokens), SEEDS, SEEDS_OF_MODULES))
    return found


def speed_here(loaded: LoadedModel, clock: Callable[[], float] = time.perf_counter) -> Speed:
    """Three small measurements, a tenth of a second each; none of them reads a weight of the model."""
    device, dtype = torch.device(loaded.device), loaded.torch_dtype
    weights = torch.zeros(_BYTES // dtype.itemsize // 4096, 4096, dtype=dtype, device=device)
    row, square = (
        torch.zeros(1, 4096, dtype=dtype, device=device),
        torch.zeros(_WIDTH, _WIDTH, dtype=dtype, device=device),
    )
    small = torch.nn.Linear(8, 8, device=device, dtype=dtype)

    def seconds(work: Callable[[], object]) -> float:
        work()
        taken = []
        for _ in range(3):
            began = clock()
            work()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            taken.append(clock() - began)
        return max(sorted(taken)[1], 1e-9)

    linear = torch.nn.functional.linear  # as the model calls it: other forms of a product may take another kernel
    with torch.inference_mode():
        return Speed(
            bytes_per_second=_BYTES / seconds(lambda: linear(row, weights)),
            flops_per_second=2 * _WIDTH**3 / seconds(lambda: linear(square, square)),
            module_seconds=seconds(lambda: [small(row[:, :8]) for _ in range(100)]) / 100,
        )


def seconds_of(loaded: LoadedModel, costs: Costs, stages: Sequence[StageCost], speed: Speed) -> tuple[float, float]:
    """(least, most) of the whole capture but stages that are bounds, to within a factor of WITHIN: every forward reads
    the weights once and calls every module, every token takes two operations a weight.
    """
    model = loaded.model
    calls = sum(1 for module in model.modules() if not list(module.children()))
    weights = sum(parameter.numel() for parameter in model.parameters())
    a_forward = loaded.weight_bytes / speed.bytes_per_second + calls * speed.module_seconds
    a_token = 2 * weights / speed.flops_per_second

    def spent(work: Work) -> float:
        return work.forwards * a_forward + work.tokens * a_token

    sides = spent(Work(costs.forwards, costs.tokens))
    counted = [stage for stage in stages if not stage.is_bound]
    ends = [sides + sum(_SLOWER[stage.name] * spent(work(stage)) for stage in counted) for work in (_least, _most)]
    return ends[0], ends[1]


def _least(stage: StageCost) -> Work:
    return stage.least


def _most(stage: StageCost) -> Work:
    return stage.most
