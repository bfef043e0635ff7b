"""Kernels that two sides of a run launched, side by side, and those of the first module that
differs.

A row of the file is a kernel in a module: what a library calls its implementation (`SGEMM`, `matmul
brg_matmul:avx512_core_bf16`, a CUDA kernel), or an operation of torch. Launches and times are per
forward.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from ...numerics.arrays import DataFrame
from ...text import code, number, opening, plural, series
from ..file.records import RunHeader
from ..reader import RunReader
from .layers import first_module, modules

_SHAPE = re.compile(r"([a-z]\w* )?(\d+(?:x\d+)*)")
# Operations whose order of summation can depend on shapes; what remains computes element by
# element, or moves values.
_REDUCING = "mm|gemm|gemv|dot|conv|matmul|attention|sum|mean|norm|softmax|reduce|var|inner"
# What one side launches alone or more often a forward comes first, of these what adds something up,
# then by time. Lists are in the order in which the rows first ran. A module's kind is its name
# without the numbers of layers.
_SIDE_BY_SIDE = f"""
WITH listed AS (
    SELECT *, launches / greatest(forwards, 1) AS often,
        microseconds / greatest(forwards, 1) AS time,
        regexp_replace(replace(module, '.', '..'), '\\.\\d+(\\.|$)', '.*\\1', 'g') AS doubled,
        replace(doubled, '..', '.') AS place
    FROM kernel JOIN kernel_side USING (side)
    WHERE side IN (0, $1 + 1)
        AND ($2::INTEGER[] IS NULL OR list_contains(if(side = 0, $2, $3), ordinal))),
pairs AS (
    SELECT library, name, list(place ORDER BY side, ordinal) AS places,
        coalesce(sum(often) FILTER (side = 0), 0)::DOUBLE AS reference_launches,
        coalesce(sum(often) FILTER (side > 0), 0)::DOUBLE AS variant_launches,
        coalesce(fsum(time) FILTER (side = 0), 0) AS reference_microseconds,
        coalesce(fsum(time) FILTER (side > 0), 0) AS variant_microseconds,
        coalesce(list(detail ORDER BY ordinal) FILTER (side = 0 AND detail != ''), [])
            AS reference_details,
        coalesce(list(detail ORDER BY ordinal) FILTER (side > 0 AND detail != ''), [])
            AS variant_details,
        list(module ORDER BY side, ordinal) AS modules,
        CASE WHEN count(*) FILTER (side > 0) = 0 THEN 'reference'
            WHEN count(*) FILTER (side = 0) = 0 THEN 'variant'
            ELSE '' END AS "only"
    FROM listed GROUP BY library, name, {{by}})
SELECT *, variant_launches / nullif(reference_launches, 0) AS ratio,
    "only" = '' AND abs(reference_launches - variant_launches) > 1e-9 AS is_multiplied,
    regexp_matches(lower(name), '{_REDUCING}') AS is_reducing
FROM pairs ORDER BY "only" = '' AND NOT is_multiplied, NOT is_reducing,
    -greatest(reference_microseconds, variant_microseconds), list_min(modules), name
"""
_LISTS = ("places", "reference_details", "variant_details", "modules")


class KernelPlace(NamedTuple):
    """First module that differs, at its first place, and what ran there: rows as `side_by_side`,
    reductions first.
    """

    module: str
    prompt: int
    position: int
    kernels: DataFrame


def is_watched(run: RunReader, pair: int) -> bool:
    """Return whether the kernels of both sides were watched."""
    return run.sides_with_kernels >= {0, pair + 1}


def side_by_side(
    run: RunReader,
    pair: int,
    by: str = "NULL",
    of_reference: list[int] | None = None,
    of_variant: list[int] | None = None,
) -> DataFrame:
    """Return one row per kernel of either side. by: NULL, or place or module to split by kind of
    module or module; of_reference, of_variant: rows of either side, None for all.
    """
    table = run.query(_SIDE_BY_SIDE.format(by=by), pair, of_reference, of_variant)
    for name in _LISTS:
        table[name] = [list(dict.fromkeys(values)) for values in table[name]]
    return table


def find_start(run: RunReader, pair: int) -> KernelPlace | None:
    """Return the first module that differs and what ran there; None if the run does not hold both,
    or nothing differs.

    What made its output is what ran in it, and what ran in the modules around it after the last
    module that is still equal: attention by itself is no module, and shows in the projection behind
    it.
    """
    outputs = modules(run, pair)
    first = first_module(outputs)
    if first is None or not is_watched(run, pair):
        return None
    equal = outputs.loc[outputs["ordinal"] < first.ordinal, "module"].tolist()
    ordinals = []
    for side in (0, pair + 1):
        rows = run.query(
            "SELECT module, library, name FROM kernel WHERE side = ? ORDER BY ordinal",
            side,
        )
        kernels = list(rows.itertuples(index=False, name=None))
        made = []
        for module, *_ in kernels:
            made.append(not any(_is_within(module, outer) for outer in equal if outer))
        kinds = set()
        # backward: in modules around it, only what ran before something in it
        is_followed = False
        for kernel, is_made in zip(kernels[::-1], made[::-1], strict=True):
            is_inside = is_made and _is_within(kernel[0], first.module)
            is_followed = is_made and (is_followed or is_inside)
            if is_inside or (is_followed and _is_within(first.module, kernel[0])):
                kinds.add(kernel)
        if not kinds:
            # the logits, which no module of that name puts out: what ran behind the last module
            last = -1
            for name in equal:
                begins = (n for n, kernel in enumerate(kernels) if _is_within(kernel[0], name))
                last = max(last, next(begins, -1))
            behind = zip(kernels[last + 1 :], made[last + 1 :], strict=True)
            kinds = {kernel for kernel, is_made in behind if is_made and kernel[0]}
        # of all forwards
        ordinals.append([n for n, kernel in enumerate(kernels) if kernel in kinds])
    table = side_by_side(run, pair, "module", *ordinals)
    table = table.sort_values("is_reducing", ascending=False, kind="stable", ignore_index=True)
    return KernelPlace(first.module, int(first.first_prompt), int(first.first_position), table)


def _is_within(module: str, outer: str) -> bool:
    return module == outer or (outer != "" and module.startswith(f"{outer}."))


def in_words(table: DataFrame, names: tuple[str, str]) -> str:
    """List kernels of one side only and those launched more or less often, in markdown, the slowest
    first. table: of `side_by_side`, not by module; names: of the sides.
    """
    if table.empty:
        return "No kernel was seen on either side."
    clauses = []
    for side, name in zip(("reference", "variant"), names, strict=True):
        only = table.loc[table["only"] == side, "name"]
        if len(only):
            clauses.append(f"only in {_code(name)}: {_few(map(_code, only))}")
    grown = table[table["is_multiplied"]]
    if len(grown):
        ratios = _few(
            f"{_code(row.name)} {number(row.ratio)}x" for row in grown.itertuples(index=False)
        )
        clauses.append(f"different launch counts per forward: {ratios} in {_code(names[1])}")
    says = "; ".join(clauses) or "both sides launch the same kernels as often per forward"
    return f"{opening(says)}."


def counts_in_words(table: DataFrame, names: tuple[str, str]) -> str:
    """Count kernels of one side only and those launched more or less often, in markdown. table: of
    `side_by_side`, not by module; names: of the sides.
    """
    only = table["only"]
    counts = {
        f"only in {_code(name)}": (only == side).sum()
        for side, name in zip(("reference", "variant"), names, strict=True)
    }
    counts["launched more or less often per forward"] = table["is_multiplied"].sum()
    clauses = [f"{count} {what}" for what, count in counts.items() if count]
    kernels = plural(len(table), "kernel")
    if not clauses:
        return f"both sides launch the same {kernels} as often per forward."
    return f"of {kernels}, {series(clauses)}."


def place_in_words(header: RunHeader, place: KernelPlace, names: tuple[str, str]) -> str:
    """Say which module differs first, and what ran there on both sides, in what shapes; names: of
    the sides.
    """
    start = (
        f"The first module whose output differs is {_code(place.module)}, at position"
        f" {place.position:,}{header.of_prompt(place.prompt)}."
    )
    pairs = list(place.kernels.itertuples(index=False))
    adding = [pair for pair in pairs if pair.is_reducing]
    if not adding:
        others = f": {_few(_code(pair.name) for pair in pairs)}" if pairs else ""
        return (
            f"{start} No matmul or reduction was launched in the first module that differs{others}."
        )
    ran = []
    for pair in adding:
        # the side that alone ran it, or the shape or count of shapes that each side alone has
        sides = pair.reference_details, pair.variant_details
        shapes = []
        for one, other in (sides, sides[::-1]):
            own = [each for each in one if each not in other]
            if own:
                shapes.append(shape_in_words(own[0]) if len(own) == 1 else f"{len(own)} shapes")
        facts = [f"only in {_code(names[pair.only == 'variant'])}"] if pair.only else []
        facts += filter(None, [" vs ".join(shapes)])
        ran.append(_code(pair.name) + (f" ({', '.join(facts)})" if facts else ""))
    return (
        f"{start} Matmuls and reductions between the last equal module and the first that differs:"
        f" {_few(ran, 1)}."
    )


def shape_in_words(detail: str) -> str:
    """`bfloat16 [1, 384] x [384, 2048]` of `bfloat16 1x384, 384x2048`; what libraries write stays
    as it is.
    """
    parts = detail.split(", ")
    if not all(map(_SHAPE.fullmatch, parts)):
        return _code(detail)
    return " x ".join(
        _SHAPE.sub(lambda at: f"{at[1] or ''}[{at[2].replace('x', ', ')}]", part) for part in parts
    )


def short_name(name: str) -> str:
    """Return a CUDA kernel's name without its return type, arguments, lambdas and torch's own
    namespaces.
    """
    if not name.startswith("void "):
        return name
    nested = re.compile(r"\([^()]*\)|\{[^{}]*\}")
    while nested.search(name):
        name = nested.sub("", name)
    name = re.sub(r"^void | const\b(?!>)|::operator\b|at::native::", "", name)
    return re.sub(r" (?=>)|(?<![\w>])::|::(?!\w)", "", name)


def _code(name: str) -> str:
    return f"`{code(short_name(name))}`"


def _few(names: Iterable[str], most: int = 3) -> str:
    distinct = list(dict.fromkeys(names))
    more = f" and {len(distinct) - most} more" if len(distinct) > most else ""
    return ", ".join(distinct[:most]) + more
