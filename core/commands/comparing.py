"""`compare`, `ingest` and `inspect`: logit dumps, server responses and run files; `comment`: a gate
of them.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UlpscopeError, UsageError
from ..judging.ingest import describe, temporary_run
from ..judging.ingest import ingest as ingest_dump
from ..numerics.divergence import COMPILING, is_compiled, prepare
from ..numerics.formats import BFLOAT16, FLOAT32
from ..rl.formats import files_in
from ..runs.corpus import are_logs
from ..runs.file.evidence import FAILED, PASSED, Check
from ..runs.importing import import_run, is_run_file
from ..runs.reader import RunReader
from ..runs.reports.gate import ALLOWED, UNDECIDED, GateReport, gate_of, parse_conditions
from ..runs.reports.gate_files import append, junit_text, markdown_text, write_whole
from ..runs.reports.report_json import as_json, report_of_run
from ..runs.store.store import open_store
from ..text import clean, plural
from . import options
from .corpora import (
    are_samples,
    compare_samples,
    corpora_of,
    corpus_of_logs,
    print_corpus,
    print_samples,
)
from .rl import As, mismatch_of, print_mismatch
from .tables import print_reports
from .terminal.console import (
    announce,
    err,
    out,
    print_facts,
    print_json,
    print_records,
    print_text,
    steps,
)
from .terminal.stopping import stoppable

_FILES = (
    "One or two dumps, responses (JSON, JSONL), files or folders of trainer vs. rollout, or a run"
    " file."
)
_LONGEST_NOTE = 1000  # characters of what is noted on a dump, its own `meta` included
_MOST_LINES = 20  # of outcomes of one kind on a terminal; JSON, JUnit and Markdown have them all


def compare(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="A [B]...",
            help=(
                "A logit dump, responses (JSON, JSONL) or a run id; B: a second dump or responses,"
                " A is the reference."
                " Of trainer vs. rollout: any number of files, or folders of them."
            ),
        ),
    ],
    fail_on: Annotated[
        list[str] | None,
        typer.Option(help=f"Exit with 1 if a pair meets a condition; comma-separated: {ALLOWED}."),
    ] = None,
    junit: options.Junit = None,
    markdown: options.Markdown = None,
    compute_dtype: options.ComputeDtype = None,
    reference: options.Reference = None,
    holds: options.Holds = None,
    variant: Annotated[
        str | None,
        typer.Option(help="Variant to summarize; --fail-on still covers all."),
    ] = None,
    positions: Annotated[
        bool,
        typer.Option("--positions", help="With --json: per-position metrics."),
    ] = False,
    corpus: Annotated[
        bool,
        typer.Option(
            "--corpus",
            help="Statistics of llama-perplexity over all positions, with intervals.",
        ),
    ] = False,
    framework: As = None,
    store: options.Store = None,
    as_json_: options.Json = False,
) -> None:
    """Compare logits: two dumps, the arrays (sides) of one dump, server responses, or a stored run.

    Two files of llama.cpp's --kl-divergence-base have the statistics of llama-perplexity, and two
    of lm-eval's samples the answers that changed (docs/guides/corpora.md).

    With --fail-on it is a CI gate over every variant (docs/guides/gates.md):

    ulpscope compare golden.npz today.npz --fail-on 'verdict,kl>0.05' --junit gate.xml
    """
    conditions = parse_conditions(fail_on or [])
    if (junit or markdown) and not conditions:
        raise UsageError("--junit and --markdown report a gate; add --fail-on.")
    files = files_in(names)
    taken_as = {"compute_dtype": compute_dtype, "reference": reference, "holds": holds}
    is_plain = not (conditions or positions or variant or framework or any(taken_as.values()))
    if are_samples(files):
        if not is_plain:
            raise UsageError(
                "Samples of lm-eval have no logits; leave out every option but --json.",
            )
        changes = compare_samples(files)
        (print_json if as_json_ else print_samples)(changes)
        return
    if are_logs(files) and is_plain:
        with steps() as say:
            statistics = corpus_of_logs(files, say)
        (print_json if as_json_ else print_corpus)(statistics)
        return
    with ExitStack() as stack:
        if len(names) == 1 and not files[0].exists() and _is_run(store, names[0]):
            if any(taken_as.values()):
                raise UsageError(
                    "--compute-dtype, --reference and --holds are for dumps; a stored run has its"
                    " own.",
                )
            run = stack.enter_context(RunReader(open_store(store).path_of(names[0])))
        else:
            with steps() as say:
                run = stack.enter_context(
                    temporary_run(files, on_progress=say, **taken_as),
                )
            if note := run.header.provenance.note:
                print_text(f"note: {clean(note, _LONGEST_NOTE)}", err)
        header, texts = run.header, run.vocabulary
        if positions:
            header.check_short()
        mismatch = mismatch_of(run, framework)
        pairs, classes = report_of_run(run)
        pairs = [replace(pair, mismatch=mismatch) for pair in pairs]
        gate = gate_of(run, pairs, conditions) if conditions else None
        corpora = corpora_of(run, variant) if corpus else []
    report = as_json(pairs, classes, header, variant=variant, with_positions=positions)
    if corpora:
        report["corpora"] = corpora
    # Of responses: inputs of other lengths, texts that differ.
    contexts = [
        row.says for pair in pairs for row in pair.answer.checks if row.check is Check.CONTEXT
    ]
    if contexts:
        report["notes"] = contexts
    if gate is not None:
        report["gate"] = gate.as_json()
    if as_json_:
        print_json(report)
    else:
        print_reports(pairs, classes, header, texts, variant)
        for says in contexts:
            print_text(f"note: {says}", err)
        if mismatch is not None:
            print_mismatch(mismatch)
        for each in corpora:
            print_corpus(each)
    if gate is not None:
        end_with(gate, junit, markdown, as_json_)


def end_with(gate: GateReport, junit: Path | None, markdown: Path | None, as_json_: bool) -> None:
    """Print a gate's failures and undecided outcomes, write its reports; exit with 1 if it
    failed.
    """
    for kind in (FAILED, UNDECIDED):
        outcomes = [outcome for outcome in gate.outcomes if outcome.outcome == kind]
        for outcome in outcomes[:_MOST_LINES]:
            print_text(f"gate {kind}: {gate.sentence(outcome)}", err)
        if len(outcomes) > _MOST_LINES:
            err.print(f"gate {kind}: and {len(outcomes) - _MOST_LINES:,} more.", markup=False)
    for note in gate.notes:
        print_text(f"note: {note}", err)
    if gate.outcome == PASSED and not as_json_:
        undecided = sum(outcome.outcome == UNDECIDED for outcome in gate.outcomes)
        passed = len(gate.outcomes) - undecided
        rest = f", undecided: {undecided:,}" if undecided else ""
        out.print(f"gate passed: {plural(passed, 'condition')}{rest}", markup=False)
    write_gate(gate, junit, markdown)
    if gate.failed:
        raise typer.Exit(1)


def write_gate(gate: GateReport, junit: Path | None, markdown: Path | None) -> None:
    if junit is not None:
        write_whole(junit, junit_text(gate))
    if markdown is not None:
        append(markdown, markdown_text(gate))


def comment(
    report: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Markdown of `compare --markdown`."),
    ],
    name: Annotated[
        str,
        typer.Option(help="Name of the gate; each has a comment of its own."),
    ] = "logits",
    artifact: Annotated[str, typer.Option(help="Address of the job's files.")] = "",
) -> None:
    """Write a gate's report as a comment on the job's pull request.

    If it cannot, warn: the gate decides.
    """
    from ..pull_request import CommentError, put_comment  # what speaks HTTP takes 0.2 s to load

    text = "### ULPscope gate: no result\n\nThe job's log has the reason.\n"
    if report.is_file():  # else a comment of an earlier push would pass for the result of this one
        text = report.read_text(encoding="utf-8")
    try:
        print_text(
            put_comment(os.environ, name, text, artifact) or "no pull request, so no comment.",
        )
    except CommentError as error:
        print_text(f"::warning title=ULPscope::{clean(error, 500).replace('%', '%25')}")


def ingest(
    names: Annotated[list[str], typer.Argument(metavar="FILES...", help=_FILES)],
    name: Annotated[
        str | None,
        typer.Option(help="Name of the run. Default: the file's name."),
    ] = None,
    model: Annotated[
        str,
        typer.Option(help="Model that the logits come from, for the record."),
    ] = "",
    compute_dtype: options.ComputeDtype = None,
    reference: options.Reference = None,
    holds: options.Holds = None,
    run_id: Annotated[str | None, typer.Option(hidden=True, help="Id of the run.")] = None,
    progress: options.Progress = "bar",
    store: options.Store = None,
    as_json_: options.Json = False,
) -> None:
    """Import a logit dump, server responses or a run file as a run.

    A dump is stored bit for bit. Of a run file, the schema and the digests of its logits are
    checked; no code in it is executed (docs/guides/upload.md).
    """
    target, files = open_store(store), files_in(names)
    taken_as = {"compute_dtype": compute_dtype, "reference": reference, "holds": holds}
    with stoppable(), steps(progress) as say:
        if files[0].is_file() and is_run_file(files[0]):
            if len(files) > 1 or model or any(taken_as.values()):
                raise UsageError("A run file is imported alone; --name is its only option.")
            new_id = import_run(
                target,
                files[0],
                name=name,
                run_id=run_id,
                on_progress=say,
            )
        else:
            new_id = ingest_dump(
                target,
                files,
                name=name,
                model=model,
                run_id=run_id,
                on_progress=say,
                **taken_as,
            )
    announce(new_id, store, progress, as_json_)


def _is_run(store: str | Path | None, text: str) -> bool:
    """Return whether a word that is not a file is a run id: one that exists, or has no suffix."""
    try:
        open_store(store).path_of(text)
    except UlpscopeError:
        return not Path(text).suffix
    return True


_LOADED = ("pandas", "pyarrow")
_SPARE_SECONDS = 600  # it takes 200 MB while it waits


def spare(context: typer.Context) -> None:
    """Load what `ingest` needs, read one line of JSON, `{"arguments": [...]}`, and run that
    command.
    """
    signal.alarm(_SPARE_SECONDS)
    for fmt in (FLOAT32, BFLOAT16):
        if not is_compiled(fmt):
            sys.stdout.write(json.dumps({"stage": COMPILING}) + "\n")
            sys.stdout.flush()
        prepare(fmt)
    for name in _LOADED:
        importlib.import_module(name)
    if line := sys.stdin.readline():
        signal.alarm(0)
        code = context.find_root().command.main(
            json.loads(line)["arguments"],
            standalone_mode=False,
        )
        raise typer.Exit(code if isinstance(code, int) else 0)


def inspect(
    names: Annotated[list[str], typer.Argument(metavar="FILES...", help=_FILES)],
    compute_dtype: options.ComputeDtype = None,
    reference: options.Reference = None,
    holds: options.Holds = None,
    as_json_: options.Json = False,
) -> None:
    """Show what a dump, responses or a run file contains: sides, dtypes, shapes, tokens.

    Nothing is stored.
    """
    with steps() as say:
        taken_as = {"compute_dtype": compute_dtype, "reference": reference, "holds": holds}
        summary = describe(
            files_in(names),
            on_progress=say,
            **taken_as,
        )
    if as_json_:
        print_json(summary)
        return
    print_records(summary["sides"])
    print_facts({key: value for key, value in summary.items() if key not in ("sides", "warnings")})
    for warning in summary.get("warnings", ()):
        print_text(f"note: {warning}", err)
