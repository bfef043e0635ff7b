"""Batch sizes of a probed operation as groups of equal bits, a line a machine."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from app.components.chart_style import inert, layout
from core.text import clipped

# Okabe-Ito, each with the letter colour that reads on it; classes beyond these share the last.
_CLASSES = (
    ("#0072B2", "#FFFFFF"),
    ("#E69F00", "#101418"),
    ("#009E73", "#101418"),
    ("#CC79A7", "#101418"),
    ("#56B4E9", "#101418"),
    ("#D55E00", "#101418"),
    ("#9A6FD6", "#101418"),
    ("#8A93A0", "#101418"),
)
_LONGEST = 30  # of a machine's name on the axis


def batch_classes(lines: Sequence[tuple[str, dict[int, str]]]) -> go.Figure:
    """Batch sizes as squares, those of one letter and colour with equal bits, on every line. lines: (machine, batch
    size -> digest of row 0's bits).
    """
    sizes = sorted({size for _, found in lines for size in found})
    letters = letters_of(lines)
    figure = go.Figure()
    for name, found in lines:
        shown = [size for size in sizes if size in found]
        pairs = [_CLASSES[min(number_of(letters[found[size]]), len(_CLASSES) - 1)] for size in shown]
        figure.add_scatter(
            x=[str(size) for size in shown],
            y=[inert(clipped(name, _LONGEST))] * len(shown),
            mode="markers+text",
            text=[letters[found[size]] for size in shown],
            marker={"symbol": "square", "size": 22, "color": [fill for fill, _ in pairs], "line": {"width": 0}},
            textfont={"color": [ink for _, ink in pairs], "size": 13},
            showlegend=False,
            customdata=[[found[size]] for size in shown],
            hovertemplate="batch %{x}: class %{text}, bits %{customdata[0]}<extra></extra>",
        )
    figure.update_xaxes(
        type="category",
        categoryorder="array",
        categoryarray=[str(size) for size in sizes],
        title="batch size",
        showgrid=False,
        tickangle=0,
    )
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    return layout(figure, 96 + 40 * len(lines))


def letters_of(lines: Sequence[tuple[str, dict[int, str]]]) -> dict[str, str]:
    """A letter for every digest, in order of appearance: A is what the first machine gives for its smallest batch."""
    digests = dict.fromkeys(found[size] for _, found in lines for size in sorted(found))
    return {digest: _letter(number) for number, digest in enumerate(digests)}


def number_of(letter: str) -> int:
    """Number of a letter, 0 for A, 26 for AA."""
    number = 0
    for sign in letter:
        number = number * 26 + ord(sign) - ord("A") + 1
    return number - 1


def _letter(number: int) -> str:
    return (_letter(number // 26 - 1) if number >= 26 else "") + chr(ord("A") + number % 26)
