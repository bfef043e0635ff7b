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

from ...text import code, three_digits
from ..tables.kernels import KernelList, KernelRow, module_kind

_SHAPE = re.compile(r"([a-z]\w* )?(\d+(?:x\d+)*)")
_MOST_CLAUSES = 3
# Operations whose order of summation can depend on shapes; what remains computes element by element, or moves values.
_REDUCING = re.compile("mm|gemm|gemv|dot|conv|matmul|attention|sum|mean|norm|softmax|reduce|var|inner")


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

    @property
    def microseconds(self) -> float:
        return max(self.reference_microseconds, self.variant_microseconds)


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
    pairs = []
    for (library, name, *_), sides in both.items():
        rows = [*sides[0], *sides[1]]
        forwards = max(1, reference.forwards), max(1, variant.forwards)
        launches, times = (
            [sum(getattr(row, name) for row in side) / count for side, count in zip(sides, forwards, strict=True)]
            for name in ("launches", "microseconds")
        )
        details = [_in_order(row.detail for row in side if row.detail) for side in sides]
        places, modules = _in_order(module_kind(row.module) for row in rows), _in_order(row.module for row in rows)
        pairs.append(
            KernelPair(
                library, name, places, launches[0], launches[1], times[0], times[1], details[0], details[1], modules
            )
        )
    return sorted(
        pairs, key=lambda pair: (not (pair.only or is_multiplied(pair)), not is_reducing(pair), -pair.microseconds)
    )


def is_multiplied(pair: KernelPair) -> bool:
    """Launched on both sides, and on one of them more often a forward: a product that was split, say."""
    return not pair.only and abs(pair.reference_launches - pair.variant_launches) > 1e-9


def is_reducing(pair: KernelPair) -> bool:
    """Return whether a kernel's result can depend on the order of a sum, by its name."""
    return _REDUCING.search(pair.name.lower()) is not None


def in_words(pairs: Sequence[KernelPair], names: tuple[str, str]) -> str:
    """Kernels of one side only and those launched more or less often, in markdown; the slowest first. names: of the
    sides; pairs: of the whole lists, not by module.
    """
    if not pairs:
        return "No kernel was seen on either side."
    pairs = sorted(pairs, key=lambda pair: not is_reducing(pair))
    clauses = []
    for which, name in zip(("reference", "variant"), names, strict=True):
        if only := [pair for pair in pairs if pair.only == which]:
            clauses.append((only, f"{_few(_code(pair.name) for pair in only)} only in {_code(name)}"))
    if grown := [pair for pair in pairs if is_multiplied(pair)]:
        ratios = _few(f"{_code(pair.name)} {three_digits(pair.ratio or 0.0)} times" for pair in grown)
        clauses.append((grown, f"launched more or less often a forward in {_code(names[1])}: {ratios}"))
    if not clauses:
        other = sum(set(pair.reference_details) != set(pair.variant_details) for pair in pairs)
        shapes = f", {other} of them in other shapes" if other else ""
        return f"Both sides launch the same kernels as often a forward{shapes}."
    clauses.sort(key=lambda clause: -max(pair.microseconds for pair in clause[0]))
    text = "; ".join(clause for _, clause in clauses)
    return f"{text[0].upper()}{text[1:]}."


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
    modules = [row.module for row in listed.rows]
    is_made = [not any(_is_within(module, known) for known in equal if known) for module in modules]
    inside = [number for number, module in enumerate(modules) if is_made[number] and _is_within(module, first)]
    if inside:
        around = takewhile(lambda number: is_made[number], range(inside[0] - 1, -1, -1))
        chosen = [*inside, *(number for number in around if _is_within(first, modules[number]))]
    else:  # the logits, which no module of that name puts out: what ran behind the last module
        begins = [next((n for n, module in enumerate(modules) if _is_within(module, name)), -1) for name in equal]
        chosen = [n for n in range(max(begins, default=-1) + 1, len(modules)) if is_made[n] and modules[n]]
    kernels = {(listed.rows[n].module, listed.rows[n].library, listed.rows[n].name) for n in chosen}
    return replace(listed, rows=tuple(row for row in listed.rows if (row.module, row.library, row.name) in kernels))


def _is_within(module: str, outer: str) -> bool:
    return module == outer or (outer != "" and module.startswith(f"{outer}."))


def place_in_words(place: KernelPlace, names: tuple[str, str], *, is_one_prompt: bool = True) -> str:
    """Describe which module differs first, and what ran there on both sides; names: of the sides."""
    prompt = "" if is_one_prompt else f"prompt {place.prompt}, "
    start = f"The first module that differs is {_code(place.module)}, at {prompt}position {place.position}."
    adding = [pair for pair in place.pairs if is_reducing(pair)]
    if not place.pairs:
        return f"{start} No kernel was seen there."
    if not adding:
        return f"{start} Nothing that ran there adds up: {_few(_code(pair.name) for pair in place.pairs)}."
    clauses = []
    for pair in adding[:_MOST_CLAUSES]:
        details = pair.reference_details, pair.variant_details
        if pair.only:
            side = pair.only == "variant"
            clause, shapes = f"only in {_code(names[side])}", [next(iter(details[side]), "")]
        elif set(details[0]) == set(details[1]):
            clause, shapes = "on both sides, same kernel, same shapes", [next(iter(details[0]), "")]
        else:
            clause = "on both sides, same kernel, other shape"
            shapes = [
                next((each for each in one if each not in other), next(iter(one), ""))
                for one, other in (details, details[::-1])
            ]
        clause += f": {' against '.join(map(shape_in_words, shapes))}" if any(shapes) else ""
        if is_multiplied(pair):
            clause += f", {three_digits(pair.ratio or 0.0)} times as often a forward in {_code(names[1])}"
        clauses.append(f"{_code(pair.name)} {clause}")
    rest = f"; and {len(adding) - _MOST_CLAUSES} more kernels" if len(adding) > _MOST_CLAUSES else ""
    return f"{start} There ran {'; '.join(clauses)}{rest}."


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


def _code(name: str) -> str:
    return f"`{code(name)}`"


def _few(names: Iterable[str]) -> str:
    listed = list(dict.fromkeys(names))
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")


def _in_order(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
