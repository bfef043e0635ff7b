"""Selection of a viewer behind every page, in the session: run, variant, prompt and position;
values of a link.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import streamlit as st

from core.numerics.arrays import DataFrame
from core.runs.file.records import RunHeader, StoredPair
from core.runs.reader import RunReader

LINKED = ("run", "variant", "prompt", "position")  # of a selection in an address


@dataclass(frozen=True)
class View:
    """One pair at one position of a run. table: figures by position; of a long run those of the
    selected prompt.
    """

    run: RunReader
    pair: StoredPair
    prompt: int
    position: int
    table: DataFrame

    @property
    def first_position(self) -> int:
        """First position of the prompt that was compared; of whole rows 0."""
        return int(self.prompt_table["position"].min())

    @property
    def last_position(self) -> int:
        return int(self.prompt_table["position"].max())

    @property
    def row(self) -> int:
        """Row of `table` at the selected position, or the one before it if nothing was compared
        there.
        """
        place = self.prompt_table["position"].searchsorted(self.position, "right")
        return int(self.prompt_table.index[max(0, place - 1)])

    @property
    def compared_positions(self) -> int:
        """Positions of the pair that were compared, of all prompts."""
        return self.header.rows if self.header.is_long else len(self.table)

    @property
    def is_list(self) -> bool:
        """Whether servers sent top tokens, so that the run has no whole rows."""
        return self.header.is_list

    # computing it takes 8 ms, and a page asks for it five times
    @cached_property
    def prompt_table(self) -> DataFrame:
        """Figures by position of the selected prompt."""
        return self.table[self.table["prompt"] == self.prompt]

    @property
    def texts(self) -> tuple[str, ...]:
        """Token texts of the selected prompt, empty if unknown."""
        return self.header.prompts[self.prompt].token_texts

    @property
    def of_prompt(self) -> str:
        """` of prompt 1`, which a position needs if there are several; else ''."""
        return self.header.of_prompt(self.prompt)

    @property
    def dtype(self) -> str:
        return self.header.compute_dtype

    @property
    def header(self) -> RunHeader:
        return self.run.header


def stamp(view: View) -> str:
    """Text that names the run, pair and prompt that a position belongs to."""
    return f"{view.run.run_id} {view.pair.index} {view.prompt}"


def select(**values: str | int | None) -> None:
    """Change the selection; for callbacks, which run before the widgets of the selection are
    drawn.
    """
    st.session_state.update(values)


def settle(key: str, options: Iterable[str]) -> None:
    """Select the first option unless the session, a link or the viewer, holds one of them."""
    names = list(options)
    if st.session_state.get(key) not in names:
        st.session_state[key] = names[0]


def select_row(table: DataFrame, key: str) -> None:
    """Select the position of the clicked row of `listed`, the table `key`, by its columns prompt
    and position.
    """
    # In a callback: what the element returns would select only after the sidebar was drawn.
    view = current_view()
    for place in _all_clicked(key):
        row = table.iloc[place]
        prompt = int(row["prompt"])
        position = int(row["position"])
        # the marked row stays selected if another row's cell is clicked
        if view is None or (prompt, position) != (view.prompt, view.position):
            select(prompt=prompt, position=position)


def clicked_rows(key: str) -> list[int]:
    """Return the clicked row of the table `key`, if there is one."""
    return _all_clicked(key)[:1]


def _all_clicked(key: str) -> list[int]:
    """Return the rows that are selected, and those of cells that are."""
    clicked = st.session_state[key]["selection"]
    rows = clicked.get("rows", [])
    rows_of_cells = [row for row, _ in clicked.get("cells", [])]
    return [*rows, *rows_of_cells]


def mark_row(table: DataFrame, key: str) -> None:
    """Mark the selected position in the table `key`, whose columns prompt and position name it."""
    view = current_view()
    assert view is not None
    is_here = (table["prompt"] == view.prompt) & (table["position"] == view.position)
    rows = np.flatnonzero(is_here)[:1].tolist()
    if key not in st.session_state or clicked_rows(key) != rows:
        st.session_state[key] = {
            "selection": {
                "rows": rows,
                "columns": [],
                "cells": [],
            },
        }


def new_run(run_id: str | None = None) -> None:
    """Forget what was selected within the run that was open, and open another one."""
    for key in ("variant", "prompt", "position", "heatmap_rows", "heatmap_tokens", "heatmap_token"):
        st.session_state.pop(key, None)
        st.session_state.get("settings", {}).pop(key, None)
    if run_id is not None:
        st.session_state["run"] = run_id


def open_run(run_id: str) -> None:
    """Leave for the Overview of a run; for callbacks."""
    new_run(run_id)
    st.session_state["opened"] = "overview"


def preset_widget(key: str) -> None:
    """Have the widget of this key show what the session holds, before it is drawn.

    Streamlit tells the browser a value that the script set once. If a second run comes before the
    browser has the widget's code, the widget would begin at its default, and say that with the next
    click.
    """
    # To set a value marks it as the script's, so it is sent again.
    st.session_state[key] = st.session_state[key]


def current_view() -> View | None:
    """View that the sidebar of this script run selected."""
    return st.session_state.get("view")


def take(key: str) -> str | None:
    """Return the value that the link gives for `key`, once."""
    return st.session_state.get("linked", {}).pop(key, None)


def is_linked(key: str) -> bool:
    """Return whether the link gives a value for `key` that nothing has taken yet."""
    return key in st.session_state.get("linked", {})


def report_bad_link(sentence: str) -> None:
    """Report that a link leads nowhere, and show the gallery instead of another view under the old
    link.
    """
    complain(sentence)
    st.session_state["astray"] = True


def complain(sentence: str) -> None:
    """Keep a sentence for the top of the page.

    It is shown as plain text, so it may quote a link.
    """
    st.session_state.setdefault("complaints", []).append(sentence)
