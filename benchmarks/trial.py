"""The verdict on trial: injected bugs that it must call bugs, and other ways to compute the same that it must not (docs/verdict.md).

python -m benchmarks.trial                        # every model, every case: the tables of docs/verdict.md
python -m benchmarks.trial --model llama --quick  # one model, without what compiles
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path as FilePath

import torch

from benchmarks.engines import prefill
from benchmarks.mutations import MUTATIONS, Mutation, scaled_value
from benchmarks.tiny_models import CONFIGS, tiny_model, tiny_prompts
from benchmarks.variations import SLOW_PATHS, VARIATIONS
from core.errors import CaptureError
from core.inference.bases import BASES
from core.inference.edge import quiet
from core.inference.grammar import Base
from core.inference.judging import judge_pair
from core.inference.models import LoadedModel, load_model
from core.runs.records import FAILED, FLOAT32, RUNGS
from core.verdict import BUG_SUSPECTED, IDENTICAL, INVALID_DUMP, NONDETERMINISTIC, ROUNDING, Verdict, conclude, sampler_evidence

SAMPLES = FilePath(__file__).parents[1] / "sample_runs"
TOKENS = 48
SHIPPED = ("shipped bfloat16", "shipped float32")
MODELS = (*CONFIGS, *SHIPPED)
FACTORS = (1.0001, 1.001, 1.01, 1.1)
_FAULTS = (BUG_SUSPECTED, INVALID_DUMP)
_HARMLESS = (IDENTICAL, ROUNDING, NONDETERMINISTIC)


@dataclass(frozen=True)
class Trial:
    """One case on one model. verdict None: the model cannot take this path, `because` says why.

    rung: that decided, '' where none failed; worst: largest ratio to the floor at one position, in the dtype that decided.
    """

    model: str
    case: str
    is_bug: bool
    verdict: str | None
    because: str
    rung: str = ""
    noise_ratio: float | None = None
    worst: float | None = None

    @property
    def is_right(self) -> bool:
        """A bug that was called one, or the same function that was not; undecided is neither."""
        return self.verdict in (_FAULTS if self.is_bug else _HARMLESS)


def model_named(name: str) -> tuple[LoadedModel, list[tuple[int, ...]]]:
    """(model, prompts) of MODELS; CaptureError where the shipped model is not built."""
    if name not in SHIPPED:
        loaded = tiny_model(name)
        return loaded, tiny_prompts(loaded)
    loaded = load_model(str(SAMPLES / "model"), dtype=name.split()[1], device="cpu")
    texts = [file.read_text() for file in sorted((SAMPLES / "prompts").glob("*.txt"))]
    return loaded, [tuple(loaded.tokenizer(text)["input_ids"][:TOKENS]) for text in texts]


def try_case(case: Mutation, name: str, loaded: LoadedModel, prompts: Sequence[Sequence[int]]) -> Trial:
    """The case judged on the model, with everything that the judgement runs by itself."""
    is_bug = case.changes(loaded)
    try:
        verdict = _verdict(case, loaded, prompts)
    except CaptureError as error:
        return Trial(name, case.name, is_bug, None, str(error))
    failed = [row for row in verdict.evidence if row.outcome == FAILED]
    rung = min((row.rung for row in failed), key=RUNGS.index, default="") if verdict.name in _FAULTS else ""
    in_float32 = [row.figures for row in verdict.evidence if row.rung == FLOAT32 and row.figures]
    worst = in_float32[-1]["worst_position_ratio"] if in_float32 else None
    return Trial(name, case.name, is_bug, verdict.name, verdict.because, rung, verdict.noise_ratio, worst)


def _verdict(case: Mutation, loaded: LoadedModel, prompts: Sequence[Sequence[int]]) -> Verdict:
    with _registered(case):
        variant = case.path or case.engine
        assert variant is not None
        verdict = judge_pair(loaded, prompts, case.reference, variant).verdict
    if case.sample is None:
        return verdict
    with torch.inference_mode():
        logits = torch.cat([prefill(loaded.model, torch.tensor(ids)) for ids in prompts])
    row = sampler_evidence(case.sample(logits), logits.argmax(-1).tolist(), "the variant")
    rows = (*verdict.evidence, row)
    return conclude(rows, is_bit_identical=verdict.name == IDENTICAL, noise_ratio=verdict.noise_ratio)


@contextmanager
def _registered(case: Mutation) -> Iterator[None]:
    """A base of the case's own is one of the grammar meanwhile."""
    if case.base is not None:
        BASES["mutated"] = Base(case.base, at_once=lambda positions: positions, forwards=lambda positions: 1, reads_cache=False)
    try:
        yield
    finally:
        BASES.pop("mutated", None)


def cases_of(loaded: LoadedModel, is_quick: bool = True) -> list[Mutation]:
    """Every case that applies to the model: the bugs first. Not quick: also those that compile."""
    slow = () if is_quick else tuple(Mutation(path, path=path, changes=lambda _: False) for path in SLOW_PATHS)
    return [case for case in (*MUTATIONS, *VARIATIONS, *slow) if case.applies(loaded)]


def run_trial(names: Sequence[str], is_quick: bool = True, on_trial: Callable[[Trial], None] = lambda _: None) -> list[Trial]:
    """All cases on all models named."""
    found = []
    for name in names:
        loaded, prompts = model_named(name)
        for case in cases_of(loaded, is_quick):
            found.append(try_case(case, name, loaded, prompts))
            on_trial(found[-1])
    return found


def summary(trials: Sequence[Trial]) -> Iterator[str]:
    """Lines of Markdown: a line a model."""
    yield "| model | bugs injected | called bugs | same function | called bugs | undecided | not possible here |"
    yield "|---|---|---|---|---|---|---|"
    names = list(dict.fromkeys(trial.model for trial in trials))
    for name in [*names, "together"]:
        own = [trial for trial in trials if name in (trial.model, "together")]
        bugs = [trial for trial in own if trial.is_bug and trial.verdict]
        same = [trial for trial in own if not trial.is_bug and trial.verdict]
        caught, alarms = (sum(trial.verdict in _FAULTS for trial in group) for group in (bugs, same))
        open_ = sum(trial.verdict not in (*_FAULTS, *_HARMLESS) for trial in (*bugs, *same))
        left_out = sum(trial.verdict is None for trial in own)
        yield f"| {name} | {len(bugs)} | {caught} | {len(same)} | {alarms} | {open_} | {left_out} |"


def table(trials: Sequence[Trial]) -> Iterator[str]:
    """Lines of Markdown: a line a case, a column a model: rung that decided, noise ratio, worst position; or the verdict."""
    names = list(dict.fromkeys(trial.model for trial in trials))
    for is_bug, title in ((True, "injected bug"), (False, "the same function")):
        found = {(trial.case, trial.model): trial for trial in trials if trial.is_bug == is_bug}
        if not found:
            continue
        yield f"| {title} | {' | '.join(names)} |"
        yield f"|---{'|---' * len(names)}|"
        for case in dict.fromkeys(case for case, _ in found):
            yield f"| {case} | {' | '.join(_cell(found.get((case, name))) for name in names)} |"
        yield ""


def _cell(trial: Trial | None) -> str:
    if trial is None:
        return ""
    if trial.verdict is None:
        return "refused"
    figures = "" if trial.noise_ratio is None else f" {_short(trial.noise_ratio)}"
    if trial.worst is not None:
        figures += f", {_short(trial.worst)}"
    mark = "" if trial.is_right else "**WRONG** "
    return f"{mark}{trial.rung or trial.verdict}{figures}"


def _short(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}" if ratio < 1000 else f"{ratio:.0e}".replace("e+0", "e")


def limits(names: Sequence[str]) -> Iterator[str]:
    """Lines of Markdown: how small a fault is still seen. One cached value vector (one token, one head, one layer) is scaled."""
    yield "| model | scaled by | noise ratio in its own dtype | float32 noise ratio | worst position | verdict |"
    yield "|---|---|---|---|---|---|"
    for name in names:
        loaded, prompts = model_named(name)
        for factor in FACTORS:
            verdict = judge_pair(loaded, prompts, "prefill", scaled_value(factor)).verdict
            rows = {row.rung: row.figures for row in verdict.evidence}
            own = rows.get("own dtype", rows[FLOAT32])["noise_ratio"]
            float32 = rows[FLOAT32]
            yield (
                f"| {name} | {factor:g} | {_short(own)} | {_short(float32['noise_ratio'])} | "
                f"{_short(float32['worst_position_ratio'])} | {verdict.name} |"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=MODELS, help="only these; may be given several times")
    parser.add_argument("--quick", action="store_true", help="leave out what compiles, and the detection limits")
    parser.add_argument("--threads", type=int, default=1, help="of torch, where a case does not say otherwise")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    names = given.model or MODELS

    def say(trial: Trial) -> None:
        sign = "-" if trial.verdict is None else "ok" if trial.is_right else "WRONG"
        print(f"{sign:6}{trial.model:18}{trial.case:52}{_cell(trial):44}{'' if trial.is_right else trial.because}", flush=True)

    with quiet():
        trials = run_trial(names, given.quick, say)
        print()
        for line in (*summary(trials), "", *table(trials)):
            print(line)
        if not given.quick:
            for line in limits(names):
                print(line, flush=True)
    return int(any(trial.verdict is not None and not trial.is_right for trial in trials))


if __name__ == "__main__":
    raise SystemExit(main())
