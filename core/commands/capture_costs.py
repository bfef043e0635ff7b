"""Costs of a capture for `--dry-run`: what it would compute and keep."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from ..runs.file.kept import takes
from ..text import plural, size
from .terminal.console import out, print_json, print_text, table_of

if TYPE_CHECKING:  # torch is for those who run a model
    from ..inference.capture.capture import CapturePlan


def print_costs(plan: CapturePlan, as_json_: bool) -> None:
    """Print the forwards, bytes and memory of a plan's sides."""
    from ..inference.capture.costs import costs_of
    from ..inference.models.devices import devices_here

    costs, loaded, name = costs_of(plan), plan.loaded, plan.header.name
    if as_json_:
        devices = [{"device": device, "device_name": chip, "free_bytes": free} for device, chip, free in devices_here()]
        about = {"model": loaded.name, **{key: getattr(loaded, key) for key in ("dtype", "device", "device_name")}}
        figures = {**asdict(costs), "forwards": costs.forwards, "tokens": costs.tokens}
        print_json({**about, "name": name, "devices": devices, **figures})
        return
    rows = []
    for side in costs.sides:
        cache = "unknown" if side.kv_bytes is None else size(side.kv_bytes) if side.kv_bytes else "none"
        rows.append((side.name, side.path, *(f"{n:,}" for n in (side.forwards, side.positions, side.tokens)), cache))
    columns = ("side", "path", "forwards", "positions", "tokens computed", "key/value cache")
    title = f"{name}, in {loaded.dtype} on {loaded.device} ({loaded.device_name})"
    out.print(table_of(columns, rows, title=title, text=("side", "path")))
    print_text(
        f"{plural(costs.prompts, 'prompt')}, {costs.positions:,} positions;"
        f" {costs.forwards:,} forwards of {costs.tokens:,} tokens in all."
    )
    free = "an unknown amount" if costs.free_bytes is None else size(costs.free_bytes)
    file, weights = takes(costs.kept, costs.file_bytes), size(costs.weight_bytes)
    print_text(f"{file}; the weights take {weights}; {loaded.device} has {free} free.")
    print_text("Caches are compared too." if costs.has_kv else "Caches are not compared.")
    if (layers := plan.layers) is not None:
        total = plan.header.rows
        at = "all positions" if layers.looked_at == total else f"{layers.looked_at:,} of {total:,} positions"
        floor = f"their floor takes {layers.seeds} reordered prefills more" if layers.seeds else "no floor is run"
        print_text(
            f"The outputs of {layers.modules} modules are compared at {at}: about {size(layers.spool_bytes)} on disk"
            f" until the run is written; {floor}."
        )
