"""Trainer against rollout on a terminal: `show RUN --as verl`."""

from ..errors import UsageError
from ..numerics.arrays import Record
from ..rl.queries import interval_of, mismatch_json, sentence
from ..runs.figures import Figures
from ..runs.measured import MemoryRun
from ..text import number, percent
from .terminal.console import out, print_records, print_text, table_of

OWN = "ulpscope"
_MOST_STEPS = 40
NO_TOKENS = "--as is for a rollout's and a trainer's log-probabilities of the sampled tokens."


def mismatch_of(run: Figures | MemoryRun, framework: str | None) -> Record | None:
    """Return the figures of a run of chosen tokens, None for another run.

    UsageError if a framework is named for it.
    """
    if isinstance(run, Figures) and run.has_rollouts:
        return mismatch_json(run, framework or OWN)
    if framework is not None:
        raise UsageError(NO_TOKENS)
    return None


def print_mismatch(mismatch: Record) -> None:
    """Print the figures, and where the difference lies."""
    rows = [
        (row["name"], number(row["value"]), interval_of(row), row["usual"], row["definition"])
        for row in mismatch["figures"]
    ]
    source = f" ({mismatch['source']})" if mismatch["source"] else ""
    columns = ("figure", "value", "95 % interval", "usual", "definition")
    title = f"{mismatch['framework']}{source}: r = trainer - rollout"
    out.print(table_of(columns, rows, title=title))
    if len(mismatch["by_step"]) > 1:
        steps = [row | {"mean_ratio": row["ratio"]} for row in mismatch["by_step"]]
        print_records(
            steps,
            "by step",
            keys=("step", "tokens", "mean_abs", "k3", "mean_ratio", "max_abs"),
            most=_MOST_STEPS,
        )
    print_text(sentence(mismatch))
    for bar in mismatch["bars"]:
        if bar["tokens"]:
            print_text(
                f"{bar['bar']}: {percent(bar['tokens'])} of the tokens, {percent(bar['kl'])} of"
                " the KL",
            )
