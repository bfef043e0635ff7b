"""The verdict on trial: injected bugs that it must call bugs, and other ways to compute the same that it must not
(docs/verdict_calibration.md).

python -m benchmarks.verdicts.trial            # every model, every case: the tables of docs/verdict_calibration.md
python -m benchmarks.verdicts.trial --model llama --quick  # one model, without what compiles python -m
benchmarks.verdicts.trial --precisions           # only lower precisions, and faults on top of them python -m
benchmarks.verdicts.trial --drawn 20             # false alarms: pairs of pure rounding on models of other weights
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path as FilePath

import torch

from benchmarks.verdicts.engines import prefill
from benchmarks.verdicts.mutations import MUTATIONS, Mutation, scaled_value
from benchmarks.verdicts.precisions import ON_TOP, PRECISIONS
from benchmarks.verdicts.tiny_models import CONFIGS, tiny_model, tiny_prompts
from benchmarks.verdicts.variations import SLOW_PATHS, VARIATIONS, in_two_halves, reordering
from core.errors import CaptureError
from core.inference.controls.judge_model import judge_pair
from core.inference.controls.judging_session import JudgingSession
from core.inference.models.model import LoadedModel, load_model
from core.inference.models.torch_errors import quiet
from core.inference.paths.bases import BASES
from core.judging.validity import sampler_evidence
from core.judging.verdict import Verdict, conclude
from core.runs.file.evidence import FAILED, FLOAT32, OWN_DTYPE, SAMPLER, AloneFigures, PairFigures, RatioFigures
from core.runs.file.records import BUG_SUSPECTED, IDENTICAL, INVALID_DUMP, LOWER_PRECISION, NONDETERMINISTIC, ROUNDING

SAMPLES = FilePath(__file__).parents[2] / "sample_runs"
TOKENS = 48
SHIPPED = ("shipped bfloat16", "shipped float32")
IN_FLOAT32 = (*CONFIGS, SHIPPED[1])
IN_BFLOAT16 = (*(f"{name} bfloat16" for name in CONFIGS), SHIPPED[0])
COMPILED = ("llama", "gpt2", SHIPPED[1])  # half a minute of compiling each
MODELS = (*IN_FLOAT32, *IN_BFLOAT16)
DRAWN = ("decode", "chunked:5", "reuse:31", "prefill+attn:eager", "decode+batch:3", in_two_halves, reordering(101))
FACTORS = (1.00001, 1.0001, 1.001, 1.01, 1.1)
_FAULTS = (BUG_SUSPECTED, INVALID_DUMP)
_HARMLESS = (IDENTICAL, ROUNDING, NONDETERMINISTIC)


@dataclass(frozen=True)
class Trial:
    """One case on one model. verdict None: the model cannot take this path, `because` says why.

    rung: that decided, '' where none failed; noise_ratio and worst: over all positions and the largest at one, in the
    dtype that decided; own_ratio: in the model's own dtype where that has 16 bits; nonfinite: logits NaN or infinite on
    one side only; is_precision: the same function in a lower precision; is_equal: the dtype that decided shows no
    difference at all; module, position: where the verdict says that it begins, '' and None where it names none;
    is_misplaced: not where the case says that it is.
    """

    model: str
    case: str
    is_bug: bool
    verdict: str | None
    because: str
    rung: str = ""
    noise_ratio: float | None = None
    worst: float | None = None
    own_ratio: float | None = None
    nonfinite: int = 0
    is_precision: bool = False
    is_equal: bool = False
    module: str = ""
    position: int | None = None
    is_misplaced: bool = False

    @property
    def changed_nothing(self) -> bool:
        """A bug that on this model and these prompts changed no bit: neither caught nor missed."""
        return self.is_bug and self.verdict == IDENTICAL and self.is_equal

    @property
    def kind(self) -> str:
        return "injected bug" if self.is_bug else "lower precision" if self.is_precision else "the same function"

    @property
    def is_right(self) -> bool:
        """A bug that was called one, and named where it is, a lower precision that was named, or the same function that
        was neither; undecided is none of them.
        """
        return not self.is_misplaced and self.verdict in (
            _FAULTS if self.is_bug else (LOWER_PRECISION,) if self.is_precision else _HARMLESS
        )


def model_named(name: str) -> tuple[LoadedModel, list[tuple[int, ...]]]:
    """(model, prompts) of MODELS; CaptureError where the shipped model is not built."""
    if name not in SHIPPED:
        kind, _, dtype = name.partition(" ")
        loaded = tiny_model(kind, dtype or "float32")
        return loaded, tiny_prompts(loaded)
    loaded = load_model(str(SAMPLES / "model"), dtype=name.split()[1], device="cpu")
    texts = [file.read_text() for file in sorted((SAMPLES / "prompts").glob("*.txt"))]
    return loaded, [tuple(loaded.tokenizer(text)["input_ids"][:TOKENS]) for text in texts]


def try_case(
    case: Mutation,
    name: str,
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    session: JudgingSession | None = None,
) -> Trial:
    """The case judged on the model, with everything that the judgement runs by itself. session: of the model and
    prompts, where several cases are.
    """
    is_bug = case.changes(loaded) and not case.is_precision
    try:
        verdict = _verdict(case, loaded, prompts, session)
    except CaptureError as error:
        return Trial(name, case.name, is_bug, None, str(error), is_precision=case.is_precision)
    decided = [row.rung for row in verdict.evidence if row.outcome == FAILED and verdict.because.startswith(row.says)]
    measured = _of_pair(verdict)
    is_float64 = bool(measured) and measured[-1].compute_dtype == "float64"
    rung = "float64" if decided == [FLOAT32] and is_float64 else "".join(decided)
    own = [
        row.figures.noise_ratio
        for row in verdict.evidence
        if row.rung == OWN_DTYPE and isinstance(row.figures, RatioFigures)
    ]
    modules = [
        name for row in verdict.evidence if isinstance(row.figures, AloneFigures) for name in row.figures.modules_beyond
    ]
    position = None if verdict.first_place is None else verdict.first_place[1]
    found = Trial(
        name,
        case.name,
        is_bug,
        verdict.name,
        verdict.because,
        rung,
        verdict.noise_ratio,
        measured[-1].worst_position_ratio if measured else None,
        own[0] if own else None,
        measured[-1].nonfinite_mismatch if measured else 0,
        case.is_precision,
        is_equal=bool(measured) and not measured[-1].pair_rms_logits and not measured[-1].nonfinite_mismatch,
        module=next(filter(None, modules), ""),
        position=position,
    )
    return replace(found, is_misplaced=found.verdict == BUG_SUSPECTED and _is_elsewhere(case, found, loaded))


def _is_elsewhere(case: Mutation, found: Trial, loaded: LoadedModel) -> bool:
    """True where the case says where it is, and the verdict named another place or none."""
    module = found.module if case.module is None else case.module(loaded.model)
    position = found.position if case.position is None else case.position(loaded.model)
    return (found.module, found.position) != (module, position)


def _of_pair(verdict: Verdict) -> list[PairFigures]:
    """Figures of the rows that held the pair against its floor in float32, or in float64."""
    rows = [row.figures for row in verdict.evidence if row.rung == FLOAT32]
    return [figures for figures in rows if isinstance(figures, PairFigures)]


def _verdict(
    case: Mutation, loaded: LoadedModel, prompts: Sequence[Sequence[int]], session: JudgingSession | None
) -> Verdict:
    with registered(case):
        variant = case.path or case.engine
        assert variant is not None
        verdict = judge_pair(loaded, prompts, case.reference, variant, session=session).verdict
    if case.sample is None:
        return verdict
    with torch.inference_mode():
        logits = torch.cat([prefill(loaded.model, torch.tensor(ids)) for ids in prompts])
    row = sampler_evidence(case.sample(logits), logits.argmax(-1).tolist())
    rows = (*verdict.evidence, row)
    return conclude(rows, is_bit_identical=verdict.name == IDENTICAL, noise_ratio=verdict.noise_ratio)


@contextmanager
def registered(case: Mutation) -> Iterator[None]:
    """A base of the case's own is one of the grammar meanwhile."""
    if case.base is not None:
        BASES["mutated"] = replace(BASES["prefill"], compute=case.base)
    try:
        yield
    finally:
        BASES.pop("mutated", None)


def cases_of(loaded: LoadedModel, is_quick: bool = True) -> list[Mutation]:
    """Every case that applies to the model: the bugs first. Not quick: also those that compile."""
    slow = () if is_quick else tuple(Mutation(path, path=path, changes=lambda _: False) for path in SLOW_PATHS)
    return [case for case in (*MUTATIONS, *PRECISIONS, *ON_TOP, *VARIATIONS, *slow) if case.applies(loaded)]


def run_trial(
    names: Sequence[str],
    is_quick: bool = True,
    on_trial: Callable[[Trial], None] = lambda _: None,
    wanted: Callable[[Mutation], bool] = lambda _: True,
    most_prompts: int | None = None,
) -> list[Trial]:
    """All cases on all models named, or those that are wanted, over all of their prompts or so many."""
    found = []
    for name in names:
        loaded, prompts = model_named(name)
        for case in filter(wanted, cases_of(loaded, is_quick or name not in COMPILED)):
            found.append(try_case(case, name, loaded, prompts[:most_prompts]))
            on_trial(found[-1])
    return found


def summary(trials: Sequence[Trial]) -> Iterator[str]:
    """Lines of Markdown: a line a model."""
    yield (
        "| model | bugs injected | called bugs | changed nothing | lower precision | so named | same function |"
        " called bugs | otherwise | not possible here |"
    )
    yield f"|{'---|' * 10}"
    names = list(dict.fromkeys(trial.model for trial in trials))
    for name in [*names, "together"]:
        own = [trial for trial in trials if name in (trial.model, "together")]
        nothing = sum(trial.changed_nothing for trial in own)
        bugs = [trial for trial in own if trial.is_bug and trial.verdict and not trial.changed_nothing]
        lower = [trial for trial in own if trial.is_precision and trial.verdict]
        same = [trial for trial in own if not trial.is_bug and not trial.is_precision and trial.verdict]
        caught, alarms = (sum(trial.verdict in _FAULTS for trial in group) for group in (bugs, same))
        named = sum(trial.verdict == LOWER_PRECISION for trial in lower)
        other = sum(trial.verdict not in (*_FAULTS, *_HARMLESS) for trial in (*bugs, *same))
        left_out = sum(trial.verdict is None for trial in own)
        yield (
            f"| {name} | {len(bugs)} | {caught} | {nothing} | {len(lower)} | {named} | {len(same)} | {alarms} |"
            f" {other} | {left_out} |"
        )


def table(trials: Sequence[Trial]) -> Iterator[str]:
    """Lines of Markdown: a line a case, a column a model: rung that decided, noise ratio, worst position; or the
    verdict.
    """
    names = list(dict.fromkeys(trial.model for trial in trials))
    for title in ("injected bug", "lower precision", "the same function"):
        found = {(trial.case, trial.model): trial for trial in trials if trial.kind == title}
        if not found:
            continue
        yield f"| {title} | {' | '.join(names)} |"
        yield f"|---{'|---' * len(names)}|"
        for case in dict.fromkeys(case for case, _ in found):
            yield f"| {case} | {' | '.join(_cell(found.get((case, name))) for name in names)} |"
        yield ""


def margins(trials: Sequence[Trial]) -> Iterator[str]:
    """Lines of Markdown: how far the same function stays below the thresholds, and bugs that are decided by a floor
    above them.
    """
    yield (
        "| model | same function: largest ratio | at one position | in 16 bits | bugs: smallest ratio | at one"
        " position |"
    )
    yield "|---|---|---|---|---|---|"
    for name in dict.fromkeys(trial.model for trial in trials):
        own = [
            trial
            for trial in trials
            if trial.model == name and trial.noise_ratio is not None and trial.worst is not None
        ]
        same = [trial for trial in own if not trial.is_bug and not trial.is_precision]
        bugs = [
            trial
            for trial in own
            if trial.is_bug and not trial.nonfinite and trial.rung != SAMPLER and not trial.changed_nothing
        ]
        figures = [
            max((trial.noise_ratio or 0 for trial in same), default=0),
            max((trial.worst or 0 for trial in same), default=0),
            max((trial.own_ratio for trial in same if trial.own_ratio is not None), default=None),
            min((trial.noise_ratio or 0 for trial in bugs), default=0),
            min((trial.worst or 0 for trial in bugs), default=0),
        ]
        yield f"| {name} | {' | '.join('' if figure is None else _short(figure) for figure in figures)} |"


def is_wrong(trial: Trial) -> bool:
    """True of a miss, a false alarm, a precision that was not named and a place that was not; not of what could not be
    run, nor of a fault that changed nothing.
    """
    return trial.verdict is not None and not trial.is_right and not trial.changed_nothing


def line_of(trial: Trial) -> str:
    """A case as it is printed when it is done."""
    sign = "-" if trial.verdict is None or trial.changed_nothing else "WRONG" if is_wrong(trial) else "ok"
    place = "" if not trial.is_bug else f"{trial.module or '-'} at {trial.position}"
    because = trial.because if is_wrong(trial) else ""
    return f"{sign:6}{trial.model:18}{trial.case:52}{_cell(trial):44}{place:36}{because}"


def _cell(trial: Trial | None) -> str:
    if trial is None:
        return ""
    if trial.verdict is None:
        return "refused"
    if trial.changed_nothing:
        return "changed nothing"
    figures = "" if trial.noise_ratio is None else f" {_short(trial.noise_ratio)}"
    if trial.worst is not None:
        figures += f", {_short(trial.worst)}"
    if trial.nonfinite:
        figures = " NaN or infinite"
    if trial.rung == SAMPLER:
        figures = ""
    mark = "" if trial.is_right else "**MISPLACED** " if trial.is_misplaced else "**WRONG** "
    return f"{mark}{trial.rung or trial.verdict}{figures}"


def _short(ratio: float) -> str:
    if ratio < 10:
        return f"{ratio:.2f}"
    return f"{ratio:.0f}" if ratio < 1000 else f"{ratio:.0e}".replace("e+0", "e").replace("e+", "e")


def places(trials: Sequence[Trial]) -> Iterator[str]:
    """Lines of Markdown: where planted faults were named, module and position; a line a case that says where it is."""
    names = list(dict.fromkeys(trial.model for trial in trials))
    found = {(trial.case, trial.model): trial for trial in trials}
    yield f"| planted in one place | {' | '.join(names)} |"
    yield f"|---{'|---' * len(names)}|"
    for case in (case.name for case in MUTATIONS if case.module is not None):
        row = [found.get((case, name)) for name in names]
        if any(row):
            yield f"| {case} | {' | '.join(map(_place, row))} |"


def _place(trial: Trial | None) -> str:
    if trial is None or trial.verdict is None:
        return ""
    if trial.verdict != BUG_SUSPECTED:
        return "changed nothing" if trial.changed_nothing else trial.verdict
    mark = "**MISPLACED** " if trial.is_misplaced else ""
    return f"{mark}{f'`{trial.module}`' if trial.module else 'after the modules'}, {trial.position}"


def limits(names: Sequence[str]) -> Iterator[str]:
    """Lines of Markdown: how small a fault is still seen. One cached value vector (one token, one head, one layer) is
    scaled.
    """
    yield from limits_header()
    for name in names:
        loaded, prompts = model_named(name)
        for factor in FACTORS:
            case = Mutation(f"{factor:g}", scaled_value(factor))
            yield limit_row(try_case(case, name, loaded, prompts), case.name)


def limits_header() -> Iterator[str]:
    yield "| model | scaled by | noise ratio in its own dtype | float32 noise ratio | worst position | verdict |"
    yield "|---|---|---|---|---|---|"


def limit_row(trial: Trial, factor: str) -> str:
    """A line of `limits`."""
    own = trial.noise_ratio if trial.own_ratio is None else trial.own_ratio
    figures = " | ".join("" if figure is None else _short(figure) for figure in (own, trial.noise_ratio, trial.worst))
    return f"| {trial.model} | {factor} | {figures} | {trial.verdict} |"


def drawn(names: Sequence[str], count: int) -> Iterator[str]:
    """Lines of Markdown: pairs of pure rounding on tiny models of `count` other weights each, two prompts of 90 random
    tokens.
    """
    yield (
        "| model | pairs of pure rounding | called bugs | largest ratio | at one position | share of what is allowed"
        " there |"
    )
    yield "|---|---|---|---|---|---|"
    for name in (name for name in names if name in CONFIGS):
        figures, alarms = [], 0
        for seed in range(count):
            loaded = tiny_model(name, seed=100 + seed)
            generator = torch.Generator().manual_seed(seed)
            prompts = torch.randint(1, loaded.token_limit, (2, 90), generator=generator).tolist()
            for variant in DRAWN:
                verdict = judge_pair(loaded, prompts, "prefill", variant).verdict
                figures.append(_of_pair(verdict)[-1])
                alarms += verdict.name not in _HARMLESS
        ratios = [each.noise_ratio for each in figures]
        worst = [each.worst_position_ratio for each in figures]
        shares = [each.worst_position_ratio / each.position_ratio_allowed for each in figures]
        yield (
            f"| {name} | {len(figures)} | {alarms} | {_short(max(ratios))} | {_short(max(worst))} |"
            f" {_short(max(shares))} |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=MODELS, help="only these; may be given several times")
    parser.add_argument("--quick", action="store_true", help="leave out what compiles, and the detection limits")
    parser.add_argument("--precisions", action="store_true", help="only lower precisions and faults on top of them")
    parser.add_argument(
        "--drawn", type=int, metavar="N", help="instead: false alarms on models of N other weights each"
    )
    parser.add_argument("--threads", type=int, default=1, help="of torch, where a case does not say otherwise")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    names = given.model or MODELS

    def say(trial: Trial) -> None:
        print(line_of(trial), flush=True)

    if given.drawn:
        with quiet():
            for line in drawn(names, given.drawn):
                print(line, flush=True)
        return 0
    with quiet():
        wanted = (lambda case: case.is_precision or case in ON_TOP) if given.precisions else (lambda _: True)
        trials = run_trial(names, given.quick, say, wanted)
        print()
        for line in (*summary(trials), "", *margins(trials), "", *places(trials)):
            print(line)
        for group in (IN_FLOAT32, IN_BFLOAT16):
            print("", *table([trial for trial in trials if trial.model in group]), sep="\n")
        if not (given.quick or given.precisions):
            for line in limits([name for name in names if name in ("llama", "gpt2", "gemma2", "mixtral", SHIPPED[0])]):
                print(line, flush=True)
    return int(any(is_wrong(trial) for trial in trials))


if __name__ == "__main__":
    raise SystemExit(main())
