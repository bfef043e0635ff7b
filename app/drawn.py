"""Figures that were drawn before: building one takes Plotly 10 to 30 ms, and most reruns change none.

What is kept is never changed: Streamlit sends a copy. A figure's key is its run file, the function that draws it and `of`, which must say
everything else that the figure depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import streamlit as st

from app import reading
from core.runs.reader import RunReader

_KEPT = 96  # of all viewers; a scatter of 4096 positions holds 0.3 MB


@st.cache_resource(max_entries=_KEPT, show_spinner=False)
def _figure(file: tuple[str, int, int], name: str, of: str, _draw: Callable[[], Any]) -> Any:  # noqa: ARG001  (keys of the cache)
    return _draw()


def figure(run: RunReader, of: tuple[Hashable, ...], draw: Callable[..., Any], *arguments: Any) -> Any:
    """`draw(*arguments)`, or what it gave for the same run and `of`."""
    return _figure(reading.stamp_of(run), f"{draw.__module__}.{draw.__qualname__}", repr(of), lambda: draw(*arguments))
