"""The verdict on trial: injected bugs that it must call bugs, and other ways to compute the same
that it must not (docs/explanation/calibration.md).

# every model, every case, and the tables of the docs
python -m benchmarks.verdicts.trial
# one model, without what compiles
python -m benchmarks.verdicts.trial --model llama --quick
# kinds that no threshold was chosen on, words counted
python -m benchmarks.verdicts.trial --kinds
# what differs from an earlier output of this command; the same of two outputs, nothing is run
python -m benchmarks.verdicts.trial --against OLD.txt
python -m benchmarks.verdicts.trial --against OLD.txt NEW.txt
# pairs of pure rounding on models of other weights
python -m benchmarks.verdicts.trial --drawn 20
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path as FilePath

import torch

from benchmarks.verdicts import kinds
from benchmarks.verdicts.engines import prefill
from benchmarks.verdicts.kinds import KINDS, problems_of
from benchmarks.verdicts.mutations import FAULTS, HARMLESS, MUTATIONS, Mutation, scaled_value
from benchmarks.verdicts.precisions import ON_TOP, PRECISIONS
from benchmarks.verdicts.tiny_models import CONFIGS, tiny_model, tiny_prompts
from benchmarks.verdicts.variations import (
    SLOW_PATHS,
    VARIATIONS,
    in_two_halves,
    reordering,
    same,
)
from core.checks.emitted_tokens import sampler_evidence
from core.errors import CaptureError
from core.evidence import FAILED, FLOAT32, MISSING
from core.inference.controls.judge_model import JudgingSession, judge
from core.inference.models.model import LoadedModel, load_model
from core.inference.models.torch_errors import quiet
from core.inference.paths.bases import BASES
from core.inference.paths.grammar import BASE_ARGUMENTS
from core.judging.conclude import conclude
from core.verdict import (
    BUG_SUSPECTED,
    IDENTICAL,
    LOWER_PRECISION,
    Verdict,
)

SAMPLES = FilePath(__file__).parents[2] / "sample_runs"
TOKENS = 48
SHIPPED = ("shipped bfloat16", "shipped float32")
IN_FLOAT32 = (*CONFIGS, SHIPPED[1])
IN_BFLOAT16 = (*(f"{name} bfloat16" for name in CONFIGS), SHIPPED[0])
COMPILED = ("llama", "gpt2", SHIPPED[1])  # half a minute of compiling each
MODELS = (*IN_FLOAT32, *IN_BFLOAT16)
DRAWN = (
    "decode",
    "chunked:5",
    "reuse:31",
    "prefill+attn:eager",
    "decode+batch:3",
    in_two_halves,
    reordering(101),
)
FACTORS = (1.00001, 1.0001, 1.001, 1.01, 1.1)
REFUSED, CHANGED_NOTHING = "refused", "changed nothing"
# a fault of so many floors must never be missed
CLEAR = 10
# the first size of a printed verdict
_SIZES = re.compile(r" (\d[^,\s]*)")


@dataclass(frozen=True)
class Trial:
    """One case on one model. verdict: REFUSED if the case cannot be judged, `because` says why.

    verdicts: those that are right; noise_ratio and worst: over all positions and the largest at
    one; failed: names of the checks that failed; module, position: where the verdict says that it
    begins, '' and None if it names none; problems: what else is wrong with the verdict.
    """

    model: str
    case: str
    verdicts: tuple[str, ...]
    verdict: str
    because: str
    noise_ratio: float | None = None
    worst: float | None = None
    failed: tuple[str, ...] = ()
    module: str = ""
    position: int | None = None
    problems: tuple[str, ...] = ()

    @property
    def is_bug(self) -> bool:
        return BUG_SUSPECTED in self.verdicts

    @property
    def is_precision(self) -> bool:
        return self.verdicts == (LOWER_PRECISION,)

    @property
    def changed_nothing(self) -> bool:
        """A bug that on this model and these prompts changed no bit: neither caught nor missed."""
        return self.is_bug and self.verdict == IDENTICAL

    @property
    def is_right(self) -> bool:
        return self.verdict in self.verdicts and not self.problems

    @property
    def is_wrong(self) -> bool:
        """A miss, a false alarm, a precision or a place that was not named; no fault that changed
        nothing, nor a path that the model does not have.
        """
        is_left_out = self.verdict == REFUSED and not self.problems
        return not (self.is_right or self.changed_nothing or is_left_out)


def model_named(name: str, device: str = "cpu") -> tuple[LoadedModel, list[tuple[int, ...]]]:
    """(model, prompts) of MODELS; CaptureError where the shipped model is not built."""
    if name not in SHIPPED:
        kind, _, dtype = name.partition(" ")
        loaded = tiny_model(kind, dtype or "float32", device=device)
        return loaded, tiny_prompts(loaded)
    loaded = load_model(str(SAMPLES / "model"), dtype=name.split()[1], device=device)
    texts = [file.read_text() for file in sorted((SAMPLES / "prompts").glob("*.txt"))]
    return loaded, [tuple(loaded.tokenizer(text)["input_ids"][:TOKENS]) for text in texts]


def try_case(
    case: Mutation,
    name: str,
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    session: JudgingSession | None = None,
    *,
    is_strict: bool = False,
) -> Trial:
    """The case judged on the model, with everything that the judgement runs by itself. session: of
    the model and prompts, where several cases are; is_strict: the words of the verdict count too.
    """
    verdicts = FAULTS if case.changes(loaded) else HARMLESS
    if case.is_precision or case.is_undeclared:
        verdicts = (LOWER_PRECISION, *((BUG_SUSPECTED,) if case.is_undeclared else ()))
    try:
        verdict = _verdict(case, loaded, prompts, session)
    except CaptureError as error:
        return Trial(
            name,
            case.name,
            verdicts,
            REFUSED,
            str(error),
            problems=(REFUSED,) * is_strict,
        )
    problems = problems_of(verdict, case) if is_strict else []
    return _check_place(_trial(name, case.name, verdicts, verdict, problems), case, loaded)


def _trial(
    model: str,
    case: str,
    right: tuple[str, ...],
    verdict: Verdict,
    problems: Sequence[str] = (),
) -> Trial:
    worst = [
        getattr(row.figures, "worst_position_ratio", None)
        for row in verdict.evidence
        if row.group == FLOAT32
    ]
    # a check that leaves modules open names those far beyond its limit, not the first
    rows = sorted(verdict.evidence, key=lambda row: row.outcome == MISSING)
    modules = [getattr(row.figures, "modules_beyond", ()) for row in rows]
    failed = tuple(row.group for row in verdict.evidence if row.outcome == FAILED)
    sizes = verdict.noise_ratio, worst[-1] if worst else None
    module = next((each[0] for each in modules if each), "")
    position = None if verdict.first_place is None else verdict.first_place[1]
    return Trial(
        model,
        case,
        right,
        verdict.name,
        verdict.because,
        *sizes,
        failed,
        module,
        position,
        tuple(problems),
    )


def _check_place(trial: Trial, case: Mutation, loaded: LoadedModel) -> Trial:
    """The case with one more problem if the verdict names another place than it should."""
    place = case.place(loaded.model, trial.module, trial.position)
    if trial.verdict != BUG_SUSPECTED or (trial.module, trial.position) == place:
        return trial
    return replace(trial, problems=(f"expected {place[0] or '-'} at {place[1]}", *trial.problems))


def _verdict(
    case: Mutation,
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    session: JudgingSession | None,
) -> Verdict:
    with registered(case):
        variant = case.path or case.engine
        assert variant is not None
        verdict = judge(loaded, prompts, reference=case.reference, variant=variant, session=session)
    if case.sample is None:
        return verdict
    with torch.inference_mode():
        logits = torch.cat(
            [prefill(loaded.model, torch.tensor(ids, device=loaded.device)) for ids in prompts],
        )
    argmaxes = {row: {token} for row, token in enumerate(logits.argmax(-1).tolist())}
    emitted = list(enumerate(case.sample(logits)))
    row = sampler_evidence(emitted, argmaxes, "variant", [len(ids) for ids in prompts])
    rows = (*verdict.evidence, row)
    return conclude(
        rows,
        is_bit_identical=verdict.name == IDENTICAL,
        noise_ratio=verdict.noise_ratio,
    )


@contextmanager
def registered(case: Mutation) -> Iterator[None]:
    """A base of the case's own is one of the grammar meanwhile."""
    if case.base is not None:
        BASE_ARGUMENTS["mutated"] = ()
        BASES["mutated"] = replace(BASES["prefill"], compute=case.base)
    try:
        yield
    finally:
        # else the grammar of later cases would have it too
        BASES.pop("mutated", None)
        BASE_ARGUMENTS.pop("mutated", None)


def cases_of(loaded: LoadedModel, is_quick: bool = True) -> list[Mutation]:
    """Every case that applies to the model: the bugs first. Not quick: also those that compile."""
    slow = () if is_quick else tuple(same(path, path=path) for path in SLOW_PATHS)
    return [
        case
        for case in (*MUTATIONS, *PRECISIONS, *ON_TOP, *VARIATIONS, *slow)
        if case.applies(loaded)
    ]


def run_trial(
    names: Sequence[str],
    is_quick: bool = True,
    on_trial: Callable[[Trial], None] = lambda _: None,
    selects: Callable[[Mutation], bool] = lambda _: True,
    most_prompts: int | None = None,
    device: str = "cpu",
) -> list[Trial]:
    """All cases on all models named, or those that are selected, over all of their prompts or so
    many.
    """
    trials = []
    for name in names:
        loaded, prompts = model_named(name, device)
        for case in filter(selects, cases_of(loaded, is_quick or name not in COMPILED)):
            trials.append(try_case(case, name, loaded, prompts[:most_prompts]))
            on_trial(trials[-1])
    return trials


def run_kinds(names: Sequence[str], on_trial: Callable[[Trial], None], device: str) -> list[Trial]:
    """The kinds that no threshold was chosen on, on all models named that have them, words and
    all.
    """
    trials = []
    for name in (name for name in names if name in kinds.MODELS):
        loaded, prompts = model_named(name, device)
        session = JudgingSession(loaded, prompts[:2])
        for case in (case for case in KINDS if case.applies(loaded)):
            trials.append(try_case(case, name, loaded, prompts[:2], session, is_strict=True))
            on_trial(trials[-1])
    return trials


def summary(trials: Sequence[Trial]) -> Iterator[str]:
    """Lines of Markdown: one line per model."""
    columns = (
        "model | bugs | called bugs | changed nothing | lower precision | so named | same function"
        " | called bugs"
    )
    yield (
        f"| {columns} | otherwise | refused | same: largest ratio | at one position | bugs:"
        " smallest ratio |"
    )
    yield f"|{'---|' * 13}"
    for name in [*dict.fromkeys(trial.model for trial in trials), "together"]:
        own = [trial for trial in trials if name in (trial.model, "together")]
        valid = [trial for trial in own if trial.verdict != REFUSED]
        nothing = [trial for trial in valid if trial.changed_nothing]
        bugs = [trial for trial in valid if trial.is_bug and not trial.changed_nothing]
        lower = [trial for trial in valid if trial.is_precision]
        same = [trial for trial in valid if not trial.is_bug and not trial.is_precision]
        caught, alarms = (sum(trial.verdict in FAULTS for trial in group) for group in (bugs, same))
        counts = [len(bugs), caught, len(nothing), len(lower)]
        counts += [sum(trial.verdict == LOWER_PRECISION for trial in lower), len(same), alarms]
        counts += [
            sum(trial.verdict not in (*FAULTS, *HARMLESS) for trial in (*bugs, *same)),
            len(own) - len(valid),
        ]
        sizes = [
            max((trial.noise_ratio or 0 for trial in same), default=0),
            max((trial.worst or 0 for trial in same), default=0),
            min((trial.noise_ratio for trial in bugs if trial.noise_ratio), default=0),
        ]
        yield f"| {' | '.join([name, *map(str, counts), *map(_short, sizes)])} |"


def line_of(trial: Trial) -> str:
    """A case as it is printed when it is done; `read_line` reads it."""
    sign = "ok" if trial.is_right else "-"
    if trial.is_wrong:
        sign = "WRONG"
    verdict = CHANGED_NOTHING if trial.changed_nothing else trial.verdict
    sizes = ", ".join(_short(size) for size in (trial.noise_ratio, trial.worst) if size is not None)
    place = f"{trial.module or '-'} at {trial.position}" if trial.is_bug else ""
    tail = [
        f"{len(trial.because.split())} words",
        *trial.problems,
        *([trial.because] if trial.is_wrong else []),
    ]
    return (
        f"{sign:6}{trial.model:24}{trial.case:52}{f'{verdict} {sizes}':44}{place:36}"
        f" {'; '.join(tail)}"
    )


def _short(ratio: float) -> str:
    if ratio < 10:
        return f"{ratio:.2f}"
    return f"{ratio:.0f}" if ratio < 1000 else f"{ratio:.0e}".replace("e+0", "e").replace("e+", "e")


def read_line(text: str) -> tuple[str, tuple[str, str]] | None:
    """(model and case, (verdict and sizes, place)); None of a line of another kind."""
    if text[:6].strip() not in ("ok", "-", "WRONG"):
        return None
    place = re.match(r"\S+ at (?:\d+|None)(?!\d)", text[126:])
    return text[6:82].strip(), (text[82:126].strip(), place[0] if place else "")


def differences(old: Sequence[str], new: Sequence[str]) -> tuple[list[str], bool]:
    """Return one line per case whose verdict or place differs, and whether one is grave: a bug that
    is none any more, or the other way round.
    """
    old_lines, new_lines = (dict(filter(None, map(read_line, lines))) for lines in (old, new))
    lines, is_grave = [], False
    shared = old_lines.keys() & new_lines.keys()
    for key in (key for key in new_lines if key in shared):
        (then, place_then), (now, place_now) = old_lines[key], new_lines[key]
        verdict_then, ratio, _ = _SIZES.split(f"{then} 0", maxsplit=1)
        verdict_now = _SIZES.split(f"{now} 0", maxsplit=1)[0]
        if (verdict_then, place_then) == (verdict_now, place_now):
            continue
        # a small fault may be missed, and what was undecided may be called a bug
        is_missed = verdict_then in FAULTS and verdict_now not in FAULTS and float(ratio) >= CLEAR
        is_accused = verdict_then in HARMLESS and verdict_now in FAULTS
        grave = (is_missed and bool(place_now)) or is_accused
        is_grave |= grave
        texts = f"{then} {place_then} -> {now} {place_now}"
        lines.append(f"{'GRAVE ' if grave else '':6}{key:76}{texts}")
    return [*lines, f"{len(lines)} of {len(shared)} cases differ"], is_grave


def limits(names: Sequence[str]) -> Iterator[str]:
    """Lines of Markdown: how small a fault is still seen. One cached value vector (one token, one
    head, one layer) is scaled.
    """
    yield "| model | scaled by | noise ratio | worst position | verdict |"
    yield "|---|---|---|---|---|"
    for name in names:
        loaded, prompts = model_named(name)
        for factor in FACTORS:
            trial = try_case(Mutation(f"{factor:g}", scaled_value(factor)), name, loaded, prompts)
            sizes = (
                "" if size is None else _short(size) for size in (trial.noise_ratio, trial.worst)
            )
            yield f"| {name} | {trial.case} | {' | '.join(sizes)} | {trial.verdict} |"


def redraw_weights(names: Sequence[str], count: int) -> Iterator[str]:
    """Lines of Markdown: pairs of pure rounding on tiny models of `count` other weights each, two
    prompts of 90 random tokens.
    """
    yield "| model | pairs of pure rounding | called bugs | largest ratio | at one position |"
    yield "|---|---|---|---|---|"
    for name in (name for name in names if name in CONFIGS):
        trials = []
        for seed in range(count):
            loaded = tiny_model(name, seed=100 + seed)
            generator = torch.Generator().manual_seed(seed)
            prompts = torch.randint(1, loaded.token_limit, (2, 90), generator=generator).tolist()
            for variant in DRAWN:
                verdict = judge(loaded, prompts, reference="prefill", variant=variant)
                trials.append(_trial(name, "", HARMLESS, verdict))
        sizes = (
            max(trial.noise_ratio or 0 for trial in trials),
            max(trial.worst or 0 for trial in trials),
        )
        alarms = sum(not trial.is_right for trial in trials)
        yield f"| {name} | {len(trials)} | {alarms} | {' | '.join(map(_short, sizes))} |"


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
        "--quick",
        action="store_true",
        help="leave out what compiles, and the detection limits",
    )
    parser.add_argument(
        "--precisions",
        action="store_true",
        help="only lower precisions and faults on top of them",
    )
    parser.add_argument(
        "--kinds",
        action="store_true",
        help="only kinds that no threshold was chosen on",
    )
    parser.add_argument(
        "--against",
        nargs="+",
        type=FilePath,
        metavar="FILE",
        help="an earlier output; and a newer one",
    )
    parser.add_argument(
        "--drawn",
        type=int,
        metavar="N",
        help="only false alarms on models of N other weights each",
    )
    parser.add_argument(
        "--device",
        default="cpu",
        help="cpu or cuda; the tables of the docs are from a CPU",
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    names, printed, is_wrong = options.model or MODELS, [], False

    def show(trial):
        printed.append(line_of(trial))
        print(printed[-1], flush=True)

    if options.against and len(options.against) > 1:
        printed = options.against[1].read_text().splitlines()
    elif options.drawn:
        with quiet():
            for line in redraw_weights(names, options.drawn):
                print(line, flush=True)
    else:
        with quiet():
            selects = (
                (lambda case: case.is_precision or case in ON_TOP)
                if options.precisions
                else (lambda _: True)
            )
            trials = (
                []
                if options.kinds
                else run_trial(names, options.quick, show, selects, device=options.device)
            )
            trials += [] if options.precisions else run_kinds(names, show, options.device)
            print("", *summary(trials), sep="\n")
            if not (options.quick or options.kinds or options.precisions):
                limited = ("llama", "gpt2", "gemma2", "mixtral", SHIPPED[0])
                for line in limits([name for name in names if name in limited]):
                    print(line, flush=True)
        wrong = sum(line.startswith("WRONG") for line in printed)
        print(f"\n{wrong} of {len(trials)} wrong")
        is_wrong = bool(wrong)
    if options.against:
        lines, is_grave = differences(options.against[0].read_text().splitlines(), printed)
        print("", *lines, sep="\n")
        return int(is_grave)
    return int(is_wrong)


if __name__ == "__main__":
    raise SystemExit(main())
