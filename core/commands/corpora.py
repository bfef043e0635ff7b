"""`compare` of what is no file of arrays: server responses, sampled tokens, other containers, runs
and corpora.

Of a corpus: the statistics of llama-perplexity, of two of its files or of a run, and of two files
of lm-eval's `--log_samples` (lm_eval/loggers/evaluation_tracker.py) which answers changed, at which
margin, and how many are near ties.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..command_name import COMMAND
from ..errors import DumpError, UlpscopeError, UsageError
from ..judging.ingest import temporary_run
from ..numerics.arrays import DataFrame, Floats, Record
from ..numerics.corpus import ScoredTokens, statistics
from ..responses.bounded_json import begins, documents
from ..responses.files import side_names
from ..rl.figures import Figure, Sequences, intervals
from ..rl.formats import files_in
from ..runs.corpus import are_logs, by_position, score_logs, score_pair
from ..runs.dumps.arrays import foreign_errors
from ..runs.measured import MemoryRun
from ..runs.reader import RunReader
from ..runs.reports.report_json import plain_number
from ..runs.store.store import open_store
from ..text import clean, number, plural, shorten
from .comparing import Comparison, of_files
from .terminal.console import out, print_note, print_records, steps, table_of

if TYPE_CHECKING:
    from .comparing import Run

_MOST_ANSWERS = 20  # on a terminal
_LONGEST = 2000  # characters of a text that is kept
# median changes of a document's scores; that of a margin is 1.4 if choices move independently
_NEAR = 2
_Key = tuple[str, str]  # filter, doc_id


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
            tokens = score_logs(files, say)
        corpus = _statistics(tokens, files[0].stem, files[1].stem, "chunk")
        corpus |= {"cut_tokens": tokens.cut}
        return Comparison(corpus, partial(print_corpus, corpus))
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


def corpora_of(run: RunReader | MemoryRun, variant: str | None) -> list[Record]:
    """Return the statistics of every pair of a run, or of one."""
    # the last position of a prompt has no next token
    most = run.header.rows - len(run.header.prompts)
    corpora = []
    for pair in run.pairs:
        if variant in (None, pair.variant):
            tokens = score_pair(run, pair.index)
            corpus = _statistics(tokens, pair.reference, pair.variant, "prompt")
            corpora.append(corpus | {"left_out": most - len(tokens.kl)})
    return corpora


def _statistics(
    tokens: ScoredTokens,
    reference: str,
    variant: str,
    document: str,
) -> Record:
    """Return statistics with null for what is undefined. document: what a text of the corpus is
    called.
    """
    return plain_json(
        {
            "reference": reference,
            "variant": variant,
            "positions": len(tokens.kl),
            f"{document}s": len(np.unique(tokens.document)),
            "figures": statistics(tokens),
            "by_position": by_position(tokens),
        },
    )


def plain_json(value: Any) -> Any:
    """Return a value with null for what is undefined."""
    if isinstance(value, dict):
        return {key: plain_json(each) for key, each in value.items()}
    # NaN and infinity are no JSON
    return [plain_json(each) for each in value] if isinstance(value, list) else plain_number(value)


def print_corpus(corpus: Record) -> None:
    """Print the statistics as llama-perplexity names them, and by position."""
    rows = []
    for figure in corpus["figures"]:
        low, high, error = figure["low"], figure["high"], figure["uncertainty"]
        interval = "" if low is None else f"{number(low)} to {number(high)}"
        spread = "" if error is None else number(error)
        rows.append((figure["name"], number(figure["value"], 6), spread, interval, figure["unit"]))
    document = "chunk" if "chunks" in corpus else "prompt"
    of = f"{plural(corpus['positions'], 'position')} of {plural(corpus[f'{document}s'], document)}"
    title = f"Q: {corpus['variant']}, base: {corpus['reference']}: {of}"
    # a side gives no probability to a token of the other
    if left_out := corpus.get("left_out"):
        title += f", {left_out:,} without a finite KL left out"
    columns = ("figure", "value", "±", f"95% interval over {document}s", "unit")
    out.print(table_of(columns, rows, title=title, text=("figure", "unit")))
    print_records(corpus["by_position"], "by position in the context")
    if cut := corpus.get("cut_tokens"):
        what = plural(cut, "right token is", "right tokens are")
        print_note(
            f"{what} less likely than the files can say (16 nats below the likeliest), so the"
            " perplexities are too low.",
        )


@dataclass(frozen=True)
class Sample:
    """A line of a file. scores: what the argmax of a metric is over, nats; text: all responses."""

    hashes: tuple[str, str]  # of document and prompt
    target: str
    metrics: dict[str, float]
    scores: dict[str, Floats]
    text: str


def are_samples(paths: Sequence[Path]) -> bool:
    """Return whether these are two files of lm-eval's samples, by their first bytes."""
    return len(paths) == 2 and all(begins(path, b'{"doc_id":') for path in paths)


def read_samples(path: Path) -> dict[_Key, Sample]:
    """Return the samples of a file by filter and document.

    Raises:
        DumpError: a line is no sample, or a document occurs twice.
    """
    samples: dict[_Key, Sample] = {}
    for source, line in documents(path):
        with foreign_errors(source, "a sample of lm-eval"):
            key = str(line.get("filter", "none")), str(line["doc_id"])
            sample = _sample(line)
        if key in samples:
            raise DumpError(
                f"{source}: document {clean(key[1])} occurs twice; expected a file of one"
                " evaluation.",
            )
        samples[key] = sample
    return samples


def _sample(line: Record) -> Sample:
    """Return a sample with its scores as in `process_results` of lm_eval/api/task.py: acc_norm is
    per character.
    """
    responses, arguments, scores = line["filtered_resps"], line["arguments"], {}
    # the unconditional ones follow
    choices = len(responses) // (2 if "acc_mutual_info" in line["metrics"] else 1)
    if choices > 1 and all(isinstance(each, list) and len(each) == 2 for each in responses):
        logliks = np.array([float(each[0]) for each in responses[:choices]])
        # without the delimiter, as lm-eval counts characters of a choice
        lengths = [
            len(str(arguments[f"gen_args_{n}"]["arg_1"]).removeprefix(" ")) for n in range(choices)
        ]
        scores = {"acc": logliks, "acc_norm": logliks / np.maximum(1, lengths)}
    metrics = {
        name: float(line[name]) for name in line["metrics"] if isinstance(line[name], int | float)
    }
    hashes = str(line.get("doc_hash", "")), str(line.get("prompt_hash", ""))
    target, text = (shorten(str(each), _LONGEST) for each in (line["target"], responses))
    return Sample(hashes, target, metrics, scores, text)


def compare_samples(paths: Sequence[Path]) -> Record:
    """Return scores by metric and filter, and the answers that changed, the largest margin first;
    null if undefined.

    Raises:
        DumpError: a file is damaged, or the files are of other documents.
    """
    import pandas as pd

    reference, variant = (read_samples(path) for path in paths)
    pairs = {key: (sample, variant[key]) for key, sample in reference.items() if key in variant}
    # an id is a place in a task, so the hash alone tells that documents are the same
    if not pairs or any(a.hashes[0] != b.hashes[0] for a, b in pairs.values()):
        raise DumpError(
            f"{clean(paths[1].name)}: has other documents than {clean(paths[0].name)}; expected one"
            " task.",
        )
    table = pd.DataFrame(
        [_compare(key, metric, *pair) for key, pair in pairs.items() for metric in pair[0].metrics],
    )
    if table.empty:
        raise DumpError(
            f"{clean(paths[0].name)}: has no scores; expected `metrics` of each sample.",
        )
    group = table.groupby(["filter", "metric"], sort=False)
    table["near_tie"] = table["margin"] <= _NEAR * group["move"].transform("median")
    table["change"] = table["variant_score"] - table["reference_score"]
    is_changed = (table["reference_answer"] != table["variant_answer"]) | (table["change"] != 0)
    # stable: equal margins stay in the order of the file
    changed_rows = table[is_changed].sort_values("margin", ascending=False, kind="stable")
    names = [clean(str(path)) for path in paths]
    if paths[0].name != paths[1].name:
        names = side_names(paths)
    changes = {
        "reference": names[0],
        "variant": names[1],
        "samples": len(pairs),
        "left_out": len(reference) + len(variant) - 2 * len(pairs),
        "other_prompts": sum(a.hashes[1] != b.hashes[1] for a, b in pairs.values()),
        "scores": [_score(rows.assign(changed=is_changed)) for _, rows in group],
        "changed": changed_rows.drop(columns=["move", "change"]).to_dict("records"),
    }
    return plain_json(changes)


def _compare(key: _Key, metric: str, a: Sample, b: Sample) -> Record:
    """Return answers and scores of a document on both sides. margin: the smaller one, NaN if
    unknown; move: rms change of what the margins are of, NaN if there is none.
    """
    row: Record = {
        "metric": metric,
        "filter": key[0],
        "doc_id": key[1],
        "target": a.target,
        "reference_answer": a.text,
        "variant_answer": b.text,
        "reference_score": a.metrics[metric],
        "variant_score": b.metrics.get(metric, np.nan),
        "margin": np.nan,
        "move": np.nan,
    }
    scores = [side.scores[metric] for side in (a, b) if metric in side.scores]
    if len(scores) == 2 and len(scores[0]) == len(scores[1]) and not np.isnan(scores).any():
        row["reference_answer"], row["variant_answer"] = np.argmax(scores, axis=1).tolist()
        row["margin"] = float(np.diff(np.sort(scores)[:, -2:]).min())
        row["move"] = float(np.sqrt(np.mean((scores[1] - scores[0]) ** 2))) or np.nan
    return row


def _score(rows: DataFrame) -> Record:
    """Return a metric on both sides over all documents, with the 95 % interval of its change."""
    change = rows["change"].to_numpy()
    # a document is a sequence of one token, so the bootstrap draws documents
    sequences = Sequences({"tokens": np.ones(len(rows)), "change": change})
    ((low, high),) = intervals(sequences, [Figure("change", "", lambda b: b.mean("change"))])
    return {
        **rows.iloc[0][["metric", "filter"]],
        "reference": float(rows["reference_score"].mean()),
        "variant": float(rows["variant_score"].mean()),
        "change": float(change.mean()),
        "low": low,
        "high": high,
        "lower": int((change < 0).sum()),
        "higher": int((change > 0).sum()),
        "changed": int(rows["changed"].sum()),
        "changed_near_ties": int((rows["changed"] & rows["near_tie"]).sum()),
        "near_ties": int(rows["near_tie"].sum()),
        "median_move": float(rows["move"].median()),
    }


def print_samples(changes: Record) -> None:
    """Print scores, and the answers that changed."""
    print_records(
        changes["scores"],
        f"{changes['variant']} vs {changes['reference']}: {plural(changes['samples'], 'sample')}",
    )
    print_records(changes["changed"], "changed answers", most=_MOST_ANSWERS)
    if count := changes["other_prompts"]:
        print_note(f"the prompt differs at {plural(count, 'sample')}.")
    if count := changes["left_out"]:
        print_note(f"{plural(count, 'sample')} of one file alone left out.")
