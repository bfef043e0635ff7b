"""`weights`: what differs between two checkpoints, module by module."""

import re
from collections import defaultdict
from collections.abc import Sequence

from typer import Argument, Option

from ..numerics.formats import format_named
from ..rl.checkpoints import Change, Comparison, compare_checkpoints
from ..text import number, percent
from .options import JsonOption
from .terminal.console import out, print_json, print_text, steps, table_of
from .terminal.stopping import stoppable


def weights(
    a: str = Argument(
        ..., metavar="A", help="Folder of safetensors, a .safetensors file or a GGUF."
    ),
    b: str = Argument(
        ..., metavar="B", help="Checkpoint to compare with A, in any of these forms."
    ),
    as_: str = Option(
        "bfloat16", "--as", help="Dtype of the engine: bfloat16, float16 or float32."
    ),
    layers: bool = Option(
        False, "--layers", help="Print a row per module of each layer instead of merging layers."
    ),
    as_json_: JsonOption = False,
) -> None:
    """Compare two checkpoints tensor by tensor: what an update changed, or whether a conversion is
    right.

    Of each module: elements that differ, the change, and what is left of it after rounding both
    sides to --as. Missing, tied, fused, transposed, reordered and quantized tensors are named. All
    are compared in float32.

    For example:  ulpscope weights step-100 step-101   or   ulpscope weights model model.gguf
    """
    fmt = format_named(as_)
    with stoppable(), steps() as say:
        result = compare_checkpoints(a, b, fmt, say)
    if as_json_:
        print_json(result.as_json())
    else:
        _print(result, layers)


def _print(result: Comparison, has_layers: bool) -> None:
    lines = defaultdict(list)
    for module, change in result.modules.items():
        lines[module if has_layers else _pattern(module), change.differing > 0].append(module)
    rows = [
        (_name(each), *_cells(sum((result.modules[one] for one in each), Change())))
        for each in lines.values()
    ]
    table = table_of(
        (
            "module",
            "differ",
            "share",
            "max\nchange",
            "rms\nchange",
            f"share in\n{result.rounded_to}",
            "max\nULPs",
        ),
        rows,
        text=("module",),
    )
    table.collapse_padding = True
    table.add_section()
    table.add_row(f"total of {result.total.elements:,} elements", *_cells(result.total))
    for side, each in (("A", result.a), ("B", result.b)):
        facts = each.as_json()
        dtypes = ", ".join(facts["dtypes"])
        print_text(f"{side}: {facts['path']}, {facts['tensors']:,} tensors, {dtypes}")
    out.print(table)
    for (_, text), keys in result.findings.items():
        kinds = defaultdict(list)
        for key in keys:
            kinds[_pattern(key)].append(key.removesuffix(".weight"))
        print_text(f"{text}: {', '.join(map(_name, kinds.values()))}.")


def _cells(change: Change) -> tuple[str, ...]:
    if not change.differing:
        return ("identical", *[""] * 5)
    return (
        f"{change.differing:,}",
        percent(change.differing / change.elements),
        number(change.max_abs),
        number(change.rms),
        percent(change.rounded_differing / change.elements),
        number(change.max_rounded_ulps),
    )


def _pattern(name: str) -> str:
    return re.sub(r"\.\d+(?=\.)", ".*", name)


def _name(names: Sequence[str]) -> str:
    """Return one name for those of several layers, `layers.0-2,5.mlp.up_proj`; experts are `*`."""
    first, *rest = _pattern(names[0]).split(".*", 1)
    if not rest:
        return first
    layers = {int(re.findall(r"\.(\d+)\.", name)[0]) for name in names}
    starts = sorted(n for n in layers if n - 1 not in layers)
    ends = sorted(n for n in layers if n + 1 not in layers)
    ranges = []
    for start, end in zip(starts, ends, strict=True):
        ranges.append(f"{start}" if start == end else f"{start}-{end}")
    return f"{first}.{','.join(ranges)}{rest[0]}"
