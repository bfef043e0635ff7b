"""A cell of a sweep, computed in this process as `capture` would, into a run that is named by its digests."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..engines.registry import use_all as use_engines
from ..errors import UlpscopeError
from ..runs.file.database import each_database
from ..runs.store.partial import remove_living
from ..runs.store.store import Store, open_store
from ..sweeps.cards import CellCard, read_card
from ..sweeps.ledger import DONE, FAILED, RUNNING, CellOutcome, Ledger, run_id_of
from ..sweeps.plan import Cell
from ..text import shown
from .capturing import load, plan_of, run_plan
from .terminal.console import Tell
from .terminal.stopping import EXIT_CODE, stopping

if TYPE_CHECKING:  # torch is for those who run a model
    from ..inference.models.model import LoadedModel

_loaded: dict[tuple[object, ...], LoadedModel] = {}  # the model of the last cell, for the next one


def compute_cell(cell: Cell, address: str, engines: Sequence[str] = ()) -> CellOutcome:
    """Compute a cell in a worker, unless its run is there. address: of the store."""
    use_engines(list(engines))
    store = open_store(address)
    try:
        with stopping(remove_living, says=lambda: ""):
            return outcome_of(store, cell)
    except KeyboardInterrupt:
        sys.exit(EXIT_CODE)


def outcome_of(store: Store, cell: Cell, say: Tell = lambda *_: None) -> CellOutcome:
    """Compute a cell, unless its run is there or another process writes it. Does not raise, whatever goes wrong."""
    ledger = Ledger(store)
    try:
        if not cell.is_unchanged():
            return CellOutcome(cell, FAILED, says="its prompts are not those that the plan was read with.")
        run_id = _run_id_of(cell)
        is_there = store.has(run_id)
        if not is_there and cell.asked in ledger.running():
            return CellOutcome(cell, RUNNING, says="another process computes it.")
        if not is_there:
            plan = plan_of(cell.request, loaded=_model_of(cell, say))
            run_plan(cell.request, plan, store, say, run_id)
        return CellOutcome(cell, DONE, run_id, was_there=is_there, card=_card_of(store, run_id, is_there))
    except UlpscopeError as error:
        if cell.asked in ledger.running():  # it began in the same moment
            return CellOutcome(cell, RUNNING, says="another process computes it.")
        return CellOutcome(cell, FAILED, says=str(error))
    except MemoryError:
        return CellOutcome(cell, FAILED, says="its process ran out of memory.")
    except Exception as error:
        return CellOutcome(cell, FAILED, says=f"{type(error).__name__}: {shown(str(error), 300)}")


def _run_id_of(cell: Cell) -> str:
    """Id of a cell's run here; the model's weights are not loaded."""
    from ..inference.capture.environment import environment_of

    return run_id_of(cell.asked, environment_of(cell.request, plan_of(cell.request, weights=False)))


def _model_of(cell: Cell, say: Tell) -> LoadedModel:
    request = cell.request
    key = (request.model, request.dtype, request.device)
    if key not in _loaded:
        _loaded.clear()  # before the next one takes memory
        say("loading the model")
        _loaded[key] = load(request)
    return _loaded[key]


def _card_of(store: Store, run_id: str, is_there: bool) -> CellCard | None:
    """Card of a run that was computed here, so that nobody has to fetch the run for it."""
    if is_there:
        return None
    ((_, card),) = each_database([store.path_of(run_id)], read_card)
    return card if isinstance(card, CellCard) else None
