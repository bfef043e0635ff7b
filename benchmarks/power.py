"""Faults of public reports at five sizes: found by ULPscope, and by the tests that others use
(docs/explanation/power.md).

python -m benchmarks.power --quick                       # four minutes
python -m benchmarks.power --seed 2026 --results FILE    # goes on where FILE ends
python -m benchmarks.power --family llama --fault k_scale

A size is the rms of what a fault changes in float64 over that of the plain forward's rounding. The
five go from twice the rounding, or a tenth of the whole fault if that is smaller, to the whole
fault. In "16 bits alone" a fault is in the bfloat16 side and not in the float32 one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.closeness.rivals import Rival, rivals_of
from benchmarks.verdicts.engines import Engine, in_16_bits_only
from benchmarks.verdicts.mutations import FAULTS, Mutation
from benchmarks.verdicts.planted import FAMILIES, GROUPS, PLANTED, Planted, family_model
from benchmarks.verdicts.screening import verdict_of_arrays
from benchmarks.verdicts.tiny_models import tiny_prompts
from benchmarks.verdicts.variations import VARIATIONS
from core.checks.modules_alone import AloneFigures
from core.checks.modules_in_16_bits import ModuleRoundingFigures
from core.errors import CaptureError
from core.inference.controls.judge_model import JudgingSession, judge
from core.inference.models.dtypes import WIDENING
from core.inference.models.model import LoadedModel
from core.inference.models.torch_errors import quiet
from core.inference.paths.engines import side_of, whole_side
from core.verdict import LOWER_PRECISION, UNDECIDED, Verdict

FLOAT32, BFLOAT16, ALONE = "float32", "bfloat16", "16 bits alone"
SETTINGS = (FLOAT32, BFLOAT16, ALONE)
SIZES = 5
_LEAST = 2.0  # roundings
# of ranges of sizes, in roundings
_ENDS = (0, 0.5, 1, 2, 4, 16, 256, math.inf)
_SOUND = "sound"
_OURS = ("ULPscope, with a model", "ULPscope, the arrays alone")
_REFUSED = "refused"
_OR_PRECISION = (*FAULTS, LOWER_PRECISION)


@dataclass
class Pair:
    """A pair that was judged. group: of the fault, `sound` if there is none; size: in roundings;
    scores: by test, of ULPscope 1 if it found a fault; module_is_right, position_is_right: None if
    nothing is claimed.
    """

    family: str
    setting: str
    case: str
    group: str
    number: int
    size: float = 0.0
    verdict: str = ""
    because: str = ""
    scores: dict[str, float] = field(default_factory=dict)
    module_is_right: bool | None = None
    position_is_right: bool | None = None

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self.family, self.setting, self.case, self.number


def tests_of(dtype: str) -> dict[str, Rival]:
    """Return the other tests, with the limits that they are used with."""
    own = {
        "allclose": Rival(_tolerance, (1e-3, 1e-2)),
        "mean KL, nats": Rival(_kl, (1e-3, 1e-2)),
        "tokens that differ": Rival(_other_tokens, (0.0, 0.01)),
    }
    return {**rivals_of(dtype), **own}


def _tolerance(actual: torch.Tensor, expected: torch.Tensor, _: torch.Tensor) -> float:
    """Return the least tolerance, relative and absolute, that both sides are within."""
    return float(((actual - expected).abs() / (1 + expected.abs())).max())


def _kl(actual: torch.Tensor, expected: torch.Tensor, _: torch.Tensor) -> float:
    wrong, right = actual.log_softmax(-1), expected.log_softmax(-1)
    return float((right.exp() * (right - wrong)).sum(-1).mean())


def _other_tokens(actual: torch.Tensor, expected: torch.Tensor, _: torch.Tensor) -> float:
    return float((actual.argmax(-1) != expected.argmax(-1)).double().mean())


class Bench:
    """A model of one dtype, with what all of its pairs share."""

    def __init__(self, family: str, dtype: str, seed: int) -> None:
        self.family, self.dtype = family, dtype
        self.loaded = family_model(family, dtype, seed)
        self.prompts = tiny_prompts(self.loaded)
        self.session = JudgingSession(self.loaded, self.prompts)
        self.tests = tests_of(dtype)
        self.plain = self.logits("prefill")
        self.exact = self.widest("prefill")
        errors = (self.plain.double() - self.exact).square().mean(-1).sqrt()
        # of an MoE, single positions choose other experts
        self.rounding = float(errors.median())

    def logits(self, side: str | Engine, loaded: LoadedModel | None = None) -> torch.Tensor:
        """Return the logits of all prompts in the model's dtype. [positions, vocab]"""
        model = loaded or self.loaded
        with torch.inference_mode(), side_of(side).open(model, None) as run:
            rows = [whole_side(run, ids).to(model.torch_dtype) for ids in self.prompts]
        return torch.cat(rows)

    def widest(self, side: str | Engine) -> torch.Tensor:
        """Return the logits in float64."""
        with WIDENING["float64"](self.loaded) as wide:
            return self.logits(side, wide)

    def size(self, engine: Engine) -> tuple[float, int]:
        """Return the size of a fault in roundings, and the first position that it changes."""
        change = (self.widest(engine) - self.exact).square().mean(-1).sqrt()
        # rounding of float64 is far below
        is_changed = change > 1e-9 * self.exact.std()
        size = float(change.square().mean().sqrt()) / self.rounding
        return size, int(is_changed.int().argmax())

    def strengths(self, fault: Planted) -> Iterator[float]:
        """Yield the strengths of the five sizes, the whole fault last."""
        whole, _ = self.size(fault.of_share(1.0))
        for target in np.geomspace(min(_LEAST, whole / 10), whole, SIZES)[:-1]:
            share = target / whole
            # sizes are nearly proportional to shares
            for _ in range(2):
                size, _ = self.size(fault.of_share(share))
                share = min(1.0, share * target / size) if size else share
            yield float(share)
        yield 1.0

    def judge(self, side: str | Engine, pair: Pair, found: Sequence[str]) -> Verdict | None:
        """Judge a side against `prefill` by every test; None if it cannot be run. found: verdicts
        that find a fault.
        """
        try:
            verdict = judge(self.loaded, self.prompts, variant=side, session=self.session)
        except CaptureError as error:
            pair.verdict, pair.because = _REFUSED, str(error)
            return None
        variant = self.logits(side)
        pair.verdict, pair.because = verdict.name, verdict.because
        lengths = [len(ids) for ids in self.prompts]
        screened = verdict_of_arrays(self.plain, variant, lengths, self.dtype)
        scores = {_OURS[0]: verdict.name in found, _OURS[1]: screened.name in FAULTS}
        sides = variant.double(), self.plain.double(), self.exact
        scores |= {name: test.score(*sides) for name, test in self.tests.items()}
        pair.scores = {name: float(score) for name, score in scores.items()}
        return verdict

    def sound(self, case: Mutation) -> Pair:
        """Judge another way to compute the same."""
        pair = Pair(self.family, self.dtype, case.name, _SOUND, 0)
        self.judge(case.path or case.engine or "prefill", pair, _OR_PRECISION)
        return pair

    def faulty(self, fault: Planted, setting: str, number: int, share: float) -> Pair:
        """Judge a fault of a strength."""
        pair = Pair(self.family, setting, fault.name, fault.group, number)
        engine = fault.of_share(share)
        pair.size, first = self.size(engine)
        is_same = torch.equal(self.logits(engine), self.logits(fault.of_share(1e-12)))
        if is_same:
            pair.verdict, pair.because = _REFUSED, f"changes no bit in {self.dtype}"
            return pair
        found = _OR_PRECISION if fault.is_precision else FAULTS
        side = in_16_bits_only(engine) if setting == ALONE else engine
        verdict = self.judge(side, pair, found)
        if verdict is None:
            return pair
        pair.position_is_right = verdict.first_place == (0, first)
        if fault.module is not None:
            planted = fault.module(self.loaded.model)
            modules = dict(self.loaded.model.named_modules())
            right = next((name for name, each in modules.items() if each is planted), "")
            rows = [row.figures for row in verdict.evidence]
            kinds = AloneFigures | ModuleRoundingFigures
            alone = [each for each in rows if isinstance(each, kinds)]
            named = next((each.modules_beyond[0] for each in alone if each.modules_beyond), "")
            # a part of it is named as well
            pair.module_is_right = f"{named}.".startswith(f"{right}.")
        return pair


def pairs_of(
    family: str,
    dtype: str,
    seed: int,
    faults: Sequence[Planted],
    *,
    is_quick: bool,
) -> Iterator[tuple[tuple[str, str, str, int], Callable[[], Pair]]]:
    """Yield the key of every pair of a model, and what judges it."""
    bench = Bench(family, dtype, seed)
    sound = [case for case in VARIATIONS if case.applies(bench.loaded) and case.base is None]
    # a path may have another reference, which the exact results are not of
    sound = [case for case in sound if case.reference == "prefill"]
    for case in sound[:: 6 if is_quick else 2]:
        yield (family, dtype, case.name, 0), partial(bench.sound, case)
    settings = (dtype,) if dtype == FLOAT32 or is_quick else (BFLOAT16, ALONE)
    for fault in faults:
        if family not in fault.families[: 1 if is_quick else None]:
            continue
        strengths = list(bench.strengths(fault))
        for setting in settings:
            for number in (1, 3) if is_quick else range(SIZES):
                share = strengths[number]
                key = family, setting, fault.name, number
                yield key, partial(bench.faulty, fault, setting, number, share)


def table(pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield the lines of the table: a line a test, found of planted by group and setting."""
    valid = [pair for pair in pairs if pair.scores]
    sound = [pair for pair in valid if pair.group == _SOUND]
    faulty = [pair for pair in valid if pair.group != _SOUND]
    columns = {
        f"{group}, {setting}": [
            pair for pair in faulty if (pair.group, pair.setting) == (group, setting)
        ]
        for group in GROUPS
        for setting in SETTINGS
    }
    columns = {name: own for name, own in columns.items() if own}
    heads = [f"{name} ({len(own)})" for name, own in columns.items()]
    heads += [f"all ({len(faulty)})", f"sound pairs accused ({len(sound)})"]
    yield f"| test | {' | '.join(heads)} |"
    yield f"|{'---|' * (1 + len(heads))}"
    tests = dict(_tests(sound))
    found_by = {}
    for name, is_found in tests.items():
        counts = [sum(map(is_found, own)) for own in (*columns.values(), faulty, sound)]
        yield f"| {name} | {' | '.join(map(str, counts))} |"
        if name not in _OURS and not counts[-1]:
            found_by[name] = counts[-2]
    best = max(found_by, key=found_by.__getitem__)
    yield from ("", f"| roundings | faults | {_OURS[0]} | {best} |", "|---|---|---|---|")
    for setting, (low, high) in itertools.product(SETTINGS, itertools.pairwise(_ENDS)):
        own = [pair for pair in faulty if pair.setting == setting and low <= pair.size < high]
        counts = [sum(map(tests[name], own)) for name in (_OURS[0], best)]
        if own:
            yield f"| {setting}, {low:g} to {high:g} | {len(own)} | {counts[0]} | {counts[1]} |"
    yield ""
    undecided = sum(pair.verdict == UNDECIDED for pair in sound)
    yield f"sound pairs undecided: {undecided} of {len(sound)}"
    found = [pair for pair in faulty if pair.scores[_OURS[0]]]
    for what in ("module", "position"):
        claims = [getattr(pair, f"{what}_is_right") for pair in found]
        claims = [claim for claim in claims if claim is not None]
        yield f"{what} right: {sum(claims)} of {len(claims)} found with a model"


def _tests(sound: Sequence[Pair]) -> Iterator[tuple[str, Callable[[Pair], bool]]]:
    """Yield each test with a limit, and whether it finds a pair."""

    def is_beyond(name: str, limit: Callable[[Pair], float], pair: Pair) -> bool:
        # a score that is no number is found too
        return not pair.scores[name] <= limit(pair)

    def largest_sound(name: str, is_alike: Callable[[Pair, Pair], bool], pair: Pair) -> float:
        return max((each.scores[name] for each in sound if is_alike(each, pair)), default=0.0)

    def is_of_dtype(one: Pair, other: Pair) -> bool:
        return one.setting == (FLOAT32 if other.setting == FLOAT32 else BFLOAT16)

    def is_of_model(one: Pair, other: Pair) -> bool:
        return one.family == other.family and is_of_dtype(one, other)

    for name in _OURS:
        yield name, partial(is_beyond, name, lambda _: 0.5)
    for name, test in tests_of(FLOAT32).items():
        for number in test.limits:
            yield f"{name}: {number:g}", partial(is_beyond, name, lambda _, fixed=number: fixed)
        for scope, is_alike in (("dtype", is_of_dtype), ("model", is_of_model)):
            limit = partial(largest_sound, name, is_alike)
            yield f"{name}: best of each {scope}", partial(is_beyond, name, limit)


def missed(pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield the faults that ULPscope did not find, and sound pairs that it accused."""
    for pair in pairs:
        is_wrong = pair.scores and pair.scores[_OURS[0]] != (pair.group != _SOUND)
        if is_wrong or pair.verdict == _REFUSED:
            where = f"{pair.family}, {pair.setting}, {pair.case}, {pair.size:.3g} roundings"
            yield f"- {where}: {pair.verdict}: {pair.because}"


def main() -> None:
    """Judge what is not in the results yet, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [fault.name for fault in PLANTED]
    parser.add_argument("--family", action="append", choices=FAMILIES, help="only these")
    parser.add_argument("--fault", action="append", choices=names, help="only these")
    parser.add_argument("--seed", type=int, default=2026, help="of the weights")
    parser.add_argument("--quick", action="store_true", help="two sizes on one family each")
    parser.add_argument("--results", type=Path, help="JSON lines that are read and written")
    options = parser.parse_args()
    torch.set_num_threads(1)
    pairs: dict[tuple[str, str, str, int], Pair] = {}
    if options.results and options.results.exists():
        lines = options.results.read_text().splitlines()
        pairs = {pair.key: pair for pair in (Pair(**json.loads(line)) for line in lines)}
    faults = [fault for fault in PLANTED if fault.name in (options.fault or names)]
    with quiet():
        for family in options.family or FAMILIES:
            for dtype in (FLOAT32, BFLOAT16):
                about = family, dtype, options.seed, faults
                for key, measure in pairs_of(*about, is_quick=options.quick):
                    if key in pairs:
                        continue
                    pairs[key] = measure()
                    if options.results:
                        with options.results.open("a") as file:
                            file.write(json.dumps(asdict(pairs[key])) + "\n")
    print(*table(list(pairs.values())), "", *missed(list(pairs.values())), sep="\n")


if __name__ == "__main__":
    main()
