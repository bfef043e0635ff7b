"""Classes of sides that are equal bit for bit, and the value that was swept."""

from ...numerics.arrays import DataFrame
from ...text import plural
from ..reader import RunReader

# Figures of a class are those of its first side against the reference; null for the reference's own
# class.
_CLASSES = """
WITH class AS (
    SELECT bit_class AS class, list(name ORDER BY side) AS sides, count(*) AS count,
        min(side) AS side
    FROM side GROUP BY bit_class)
SELECT class.*, neq, neq_share, max_abs, max_ulps, max_row_ulps, flips
FROM class LEFT JOIN pair ON pair.variant = class.side ORDER BY class.side
"""
_SWEPT = """
SELECT name AS side, bit_class AS class, coalesce(neq_share, 0) AS neq_share,
    coalesce(max_abs, 0) AS max_abs, coalesce(flips, 0) AS flips
FROM side LEFT JOIN pair ON pair.variant = side.side ORDER BY side.side
"""
# What a path without the step has: `prefill` is `prefill+batch:1`.
_ABSENT = {"batch": "1"}


def classes(run: RunReader) -> DataFrame:
    """Return one row per class in order of first appearance: class, sides (names), count, side
    (index of the first), and the first side's figures compared with the reference.
    """
    return run.query(_CLASSES)


def sentence(table: DataFrame) -> str:
    """Say how many classes of equal bits there are, and how many sides stand alone, in markdown."""
    sides, alone = table["count"].sum(), (table["count"] == 1).sum()
    if len(table) == 1:
        return f"**All {sides} sides are equal bit for bit.**"
    text = f"**{sides} sides in {len(table)} classes of equal bits**"
    if alone in (0, len(table)):
        return f"{text}{', each side alone in its class' if alone else ''}."
    return f"{text}, {plural(alone, 'side')} alone in {'its' if alone == 1 else 'their'} class."


def sweep(run: RunReader) -> tuple[str, DataFrame] | None:
    """Return the one step in which the paths of the sides differ, if it is a number of at least
    three values, and a row a side by that value: value, side, class, neq_share, max_abs, flips
    against the reference.

    The reference may be of another path altogether (`decode : decode+batch:2, :4, ...`): what
    counts are the variants, and the reference joins if it fits.
    """
    steps = [
        dict(part.partition(":")[::2] for part in side.path.split("+") if part)
        for side in run.sides
    ]
    first, *others = steps[1:]
    varying = {name for of_side in others for name, _ in of_side.items() ^ first.items()}
    if len(varying) != 1 or not all(steps):
        return None
    (name,) = varying
    values = [of_side.pop(name, _ABSENT.get(name, "")) for of_side in steps]
    numbers = []
    for value, rest in zip(values, steps, strict=True):
        numbers.append(int(value) if value.isdecimal() and rest == first else -1)
    if -1 in numbers[1:] or len({*numbers} - {-1}) < 3:
        return None
    table = run.query(_SWEPT)
    table.insert(0, "value", numbers)
    table = table[table["value"] >= 0]
    return name, table.sort_values("value", kind="stable", ignore_index=True)
