"""A float32 pair without a floor on trial: does a pair that only rounds shrink with the precision, and one with a fault
not?

python -m benchmarks.shrink                         # every model: the table of docs/verdict_calibration.md
python -m benchmarks.shrink --model "llama bfloat16"
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from benchmarks.verdicts.mutations import Mutation
from benchmarks.verdicts.tiny_models import CONFIGS, tiny_model, tiny_prompts
from benchmarks.verdicts.trial import SHIPPED, cases_of, model_named, registered
from core.errors import CaptureError
from core.inference.controls.rounding_floor import in_float32
from core.inference.models.model import LoadedModel
from core.inference.models.torch_errors import quiet
from core.inference.paths.engines import divergences_of, side_of
from core.judging.divergence import mean_squares
from core.judging.ladder.shrink import ShrinkTest, shrink_test
from core.numerics.formats import format_named
from core.runs.file.evidence import FAILED, MISSING, PASSED

# Mixtures of experts whose router ties are left out: float32 is no microscope for them, with or without a floor
# (docs/verdict_calibration.md).
MODELS = (
    *(f"{name} bfloat16" for name in CONFIGS if name != "mixtral-ties"),
    "llama float16",
    "gpt2 float16",
    SHIPPED[0],
)


@dataclass(frozen=True)
class Shrunk:
    """One case on one model. test None: equal in 16 bits, NaN on one side, or not possible on this model; `because`
    says which.
    """

    model: str
    case: str
    is_bug: bool
    test: ShrinkTest | None
    because: str = ""

    @property
    def is_wrong(self) -> bool:
        return self.test is not None and self.test.outcome == (PASSED if self.is_bug else FAILED)


def try_case(case: Mutation, name: str, loaded: LoadedModel, prompts: Sequence[Sequence[int]]) -> Shrunk:
    """The case in the model's own dtype and in float32."""
    is_bug = case.changes(loaded)
    variant = case.path or case.engine
    assert variant is not None
    try:
        with quiet(), torch.inference_mode(), registered(case):
            pair = (side_of(case.reference), side_of(variant))
            narrow = divergences_of(loaded, prompts, pair)
            with in_float32(loaded) as widened:
                wide = divergences_of(widened, prompts, pair)
    except CaptureError as error:
        return Shrunk(name, case.name, is_bug, None, str(error))
    if any(one.nonfinite_mismatch for one in (*narrow, *wide)):
        return Shrunk(name, case.name, is_bug, None, "NaN or infinite")
    if not mean_squares(narrow).any():
        return Shrunk(name, case.name, is_bug, None, "equal in 16 bits")
    bits = format_named(loaded.dtype).mantissa_bits + 1
    return Shrunk(name, case.name, is_bug, shrink_test(mean_squares(narrow), mean_squares(wide), bits))


def run_trial(names: Sequence[str]) -> Iterator[Shrunk]:
    """Every case that has logits of its own, on every model named."""
    for name in names:
        kind, _, dtype = name.partition(" ")
        loaded, prompts = model_named(name) if name in SHIPPED else _tiny(kind, dtype)
        for case in cases_of(loaded):
            if case.sample is None:
                yield try_case(case, name, loaded, prompts)


def _tiny(kind: str, dtype: str) -> tuple[LoadedModel, list[tuple[int, ...]]]:
    loaded = tiny_model(kind, dtype)
    return loaded, tiny_prompts(loaded)


def table(found: Sequence[Shrunk]) -> Iterator[str]:
    """Lines of Markdown."""
    yield (
        "| model | same function | passed | undecided | called bugs | least share | bugs | called bugs | undecided |"
        " passed | largest share |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    names = list(dict.fromkeys(one.model for one in found))
    for name in [*names, "together"]:
        cells = [name]
        for is_bug, order, extreme in ((False, (PASSED, MISSING, FAILED), min), (True, (FAILED, MISSING, PASSED), max)):
            tests = [
                one.test
                for one in found
                if name in (one.model, "together") and one.is_bug == is_bug and one.test is not None
            ]
            shares = [test.share for test in tests if test.moved >= 0.5]
            cells += [str(len(tests)), *(str(sum(test.outcome == outcome for test in tests)) for outcome in order)]
            cells.append(f"{extreme(shares):.2g}" if shares else "")
        yield f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=MODELS, help="only these; may be given several times")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    found = []
    for one in run_trial(given.model or MODELS):
        found.append(one)
        if one.is_wrong or (one.test is not None and one.test.outcome == MISSING):
            assert one.test is not None
            print(
                f"{one.test.outcome:8} {one.model:24} {'bug ' if one.is_bug else 'same'} {one.case:45}"
                f" {one.test.share:.2g}",
                flush=True,
            )
    left_out = sum(one.test is None for one in found)
    print(
        f"{left_out} cases left out: equal in 16 bits, NaN on one side, or not possible on the model",
        *table(found),
        sep="\n",
    )
    return int(any(one.is_wrong for one in found))


if __name__ == "__main__":
    raise SystemExit(main())
