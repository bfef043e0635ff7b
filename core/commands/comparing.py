"""`compare`: two dumps, the sides of one, server responses, corpora or a stored run; a gate of
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from ..checks.responses import CONTEXT
from ..errors import UlpscopeError, UsageError
from ..judging.ingest import temporary_run
from ..rl.formats import files_in
from ..runs.corpus import are_logs
from ..runs.reader import RunReader
from ..runs.reports.conditions import ALLOWED, Condition, parse_conditions
from ..runs.reports.gate import GateReport, gate_of
from ..runs.reports.report_json import as_json, report_of_run
from ..runs.store.store import open_store
from ..text import clean
from . import options
from .corpora import (
    are_samples,
    compare_samples,
    corpora_of,
    corpus_of_logs,
    print_corpus,
    print_samples,
)
from .gates import end_with
from .rl import As, mismatch_of, print_mismatch
from .tables import print_reports
from .terminal.console import err, print_json, print_text, steps

_LONGEST_NOTE = 1000  # characters of what is noted on a dump, its own `meta` included


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
    if (junit or markdown) and not fail_on:
        raise UsageError("--junit and --markdown report a gate; add --fail-on.")
    comparison = compare_files(
        names,
        store,
        {"compute_dtype": compute_dtype, "reference": reference, "holds": holds},
        fail_on=fail_on or (),
        variant=variant,
        positions=positions,
        corpus=corpus,
        framework=framework,
    )
    if as_json_:
        print_json(comparison.report)
    else:
        comparison.show()
    if comparison.gate is not None:
        end_with(comparison.gate, junit, markdown, as_json_)


class Comparison(NamedTuple):
    """What `compare` prints, as JSON; show: prints it as tables; gate: None without conditions."""

    report: dict[str, Any]
    show: Callable[[], None]
    gate: GateReport | None = None


def compare_files(
    names: Sequence[str],
    store: str | None = None,
    taken_as: Mapping[str, str | None] | None = None,
    *,
    fail_on: Sequence[str] = (),
    variant: str | None = None,
    positions: bool = False,
    corpus: bool = False,
    framework: str | None = None,
) -> Comparison:
    """Compare files, or the sides of a stored run; the arguments are the options of `compare`."""
    conditions, files = parse_conditions(fail_on), files_in(names)
    taken_as = {what: word for what, word in (taken_as or {}).items() if word}
    is_plain = not (conditions or positions or variant or framework or taken_as)
    if are_samples(files):
        if not is_plain:
            raise UsageError(
                "Samples of lm-eval have no logits; leave out every option but --json.",
            )
        changes = compare_samples(files)
        return Comparison(changes, partial(print_samples, changes))
    if are_logs(files) and is_plain:
        with steps() as say:
            statistics = corpus_of_logs(files, say)
        return Comparison(statistics, partial(print_corpus, statistics))
    with _run_of(names, files, store, taken_as) as run:
        if positions:
            run.header.check_short()
        mismatch = mismatch_of(run, framework)
        corpora = corpora_of(run, variant) if corpus else []
        return _compare_sides(run, conditions, variant, positions, mismatch, corpora)


@contextmanager
def _run_of(
    names: Sequence[str],
    files: Sequence[Path],
    store: str | None,
    taken_as: Mapping[str, str | None],
) -> Iterator[RunReader]:
    """Yield a stored run, or the run that files make, which is gone afterwards."""
    with ExitStack() as stack:
        if len(names) == 1 and not files[0].exists() and _is_run(store, names[0]):
            if taken_as:
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
        yield run


def _compare_sides(
    run: RunReader,
    conditions: Sequence[Condition],
    variant: str | None,
    positions: bool,
    mismatch: dict[str, Any] | None,
    corpora: Sequence[dict[str, Any]],
) -> Comparison:
    """Return the figures of a run. variant: of which flips are shown, and the summary of JSON."""
    header, texts = run.header, run.vocabulary
    pairs, classes = report_of_run(run)
    pairs = [replace(pair, mismatch=mismatch) for pair in pairs]
    gate = gate_of(run, pairs, conditions) if conditions else None
    # Of responses: inputs of other lengths, texts that differ.
    contexts = [row.says for pair in pairs for row in pair.answer.checks if row.check == CONTEXT]
    report = as_json(pairs, classes, header, variant=variant, with_positions=positions)
    if corpora:
        report["corpora"] = corpora
    if contexts:
        report["notes"] = contexts
    if gate is not None:
        report["gate"] = gate.as_json()

    def show() -> None:
        print_reports(pairs, classes, header, texts, variant)
        for says in contexts:
            print_text(f"note: {says}", err)
        if mismatch is not None:
            print_mismatch(mismatch)
        for each in corpora:
            print_corpus(each)

    return Comparison(report, show, gate)


def _is_run(store: str | Path | None, text: str) -> bool:
    """Return whether a word that is not a file is a run id: one that exists, or has no suffix."""
    try:
        open_store(store).path_of(text)
    except UlpscopeError:
        return not Path(text).suffix
    return True
