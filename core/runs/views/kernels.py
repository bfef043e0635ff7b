"""The kernels that each side of a run launched, module by module, and what two such lists differ by.

A row is a kernel in a module: what a library calls its implementation (`SGEMM`, `matmul brg_matmul:avx512_core_bf16`, a
CUDA kernel), or an operation of torch. Launches are counted over the forwards that were looked at, so sides of unequal
numbers of forwards are compared per forward.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile

from ...text import code, joined, plural, three_digits
from ..tables.kernels import KernelList, KernelRow, module_kind

_SHAPE = re.compile(r"([a-z]\w* )?(\d+(?:x\d+)*)")
_MOST_CLAUSES = 3
# Operations whose order of summation can depend on shapes; what remains computes element by element, or moves values.
_REDUCING = (
    "mm",
    "gemm",
    "gemv",
    "dot",
    "conv",
    "matmul",
    "attention",
    "sum",
    "mean",
    "norm",
    "softmax",
    "reduce",
    "cumsum",
    "var",
    "inner",
)


@dataclass(frozen=True)
class KernelPair:
    """A kernel on both sides. launches and microseconds: per forward of that side; places: what the modules are called,
    layers together.

    ratio: launches of the variant over those of the reference; None where the reference has none. only: "reference",
    "variant" or "".
    """

    library: str
    name: str
    places: tuple[str, ...]
    reference_launches: float
    variant_launches: float
    reference_microseconds: float
    variant_microseconds: float
    reference_details: tuple[str, ...]
    variant_details: tuple[str, ...]
    modules: tuple[str, ...] = ()  # with the numbers of their layers

    @property
    def only(self) -> str:
        if not self.variant_launches:
            return "reference"
        return "" if self.reference_launches else "variant"

    @property
    def ratio(self) -> float | None:
        return self.variant_launches / self.reference_launches if self.reference_launches else None


def side_by_side(
    reference: KernelList, variant: KernelList, *, by_module: bool = False, keeps_layers: bool = False
) -> list[KernelPair]:
    """Every kernel of either side: what one launches alone or more often a forward first, of these what adds something
    up, then by time.

    by_module: a kernel is counted apart for each kind of module in which it runs; keeps_layers: and for each of these
    modules.
    """
    both: dict[tuple[str, ...], list[list[KernelRow]]] = {}
    for number, listed in enumerate((reference, variant)):
        for row in listed.rows:
            place = row.module if keeps_layers else module_kind(row.module)
            key = (row.library, row.name, *([place] if by_module else []))
            both.setdefault(key, [[], []])[number].append(row)
    pairs = [_pair(key[0], key[1], (reference, one), (variant, other)) for key, (one, other) in both.items()]
    return sorted(pairs, key=_strangest_first)


def _pair(library: str, name: str, *sides: tuple[KernelList, list[KernelRow]]) -> KernelPair:
    launches = [sum(row.launches for row in rows) / max(1, listed.forwards) for listed, rows in sides]
    spent = [sum(row.microseconds for row in rows) / max(1, listed.forwards) for listed, rows in sides]
    details = [_in_order(row.detail for row in rows if row.detail) for _, rows in sides]
    places = _in_order(module_kind(row.module) for _, rows in sides for row in rows)
    modules = _in_order(row.module for _, rows in sides for row in rows)
    return KernelPair(
        library, name, places, launches[0], launches[1], spent[0], spent[1], details[0], details[1], modules
    )


def _strangest_first(pair: KernelPair) -> tuple[bool, bool, float]:
    return not (pair.only or is_multiplied(pair)), not is_reducing(pair), -_microseconds(pair)


def _microseconds(pair: KernelPair) -> float:
    return max(pair.reference_microseconds, pair.variant_microseconds)


def is_multiplied(pair: KernelPair) -> bool:
    """Launched on both sides, and on one of them more often a forward: a product that was split, say."""
    return not pair.only and abs(pair.reference_launches - pair.variant_launches) > 1e-9


def is_reducing(pair: KernelPair) -> bool:
    """True where its result can depend on the order of a sum. By its name."""
    name = pair.name.lower()
    return any(word in name for word in _REDUCING)


def sentence(pairs: Sequence[KernelPair], names: tuple[str, str]) -> str:
    """A sentence on how many kernels ran, on one side only or more often on one, in markdown; pairs: of the whole
    lists, not by module.
    """
    if not pairs:
        return "**No kernel was seen on either side.**"
    only = {which: sum(pair.only == which for pair in pairs) for which in ("reference", "variant")}
    grown = sum(is_multiplied(pair) for pair in pairs)
    if not (grown or any(only.values())):
        return f"**Both sides launch the same {plural(len(pairs), 'kernel')}**, each as often a forward."
    where = [
        f"{only[which]:,} {'runs' if only[which] == 1 else 'run'} only in {_code(name)}"
        for which, name in zip(only, names, strict=True)
        if only[which]
    ]
    if grown:
        where.append(f"{grown:,} {'is' if grown == 1 else 'are'} launched more or less often in {_code(names[1])}")
    return f"Of {plural(len(pairs), 'kernel')}, **{joined(where)}**."


def in_words(pairs: Sequence[KernelPair], names: tuple[str, str]) -> str:
    """Describe where the two lists part, in a sentence or two, those that add something up first; names: of the two
    sides.

    pairs: of the whole lists, not by module, or a kernel that both sides launch in other modules would be called one
    side's own.
    """
    if not pairs:
        return "No kernel was seen on either side."
    pairs = sorted(pairs, key=lambda pair: not is_reducing(pair))
    kinds = {
        side: [pair for pair in pairs if pair.only == which]
        for side, which in zip(names, ("reference", "variant"), strict=True)
    }
    clauses = []
    for side, only in kinds.items():
        if only:
            clauses.append((only, f"{_few(_shown(pair) for pair in only)} only in {_code(side)}"))
    grown = [pair for pair in pairs if is_multiplied(pair)]
    if grown:
        most = ", ".join(f"{_shown(pair)} {_times(pair.ratio or 0.0)}" for pair in grown[:3])
        rest = f" and {len(grown) - 3} more" if len(grown) > 3 else ""
        clauses.append((grown, f"launched more or less often a forward in {_code(names[1])}: {most}{rest}"))
    clauses.sort(key=lambda clause: -max(map(_microseconds, clause[0])))  # what takes time is what is looked for
    said = [clause for _, clause in clauses]
    if not said:
        same = "the same kernels as often a forward"
        other = [pair for pair in pairs if set(pair.reference_details) != set(pair.variant_details)]
        return f"Both sides launch {same}" + (f", {len(other)} of them in other shapes." if other else ".")
    return "; ".join(said)[0].upper() + "; ".join(said)[1:] + "."


@dataclass(frozen=True)
class KernelPlace:
    """Kernels that ran where two sides first put out different numbers. module: the first that differs; position: the
    first of prompt `prompt` at which it does; pairs: the kernels that made its output from what was still equal, a
    kernel apart for each module; what adds something up first.
    """

    module: str
    prompt: int
    position: int
    pairs: tuple[KernelPair, ...]


def where_it_starts(
    reference: KernelList, variant: KernelList, order: Sequence[str], first: str, prompt: int, position: int
) -> KernelPlace:
    """Find the kernels where the two sides first differ. order: the modules that were compared, in the order in which
    they run; first: the one of them that differs first.

    What made its output is what ran in it, and what ran in the modules around it after the last module that is still
    equal: attention by itself is no module, and shows in the projection behind it.
    """
    equal = order[: order.index(first)] if first in order else ()
    sides = [_made_in(listed, first, equal) for listed in (reference, variant)]
    pairs = side_by_side(*sides, by_module=True, keeps_layers=True)
    return KernelPlace(first, prompt, position, tuple(sorted(pairs, key=lambda pair: not is_reducing(pair))))


def _made_in(listed: KernelList, first: str, equal: Sequence[str]) -> KernelList:
    """The rows that made the module's output, of all forwards. Rows stand in the order in which they first ran."""
    known = set(equal)
    is_made = [not any(part in known for part in _parts_of(row.module)) for row in listed.rows]
    inside = [number for number, row in enumerate(listed.rows) if is_made[number] and _is_within(row.module, first)]
    if inside:
        around = takewhile(lambda number: is_made[number], range(inside[0] - 1, -1, -1))
        chosen = [*inside, *(number for number in around if _is_within(first, listed.rows[number].module))]
    else:  # the logits, which no module of that name puts out: what ran behind the last module
        begins = [
            next((number for number, row in enumerate(listed.rows) if _is_within(row.module, name)), -1)
            for name in equal
        ]
        chosen = [
            number
            for number in range(max(begins, default=-1) + 1, len(listed.rows))
            if is_made[number] and listed.rows[number].module
        ]
    wanted = {_kernel_of(listed.rows[number]) for number in chosen}
    return replace(listed, rows=tuple(row for row in listed.rows if _kernel_of(row) in wanted))


def _kernel_of(row: KernelRow) -> tuple[str, str, str]:
    return row.module, row.library, row.name


def _is_within(module: str, outer: str) -> bool:
    return module == outer or (outer != "" and module.startswith(f"{outer}."))


def _parts_of(module: str) -> list[str]:
    """The module and those it lies in: `a.b.c`, `a.b`, `a`."""
    names = module.split(".")
    return [".".join(names[:count]) for count in range(len(names), 0, -1)]


def place_in_words(place: KernelPlace, names: tuple[str, str], *, is_one_prompt: bool = True) -> str:
    """Describe which module differs first, and what ran there on both sides; names: of the sides."""
    where = f"position {place.position}" if is_one_prompt else f"prompt {place.prompt}, position {place.position}"
    said = f"The first module that differs is {_code(place.module)}, at {where}."
    adding = [pair for pair in place.pairs if is_reducing(pair)]
    if not place.pairs:
        return f"{said} No kernel was seen there."
    if not adding:
        return f"{said} Nothing that ran there adds up: {_few(_shown(pair) for pair in place.pairs)}."
    clauses = [_one_kernel(pair, names) for pair in adding[:_MOST_CLAUSES]]
    rest = f"; and {len(adding) - _MOST_CLAUSES} more kernels" if len(adding) > _MOST_CLAUSES else ""
    return f"{said} There ran {'; '.join(clauses)}{rest}."


def _one_kernel(pair: KernelPair, names: tuple[str, str]) -> str:
    if pair.only:
        side, details = (
            (names[0], pair.reference_details) if pair.only == "reference" else (names[1], pair.variant_details)
        )
        return f"{_shown(pair)} only in {_code(side)}{_in_shape(details)}"
    times = f", {_times(pair.ratio or 0.0)} as often a forward in {_code(names[1])}" if is_multiplied(pair) else ""
    if set(pair.reference_details) == set(pair.variant_details):
        return f"{_shown(pair)} on both sides, same kernel, same shapes{_in_shape(pair.reference_details)}{times}"
    one, other = (
        _first_shape(of, beside)
        for of, beside in (
            (pair.reference_details, pair.variant_details),
            (pair.variant_details, pair.reference_details),
        )
    )
    return f"{_shown(pair)} on both sides, same kernel, other shape: {one} against {other}{times}"


def _first_shape(details: Sequence[str], beside: Sequence[str]) -> str:
    """The first that the other side has not; where it has all of them, the first."""
    return shape_in_words(next((detail for detail in details if detail not in beside), details[0] if details else ""))


def _in_shape(details: Sequence[str]) -> str:
    return f": {shape_in_words(details[0])}" if details and details[0] else ""


def shape_in_words(detail: str) -> str:
    """`bfloat16 [1, 384] x [384, 2048]` of `bfloat16 1x384, 384x2048`; what libraries write themselves stays as it
    is.
    """
    parts = detail.split(", ")
    if not all(_SHAPE.fullmatch(part) for part in parts):
        return _code(detail) if detail else "no shape told"
    return " x ".join(
        _SHAPE.sub(lambda found: f"{found[1] or ''}[{found[2].replace('x', ', ')}]", part) for part in parts
    )


def records_of(pairs: Iterable[KernelPair]) -> list[dict[str, object]]:
    """Records of kernel pairs, as the command line's JSON has them."""
    return [{**asdict(pair), "only": pair.only, "ratio": pair.ratio} for pair in pairs]


def _times(ratio: float) -> str:
    return f"{three_digits(ratio)} times"


def _shown(pair: KernelPair) -> str:
    return _code(pair.name)


def _code(name: str) -> str:
    return f"`{code(name)}`"


def _few(names: Iterable[str]) -> str:
    listed = list(dict.fromkeys(names))
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")


def _in_order(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
