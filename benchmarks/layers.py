"""A capture that compares every module's output over the same capture without, and how rounding grows from one product
to all logits.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.capture import TOKENS, model_folder
from benchmarks.scratch import scratch
from benchmarks.timing import Line, interleaved
from core.inference.capture.capture import plan_capture, run_capture
from core.inference.models.model import load_model
from core.inference.paths.batch import ignore
from core.inference.paths.engines import side_of
from core.runs.file.records import Generation
from core.runs.reader import RunReader
from core.runs.store.store import Store
from core.runs.tables.kv_cache import KvPart
from core.runs.views.layers import modules_of
from core.runs.writer import RunWriter

ROUNDS = 5


class _NothingKeptError(Exception):
    """Ends a writer whose run is not wanted."""


class _ModulesAlone:
    """A sink for which only modules count: of the logits nothing is kept, so what is left are forwards, hooks and
    comparing.
    """

    def __init__(self, writer: RunWriter) -> None:
        self.layers = writer.layers

    def write(self, side: int, row: int, bits: NDArray[np.unsignedinteger]) -> None: ...
    def write_kv(self, side: int, part: KvPart) -> None: ...
    def write_generation(self, generation: Generation) -> None: ...


VARIANTS = {"decode": 1, "prefill+batch:4": 12, "chunked:64": 12}  # prompts: a run file costs 0.2 s however small it is


def run() -> list[Line]:
    folder = model_folder()
    if folder is None:
        return [Line("layers of a pair", "<= 2.5x", "not run", "sample_runs/model is not built")]
    loaded = load_model(str(folder), dtype="bfloat16")
    length = min(TOKENS, loaded.context or TOKENS)
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(1, loaded.token_limit, (max(VARIANTS.values()), length), generator=generator).tolist()
    lines = []
    with scratch() as name:
        store = Store(name)
        for variant, prompts in VARIANTS.items():
            given = texts[:prompts]
            plans = {
                "layers": plan_capture(loaded, given, "prefill", [variant], layers=True, layer_floor=0),
                "plain": plan_capture(loaded, given, "prefill", [variant]),
            }

            def capture(which: str, plans=plans) -> str:
                with RunWriter(store, plans[which].header) as writer:
                    run_capture(plans[which], writer)
                    return writer.finish()

            def bare(plans=plans, given=given) -> None:
                with torch.inference_mode():
                    for path in plans["plain"].paths:
                        for ids in given:
                            side_of(str(path)).run_on(loaded)(ids, ignore)

            def modules(plans=plans) -> None:
                with suppress(_NothingKeptError), RunWriter(store, plans["layers"].header) as writer:
                    run_capture(plans["layers"], _ModulesAlone(writer))
                    raise _NothingKeptError

            contenders = {
                "modules": modules,
                "layers": lambda capture=capture: store.delete(capture("layers")),
                "plain": lambda capture=capture: store.delete(capture("plain")),
                "bare": bare,
            }
            for once in contenders.values():
                once()
            seconds = interleaved(contenders, ROUNDS)
            run_id = capture("layers")
            with RunReader(store.path_of(run_id)) as stored:
                compared = modules_of(stored.layers(0))
            store.delete(run_id)
            lines.append(
                Line(
                    f"forwards of prefill and {variant} with every module compared, over bare ones",
                    "<= 2.5x",
                    f"{seconds['modules'] / seconds['bare']:.2f}x",
                    f"{seconds['modules']:.2f} s over {seconds['bare']:.2f} s, {prompts} x {length} tokens,"
                    f" {len(compared)} modules, no floor, no logits stored, {loaded.dtype}; medians of {ROUNDS}",
                )
            )
            lines.append(
                Line(
                    f"capture of prefill and {variant} with layers, {prompts} x {length} tokens",
                    "<= 2.5x",
                    f"{seconds['layers'] / seconds['plain']:.2f}x",
                    f"{seconds['layers']:.2f} s over {seconds['plain']:.2f} s without layers; the bare forwards take"
                    f" {seconds['bare']:.2f} s ({seconds['layers'] / seconds['bare']:.2f}x), {len(compared)} modules;"
                    f" medians of {ROUNDS}",
                )
            )
            first = next((each for each in compared if each.neq), None)
            if first is not None:
                lines.append(
                    Line(
                        f"growth from one product to the logits, {variant}",
                        "1 in 1000 to most",
                        f"{1000 * first.neq_share:.2g} in 1000 to {compared[-1].neq_share:.0%}",
                        f"of the elements of {first.module}, the first that differs, and of the logits",
                    )
                )
    return [*lines, *_one_product(loaded.torch_dtype)]


def _one_product(dtype: torch.dtype) -> list[Line]:
    """One linear map over 64 rows at once against the same row by row: what all growth begins with."""
    generator = torch.Generator().manual_seed(0)
    lines = []
    for width in (384, 1024, 4096):
        weight = (torch.randn(width, width, generator=generator) / width**0.5).to(dtype)
        rows = torch.randn(64, width, generator=generator).to(dtype)
        with torch.inference_mode():
            whole = torch.nn.functional.linear(rows, weight)
            single = torch.cat([torch.nn.functional.linear(row[None], weight) for row in rows])
        share = float((whole != single).double().mean())
        lines.append(
            Line(
                f"one product, {width} x {width}, 64 rows at once against row by row",
                "about 1 in 1000",
                f"{1000 * share:.2g} in 1000",
                f"of its elements differ, {str(dtype).removeprefix('torch.')}, no model",
            )
        )
    return lines
