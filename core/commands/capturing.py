"""`capture`, `judge`, `generate` and `search`: run a model down several paths and store logits."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from typer import Exit, Option

from ..capture_request import CaptureRequest
from ..command_name import shell_command
from ..engines.registry import use_all as use_engines
from ..errors import UlpscopeError, UsageError
from ..packaged_models import packaged_folder
from ..progress import Progress, no_progress
from ..prompt_files import prompts_of
from ..runs.reader import RunReader
from ..runs.reports.report_json import report_of_run
from ..runs.store.store import Store, open_store
from ..runs.tables.kernels import insert_kernels
from ..runs.tables.mitigations import insert_mitigations
from ..runs.writer import RunWriter
from ..text import number
from .options import (
    DryRunOption,
    EngineOption,
    JsonOption,
    ProgressOption,
    StoreOption,
    takes_request,
)
from .showing import print_continuations
from .tables import pair_table, print_answer
from .terminal.console import (
    announce,
    err,
    print_facts,
    print_json,
    print_records,
    print_text,
    steps,
    typed_command,
)
from .terminal.stopping import stoppable
from .verdicts import tell_verdicts

if TYPE_CHECKING:  # torch is for those who run a model
    from ..inference.capture.capture import CapturePlan
    from ..inference.models.model import LoadedModel

_NOT_GENERATED = ("repeat", "layers", "layer_floor", "layer_positions", "kernels", "mitigations")


@takes_request(omit=["tokens"])
def capture(
    request: CaptureRequest,
    dry_run: DryRunOption = False,
    engine: EngineOption = None,
    progress: ProgressOption = "bar",
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Run a model on two or more mathematically equivalent execution paths and store every logit.

    For example:  ulpscope capture --model sample_runs/model --prompt-file
    sample_runs/prompts/parser.txt
    --reference prefill --variant decode --variant prefill+batch:8 --dtype bfloat16

    Cold vs. repeated requests, with block-level prefix caching:  --reference blocks:16 --repeat 6

    Which batch sizes agree bit for bit:  --reference decode --sweep batch=1,2,3,4,8,16

    Compare with another engine:  --variant llamacpp:decode+kv:f32 (`engines` lists them,
    docs/guides/engines.md).

    Estimate forwards, memory and disk only:  --dry-run. docs/reference/paths.md lists every path.
    """
    use_engines(engine)
    if dry_run:
        print_costs(request, as_json_)
        return
    run_id, failure = capture_to_store(request, progress, store)
    tell_end(run_id, failure, progress, as_json_, store)


@takes_request(omit=["tokens"], judge=True)
def judge(
    request: CaptureRequest,
    engine: EngineOption = None,
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Capture like `capture`, run every check, and decide: rounding, or a bug?

    Each pair is compared with the model's noise floor: how far its logits move if only the
    reduction order changes (docs/explanation/verdict.md). Exit code 1: a pair is `bug suspected`,
    `nondeterministic` or `invalid dump`. 2: a side failed to run, so its pair has no verdict.

    For example:  ulpscope judge --model sample_runs/model --prompt "def __init__(self," --variant
    decode+batch:8
    """
    use_engines(engine)
    run_id, failures = capture_to_store(request, "bar", store)
    code = tell_verdicts(open_store(store), run_id, as_json_)
    tell_end(run_id, failures, "bar", as_json_, store, code)


@takes_request(omit=_NOT_GENERATED, defaults={"tokens": 64})
def generate(
    request: CaptureRequest,
    dry_run: DryRunOption = False,
    progress: ProgressOption = "bar",
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Continue the same prompts greedily on every path, and store the logits up to where they
    diverge.

    A path computes the prompt; then its side generates token by token from that cache. The run has
    the tokens of each side, and the complete logits of both up to the first token that differs.

    For example:  ulpscope generate --model sample_runs/model --variant reuse:4 --prompt "def
    __init__(self,"
    """
    if dry_run:
        print_costs(request, as_json_)
        return
    run_id, failures = capture_to_store(request, progress, store)
    tell_end(run_id, failures, progress, as_json_, store)


@takes_request(omit=[*_NOT_GENERATED, "variants", "sweeps", "tokens", "judge", "keep"])
def search(
    request: CaptureRequest,
    variant: str = Option("decode", help="Path of the variant."),
    flips: int = Option(1, min=1, help="Stop after this many prompts with a flip."),
    max_prompts: int | None = Option(None, min=1, help="Try at most this many prompts."),
    max_minutes: float | None = Option(None, help="Spend at most this many minutes."),
    tokens: int = Option(
        0,
        min=0,
        help="Continue each prompt by up to N tokens; 0: compare the prompt's own positions.",
    ),
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Search many prompts for flips, where two paths choose different tokens, and store those
    prompts as a run.

    Exit code 0: --flips were found; 1: fewer were found and stored; 2: bad input.

    For example:  ulpscope search --model sample_runs/model --prompts prompts.jsonl --variant decode
    --flips 3
    """
    request = replace(request, variants=(variant,), tokens=tokens)
    check_early(request)
    names = [prompt.source for prompt in prompts_of(request)]
    target = open_store(store)
    run_id = None
    with stoppable(), steps() as say:
        say("loading the model")
        # imported under the bar: torch takes a while, and is for those who run a model
        from ..inference.capture.capture import plan_capture
        from ..inference.generating.generation import plan_generation
        from ..inference.generating.search import search as search_prompts
        from ..inference.models.chat import plan_inputs
        from ..inference.models.model import token_texts

        loaded = load(request)
        inputs = plan_inputs(loaded, request)[:max_prompts]
        result = search_prompts(
            loaded,
            inputs,
            request.reference,
            variant,
            flips=flips,
            minutes=max_minutes,
            tokens=tokens,
            seed=request.seed,
            on_progress=say,
        )
        chosen = [(flip.reference_token, flip.variant_token) for flip in result.flips]
        texts = token_texts(loaded.tokenizer, [*chain(*chosen)])
        if result.flips:
            paths = f"{request.reference} vs {variant}"
            title = request.name or f"{result.prompts:,} prompts searched: {paths}"
            flipping = [inputs[number] for number in result.flipped_prompts]
            make_plan = plan_generation if tokens else plan_capture
            request = replace(request, name=title)
            plan = make_plan(loaded, flipping, request, command=typed_command())
            # captured like any others: the search computes argmaxes and margins alone
            run_id, _ = run_plan(plan, target, say)
    rows = [
        {
            **asdict(one),
            "reference_text": texts[one.reference_token],
            "variant_text": texts[one.variant_token],
            "source": names[one.prompt],
        }
        for one in result.flips
    ]
    count = len(result.flipped_prompts)
    if as_json_:
        skipped = [{"prompt": number, "reason": reason} for number, reason in result.skipped]
        print_json({"run_id": run_id, **asdict(result), "flips": rows, "skipped": skipped})
    else:
        for _, reason in result.skipped[:5]:
            print_text(f"skipped: {reason}", err)
        if len(result.skipped) > 5:
            print_text(f"and {len(result.skipped) - 5} more were skipped.", err)
        per_minute = result.prompts / max(result.seconds, 1e-3) * 60
        print_text(
            f"{result.reason}: {count} of {result.prompts:,} prompts flip;"
            f" {result.positions:,} positions compared in {result.seconds:.1f} s ({per_minute:,.0f}"
            " prompts/min).",
        )
        print_records(rows, most=50)
        if not rows and result.closest is not None:
            print_text(f"Smallest margin: {number(result.closest)} logits.")
        if run_id:
            announce(run_id, store)
    if count < flips:
        raise Exit(1)


def perform(progress: ProgressOption = "json", store: StoreOption = None) -> None:
    """Read the JSON of a capture's request from the first line of stdin, and capture it."""
    request = CaptureRequest.from_json(sys.stdin.readline())
    if request is None:
        raise UsageError("stdin: expected the JSON of a capture's request on one line.")
    run_id, failures = capture_to_store(request, progress, store)
    tell_end(run_id, failures, progress, as_json_=False, store=store)


def check_early(request: CaptureRequest) -> None:
    """Raise what is wrong with a request before torch is loaded, as of a model to download."""
    prompts_of(request)
    packaged_folder(request.model)
    from ..inference.paths.grammar import read_steps, swept_paths

    for path in (request.reference, *request.variants):
        read_steps(path)
    for text in request.sweeps:
        for path in swept_paths(request.reference, text):
            read_steps(path)


def plan_of(
    request: CaptureRequest,
    *,
    weights: bool = True,
    loaded: LoadedModel | None = None,
    say: Progress = no_progress,
) -> CapturePlan:
    """Check a request and plan its capture, of its prompts or of continuations; without `weights`
    only the model's shapes are loaded, and nothing is generated.
    """
    check_early(request)
    from ..inference.capture.capture import plan_capture
    from ..inference.generating.generation import plan_generation
    from ..inference.models.chat import plan_inputs
    from ..inference.paths.paths import sides_of

    # errors come before weights are read
    sides_of(request)
    loaded = loaded or load(request, weights=weights)
    inputs = plan_inputs(loaded, request)
    if not request.tokens:
        return plan_capture(loaded, inputs, request)
    return plan_generation(loaded, inputs, request, is_dry=not weights, on_progress=say)


def load(request: CaptureRequest, *, weights: bool = True) -> LoadedModel:
    """Load the model of a request; without `weights` only its shapes."""
    from ..inference.models.model import load_model
    from ..inference.paths.grammar import read_steps

    base, _, engine = read_steps(request.reference)
    return load_model(
        request.model,
        dtype=request.dtype,
        device=request.device,
        revision=request.revision,
        trust_remote_code=request.trust_remote_code,
        weights=weights,
        encodes=engine is None and base.name == "encode",
    )


def capture_to_store(
    request: CaptureRequest,
    progress: str,
    store: str | Path | None,
) -> tuple[str, list[str]]:
    """Capture a request into a run. Return its id and a sentence per failure."""
    target = open_store(store)
    with stoppable(), steps(progress) as say:
        say("loading the model")
        return run_plan(plan_of(request, say=say), target, say)


def run_plan(
    plan: CapturePlan,
    store: Store,
    say: Progress,
    run_id: str | None = None,
) -> tuple[str, list[str]]:
    """Capture a plan into a run, with the extras of its request.

    Return its id and a sentence per failure.
    """
    from ..inference.capture.capture import run_capture

    request = plan.request
    # kernels and mitigations are watched in this process, and an engine has one of its own
    other = next((path for path in plan.paths if path.engine is not None), None)
    if other is not None and (request.kernels or request.mitigations):
        option = "kernels" if request.kernels else "mitigations"
        raise UsageError(
            f"--{option} is for transformers, and '{other}' runs in another engine; leave it out.",
        )
    with RunWriter(store, plan.header, run_id=run_id) as writer:
        failures = run_capture(plan, writer, say) + run_extras(plan, writer, say)
        say("writing the run file", 0, 0)
        return writer.finish(note=" ".join(failures)), failures


def run_extras(plan: CapturePlan, writer: RunWriter, say: Progress) -> list[str]:
    """Run the kernels, mitigations and checks of a plan's request into the run.

    Return a sentence per failure.
    """
    from ..inference.controls.judge_model import JudgingSession, judge

    request, loaded, token_ids = plan.request, plan.loaded, plan.token_ids
    failures: list[str] = []
    # one session for all: it remembers the logits of paths that pairs share
    counts = [(each.given_positions, each.asked) for each in plan.generations]
    of_prompts = set(zip(map(tuple, token_ids), counts, strict=False))
    given = dict(of_prompts)
    # one text may continue two prompts
    if len(given) < len(of_prompts):
        given = {}
    session = JudgingSession(loaded, token_ids, given)
    sides = list(zip(plan.header.sides, plan.paths, strict=True))
    reference = plan.paths[0]
    if request.kernels:
        from ..inference.watching.kernels import kernels_of

        for side, (header, path) in enumerate(sides):
            say(f"kernels of {header.name}")
            try:
                # the table of kernels has rows of prompt 0 alone
                rows = kernels_of(loaded, path, token_ids[0], side, seed=request.seed)
                writer.put(insert_kernels, rows)
            except UlpscopeError as error:
                failures.append(f"The kernels of '{header.name}' were not recorded: {error}")
    if request.mitigations:
        from ..inference.capture.mitigations import floor_of, mitigations_of

        say("mitigations: noise floor")
        # one noise floor for all pairs: it depends on the model and the prompts alone
        floor = floor_of(session)
        rows_of = {}
        for pair, (header, variant) in enumerate(sides[1:]):
            try:
                # repeats have the same path
                if variant not in rows_of:
                    rows_of[variant] = mitigations_of(
                        loaded,
                        token_ids,
                        (reference, variant),
                        floor_rms=floor,
                        on_progress=_with_prefix(say, f"mitigations of {header.name}"),
                    )
                writer.put(insert_mitigations, pair, rows_of[variant])
            except UlpscopeError as error:
                failures.append(f"Mitigations of '{header.name}' were not tried: {error}")
    if not request.judge:
        return failures
    from ..inference.controls.precisions.catalogue import parse_precisions

    # judging computes no sides of other engines again
    is_here = all(path.engine is None for path in plan.paths)
    own, *digests = writer.digests()
    for pair, (header, variant) in enumerate(sides[1:]):
        try:
            is_same = is_here and (not plan.generations or session.continues)
            verdict = judge(
                loaded,
                token_ids,
                reference=str(reference),
                variant=str(variant),
                precisions=parse_precisions(request.declares),
                on_progress=_with_prefix(say, f"judging {header.name}"),
                session=session,
                digests=(own, digests[pair]) if is_same else None,
            )
        except UlpscopeError as error:
            failures.append(f"'{header.name}' was not judged: {error}")
        else:
            writer.write_verdict(replace(verdict, pair=pair))
    return failures


def _with_prefix(say: Progress, what: str) -> Progress:
    def tell(stage: str, done: int = 0, total: int = 0, unit: str = "positions") -> None:
        say(f"{what}: {stage}", done, total, unit)

    return tell


def print_costs(request: CaptureRequest, as_json_: bool) -> None:
    """Print the forwards, bytes and memory of a capture's sides."""
    with stoppable():
        plan = plan_of(request, weights=False)
    from ..inference.capture.costs import costs_of
    from ..inference.models.devices import devices_here

    names = ("dtype", "device", "device_name")
    about = {"model": plan.loaded.name} | {name: getattr(plan.loaded, name) for name in names}
    figures = costs_of(plan)
    if (layers := plan.layers) is not None:
        figures |= {
            "modules": layers.modules,
            "module_positions": sum(map(len, layers.positions)),
            "module_floor_prefills": layers.seeds,
            "module_spool_bytes": layers.spool_bytes,
        }
    if as_json_:
        keys = ("device", "device_name", "free_bytes")
        devices = [dict(zip(keys, each, strict=True)) for each in devices_here()]
        print_json({**about, "name": plan.header.name, "devices": devices, **figures})
        return
    print_records(figures.pop("sides"), plan.header.name)
    print_facts(about | figures)


def tell_end(
    run_id: str,
    failures: list[str],
    progress: str,
    as_json_: bool,
    store: str | Path | None = None,
    code: int | None = None,
) -> None:
    """Print the id on stdout, for scripts, and the rest on stderr; exit with `code`, or with 2 if
    sides failed. code: of the verdict, if that was printed.
    """
    is_verdict_printed = code is not None
    if progress == "json" or (as_json_ and not is_verdict_printed):
        announce(run_id, store, progress, as_json_)
    elif not as_json_:
        with RunReader(open_store(store).path_of(run_id)) as run:
            print_continuations(run)
            pairs, header = report_of_run(run)[0], run.header
        judged = [pair for pair in pairs if pair.answer.is_judged]
        for pair in [] if is_verdict_printed else judged:
            print_answer(pair.answer, pair, err)
        err.print(pair_table(pairs, header))
        announce(run_id, store)
        place = [run_id] if store is None else [run_id, "--store", str(store)]
        show = shell_command(["show", *place])
        step = "the same command with --judge: rounding, or a bug?"
        if is_verdict_printed:
            step = f"{show} --markdown    # a report"
        elif judged:
            step = f"{shell_command(['verdict', *place])}    # the checks"
        print_text(f"next: {show}\nnext: {step}", err)
    # printed last, so that it stands below what was stored all the same
    for sentence in failures:
        print_text(f"error: {sentence}", err)
    if code or failures:
        raise Exit(code or 2)
