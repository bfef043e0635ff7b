"""History of a sweep: each cell vs. its last good run under another build or version, and the gate
over it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import UsageError
from ..evidence import FAILED, PASSED
from ..runs.reports.conditions import UNDECIDED, Outcome
from ..runs.reports.gate import GateReport
from ..text import clean, plural, series
from ..verdict import FAILING, NOT_JUDGED
from .ledger import DONE, CellCard, CellState
from .ledger import FAILED as CELL_FAILED
from .plan import OWN_ENGINE, in_short

CONDITIONS = ("changed", "bug", "flips")


@dataclass(frozen=True)
class CellChange(CellState):
    """A cell with its latest run and the run it is compared with, None if there is none. what:
    those of `bits`, `flips` and `verdict` that changed; builds: versions that changed, name ->
    (old, new).
    """

    now: CellCard | None = None
    baseline: CellCard | None = None
    what: tuple[str, ...] = ()
    builds: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def done(self) -> CellCard | None:
        """The latest run, None unless the cell is done."""
        return self.now if self.state == DONE else None

    @property
    def growth(self) -> tuple[float | None, ...]:
        """RMS in row ULPs after each block, of the latest run; empty if its modules were not
        compared.
        """
        return () if self.now is None else self.now.growth

    @property
    def in_words(self) -> str:
        """The change in a sentence."""
        if self.now is None:
            return self.says or "no run."
        if self.baseline is None:
            return "first run of this cell."
        changes = self.builds.items()
        since = series(
            [f"{name} {old or 'none'} -> {new or 'none'}" for name, (old, new) in changes]
        )
        with_ = f" ({clean(since, 400)})" if since else ""
        if not self.what:
            return f"unchanged{with_}."
        old, new = self.baseline, self.now
        phrases = {
            "bits": "different bits",
            "flips": f"{old.flips:,} -> {plural(new.flips, 'flip')}",
            "verdict": f"{clean(old.verdict)} -> {clean(new.verdict)}",
        }
        return f"changed: {series([phrases[one] for one in self.what])}{with_}."

    def as_json(self) -> dict[str, Any]:
        now = self.now
        keys = ("verdict", "noise_ratio", "flips", "neq_share")
        return {
            "cell": self.cell,
            "axes": dict(self.axes),
            "state": self.state,
            "says": self.in_words,
            "run": now and now.run_id,
            **{key: now and getattr(now, key) for key in keys},
            "against": self.baseline and self.baseline.run_id,
            "changed": list(self.what),
            "builds": {name: list(pair) for name, pair in self.builds.items()},
        }


def change_of(state: CellState, run_id: str = "", pinned: Collection[str] = ()) -> CellChange:
    """Compare a cell's run with its last one that is not failing. run_id: the run to compare, by
    default the latest; pinned: ids of runs; if the cell has one of them, that is the baseline.
    """
    if not state.cards:
        return CellChange(**vars(state))
    now = next((card for card in state.cards if card.run_id == run_id), state.cards[0])
    for baseline in state.cards:
        is_good = baseline.verdict not in FAILING
        if pinned:
            is_good = baseline.run_id in pinned
        if is_good and baseline is not now:
            break
    else:
        return CellChange(**vars(state), now=now)
    names = "bits", "flips", "verdict"
    what = tuple(name for name in names if getattr(now, name) != getattr(baseline, name))
    builds = {}
    for name in sorted({*now.versions, *baseline.versions}):
        pair = baseline.versions.get(name, ""), now.versions.get(name, "")
        if pair[0] != pair[1]:
            builds[name] = pair
    return CellChange(**vars(state), now=now, baseline=baseline, what=what, builds=builds)


def conditions_of(texts: Sequence[str]) -> list[str]:
    """Parse the conditions of --fail-on, comma-separated or repeated.

    UsageError for an unknown one.
    """
    conditions = list(dict.fromkeys(one.strip() for several in texts for one in several.split(",")))
    for one in conditions:
        if one not in CONDITIONS:
            raise UsageError(
                f"--fail-on '{clean(one)}' is not a condition of a sweep; expected"
                f" {series(CONDITIONS)}.",
            )
    return conditions


def gate_of(changes: Sequence[CellChange], conditions: Sequence[str]) -> GateReport:
    """Return the gate over all cells and conditions.

    A cell that failed fails, a missing one is undecided.
    """
    outcomes = [_outcome(change, condition) for change in changes for condition in conditions]
    unfinished = sum(change.state != DONE for change in changes)
    note = f"{plural(unfinished, 'cell')} of {len(changes):,} have no finished run of this plan."
    return GateReport(tuple(outcomes), notes=(note,) if unfinished else ())


def _outcome(change: CellChange, condition: str) -> Outcome:
    axes = change.axes
    now = change.now
    figure: float | str | None = None
    outcome = UNDECIDED
    says = change.in_words
    if change.state == CELL_FAILED:
        outcome = FAILED
        says = f"failed: {change.says}"
    elif now is not None:
        is_failed = bool(change.what)
        figure = ", ".join(change.what) or "nothing"
        if condition == "bug":
            is_failed = now.verdict in FAILING
            figure = now.verdict
            says = f"is {clean(now.verdict)}."
        elif condition == "flips":
            is_failed = now.flips > 0
            figure = now.flips
            says = f"has {plural(now.flips, 'flip')}."
        if not change.done:
            # the sentence is of the last run of a cell that runs again, and decides nothing
            figure = None
        elif condition == "bug" and now.verdict in (NOT_JUDGED, UNDECIDED):
            outcome = UNDECIDED
        elif condition != "changed" or change.baseline:
            outcome = FAILED if is_failed else PASSED
    engine = "" if axes["engine"] == OWN_ENGINE else f"{axes['engine']}:"
    place = [in_short(axis, axes[axis]) for axis in ("model", "dtype", "prompts", "device")]
    variant = f"{engine}{axes['path']} ({', '.join(filter(None, place))})"
    says = f"'{clean(variant, 200)}' vs '{clean(axes['reference'], 100)}' {says}"
    unit = "positions" if condition == "flips" else ""
    return Outcome(axes["reference"], variant, condition, outcome, figure, unit, says)
