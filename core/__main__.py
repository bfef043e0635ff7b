"""The command line: `python -m core COMMAND`. Exit codes: 0 within the gate, 1 the gate failed, 2 bad input or usage.

Torch is imported by `capture` alone, so every other command starts in a fraction of a second.
"""

from __future__ import annotations

import json
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from typer.exceptions import TyperException

from core.errors import UlpscopeError, UsageError
from core.runs.dumps import open_dump
from core.runs.export import export_npz
from core.runs.gallery import list_runs
from core.runs.gate import Gate, percent
from core.runs.ingest import ingest as ingest_dump
from core.runs.reader import RunReader
from core.runs.report import PairReport, as_json, report_of_dump, report_of_run
from core.runs.store import open_store
from core.runs.writer import RunWriter

app = typer.Typer(
    name="ulpscope",
    help="Is it rounding, or a bug? Capture, keep and compare the complete logits of two ways to run a language model.",
    epilog="A first look:  python -m core list   then   python -m core show RUN. "
    "A run's id may be shortened to any unique beginning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
out = Console(highlight=False, width=None if sys.stdout.isatty() else 180)  # a pipe has no width to fit into
err = Console(stderr=True, highlight=False)

StoreOption = Annotated[
    Path | None, typer.Option("--store", help="Directory of run files. Default: $ULPSCOPE_STORE, else runs/.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def _is_run(store: Path | None, text: str) -> bool:
    """Whether a word that is no file is meant as a run's id: one there is, or one without the suffix of a file."""
    try:
        open_store(store).path_of(text)
    except UlpscopeError:
        return not Path(text).suffix
    return True


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1, default=str, allow_nan=False) + "\n")


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("positions"), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(), console=err, transient=True, disable=not sys.stderr.isatty(),
    )  # fmt: skip


def _number(value: float | None, digits: int = 4) -> str:
    return "undefined" if value is None else f"{value:.{digits}g}"


def _pair_table(pairs: list[PairReport], compute_dtype: str, rows: int, vocab: int) -> Table:
    table = Table(title=f"{escape(pairs[0].reference)} against …   {rows} positions x {vocab} tokens, ULPs of {compute_dtype}")
    for name in ("variant", "differing logits", "max abs", "max ULPs", "mean ULPs", "flips", "ties", "near ties", "max KL, nats"):
        table.add_column(name, justify="left" if name == "variant" else "right")
    for pair in pairs:
        s = pair.summary
        share = "bit-identical" if s.bit_identical else f"{s.neq:,} of {rows * vocab:,} ({percent(s.neq_share)})"
        table.add_row(
            escape(pair.variant), share, _number(s.max_abs, 6), f"{s.max_ulps:,}", _number(s.mean_ulps), str(s.flips), str(s.ties),
            str(s.near_ties), _number(s.max_kl),
        )  # fmt: skip
        if s.nonfinite_mismatch:
            table.add_row("", f"[bold]{s.nonfinite_mismatch:,} elements: NaN or infinity on one side only[/bold]")
    return table


def _flip_table(pair: PairReport, texts: dict[int, str], has_prompts: bool, limit: int = 20) -> Table:
    flips = [row for row in pair.rows if row["is_flip"]]
    more = f", the first {limit}" if len(flips) > limit else ""
    table = Table(title=f"flips of {escape(pair.variant)}: {len(flips)}{more}")
    for name in (["prompt"] if has_prompts else []) + ["position", "reference", "variant", "margins, ULPs", "max abs"]:
        table.add_column(name, justify="right")
    for row in flips[:limit]:
        tokens = [f"{row[k]} {texts[row[k]]!r}" if row[k] in texts else str(row[k]) for k in ("reference_token", "variant_token")]
        margins = f"{row['reference_margin_ulps']} / {row['variant_margin_ulps']}"
        place = ([str(row["prompt"])] if has_prompts else []) + [str(row["position"])]
        table.add_row(*place, *(escape(t) for t in tokens), margins, _number(row["max_abs"]))
    return table


@app.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="A dump (npz, npy, safetensors) or the id of a stored run.")],
    second: Annotated[
        str | None, typer.Argument(metavar="[B]", help="A second dump of one array; A is the reference then.")
    ] = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option("--fail-on", help="Exit with 1 if any pair has: 'bits' differing, 'flips', or 'ulps:N' (more than N ULPs)."),
    ] = None,
    compute_dtype: Annotated[
        str | None, typer.Option(help="Count ULPs in float32, float16 or bfloat16. Default: declared by the dump, else detected.")
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="The side of a dump that the others are compared with. Default: 'reference', else the first."),
    ] = None,
    variant: Annotated[str | None, typer.Option(help="The side that the summary speaks of, where there are several.")] = None,
    positions: Annotated[bool, typer.Option("--positions", help="With --json: figures of every position.")] = False,
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Compare the sides of a dump, of two dumps, or of a stored run. Needs no store for dumps.

    A gate for CI:  python -m core compare golden.npz today.npz --fail-on flips --fail-on ulps:4
    """
    gates = [Gate.parse(text) for given in fail_on or [] for text in given.split(",")]
    texts: dict[int, str] = {}
    if second is None and not Path(first).exists() and _is_run(store, first):
        if compute_dtype or reference:
            raise UsageError("--compute-dtype and --reference are for dumps; a stored run keeps those it was stored with.")
        with RunReader(open_store(store).path_of(first)) as run:
            header, texts = run.header, run.vocabulary
            pairs, classes = report_of_run(run)
            prompts, rows = len(header.prompts), header.rows
            dtype, vocab = header.compute_dtype, header.vocab
    else:
        with open_dump(
            [Path(p) for p in (first, second) if p is not None], compute_dtype=compute_dtype, reference=reference
        ) as dump:
            pairs, classes = report_of_dump(dump)
            prompts, rows, dtype, vocab = len(dump.prompts), dump.rows, dump.compute_dtype, dump.vocab
            for warning in dump.warnings:
                err.print(f"note: {warning}", markup=False)
            if not as_json_:
                out.print(f"compute dtype {dump.dtype_reason}", markup=False)
    report = as_json(
        pairs, classes, compute_dtype=dtype, rows=rows, vocab=vocab, prompts=prompts, variant=variant, with_positions=positions
    )
    if as_json_:
        _print_json(report)
    else:
        out.print(_pair_table(pairs, dtype, rows, vocab))
        first_of_class = {group[0] for group in classes} | ({group[1] for group in classes[:1] if len(group) > 1})
        for pair in pairs:  # bit-identical variants have the same flips
            if pair.summary.flips and (pair.variant == variant if variant else pair.variant in first_of_class):
                out.print(_flip_table(pair, texts, prompts > 1))
        if len(pairs) > 1:
            out.print("bit-identical classes: " + "   ".join("{" + ", ".join(group) + "}" for group in classes), markup=False)
    failures = [gate.failure(pair.summary, pair.variant) for gate in gates for pair in pairs]
    broken = [text for text in failures if text]
    for text in broken:
        err.print(f"gate failed: {text}", markup=False)
    if broken:
        raise typer.Exit(1)


@app.command()
def ingest(
    dumps: Annotated[list[Path], typer.Argument(help="One file of two or more sides, or two files of one array each.")],
    name: Annotated[str | None, typer.Option(help="What to call the run. Default: the file's name.")] = None,
    model: Annotated[str, typer.Option(help="The model the logits come from, for the record.")] = "",
    compute_dtype: Annotated[
        str | None, typer.Option(help="float32, float16 or bfloat16. Default: declared, else detected.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="The side the others are compared with. Default: 'reference', else the first.")
    ] = None,
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Store a dump of logits as a run: checked, analysed, every bit kept."""
    with _stoppable(), _progress() as progress:
        task = progress.add_task("ingesting", total=None)
        run_id = ingest_dump(
            open_store(store), dumps, name=name, model=model, compute_dtype=compute_dtype, reference=reference,
            on_progress=lambda done, total: progress.update(task, completed=done, total=total),
        )  # fmt: skip
    _announce(run_id, as_json_)


@contextmanager
def _stoppable() -> Iterator[None]:
    """Ctrl-C or a request to end: the writer has removed what it began by the time this says so. (typer would leave without a word.)"""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell started us with interrupts ignored
            signal.signal(number, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        err.print("stopped; nothing was stored.")
        raise typer.Exit(130) from None


def _announce(run_id: str, as_json_: bool) -> None:
    if as_json_:
        _print_json({"run_id": run_id})
    else:
        out.print(run_id, markup=False)


@app.command()
def capture(
    model: Annotated[str, typer.Option(help="Folder or hub id of a transformers causal language model.")],
    prompt: Annotated[list[str] | None, typer.Option(help="A prompt; may be given several times.")] = None,
    prompt_file: Annotated[
        list[Path] | None, typer.Option(help="A text file that is one prompt; may be given several times.")
    ] = None,
    reference: Annotated[str, typer.Option(help="Path of the reference: prefill, decode, prefill+batch:8, ...")] = "prefill",
    variant: Annotated[list[str] | None, typer.Option(help="Path of a variant; may be given several times.")] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(help="Add a variant for each value: batch=1,2,3,4,8 puts the reference into batches of each size."),
    ] = None,
    repeat: Annotated[int, typer.Option(help="Call every path N times, one after another, as a server would be called.")] = 1,
    dtype: Annotated[str, typer.Option(help="float32, float16 or bfloat16.")] = "bfloat16",
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1. Default: CUDA if there is one.")] = None,
    revision: Annotated[str | None, typer.Option(help="Revision on the hub.")] = None,
    trust_remote_code: Annotated[bool, typer.Option(help="Let the model's repository run its own code.")] = False,
    name: Annotated[str | None, typer.Option(help="What to call the run.")] = None,
    seed: Annotated[int, typer.Option(help="Seed set before each side.")] = 0,
    progress: Annotated[
        str, typer.Option(help="'bar' on a terminal, or 'json': a line of JSON for every step, for programs.")
    ] = "bar",
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Run a model down two or more paths that are equal in exact arithmetic, and keep every logit of each.

    For example:  python -m core capture --model sample_runs/model --prompt "def __init__(self,"
    --reference prefill --variant decode --variant prefill+batch:8 --dtype bfloat16

    The first call against later ones, with block reuse:  --reference blocks:16 --repeat 6

    Which batch sizes agree bit for bit:  --reference decode --sweep batch=1,2,3,4,8,16

    docs/paths.md lists every path.
    """
    from core.inference.capture import plan_capture, run_capture
    from core.inference.models import load_model
    from core.inference.sides import sweep as swept

    variants = [*(variant or []), *(path for text in sweep or [] for path in swept(reference, text))]
    if not variants and repeat == 1:
        variants = ["decode"]
    prompts = [*(prompt or []), *(_read_prompt(path) for path in prompt_file or [])]
    if not prompts:
        raise UsageError("no prompt was given; use --prompt TEXT or --prompt-file FILE.")
    if progress not in ("bar", "json"):
        raise UsageError(f"--progress '{progress}' is not known; expected bar or json.")
    given = [part for part in _without(sys.argv[1:], "--progress", "--store") if part != "--json"]
    command = shlex.join(["python", "-m", "core", *given])
    target = open_store(store)
    with _stoppable(), _steps(progress) as say:
        say("loading the model", 0, 0)
        loaded = load_model(model, dtype=dtype, device=device, revision=revision, trust_remote_code=trust_remote_code)
        plan = plan_capture(loaded, prompts, reference, variants, name=name, command=command, seed=seed, repeat=repeat)
        with RunWriter(target, plan.header) as writer:
            run_capture(plan, writer, lambda step: say(step.side_name, step.rows_done, step.rows_total))
            say("writing the run file", 0, 0)
            run_id = writer.finish()
    if progress == "json":
        sys.stdout.write(json.dumps({"stage": "done", "run_id": run_id}) + "\n")
    else:
        _announce(run_id, as_json_)


def _without(arguments: list[str], *options: str) -> list[str]:
    """Arguments less some options and their values: where a run is stored is not part of how to repeat it."""
    kept: list[str] = []
    skip = False
    for part in arguments:
        if not skip and part.split("=")[0] not in options:
            kept.append(part)
        skip = not skip and part in options
    return kept


@contextmanager
def _steps(kind: str) -> Iterator[Callable[[str, int, int], None]]:
    """A function (stage, rows done, rows in all) that draws a bar on a terminal, or prints JSON lines, five a second at most."""
    if kind == "json":
        last_stage, last_time = "", 0.0

        def tell(stage: str, done: int, total: int) -> None:
            nonlocal last_stage, last_time
            if stage != last_stage or time.monotonic() - last_time > 0.2:
                last_stage, last_time = stage, time.monotonic()
                rows = {"rows_done": done, "rows_total": total} if total else {}
                sys.stdout.write(json.dumps({"stage": stage, **rows}) + "\n")
                sys.stdout.flush()

        yield tell
        return
    with _progress() as bar:
        task = bar.add_task("", total=None)

        def show(stage: str, done: int, total: int) -> None:
            bar.update(task, description=stage, completed=done, total=total or None)

        yield show


def _read_prompt(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as UTF-8 text ({error}).") from error


@app.command("list")
def list_(store: StoreOption = None, as_json_: JsonOption = False) -> None:
    """List the stored runs, newest first, sample runs included."""
    cards, broken = list_runs(open_store(store))
    if as_json_:
        _print_json([{**asdict(card), "created": card.created.isoformat() + "Z"} for card in cards])
    else:
        table = Table()
        for column in ("run", "name", "model", "dtype", "device", "positions", "pairs", "flips", "max ULPs", "verdict"):
            figures = column in ("positions", "pairs", "flips", "max ULPs")
            table.add_column(column, justify="right" if figures else "left", no_wrap=column == "run", overflow="fold")
        for card in cards:
            table.add_row(
                card.run_id, escape(card.name), Path(card.model).name if card.model else "", card.compute_dtype, card.device,
                f"{card.positions:,}", str(card.pairs), str(card.flips), f"{card.max_ulps:,}", card.verdicts or "not judged",
            )  # fmt: skip
        out.print(table if cards else "no runs yet; `python -m core capture` or `python -m core ingest` makes one.")
    for run in broken:
        err.print(f"not a readable run: {run.reason}", markup=False)


@app.command()
def show(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Id of a run, or a unique beginning of it.")],
    positions: Annotated[bool, typer.Option("--positions", help="With --json: figures of every position.")] = False,
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Show a run: where it comes from, its sides and their digests, its pairs and flips."""
    with RunReader(open_store(store).path_of(run_id)) as run:
        header, about = run.header, run.header.provenance
        pairs, classes = report_of_run(run)
        report = as_json(
            pairs, classes, compute_dtype=header.compute_dtype, rows=header.rows, vocab=header.vocab, prompts=len(header.prompts),
            with_positions=positions,
        )  # fmt: skip
        provenance = {"run_id": run.run_id, "name": header.name, "created": run.created.isoformat() + "Z", **asdict(about)}
        sides = [asdict(side) for side in run.sides]
        if as_json_:
            _print_json({**provenance, "sides": sides, **report})
            return
        facts = Table(title=escape(header.name), show_header=False)
        facts.add_column(style="bold")
        facts.add_column(overflow="fold")
        for key, value in provenance.items():
            shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
            if shown not in (None, ""):
                facts.add_row(key, escape(str(shown)))
        out.print(facts)
        table = Table(title="sides")
        for column in ("name", "saved as", "class", "sha256 of its bits"):
            table.add_column(column, overflow="fold")
        for side in run.sides:
            table.add_row(escape(side.name), side.source_dtype, str(side.bit_class), side.sha256)
        out.print(table)
        out.print(_pair_table(pairs, header.compute_dtype, header.rows, header.vocab))
        for pair in pairs:
            if pair.summary.flips:
                out.print(_flip_table(pair, run.vocabulary, len(header.prompts) > 1))


@app.command()
def export(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Id of a run, or a unique beginning of it.")],
    file: Annotated[Path, typer.Argument(metavar="FILE.npz", help="Where to write.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Write every side of a run back to an npz, in the exact bits and dtype it came in."""
    with RunReader(open_store(store).path_of(run_id)) as run:
        export_npz(run, file, overwrite=overwrite)
        if as_json_:
            _print_json({"run_id": run.run_id, "file": str(file), "bytes": file.stat().st_size})
        else:
            out.print(f"{file}: {', '.join(side.name for side in run.sides)}", markup=False)


@app.command()
def delete(
    run_ids: Annotated[list[str], typer.Argument(metavar="RUN...", help="Ids of runs, or unique beginnings of them.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Delete runs for good. Sample runs are refused."""
    target = open_store(store)
    full = list(dict.fromkeys(target.path_of(run_id).stem for run_id in run_ids))
    if not yes and sys.stdin.isatty() and not typer.confirm(f"Delete {', '.join(full)} for good?"):
        raise typer.Exit(1)
    if not yes and not sys.stdin.isatty():
        raise UsageError("delete asks before it deletes; without a terminal give --yes.")
    deleted = [target.delete(run_id) for run_id in full]
    if as_json_:
        _print_json({"deleted": deleted})
    else:
        out.print("deleted " + ", ".join(deleted), markup=False)


def main() -> None:
    """Run the command line; what ULPscope raises on purpose becomes one sentence on stderr and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except UlpscopeError as error:
        err.print(f"error: {error}", markup=False, soft_wrap=True)
        sys.exit(2)
    except TyperException as error:  # usage: an unknown option, a missing argument
        err.print(f"error: {error.format_message()}", markup=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except typer.Abort:
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
