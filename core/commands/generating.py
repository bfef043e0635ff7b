"""`generate` and `search`: where the texts of two paths differ, and prompts on which they do."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..capture_request import CaptureRequest
from ..errors import UsageError
from ..packaged_models import packaged_folder
from ..prompt_files import prompts_of
from ..runs.reader import RunReader
from ..runs.store.store import open_store
from ..text import number
from . import options
from .capture_costs import print_costs
from .capturing import load, run_plan, to_store
from .ending import tell_end
from .options import takes_request
from .showing import print_continuations
from .terminal.console import (
    announce,
    err,
    out,
    print_json,
    print_line,
    print_text,
    steps,
    stoppable,
    table_of,
    typed_command,
)

if TYPE_CHECKING:  # torch is for those who run a model
    from ..inference.generating.search import SearchResult


@takes_request(
    without=["repeat", "layers", "layer_floor", "layer_positions", "kernels", "remedies"], defaults={"tokens": 64}
)
def generate(
    request: CaptureRequest,
    dry_run: options.DryRun = False,
    progress: options.Progress = "bar",
    store: options.Store = None,
    as_json_: options.Json = False,
) -> None:
    """Let every path continue the same prompts greedily, on its own, and keep the logits of all of them up to where
    they part.

    A path computes the prompt; then each side goes on token by token with the cache that the prompt left. The run holds
    what each side wrote, and the complete logits of both at the position that made them part.

    For example:  ulpscope generate --model sample_runs/model --variant reuse:4 --prompt "def __init__(self,"
    """
    prompts_of(request)
    packaged_folder(request.model)
    target = open_store(store)
    with stoppable(), steps(progress) as say:
        if not dry_run:
            say("loading the model")
        from ..inference.generating.generation import plan_generation, plan_longest
        from ..inference.models.chat import plan_inputs
        from ..inference.paths.sides import variants_of

        loaded = load(request, weights=not dry_run)
        paths = (loaded, plan_inputs(loaded, request), request.reference, variants_of(request))
        options: dict[str, Any] = {key: getattr(request, key) for key in ("tokens", "kv", "name", "keep")}
        if dry_run:
            print_costs(plan_longest(*paths, **options), as_json_)
            return
        plan = plan_generation(
            *paths,
            **options,
            request=to_store(request),
            seed=request.seed,
            on_progress=lambda step: say(f"{step.side_name} writes", step.prompts_done, step.prompts_total, "prompts"),
        )
        run_id, failure = run_plan(request, plan, target, say)
    if progress == "bar" and not as_json_:
        with RunReader(target.path_of(run_id)) as run:
            print_continuations(run)
    tell_end(run_id, failure, progress, as_json_, store)


@takes_request(
    without=[
        *("variants", "sweeps", "repeat", "tokens", "judge", "keep"),
        *("layers", "layer_floor", "layer_positions", "kernels", "remedies"),
    ]
)
def search(
    request: CaptureRequest,
    variant: Annotated[str, typer.Option(help="Path of the variant.")] = "decode",
    flips: Annotated[int, typer.Option(help="Stop once so many prompts with a flip are found.")] = 1,
    max_prompts: Annotated[int | None, typer.Option(help="Try at most so many prompts.")] = None,
    max_minutes: Annotated[float | None, typer.Option(help="Spend at most so many minutes.")] = None,
    tokens: Annotated[
        int,
        typer.Option(
            help="Let both sides continue each prompt by up to N tokens; 0: compare the prompt's own positions."
        ),
    ] = 0,
    progress: options.Progress = "bar",
    store: options.Store = None,
    as_json_: options.Json = False,
) -> None:
    """Try many prompts until two paths choose another token on some of them, and keep those as a run.

    Exit code 0: found as many as asked for; 1: fewer were found (what was found is kept); 2: bad input.

    For example:  ulpscope search --model sample_runs/model --prompts prompts.jsonl --variant decode --flips 3
    """
    if max_prompts is not None and max_prompts < 1:
        raise UsageError(f"--max-prompts {max_prompts}: a search tries at least one prompt.")
    if flips < 1 or tokens < 0:
        raise UsageError("a search looks for at least one flip; check --flips and --tokens.")
    given = prompts_of(request)[:max_prompts]
    packaged_folder(request.model)
    target = open_store(store)
    run_id = None
    with stoppable(), steps(progress) as say:
        say("loading the model")
        from ..inference.capture.capture import plan_capture
        from ..inference.generating.generation import plan_generation
        from ..inference.generating.search import search as search_prompts
        from ..inference.models.chat import plan_inputs
        from ..inference.models.token_text import token_texts

        loaded = load(request)
        inputs = plan_inputs(loaded, request)[:max_prompts]
        found = search_prompts(
            loaded,
            inputs,
            request.reference,
            variant,
            flips=flips,
            minutes=max_minutes,
            tokens=tokens,
            seed=request.seed,
            on_progress=lambda step: say(f"{step.flips} with a flip", step.prompts, step.prompts_total, "prompts"),
        )
        chosen_tokens = dict.fromkeys(t for flip in found.flips for t in (flip.reference_token, flip.variant_token))
        texts = token_texts(loaded.tokenizer, list(chosen_tokens))
        if found.flips:
            title = request.name or f"{found.prompts:,} prompts searched: {request.reference} against {variant}"
            chosen = [inputs[number] for number in found.flipped_prompts]
            about: dict[str, Any] = {"name": title, "command": typed_command(), "seed": request.seed, "kv": request.kv}
            plan = (
                plan_generation(loaded, chosen, request.reference, [variant], tokens=tokens, **about)
                if tokens
                else plan_capture(loaded, chosen, request.reference, [variant], **about)
            )
            run_id, _ = run_plan(request, plan, target, say)
    if as_json_ or progress == "json":
        record = _as_json(found, texts, run_id)
        if progress == "json":
            print_line(**record)
        else:
            print_json(record)
    else:
        _print_search(found, texts, [item.where for item in given])
        if run_id:
            announce(run_id, store)
    if len(found.flipped_prompts) < flips:
        raise typer.Exit(1)


def _as_json(found: SearchResult, texts: dict[int, str], run_id: str | None) -> dict[str, Any]:
    flips = [
        {**asdict(flip), "reference_text": texts[flip.reference_token], "variant_text": texts[flip.variant_token]}
        for flip in found.flips
    ]
    skipped = [{"prompt": number, "reason": reason} for number, reason in found.skipped]
    return {"stage": "done", "run_id": run_id, **asdict(found), "flips": flips, "skipped": skipped}


def _print_search(found: SearchResult, texts: dict[int, str], names: list[str]) -> None:
    """Print the flips; texts: of their tokens, by id; names: of the prompts."""
    for _, reason in found.skipped[:5]:
        err.print(f"skipped: {reason}", markup=False)
    if len(found.skipped) > 5:
        err.print(f"and {len(found.skipped) - 5} more were skipped.")
    per_minute = found.prompts / found.seconds * 60 if found.seconds else 0.0
    print_text(
        f"{found.why}: {len(found.flipped_prompts)} of {found.prompts:,} prompts flip, {found.positions:,} positions"
        f" compared in {found.seconds:.1f} s ({per_minute:,.0f} prompts a minute)."
    )
    rows = (
        (
            flip.prompt,
            names[flip.prompt],
            flip.position,
            *(f"{token} {texts[token]!r}" for token in (flip.reference_token, flip.variant_token)),
            f"{number(flip.reference_margin)} / {number(flip.variant_margin)}",
        )
        for flip in found.flips[:50]
    )
    if found.flips:
        out.print(table_of(("prompt", "from", "position", "reference", "variant", "margins, logits"), rows))
    elif found.closest is not None:
        out.print(f"The closest call had a margin of {number(found.closest)} logits.", markup=False)
