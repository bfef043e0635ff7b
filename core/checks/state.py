"""Is a server's answer the same in another state: of its caches, its batch, what came before?"""

from collections.abc import Iterable, Sequence
from typing import Annotated

from ..evidence import FAILED, MISSING, NOTED, PASSED, STATE, Check, CheckFigures, Evidence
from ..text import multiple, number, out_of, plural
from ..verdict import ROUNDING

BITWISE, WITHIN, BEYOND = "bitwise", "within the noise", "beyond"
UNDECIDED, NOT_AVAILABLE = "undecided", "not available"
_OUTCOMES = {
    BEYOND: FAILED,
    UNDECIDED: NOTED,
    WITHIN: PASSED,
    BITWISE: PASSED,
    NOT_AVAILABLE: MISSING,
}
RESULTS = tuple(_OUTCOMES)  # the worst first


class StateFigures(CheckFigures):
    """Sizes are RMS differences of a row from the cold one, nats: the largest of each request."""

    axis: Annotated[str, "axis"]
    result: Annotated[str, "result"]
    requests: Annotated[int, "requests compared"] = 0
    requests_beyond: Annotated[int, "requests beyond the limit"] = 0
    worst_nats: Annotated[float | None, "largest RMS difference of a row, nats"] = None
    noise_nats: Annotated[float | None, "largest RMS difference of a sound cold row, nats"] = None
    noise_ratio: Annotated[float | None, "largest RMS difference / noise of cold requests"] = None
    largest_ratio_allowed: Annotated[float | None, "limit of that ratio"] = None
    wrong_block_nats: Annotated[float | None, "what a wrong block of tokens does, median nats"] = (
        None
    )
    where: Annotated[str, "which requests are beyond"] = ""
    reason: Annotated[str, "why it is open"] = ""


SERVER_STATE = Check("the same request in another state", STATE, StateFigures, ROUNDING)


def state_row(figures: StateFigures, meaning: str) -> Evidence:
    """Return the row of an axis. meaning: how its requests differ from the cold ones."""
    name = f"'{figures.axis}'"
    says = f"{name} is {figures.result}: {figures.reason}."
    if figures.result == BITWISE:
        says = f"{name} equals cold in all that was sent, in {plural(figures.requests, 'request')}."
    elif figures.result != NOT_AVAILABLE and figures.worst_nats is not None:
        says = f"{name} {_size(figures)}."
    return Evidence(SERVER_STATE, meaning, figures, _OUTCOMES[figures.result], says)


def _size(figures: StateFigures) -> str:
    """`differs by up to 0.61x the noise of cold requests`, and what follows."""
    size = f"differs by up to {number(figures.worst_nats)} nats"
    if figures.noise_ratio is not None:
        size = f"differs by up to {multiple(figures.noise_ratio)} the noise of cold requests"
    if figures.result == BEYOND:
        share = out_of(figures.requests_beyond, figures.requests)
        where = figures.where or f"in {share} requests"
        return f"{size}, beyond noise {where}"
    if figures.result == UNDECIDED:
        return f"{size}: {figures.reason}"
    block = number(figures.wrong_block_nats)
    return f"{size}; a wrong block of tokens moves a row by {block} nats"


def axes_of(rows: Iterable[Evidence]) -> list[StateFigures]:
    """Return the figures of every axis among rows of evidence."""
    figures = (row.figures for row in rows if row.check == SERVER_STATE)
    return [each for each in figures if isinstance(each, StateFigures)]


def scale_of(axes: Sequence[StateFigures]) -> str:
    """Return what the sizes of axes are compared with, as a sentence."""
    block = axes[0].wrong_block_nats
    scale = f"; a wrong block of tokens moves a row by {number(block)} nats" if block else ""
    return f"Largest difference of a row from the cold one, in noise of cold requests{scale}."


def axis_texts(figures: StateFigures) -> dict[str, str]:
    """Return an axis as a line of a table, by column."""
    size = ""
    if figures.worst_nats:
        size = f"{number(figures.worst_nats)} nats"
    if figures.worst_nats and figures.noise_ratio is not None:
        size = f"{multiple(figures.noise_ratio)} ({size})"
    where = figures.where or figures.reason
    if figures.requests_beyond:
        share = out_of(figures.requests_beyond, figures.requests)
        where = f"{share} requests{f', {where}' if where else ''}"
    return {
        "axis": figures.axis,
        "result": figures.result,
        "difference / noise": size,
        "where, or why": where,
    }
