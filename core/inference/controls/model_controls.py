"""Controls of an uploaded dump that its model supplies: the rounding floor on the dump's own tokens, and how far each
uploaded side lies from the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import CaptureError, UsageError
from ...judging.divergence import Divergence, mean_squares
from ...judging.ladder import BLOCKS
from ...judging.uploaded_controls import FOREIGN, ModelControls
from ...numerics.formats import values_of
from ...runs.figures import Figures
from ...runs.file.evidence import Evidence
from ..models.float64 import in_float64
from ..models.model import LoadedModel
from ..models.torch_errors import foreign_errors_stop, quiet
from ..paths.paths import open_path, parse_path
from .drawn_roundings import PREFILL
from .lower_precision import answering, lowered
from .rounding_floor import (
    EXACT_BYTES,
    as_many_as,
    check_prompts,
    divergence,
    known,
    own_rounding_of,
    rounding_floor,
    whole_side,
)

SEEDS = 4


def model_controls(
    loaded: LoadedModel,
    figures: Figures,
    *,
    seeds: Sequence[int] = range(SEEDS),
    on_progress: Callable[[str], None] | None = None,
) -> ModelControls:
    """Runs the model, loaded in the dump's dtype, on the dump's tokens. UsageError where the dump is of no tokens or
    another vocabulary.
    """
    say = on_progress or (lambda _: None)
    header = figures.header
    prompts = [prompt.token_ids for prompt in header.prompts]
    if not all(prompts):
        raise UsageError("this dump has no token_ids, so no model can be run on its tokens; save them with the logits.")
    if loaded.vocab_size != header.vocab:
        raise UsageError(
            f"model '{loaded.name}' has logits of {loaded.vocab_size} tokens, the dump of {header.vocab}; they are not"
            " of one model."
        )
    if loaded.dtype != header.compute_dtype:
        raise UsageError(
            f"model '{loaded.name}' is loaded in {loaded.dtype}, the dump was computed in {header.compute_dtype}."
        )
    check_prompts(loaded, prompts)
    with (
        quiet(),
        torch.inference_mode(),
        foreign_errors_stop("the model's controls", "choose a smaller model or another device"),
    ):
        say(f"{len(seeds)} reorderings in {loaded.dtype}")
        own = rounding_floor(loaded, prompts, list(seeds))
        own_rounding = None if loaded.dtype == "float32" else own_rounding_of(loaded, prompts)
        say(f"{len(seeds)} reorderings in float32")
        wide = own if loaded.dtype == "float32" else rounding_floor(loaded, prompts, list(seeds), dtype="float32")
        say("the uploaded sides against the model")
        from_model = _from_model(loaded, figures, prompts)
        say("the uploaded sides against a forward in float64")
        errors = _errors(loaded, figures, prompts)
        squares = np.stack([mean_squares(of_seed) for of_seed in wide.divergences])
        lowered_of = _lowered(loaded, figures, prompts, from_model, squares, list(seeds), say)
    return ModelControls(
        name=f"'{loaded.name}'",
        own=np.stack([mean_squares(of_seed) for of_seed in own.divergences]),
        own_rounding=own_rounding,
        float32=squares,
        from_model=from_model,
        errors=errors,
        maps=own.maps,
        lowered=lowered_of,
        floor_row_ulps=own.row_ulps,
    )


def _lowered(
    loaded: LoadedModel,
    figures: Figures,
    prompts: Sequence[tuple[int, ...]],
    from_model: dict[str, NDArray[np.float64]],
    floor: NDArray[np.float64],
    seeds: Sequence[int],
    say: Callable[[str], None],
) -> dict[str, Evidence]:
    """A row of evidence for each side of a float32 dump that the model does not compute, by its name: does it in a
    lower precision? What was uploaded is not computed again, so a prompt may come once only.
    """
    if loaded.dtype != "float32" or len(set(prompts)) < len(prompts):
        return {}
    found = {}
    for index, name in enumerate(from_model):
        if from_model[name].mean() <= FOREIGN**2 * max(float(floor.mean()), np.finfo(float).tiny):
            continue
        row, answers = 0, {}
        for ids in prompts:
            answers[ids] = _uploaded(figures, index, row, len(ids), loaded.device)
            row += len(ids)
        with suppress(CaptureError), foreign_errors_stop("lower precisions", "choose a smaller model"):
            of_side = lowered(
                loaded, prompts, (PREFILL, answering(name, answers)), floor, seeds, BLOCKS, say, is_fixed=True
            )
            if of_side is not None:
                found[name] = of_side.evidence
    return found


def _from_model(
    loaded: LoadedModel, figures: Figures, prompts: Sequence[Sequence[int]]
) -> dict[str, NDArray[np.float64]]:
    """Mean squares of each side against the model's own prefill, by the side's name. [positions]"""
    found: dict[str, list[Divergence]] = {side.name: [] for side in figures.header.sides}
    row = 0
    with open_path(parse_path("prefill"), loaded) as run:
        for ids in prompts:
            plain = whole_side(run, ids)
            for index, name in enumerate(found):
                found[name].append(
                    divergence(plain, known(_uploaded(figures, index, row, len(ids), loaded.device)), ids)
                )
            row += len(ids)
    return {name: mean_squares(each) for name, each in found.items()}


def _errors(loaded: LoadedModel, figures: Figures, prompts: Sequence[Sequence[int]]) -> dict[str, float]:
    """rms of each side, in logits, to a forward in float64; over as many prompts as fit, empty where that is not to be
    had.
    """
    chosen = {id(ids) for ids in as_many_as(prompts, EXACT_BYTES // (8 * loaded.vocab_size))}
    found: dict[str, list[Divergence]] = {side.name: [] for side in figures.header.sides}
    row = 0
    try:
        with in_float64(loaded) as widened:
            model: Any = widened.model
            for ids in prompts:
                if id(ids) in chosen:
                    exact = model(torch.tensor([list(ids)], device=loaded.device)).logits[0]
                    for index, name in enumerate(found):
                        found[name].append(
                            divergence(exact, known(_uploaded(figures, index, row, len(ids), loaded.device)), ids)
                        )
                row += len(ids)
    except CaptureError:
        return {}
    return {name: float(np.sqrt(mean_squares(each).mean())) for name, each in found.items()}


def _uploaded(figures: Figures, side: int, row: int, rows: int, device: str) -> torch.Tensor:
    """Rows of an uploaded side as float32, which holds each of their values. [rows, vocab]"""
    bits = figures.read_rows(side, row, row + rows)
    return torch.from_numpy(values_of(bits, figures.header.format).astype(np.float32)).to(device)
