"""Figures and tokens as people read them. No Streamlit here."""

from collections.abc import Mapping

from core.runs.store.cards import RunCard
from core.text import number, visible
from core.verdict import (
    BUG_SUSPECTED,
    IDENTICAL,
    INVALID_DUMP,
    LIKELY_ROUNDING,
    LOWER_PRECISION,
    NONDETERMINISTIC,
    NOT_JUDGED,
    ROUNDING,
    UNDECIDED,
)

# A verdict and the colour of its label, gravest first. A name a newer version wrote is grey.
VERDICTS = {
    BUG_SUSPECTED: "red",
    INVALID_DUMP: "violet",
    NONDETERMINISTIC: "orange",
    UNDECIDED: "gray",
    NOT_JUDGED: "gray",
    LOWER_PRECISION: "yellow",
    LIKELY_ROUNDING: "blue",
    ROUNDING: "blue",
    IDENTICAL: "green",
}


def token(token_id: int | None, text: str | None) -> str:
    """`·self  (301)`, or `token 301` if the text is unknown, or `none (all NaN)` for a side that is
    all NaN.
    """
    if token_id is None or token_id != token_id:
        return "none (all NaN)"
    return f"{visible(text)}  ({int(token_id)})" if text is not None else f"token {int(token_id)}"


def model_name(model: str) -> str:
    """Return the last two parts of a folder, or a hub id."""
    return "/".join(model.rstrip("/").split("/")[-2:])


def verdicts(card: RunCard) -> list[str]:
    """Return the distinct verdicts of a run's pairs, the gravest first."""
    names = set(card.pair_verdicts)
    return [*filter(names.__contains__, VERDICTS), *sorted(names - VERDICTS.keys())]


def figure(value: object) -> str:
    """Text of one figure of a row of evidence."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, tuple):
        return ", ".join(map(figure, value)) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {figure(part)}" for name, part in value.items()) or "none"
    return str(value)
