"""Cache of built Plotly figures (10 to 30 ms each), most of which stay the same over a rerun.

Figures are kept as the browser gets them (`FigureSpec`). A key is the run file, the function and `of`, which must say
everything else that the outcome depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import streamlit as st

from app.components import plots
from app.shell import store_cache
from core.runs.reader import RunReader

_KEPT = 96  # of all viewers; a scatter of 4096 positions holds 0.5 MB


@st.cache_resource(max_entries=_KEPT, show_spinner=False)
def _kept(file: tuple[str, int, int], name: str, of: str, _make: Callable[[], Any]) -> Any:  # noqa: ARG001  (keys of the cache)
    return _make()


def kept(run: RunReader, of: tuple[Hashable, ...], make: Callable[..., Any], *arguments: Any) -> Any:
    """Result of `make(*arguments)`, kept for the same run and `of`; never to be changed."""
    return _kept(
        store_cache.stamp_of(run), f"{make.__module__}.{make.__qualname__}", repr(of), lambda: make(*arguments)
    )


def figure(
    run: RunReader, of: tuple[Hashable, ...], draw: Callable[..., plots.Drawable], *arguments: Any
) -> plots.FigureSpec:
    """Figure of `draw(*arguments)`, kept for the same run and `of`."""
    name = f"figure {draw.__module__}.{draw.__qualname__}"
    return _kept(store_cache.stamp_of(run), name, repr(of), lambda: plots.figure_spec(draw(*arguments)))
