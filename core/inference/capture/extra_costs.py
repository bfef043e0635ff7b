"""Costs of what a planned capture will run beside its sides: floors, kernels, remedies, judging."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..controls.drawn_roundings import DRAWS
from ..controls.judge_model import SEEDS, SEEDS_OF_MODULES
from ..controls.judging_session import JudgingSession
from ..controls.precisions.lower_precision import most_work
from ..controls.remedies import BATCHES, FLOOR_SEEDS, PRICE_TOKENS, REMEDIES, least_tokens, most_tokens, without_batch
from ..paths.paths import Path, parse_path
from ..watching.layers import is_one_piece
from .capture import CapturePlan, shares_floor
from .costs import walk
from .throughput import LEAST_TURNS, MOST_TURNS

KERNELS, REMEDIES_, JUDGE = ("kernels", "remedies", "judge")
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
