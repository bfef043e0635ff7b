"""Costs of a capture for `--dry-run`: what it would compute and keep."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from ..runs.file.kept import takes
from ..text import plural, size
from .terminal.console import out, print_json

if TYPE_CHECKING:  # torch is for those who run a model
    from ..inference.capture.capture import CapturePlan


def print_costs(plan: CapturePlan, as_json_: bool) -> None:
    """Print the forwards, bytes and memory of a plan's sides."""
    from ..inference.capture.costs import costs_of
    from ..inference.models.devices import devices_here

    costs, loaded = costs_of(plan), plan.loaded
    if as_json_:
        devices = [{"device": name, "device_name": chip, "free_bytes": free} for name, chip, free in devices_here()]
        about: dict[str, Any] = {
            "model": loaded.name,
            "dtype": loaded.dtype,
            "device": loaded.device,
            "device_name": loaded.device_name,
            "name": plan.header.name,
            "devices": devices,
        }
        print_json({**about, **asdict(costs), "forwards": costs.forwards, "tokens": costs.tokens})
        return
    table = Table(
        title=f"{escape(plan.header.name)}, in {loaded.dtype} on {loaded.device} ({escape(loaded.device_name)})"
    )
    for column in ("side", "path", "forwards", "positions", "tokens computed", "key/value cache"):
        table.add_column(column, justify="left" if column in ("side", "path") else "right", overflow="fold")
    for side in costs.sides:
        cache = "unknown" if side.kv_bytes is None else size(side.kv_bytes) if side.kv_bytes else "none"
        table.add_row(
            escape(side.name), escape(side.path), f"{side.forwards:,}", f"{side.positions:,}", f"{side.tokens:,}", cache
        )
    out.print(table)
    free = "an unknown amount" if costs.free_bytes is None else size(costs.free_bytes)
    for line in (
        (
            f"{plural(costs.prompts, 'prompt')}, {costs.positions:,} positions; "
            f"{costs.forwards:,} forwards of {costs.tokens:,} tokens in all."
        ),
        (
            f"{takes(costs.kept, costs.file_bytes)}; the weights take {size(costs.weight_bytes)}; "
            f"beside them {loaded.device} has {free} free."
        ),
        "Caches are compared too." if costs.has_kv else "Caches are not compared.",
        *layer_costs(plan),
    ):
        out.print(line, markup=False)


def layer_costs(plan: CapturePlan) -> list[str]:
    """State what comparing the modules takes, in a sentence; none where they are not compared."""
    layers = plan.layers
    if layers is None:
        return []
    everywhere = (
        "all positions"
        if layers.looked_at == plan.header.rows
        else f"{layers.looked_at:,} of {plan.header.rows:,} positions"
    )
    floor = f", and their floor takes {layers.seeds} reordered prefills more" if layers.seeds else "; no floor is run"
    return [
        f"The outputs of {layers.modules} modules are compared at {everywhere}: the reference's wait on disk, about "
        f"{size(layers.spool_bytes)} until the run is written{floor}."
    ]
