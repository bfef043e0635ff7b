"""Trainer against rollout on a terminal: `show RUN --as verl`."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Option

from ..errors import UsageError
from ..numerics.mismatch import FRAMEWORKS
from ..runs.figures import Figures
from ..runs.queries.mismatch import has_rollouts, mismatch_json
from ..text import number, percent, plural
from .terminal.console import out, print_records, print_text, table_of

OWN = "ulpscope"
_LEAST_SHARE, _LEAST_TOKENS = 0.02, 1000  # of what |r| is said to depend on
_MOST_STEPS = 40
NO_TOKENS = "--as is for a rollout's and a trainer's log-probabilities of the sampled tokens."
As = Annotated[
    str | None,
    Option(
        "--as",
        help=f"For trainer vs. rollout: figures as this framework defines and names them: {', '.join(FRAMEWORKS)}.",
    ),
]


def mismatch_of(run: Figures, framework: str | None) -> dict[str, Any] | None:
    """Return the figures of a run of chosen tokens, None for another run. UsageError if a framework is named for it."""
    if has_rollouts(run):
        return mismatch_json(run, framework or OWN)
    if framework is not None:
        raise UsageError(NO_TOKENS)
    return None


def print_mismatch(mismatch: dict[str, Any]) -> None:
    """Print the figures, and where the difference lies."""
    rows = []
    for figure in mismatch["figures"]:
        low, high = figure["low"], figure["high"]
        interval = "" if low is None else f"{number(low)} to {number(high)}"
        rows.append((figure["name"], number(figure["value"]), interval, figure["unit"], figure["definition"]))
    of = f"{plural(mismatch['tokens'], 'token')} of {plural(mismatch['sequences'], 'sequence')}"
    source = f" ({mismatch['source']})" if mismatch["source"] else ""
    title = f"{mismatch['framework']}{source}: {of}, r = trainer - rollout"
    out.print(table_of(("figure", "value", "95 % interval", "unit", "definition"), rows, title=title))
    if len(mismatch["by_step"]) > 1:
        print_records(mismatch["by_step"], "by step", most=_MOST_STEPS)
    print_text(f"half of the KL (k3) is in {mismatch['tokens_with_half_of_kl']:,} of {mismatch['tokens']:,} tokens")
    for bar in mismatch["bars"]:
        if bar["tokens"]:
            print_text(f"{bar['bar']}: {percent(bar['tokens'])} of the tokens, {percent(bar['kl'])} of the KL")
    name, share = next(iter(mismatch["explained_by"].items()), ("", 0.0))
    if share >= _LEAST_SHARE and mismatch["tokens"] >= _LEAST_TOKENS:
        print_text(f"|r| depends most on the {name}: {percent(share)} of its variance")
