"""Downloads: a table as CSV or Parquet, and what a figure is saved as.

CSV has every digit, whole numbers as such, and nothing for an undefined value. A text like a
formula, and one that begins with an apostrophe, gets an apostrophe in front: texts are of others.
Parquet has every text as it is.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal
from urllib.parse import quote

import streamlit as st

from app.shell import selection
from core.numerics.arrays import DataFrame, Record
from core.plots.style import inert
from core.runs.reader import RunReader
from core.text import file_name, slug

Scope = Literal["pair", "prompt", "position"]  # of what a figure shows
# How a formula begins for spreadsheets, also in wide forms; the apostrophe, so that it can be
# undone.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "'", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def inert_text(value: object) -> object:
    """Return a text that no spreadsheet evaluates; other values unchanged."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def with_headings(table: DataFrame) -> DataFrame:
    """Return the table with headings that say that ranks begin at 1."""
    return table.rename(
        columns=lambda name: f"{name} (1 = argmax)" if str(name).endswith("_rank") else name,
    )


def csv(table: DataFrame) -> bytes:
    """Table as CSV in UTF-8."""
    # pages start without pandas
    from pandas.api.types import is_numeric_dtype

    output = with_headings(table)
    for column in output.columns:
        # bool counts as a number
        if not is_numeric_dtype(output[column].dtype):
            output[column] = output[column].astype(object).map(inert_text)
    # Lines end as RFC 4180 has them: with a bare \n a text with a \r in it would not be quoted, and
    # tear its line.
    return output.rename(columns=inert_text).to_csv(index=False, lineterminator="\r\n").encode()


def parquet(table: DataFrame) -> bytes:
    """Table as Parquet, with its types, texts as they are."""
    return with_headings(table).to_parquet(index=False)


_FORMS = (("CSV", csv, "text/csv"), ("Parquet", parquet, "application/vnd.apache.parquet"))


def download(
    tables: Mapping[str, Callable[[], DataFrame] | DataFrame],
    name: str,
    key: str,
    label: str = "Download",
) -> None:
    """Draw a popover with every table as CSV and as Parquet; a file is made on request.

    tables: by what each is called, the table or what makes it. name: the beginning of the files'
    names.
    """

    def content_of(form: Callable[[DataFrame], bytes], title: str) -> bytes:
        table = tables[title]
        return form(table() if callable(table) else table)

    popover = st.popover(
        label,
        icon=":material/download:",
        key=f"{key}_download",
        on_change="rerun",
    )
    if not popover.open:
        return
    with popover:
        for number, title in enumerate(tables):
            stem = name
            if len(tables) > 1:
                st.markdown(f"**{title[:1].upper()}{title[1:]}**")
                stem = f"{name}-{slug(title).lower()}"
            with st.container(horizontal=True):
                for form, make, kind in _FORMS:
                    # A function is called on a click, in a thread of its own; "ignore": the page
                    # is not drawn anew for it.
                    st.download_button(
                        form,
                        partial(content_of, make, title),
                        f"{stem}.{form.lower()}",
                        kind,
                        f"{key}_{number}_{form}",
                        on_click="ignore",
                    )
        st.caption(
            "Full precision, texts in full. CSV cells that look like formulas begin with an"
            " apostrophe.",
        )


def file_stem(view: selection.View, what: str, *, at_position: bool = False) -> str:
    """Name of a file without its ending: `RUN-pair0-flips`, with the place if it is of one
    position.
    """
    place = f"-prompt{view.prompt}-position{view.position}" if at_position else ""
    return f"{file_name(view.run.run_id)}-pair{view.pair.index}-{what}{place}"


def picture(name: str, of: Sequence[str]) -> Record:
    """Return the file name of a saved figure and the lines above it."""
    return {"filename": name, "of": [inert(" ".join(part.split())) for part in of]}


def picture_of(view: selection.View, what: str, scope: Scope) -> Record:
    """`picture` of a figure of the open pair, over all its prompts unless `scope` is less."""
    run, unit = of_run(view.run)
    parts = [run, f"{view.pair.variant} vs {view.pair.reference}", unit]
    if scope == "position":
        parts.append(f"prompt {view.prompt}, position {view.position:,}")
    elif scope == "prompt":
        parts.append(f"prompt {view.prompt}")
        what += f"-prompt{view.prompt}"
    return picture(file_stem(view, what, at_position=scope == "position"), parts)


def of_run(run: RunReader) -> list[str]:
    """Return the run, by name and id, and the unit of its figures."""
    return [f"{run.header.name} ({run.run_id})", f"logits and ULPs of {run.header.compute_dtype}"]


def whole_run(view: selection.View) -> None:
    """Draw links to the run file and to the npz of every side."""
    duckdb = "Logits, metrics and provenance in one file; any ULPscope store imports it."
    npz = "One array per side, bit for bit, and the token ids if known."
    address = f"/files/{quote(view.run.run_id)}"
    icon = ":material/download:"
    with st.container(horizontal=True):
        st.link_button("Run file (.duckdb)", f"{address}.duckdb", help=duckdb, icon=icon)
        st.link_button("Logits (.npz)", f"{address}.npz", help=npz, icon=icon)
