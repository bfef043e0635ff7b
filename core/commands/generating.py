"""`generate` and `search`: where the texts of two paths diverge, and prompts on which they do."""

from dataclasses import asdict, replace
from itertools import chain

from typer import Exit, Option

from ..capture_request import CaptureRequest
from ..prompt_files import prompts_of
from ..runs.reader import RunReader
from ..runs.store.store import open_store
from ..text import number
from . import options
from .capturing import capture_to_store, check_early, load, print_costs, run_plan, tell_end
from .options import takes_request
from .showing import print_continuations
from .terminal.console import (
    announce,
    err,
    print_json,
    print_records,
    print_text,
    steps,
    typed_command,
)
from .terminal.stopping import stoppable

_NOT_GENERATED = ("repeat", "layers", "layer_floor", "layer_positions", "kernels", "mitigations")


@takes_request(omit=_NOT_GENERATED, defaults={"tokens": 64})
def generate(
    request: CaptureRequest,
    dry_run: options.DryRun = False,
    progress: options.Progress = "bar",
    store: options.Store = None,
    as_json_: options.Json = False,
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
    if progress == "bar" and not as_json_:
        with RunReader(open_store(store).path_of(run_id)) as run:
            print_continuations(run)
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
    store: options.Store = None,
    as_json_: options.Json = False,
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
