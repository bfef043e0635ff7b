"""`compare` of what is no file of arrays: samples of lm-eval, logs of llama.cpp, server responses,
sampled tokens, other containers, and stored runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..command_name import COMMAND
from ..errors import UlpscopeError, UsageError
from ..judging.ingest import temporary_run
from ..rl.formats import files_in
from ..runs.corpus import are_logs
from ..runs.reader import RunReader
from ..runs.store.store import open_store
from .comparing import Comparison, of_files
from .corpora import are_samples, compare_samples, corpus_of_logs, print_corpus, print_samples
from .terminal.console import steps

if TYPE_CHECKING:
    from .comparing import Run


def statistics_of(names: Sequence[str], *, has_options: bool) -> Comparison | None:
    """Return the statistics of files that make no run, None of others. has_options: those of a
    comparison are given.
    """
    files = files_in(names)
    if are_samples(files):
        if has_options:
            raise UsageError(
                "Samples of lm-eval have no logits; leave out every option but --json.",
            )
        changes = compare_samples(files)
        return Comparison(changes, partial(print_samples, changes))
    if are_logs(files) and not has_options:
        with steps() as say:
            statistics = corpus_of_logs(files, say)
        return Comparison(statistics, partial(print_corpus, statistics))
    return None


def run_of(
    names: Sequence[str],
    store: str | None,
    taken_as: Mapping[str, Any],
) -> AbstractContextManager[Run]:
    """Return a stored run, or the run that files make, which is gone afterwards."""
    name = Path(names[0])
    if len(names) == 1 and not name.exists():
        try:
            path = open_store(store).path_of(names[0])
        except UlpscopeError:
            # without a suffix it was meant as the id of a run
            if not name.suffix:
                raise
        else:
            if taken_as:
                raise UsageError(
                    "--compute-dtype, --reference, --holds, --exact and --mixture-of-experts are"
                    " for dumps; a stored run has its own. To judge it:"
                    f" {COMMAND} verdict {names[0]} --exact FILE.",
                )
            return RunReader(path)
    return of_files(partial(temporary_run, files_in(names), **taken_as))
