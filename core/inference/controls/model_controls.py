"""Controls of an uploaded dump that its model supplies: the rounding floor on the dump's own tokens, and how far each
uploaded side lies from the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import CaptureError, UsageError
from ...judging.divergence import mean_squares
from ...judging.ladder.noise_ratio import floor_test
from ...judging.uploaded_controls import FOREIGN, ModelControls, side_in_float32
from ...numerics.formats import LOGIT_FORMATS, values_of
from ...runs.figures import Figures
from ...runs.file.evidence import Evidence
from ..models.dtypes import in_float32
from ..models.model import LoadedModel, has_experts
from ..models.torch_errors import foreign_errors_stop, quiet
from ..paths.batch import Run
from ..paths.engines import PLAIN, RunnableSide, divergences_of
from ..paths.hooks import ModuleTrace
from .drawn_roundings import sixteen_rows
from .judge_model import SEEDS
from .precisions.in_16_bits import not_drawn, sixteen_bits_alone
from .precisions.lowered import checked_in_16_bits, lowered
from .precisions.lowered_side import Lowered, Question, answering
from .rounding_floor import check_prompts, own_rounding_of, rounding_floor


def model_controls(
    loaded: LoadedModel,
    figures: Figures,
    *,
    float32: Sequence[Path] = (),
    seeds: Sequence[int] = range(SEEDS),
    on_progress: Callable[[str], None] | None = None,
) -> ModelControls:
    """Run the model on a dump's tokens, in its dtype. float32: dumps of the pair in float32."""
    say = on_progress or (lambda _: None)
    header = figures.header
    prompts = [tuple(int(token) for token in prompt.token_ids) for prompt in header.prompts]
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
    is_wide = loaded.dtype == "float32"
    with (
        quiet(),
        torch.inference_mode(),
        foreign_errors_stop("the model's controls", "choose a smaller model or another device"),
    ):
        say(f"{len(seeds)} reorderings in {loaded.dtype}")
        own = rounding_floor(loaded, prompts, list(seeds), row_ulps_of=LOGIT_FORMATS.get(loaded.dtype))
        own_rounding = None if is_wide else own_rounding_of(loaded, prompts)
        squares = own.squares
        if not is_wide:
            say(f"{len(seeds)} reorderings in float32")
            with in_float32(loaded) as widened:
                squares = rounding_floor(widened, prompts, list(seeds)).squares
        say("the uploaded sides against the model")
        sides = {side.name: _uploaded(figures, index, prompts) for index, side in enumerate(header.sides)}
        from_model = {
            name: mean_squares(divergences_of(loaded, prompts, (PLAIN, side))) for name, side in sides.items()
        }
        floor = own.squares.mean(axis=0)
        floor = floor if own_rounding is None else np.maximum(floor, own_rounding)
        question = Question(prompts, list(seeds), say=say)
        wide_of = partial(side_in_float32, figures, float32) if float32 else None
        drawn, lowered_of = _precisions(question, loaded, sides, from_model, floor, squares, wide_of)
    return ModelControls(
        name=f"'{loaded.name}'",
        own=own.squares,
        own_rounding=own_rounding,
        float32=squares,
        from_model=from_model,
        maps=own.maps,
        drawn=drawn,
        lowered=lowered_of,
        floor_row_ulps=own.row_ulps,
    )


def _precisions(
    question: Question,
    loaded: LoadedModel,
    sides: dict[str, RunnableSide],
    from_model: dict[str, NDArray[np.float64]],
    own: NDArray[np.float64],
    floor: NDArray[np.float64],
    wide_of: Callable[[str], NDArray[np.float32] | None] | None,
) -> tuple[dict[str, Evidence], dict[str, Evidence]]:
    """(rows of 16 bits alone, rows of lower precisions), by the side's name: as `judge` asks it, but what was uploaded
    is not computed again.

    own, floor: mean squares of the floor in the dump's dtype [positions] and in float32 [seeds, positions]; wide_of:
    gives a side in float32, None if no such dumps were given.
    """

    def is_beyond(squares: NDArray[np.float64]) -> bool:
        """True of a distance to the model in float32 [positions] that is no rounding."""
        if squares.mean() > FOREIGN**2 * floor.mean():
            return True
        return not (has_experts(loaded.model) or floor_test(squares, floor).is_passed)

    def lowered_side(widened: LoadedModel, side: RunnableSide) -> Lowered:
        found = lowered(question, widened, (PLAIN, side), floor, is_fixed=True)
        return next(each for each in found if each.evidence.side == side.name)

    def of_both(side: RunnableSide, wide: NDArray[np.float32]) -> Lowered | None:
        """A side of 16 bits that was uploaded in float32 as well, where less of a fault is hidden."""
        parts = np.split(wide, np.cumsum(question.lengths)[:-1])
        recorded = answering(side.name, question.prompts, [torch.from_numpy(part).to(loaded.device) for part in parts])
        with in_float32(loaded) as widened:
            apart = mean_squares(divergences_of(widened, question.prompts, (recorded, PLAIN)))
            lower = lowered_side(widened, recorded) if is_beyond(apart) else None
        if from_model[side.name].mean() <= FOREIGN**2 * own.mean():
            return lower
        if lower is not None:
            return checked_in_16_bits(question, loaded, replace(lower, side=side))
        _, _, found = sixteen_bits_alone(question, loaded, [side])
        return found[0] if found else None

    is_wide, every = loaded.dtype == "float32", list(sides.values())
    if not is_wide and wide_of is None:
        rows, _, lower = sixteen_bits_alone(question, loaded, every)
        return dict(zip(sides, rows, strict=True)), {str(each.evidence.side): each.evidence for each in lower}
    rows = []
    if not is_wide:  # a fault of the 16-bit kernels alone leaves the pair in float32 as it is
        try:
            rows, _ = sixteen_rows(loaded, question.prompts, every, question.blocks, question.say, decides=False)
        except CaptureError as error:
            rows = [not_drawn(loaded.dtype, side.name, error) for side in every]
    found: dict[str, Evidence] = {}
    for name, side in sides.items():
        with suppress(CaptureError), foreign_errors_stop("lower precisions", "choose a smaller model"):
            wide = None if wide_of is None or is_wide else wide_of(name)
            one = None if wide is None else of_both(side, wide)
            if is_wide and is_beyond(from_model[name]):
                one = lowered_side(loaded, side)
            if one is not None:
                found[name] = one.evidence
    return dict(zip(sides, rows, strict=False)), found


def _uploaded(figures: Figures, index: int, prompts: Sequence[tuple[int, ...]]) -> RunnableSide:
    """An uploaded side, by the prompts of this record, as float32, which holds each of its values."""
    begins = {id(ids): sum(map(len, prompts[:number])) for number, ids in enumerate(prompts)}

    @contextmanager
    def opened(loaded: LoadedModel, _: ModuleTrace | None) -> Iterator[Run]:
        def rows_of(ids: Sequence[int]) -> torch.Tensor:
            bits = figures.read_rows(index, begins[id(ids)], begins[id(ids)] + len(ids))
            return torch.from_numpy(values_of(bits, figures.header.format).astype(np.float32)).to(loaded.device)

        yield lambda ids, emit: emit(0, rows_of(ids))

    return RunnableSide(figures.header.sides[index].name, opened)
