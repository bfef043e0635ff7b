"""What servers sent: values of both sides, placeholders among them, inputs, the dtype of values."""

from typing import Annotated, Any

from ..evidence import FAILED, NOTED, PASSED, VALIDITY, Check, CheckFigures, Evidence
from ..responses.pairing import ResponsePair
from ..text import opening, plural


class SentFigures(CheckFigures):
    """What servers sent of their rows."""

    positions: Annotated[int, "positions at which both sides sent a row of equal context"]
    values: Annotated[int, "values that both sides sent"]
    neq: Annotated[int, "of them, values that differ"]
    flips: Annotated[int | None, "flips"]


class PlaceholderFigures(CheckFigures):
    kind: Annotated[str, "kind of placeholder"]
    tokens: Annotated[int, "tokens with one"]
    of: Annotated[int, "tokens in all"]


class ContextFigures(CheckFigures):
    prompts: Annotated[int, "prompts"]


class GridFigures(CheckFigures):
    formats: Annotated[tuple[str, ...], "formats that hold all values"]


SENT = Check("values that both sides sent", VALIDITY, SentFigures)
PLACEHOLDERS = Check("placeholders", VALIDITY, PlaceholderFigures)
CONTEXT = Check("tokens and texts", VALIDITY, ContextFigures)
GRID = Check("dtype that the values show", VALIDITY, GridFigures)


def response_rows(pair: ResponsePair, *, has_other_inputs: bool) -> list[Evidence]:
    """Return what both sides sent. has_other_inputs: of a prompt, from a position on."""
    rows = []

    def add(check: Check, outcome: str, says: str, side: str | None = None, **figures: Any) -> None:
        rows.append(
            Evidence(
                check, "the requests that were sent", check.record(**figures), outcome, says, side
            )
        )

    zeros = ""
    if pair.zeros:
        zeros = f"; {plural(pair.zeros, 'token')} of probability 0 not compared"
    left_out = f"; {pair.left_out}" if pair.left_out else ""
    add(
        SENT,
        NOTED if pair.differs or not pair.common_values else PASSED,
        f"{opening(pair.in_words)}{zeros}{left_out}.",
        positions=len(pair.positions),
        values=pair.common_values,
        neq=pair.differing,
        flips=pair.flips,
    )
    for one in pair.placeholders:
        outcome, says = FAILED if pair.is_void else NOTED, f"{opening(one.clause)}."
        figures = {"kind": one.kind, "tokens": one.tokens, "of": one.of}
        add(PLACEHOLDERS, outcome, says, one.side, **figures)
    for note in pair.notes:
        add(CONTEXT, FAILED if has_other_inputs else NOTED, note, prompts=len(pair.meetings))
    for name, grid in zip((pair.reference, pair.variant), pair.grids, strict=True):
        if grid:
            dtype = grid.compute_dtype or " or ".join(grid.formats)
            says = f"Its values are logits of {dtype}."
            add(GRID, NOTED, says, name, formats=grid.formats)
    return rows
