"""Cache of built Plotly figures (10 to 30 ms each), most of which stay the same over a rerun.

Figures are kept as the browser gets them (`FigureSpec`). A key is the run file, the function and `of`, which must say
everything else that the outcome depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from app.components import plots
from app.shell import store_cache
from core.runs.reader import RunReader


def kept(run: RunReader, of: tuple[Hashable, ...], make: Callable[..., Any], *arguments: Any) -> Any:
    """Result of `make(*arguments)`, kept for the same run and `of`; never to be changed."""
    name = f"{make.__module__}.{make.__qualname__}"
    return store_cache.kept(name, store_cache.stamp_of(run), (repr(of),), lambda: make(*arguments))


def figure(
    run: RunReader, of: tuple[Hashable, ...], draw: Callable[..., plots.Drawable], *arguments: Any
) -> plots.FigureSpec:
    """Figure of `draw(*arguments)`, kept for the same run and `of`."""
    name = f"figure {draw.__module__}.{draw.__qualname__}"
    return store_cache.kept(name, store_cache.stamp_of(run), (repr(of),), lambda: plots.figure_spec(draw(*arguments)))
