"""History of a sweep: each cell beside its last good run under another build or version, and the gate over it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError
from ..runs.file.evidence import FAILED, PASSED
from ..runs.file.records import FAILING
from ..runs.reports.gate import UNDECIDED, GateReport, Outcome
from ..text import joined, plural, shown
from .cards import CellCard
from .ledger import DONE, CellState
from .ledger import FAILED as CELL_FAILED
from .plan import OWN_ENGINE, in_short

CONDITIONS = ("changed", "bug", "flips")


@dataclass(frozen=True)
class CellChange:
    """A cell's latest run beside the run it is held against; None where there is no other. what: of `bits`, `flips`
    and `verdict`, those that are not what they were; builds: what it was computed with that differs, name -> (before,
    now).
    """

    state: CellState
    now: CellCard | None
    before: CellCard | None
    what: tuple[str, ...] = ()
    builds: Mapping[str, tuple[str, str]] | None = None

    @property
    def growth(self) -> tuple[float | None, ...]:
        """rms in row ULPs after each block, of the run of now; empty where its modules were not compared."""
        return () if self.now is None else self.now.growth

    @property
    def in_words(self) -> str:
        """The change in a sentence."""
        if self.now is None:
            return self.state.says or "has no run."
        if self.before is None:
            return "is the first run of its cell."
        since = joined(
            [f"{name} {old or 'none'} -> {new or 'none'}" for name, (old, new) in (self.builds or {}).items()]
        )
        with_ = f" ({shown(since, 400)})" if since else ""
        if not self.what:
            return f"is as it was{with_}."
        now, before = self.now, self.before
        told = {
            "bits": "other bits",
            "flips": f"{before.flips:,} -> {plural(now.flips, 'flip')}",
            "verdict": f"{shown(before.verdict)} -> {shown(now.verdict)}",
        }
        return f"changed: {joined([told[one] for one in self.what])}{with_}."

    def as_json(self) -> dict[str, Any]:
        return {
            "cell": self.state.cell,
            "axes": dict(self.state.axes),
            "state": self.state.state,
            "says": self.in_words,
            "run": self.now and self.now.run_id,
            "verdict": self.now and self.now.verdict,
            "noise_ratio": self.now and self.now.noise_ratio,
            "flips": self.now and self.now.flips,
            "neq_share": self.now and self.now.neq_share,
            "against": self.before and self.before.run_id,
            "changed": list(self.what),
            "builds": {name: list(pair) for name, pair in (self.builds or {}).items()},
        }


def is_good(card: CellCard) -> bool:
    """True of a run that may be held against: no bug was suspected in it, and it repeated its bits."""
    return card.verdict not in FAILING


def change_of(state: CellState, run_id: str = "", pinned: Collection[str] = ()) -> CellChange:
    """A cell's run beside its last good one. run_id: the run of now, by default the latest; pinned: ids of runs, of
    which the cell's is held against instead, where it has one.
    """
    if not state.cards:
        return CellChange(state, None, None)
    now = next((card for card in state.cards if card.run_id == run_id), state.cards[0])
    others = [card for card in state.cards if card is not now]
    held = [card for card in others if card.run_id in pinned] if pinned else [card for card in others if is_good(card)]
    if not held:
        return CellChange(state, now, None)
    before = held[0]
    what = {
        "bits": now.bits != before.bits,
        "flips": now.flips != before.flips,
        "verdict": now.verdict != before.verdict,
    }
    names = sorted({*now.versions, *before.versions})
    pairs = {name: (before.versions.get(name, ""), now.versions.get(name, "")) for name in names}
    builds = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    return CellChange(state, now, before, tuple(name for name, is_other in what.items() if is_other), builds)


def conditions_of(given: Sequence[str]) -> list[str]:
    """Conditions of --fail-on, which may hold several with commas between; UsageError for what is none."""
    found = list(dict.fromkeys(one.strip() for several in given for one in several.split(",")))
    unknown = next((one for one in found if one not in CONDITIONS), None)
    if unknown is not None:
        raise UsageError(f"--fail-on '{shown(unknown)}' is not known to a sweep; expected {joined(CONDITIONS)}.")
    return found


def gate_of(changes: Sequence[CellChange], conditions: Sequence[str]) -> GateReport:
    """Gate over every cell: one outcome a cell and condition. A cell without a run of now fails where it failed, and is
    undecided where it is missing.
    """
    outcomes = [_outcome(change, condition) for change in changes for condition in conditions]
    failed = sum(change.state.state != DONE for change in changes)
    notes = [f"{plural(failed, 'cell')} of {len(changes):,} have no finished run of this plan."] if failed else []
    return GateReport(tuple(outcomes), (), {}, tuple(notes))


def _outcome(change: CellChange, condition: str) -> Outcome:
    axes, now = change.state.axes, change.now
    engine = "" if axes["engine"] == OWN_ENGINE else f"{axes['engine']}:"
    where = [in_short(axis, axes[axis]) for axis in ("model", "dtype", "prompts", "device")]
    variant = f"{engine}{axes['path']} ({', '.join(filter(None, where))})"
    if change.state.state == CELL_FAILED:
        outcome, figure = FAILED, None
    elif now is None or change.state.state != DONE:
        outcome, figure = UNDECIDED, None
    else:
        is_failed, figure = _JUDGES[condition](change, now)
        is_open = condition == "changed" and change.before is None
        outcome = UNDECIDED if is_open else FAILED if is_failed else PASSED
    says = f"'{shown(variant, 200)}' against '{shown(axes['reference'], 100)}' {_says(change, condition)}"
    return Outcome(axes["reference"], variant, condition, outcome, figure, _UNITS[condition], says)


def _says(change: CellChange, condition: str) -> str:
    if change.state.state == CELL_FAILED:
        return f"failed: {change.state.says}"
    if change.now is None or condition == "changed":
        return change.in_words
    if condition == "bug":
        return f"is {shown(change.now.verdict)}."
    return f"has {plural(change.now.flips, 'flip')}."


_UNITS = {"changed": "", "bug": "", "flips": "positions"}
_JUDGES: dict[str, Callable[[CellChange, CellCard], tuple[bool, float | str | None]]] = {
    "changed": lambda change, _: (bool(change.what), ", ".join(change.what) or "nothing"),
    "bug": lambda _, now: (now.verdict in FAILING, now.verdict),
    "flips": lambda _, now: (now.flips > 0, now.flips),
}
