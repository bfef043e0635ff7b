"""`judge`: capture two or more paths and say of each pair whether rounding explains it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from ..judging.ladder import BUG_SUSPECTED
from ..runs.file.records import FAILED, MISSING
from ..runs.reader import RunReader
from ..runs.store.store import open_store
from .capturing import (
    Asked,
    ChatOption,
    DeviceOption,
    DtypeOption,
    KeepOption,
    KvOption,
    ModelOption,
    NameOption,
    PromptFileOption,
    PromptOption,
    PromptsOption,
    ReferenceOption,
    RevisionOption,
    SeedOption,
    SweepOption,
    SystemOption,
    TrustOption,
    VariantOption,
    captured,
)
from .console import JsonOption, ProgressOption, StoreOption, err, out, print_json
from .ending import tell_end

_STYLES = {FAILED: "bold red", MISSING: "yellow"}


def judge(
    model: ModelOption,
    prompt: PromptOption = None,
    prompt_file: PromptFileOption = None,
    prompts: PromptsOption = None,
    chat: ChatOption = False,
    system: SystemOption = None,
    reference: ReferenceOption = "prefill",
    variant: VariantOption = None,
    sweep: SweepOption = None,
    repeat: Annotated[
        int, typer.Option(help="Call every path N times, one after another, as a server would be called.")
    ] = 1,
    kv: KvOption = None,
    dtype: DtypeOption = "bfloat16",
    device: DeviceOption = None,
    revision: RevisionOption = None,
    trust_remote_code: TrustOption = False,
    name: NameOption = None,
    seed: SeedOption = 0,
    keep_finished: KeepOption = False,
    progress: ProgressOption = "bar",
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Capture like `capture`, run every control, and say: rounding, or a bug?

    Each pair is held against this model's own rounding floor (reorderings of every linear map), in its dtype and in
    float32, beside reruns, other neighbours and a float64 forward; docs/verdict.md has the method. Exit code 1: a bug
    is suspected in some pair.

    For example:  python -m core judge --model sample_runs/model --prompt "def __init__(self," --variant decode+batch:8
    """
    asked = Asked(prompt, prompt_file, prompts, chat, system, reference, variant, sweep, repeat, kv, name, seed)
    run_id, failure = captured(
        asked,
        model=model,
        dtype=dtype,
        device=device,
        revision=revision,
        trust_remote_code=trust_remote_code,
        judge=True,
        keep_finished=keep_finished,
        progress=progress,
        store=store,
    )
    with RunReader(open_store(store).path_of(run_id)) as run:
        pairs = verdicts_as_json(run)
        if as_json_:
            print_json({"run_id": run_id, "pairs": pairs})
        elif progress != "json":
            print_verdicts(run)
    is_suspected = any(pair["verdict"] == BUG_SUSPECTED for pair in pairs)
    if as_json_:
        for sentence in failure:
            err.print(f"error: {sentence}", markup=False, soft_wrap=True)
    else:
        tell_end(run_id, failure, progress, as_json_, store, has_said_verdict=True)
    if failure:
        raise typer.Exit(2)
    if is_suspected:
        raise typer.Exit(1)


def verdicts_as_json(run: RunReader) -> list[dict[str, Any]]:
    """One object a pair, its evidence included."""
    return [
        {
            "reference": pair.reference,
            "variant": pair.variant,
            "verdict": pair.verdict,
            "because": pair.because,
            "noise_ratio": pair.noise_ratio,
            "evidence": [asdict(row) for row in run.evidence(pair.index)],
        }
        for pair in run.pairs
    ]


def print_verdicts(run: RunReader) -> None:
    """Each judged pair: the verdict, the sentence for it, and a row for every piece of evidence."""
    for pair in run.pairs:
        if pair.verdict is None:
            continue
        out.print(
            f"[bold]{escape(pair.verdict)}[/bold]  {escape(pair.variant)} against {escape(pair.reference)}:"
            f" {escape(pair.because or '')}"
        )
        table = Table()
        for column in ("rung", "outcome", "what it says", "control"):
            table.add_column(column, overflow="fold")
        for row in run.evidence(pair.index):
            style = _STYLES.get(row.outcome, "")
            outcome = f"[{style}]{row.outcome}[/{style}]" if style else row.outcome
            table.add_row(row.rung, outcome, escape(row.says), escape(row.control))
        out.print(table)
