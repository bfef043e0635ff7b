"""Selection of a viewer behind every page: the open run, variant, prompt and position.

The selection lives in the session (here), comes out of a link (app/shell/link.py) and goes into the address bar
(app/shell/address.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import streamlit as st

from core.runs.queries.elements import row_of
from core.runs.reader import RunReader, StoredPair
from core.runs.sparse_run import SparseRun
from core.runs.topk.pairing import ListPair, ListPosition

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class View:
    """One pair at one position of an open run. `table` has the pair's figures, one row a position of every prompt."""

    run: RunReader
    pair: StoredPair
    prompt: int
    position: int
    table: pd.DataFrame

    @property
    def first_position(self) -> int:
        return 0

    @property
    def last_position(self) -> int:
        return self.run.header.prompts[self.prompt].positions - 1

    @property
    def row(self) -> int:
        return row_of(self.run, self.prompt, self.position)

    @property
    def prompt_table(self) -> pd.DataFrame:
        return self.table[self.table["prompt"] == self.prompt]

    @property
    def here(self) -> pd.Series:
        """The figures at the selected position."""
        return self.table.iloc[self.row]

    @property
    def texts(self) -> tuple[str, ...]:
        """Token texts of the selected prompt, empty if unknown."""
        return self.run.header.prompts[self.prompt].token_texts

    @property
    def dtype(self) -> str:
        return self.run.header.compute_dtype


@dataclass(frozen=True)
class SparseView:
    """One pair of sparse sides at one position. `table`: as core.runs.views.sparse.figures_by_position."""

    run: SparseRun
    pair: ListPair
    prompt: int
    position: int
    table: pd.DataFrame

    @property
    def prompts(self) -> int:
        return len(self.pair.meetings)

    @property
    def first_position(self) -> int:
        return int(self.prompt_table["position"].min())

    @property
    def last_position(self) -> int:
        return int(self.prompt_table["position"].max())

    @property
    def prompt_table(self) -> pd.DataFrame:
        return self.table[self.table["prompt"] == self.prompt]

    @property
    def here(self) -> ListPosition:
        """The compared position that is selected, or the one before it where nothing was sent for it."""
        return self.pair.positions[self.row]

    @property
    def row(self) -> int:
        table = self.prompt_table
        before = table[table["position"] <= self.position]
        return int((before if len(before) else table).index[-1 if len(before) else 0])


def stamp(view: View | SparseView) -> str:
    """Text that names the run, pair and prompt that a position belongs to."""
    pair = view.pair.variant if isinstance(view, SparseView) else view.pair.index
    return f"{view.run.run_id} {pair} {view.prompt}"


def select(**values: str | int) -> None:
    """Change the selection; for callbacks, which run before the widgets of the selection are drawn."""
    for key, value in values.items():
        st.session_state[key] = value


def select_row(listed: pd.DataFrame, key: str) -> None:
    """Select the position of the clicked row of `listed`, the table `key`, by its columns prompt and position."""
    clicked = st.session_state[key]["selection"]
    rows = [*clicked.get("rows", []), *(cell[0] for cell in clicked.get("cells", []))]
    if rows:
        row = listed.iloc[rows[0]]
        select(prompt=int(row["prompt"]), position=int(row["position"]))


def new_run() -> None:
    """Forget what was selected within the run that was open."""
    for key in ("variant", "prompt", "position", "heatmap_rows", "heatmap_tokens", "heatmap_token"):
        st.session_state.pop(key, None)
        st.session_state.get("settings", {}).pop(key, None)


def preset_widget(key: str) -> None:
    """Have the widget of this key show what the session holds, before it is drawn.

    Streamlit tells the browser a value that was set by the script once. Where a second run comes before the browser has
    fetched the widget's code (another element asks for one as soon as it is drawn), the widget would begin at its
    default, and say that with the next click.
    """
    st.session_state[key] = st.session_state[key]


def current_view() -> View | SparseView | None:
    """View that the sidebar of this script run selected."""
    return st.session_state.get("view")
