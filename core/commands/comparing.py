"""`compare`: two dumps, the sides of one, server responses, corpora or a stored run; a gate of
them, and `comment`: its report on a pull request.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from typer import Argument, Exit, Option

from ..checks.responses import CONTEXT
from ..errors import UsageError
from ..evidence import FAILED, PASSED
from ..judging.in_memory import are_arrays, compare_arrays
from ..runs.reports.conditions import ALLOWED, UNDECIDED, parse_conditions
from ..runs.reports.report_json import as_json, report_of_run
from ..text import clean, plural
from .options import (
    AsOption,
    ComputeDtypeOption,
    ExactOption,
    HoldsOption,
    JsonOption,
    JunitOption,
    MarkdownOption,
    MixtureOfExpertsOption,
    ReferenceOption,
    StoreOption,
)
from .tables import print_reports
from .terminal.console import err, print_json, print_note, print_text, steps

if TYPE_CHECKING:
    from ..runs.measured import MemoryRun
    from ..runs.reader import RunReader
    from ..runs.reports.gate import GateReport

    Run = RunReader | MemoryRun

# a terminal shows so many outcomes of a kind; JSON, JUnit and Markdown have them all
_MOST_LINES = 20
_LONGEST_NOTE = 1000  # characters of what is noted on a dump, its own `meta` included


def compare(
    names: list[str] = Argument(
        ...,
        metavar="A [B]...",
        help=(
            "A logit dump, responses (JSON, JSONL) or a run id; B: a second dump or responses,"
            " A is the reference."
            " Of trainer vs. rollout: any number of files, or folders of them."
        ),
    ),
    fail_on: list[str] = Option(
        [], help=f"Exit with 1 if a pair meets a condition; comma-separated: {ALLOWED}."
    ),
    junit: JunitOption = None,
    markdown: MarkdownOption = None,
    compute_dtype: ComputeDtypeOption = None,
    reference: ReferenceOption = None,
    holds: HoldsOption = None,
    exact: ExactOption = None,
    mixture_of_experts: MixtureOfExpertsOption = False,
    variant: str | None = Option(None, help="Variant to summarize; --fail-on still covers all."),
    positions: bool = Option(False, "--positions", help="With --json: per-position metrics."),
    corpus: bool = Option(
        False, "--corpus", help="Statistics of llama-perplexity over all positions, with intervals."
    ),
    framework: AsOption = None,
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Compare logits: two dumps, the arrays (sides) of one dump, server responses, or a stored run.

    Two files of llama.cpp's --kl-divergence-base have the statistics of llama-perplexity, and two
    of lm-eval's samples the answers that changed (docs/guides/corpora.md).

    With --fail-on it is a CI gate over every variant (docs/guides/gates.md):

    ulpscope compare golden.npz today.npz --fail-on 'verdict,kl>0.05' --junit gate.xml
    """
    if (junit or markdown) and not fail_on:
        raise UsageError("--junit and --markdown report a gate; add --fail-on.")
    with _hidden():
        comparison = compare_files(
            names,
            store,
            fail_on=fail_on,
            variant=variant,
            positions=positions,
            corpus=corpus,
            framework=framework,
            compute_dtype=compute_dtype,
            reference=reference,
            holds=holds,
            exact=exact,
            has_experts=mixture_of_experts,
        )
    if as_json_:
        print_json(comparison.report)
    else:
        comparison.show()
    if comparison.gate is not None:
        end_with(comparison.gate, junit, markdown, as_json_)


@contextmanager
def _hidden() -> Iterator[None]:
    """Let imports of two packages fail, unless they are loaded.

    numba looks for these two when it loads: scipy for matrix products, cffi for pointers. No kernel
    of ours uses either, and to import both takes longer than to compare a dump of 10 MB.
    """
    absent = {"scipy", "cffi"} - sys.modules.keys()
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # None: as Python has it
    try:
        yield
    finally:
        for package in absent:
            del sys.modules[package]


class Comparison(NamedTuple):
    """What `compare` prints, as JSON; show: prints it as tables; gate: None without conditions."""

    report: dict[str, Any]
    show: Callable[[], None]
    gate: GateReport | None = None


def compare_files(
    names: Sequence[str],
    store: str | None = None,
    *,
    fail_on: Sequence[str] = (),
    variant: str | None = None,
    positions: bool = False,
    corpus: bool = False,
    framework: str | None = None,
    **taken_as: Any,
) -> Comparison:
    """Compare files, or the sides of a stored run; the arguments are the options of `compare`.

    taken_as: those for a dump.
    """
    conditions = parse_conditions(fail_on) if fail_on else []
    taken_as = {what: word for what, word in taken_as.items() if word}
    files = [Path(name) for name in names]
    opened: AbstractContextManager[Run]
    if are_arrays(files):
        opened = of_files(partial(compare_arrays, files, **taken_as))
    else:
        from .corpora import run_of, statistics_of  # loads DuckDB, and a third of ours

        has_options = bool(conditions or positions or variant or framework or taken_as)
        if (statistics := statistics_of(names, has_options=has_options)) is not None:
            return statistics
        opened = run_of(names, store, taken_as)
    with opened as run:
        if positions:
            run.header.check_short()
        header, texts = run.header, run.vocabulary
        pairs, classes = report_of_run(run)
        mismatch, corpora, gate = None, [], None
        if framework or run.has_rollouts:
            from .showing import mismatch_of, print_mismatch

            mismatch = mismatch_of(run, framework)
            pairs = [replace(pair, mismatch=mismatch) for pair in pairs]
        if corpus:
            from .corpora import corpora_of, print_corpus

            corpora = corpora_of(run, variant)
        if conditions:
            from ..runs.reports.gate import gate_of

            gate = gate_of(run, pairs, conditions)
    report = as_json(pairs, classes, header, variant=variant, with_positions=positions)
    # of responses: inputs of other lengths, texts that differ
    checks = [row for pair in pairs for row in pair.answer.checks]
    contexts = [row.says for row in checks if row.check == CONTEXT]
    if corpora:
        report["corpora"] = corpora
    if contexts:
        report["notes"] = contexts
    if gate is not None:
        report["gate"] = gate.as_json()

    def show() -> None:
        print_reports(pairs, classes, header, texts, variant)
        for says in contexts:
            print_note(says)
        if mismatch is not None:
            print_mismatch(mismatch)
        for each in corpora:
            print_corpus(each)

    return Comparison(report, show, gate)


@contextmanager
def of_files(compared: Callable[..., AbstractContextManager[Run]]) -> Iterator[Run]:
    """Yield a run that is made of files, while its progress is shown, and print what it notes."""
    with ExitStack() as stack:
        with steps() as say:
            run = stack.enter_context(compared(on_progress=say))
        if note := run.header.provenance.note:
            print_note(clean(note, _LONGEST_NOTE))
        yield run


def end_with(gate: GateReport, junit: Path | None, markdown: Path | None, as_json_: bool) -> None:
    """Print a gate's failures and undecided outcomes, write its reports; exit with 1 if it
    failed.
    """
    for kind in (FAILED, UNDECIDED):
        outcomes = [outcome for outcome in gate.outcomes if outcome.outcome == kind]
        for outcome in outcomes[:_MOST_LINES]:
            print_text(f"gate {kind}: {gate.sentence(outcome)}", err)
        if len(outcomes) > _MOST_LINES:
            print_text(f"gate {kind}: and {len(outcomes) - _MOST_LINES:,} more.", err)
    for note in gate.notes:
        print_note(note)
    if gate.outcome == PASSED and not as_json_:
        undecided = sum(outcome.outcome == UNDECIDED for outcome in gate.outcomes)
        passed = len(gate.outcomes) - undecided
        rest = f", undecided: {undecided:,}" if undecided else ""
        print_text(f"gate passed: {plural(passed, 'condition')}{rest}")
    write_gate(gate, junit, markdown)
    if gate.failed:
        raise Exit(1)


def write_gate(gate: GateReport, junit: Path | None, markdown: Path | None) -> None:
    # imported late: a comparison without a gate needs no XML
    from ..runs.reports.gate_files import append, junit_text, markdown_text, write_whole

    if junit is not None:
        write_whole(junit, junit_text(gate))
    if markdown is not None:
        append(markdown, markdown_text(gate))


def comment(
    report: Path = Argument(..., metavar="FILE", help="Markdown of `compare --markdown`."),
    name: str = Option("logits", help="Name of the gate; each has a comment of its own."),
    artifact: str = Option("", help="Address of the job's files."),
) -> None:
    """Write a gate's report as a comment on the job's pull request.

    If it cannot, warn: the gate decides.
    """
    # imported late: what speaks HTTP takes 0.2 s to load
    from ..pull_request import CommentError, put_comment

    text = "### ULPscope gate: no result\n\nThe job's log has the reason.\n"
    # else a comment of an earlier push would pass for the result of this one
    if report.is_file():
        text = report.read_text(encoding="utf-8")
    try:
        print_text(
            put_comment(os.environ, name, text, artifact) or "no pull request, so no comment.",
        )
    except CommentError as error:
        # a command of GitHub Actions: it has % as %25
        print_text(f"::warning title=ULPscope::{clean(error, 500).replace('%', '%25')}")
