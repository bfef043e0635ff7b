"""Controls of an uploaded dump that its model supplies: the rounding floor on the dump's own tokens, and how far each
uploaded side lies from the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import CaptureError, UsageError
from ...judging.divergence import Divergence, mean_squares
from ...judging.ladder.noise_ratio import floor_test
from ...judging.ladder.structure import BLOCKS
from ...judging.uploaded_controls import FOREIGN, ModelControls, side_in_float32
from ...numerics.formats import values_of
from ...runs.figures import Figures
from ...runs.file.evidence import Evidence
from ..models.float64 import in_float64
from ..models.model import LoadedModel, has_experts
from ..models.torch_errors import foreign_errors_stop, quiet
from ..paths.batch import Run
from ..paths.engines import RunnableSide
from ..paths.hooks import ModuleTrace
from ..paths.paths import open_path, parse_path
from .drawn_roundings import PREFILL, sixteen_rows
from .judge_model import SEEDS, SEEDS_OF_MODULES
from .precisions.in_16_bits import not_drawn, sixteen_bits_alone
from .precisions.lower_precision import checked_in_16_bits, lowered
from .precisions.lowered_side import Lowered, answering
from .rounding_floor import (
    EXACT_BYTES,
    as_many_as,
    check_prompts,
    divergence,
    in_float32,
    known,
    own_rounding_of,
    rounding_floor,
    whole_side,
)


def model_controls(
    loaded: LoadedModel,
    figures: Figures,
    *,
    float32: Sequence[Path] = (),
    seeds: Sequence[int] = range(SEEDS),
    on_progress: Callable[[str], None] | None = None,
) -> ModelControls:
    """Runs the model, loaded in the dump's dtype, on the dump's tokens. UsageError where the dump is of no tokens or
    another vocabulary. float32: dumps of the pair in float32, where they are given as well.
    """
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
        of_own = np.stack([mean_squares(of_seed) for of_seed in own.divergences])
        floor = of_own.mean(axis=0) if own_rounding is None else np.maximum(of_own.mean(axis=0), own_rounding)
        precisions = _Precisions(loaded, figures, prompts, from_model, floor, squares, list(seeds), say)
        drawn, lowered_of = precisions.found(float32)
    return ModelControls(
        name=f"'{loaded.name}'",
        own=of_own,
        own_rounding=own_rounding,
        float32=squares,
        from_model=from_model,
        errors=errors,
        maps=own.maps,
        drawn=drawn,
        lowered=lowered_of,
        floor_row_ulps=own.row_ulps,
    )


@dataclass
class _Precisions:
    """Precisions that the sides of a dump may have been lowered to, asked of each side that is no rounding of the
    model, as `judge` asks it of sides that it can run. What was uploaded is not computed again.

    from_model: as in ModelControls; own: mean squares of the floor in the dump's dtype [positions]; floor: of that in
    float32 [seeds, positions].
    """

    loaded: LoadedModel
    figures: Figures
    prompts: Sequence[tuple[int, ...]]
    from_model: dict[str, NDArray[np.float64]]
    own: NDArray[np.float64]
    floor: NDArray[np.float64]
    seeds: list[int]
    say: Callable[[str], None]

    def found(self, float32: Sequence[Path]) -> tuple[dict[str, Evidence], dict[str, Evidence]]:
        """(rows of 16 bits alone, rows of lower precisions), each by the side's name."""
        sides = {name: self._uploaded(index) for index, name in enumerate(self.from_model)}
        if self.loaded.dtype != "float32" and not float32:
            rows, _, lower = sixteen_bits_alone(self.loaded, self.prompts, list(sides.values()), BLOCKS, say=self.say)
            return dict(zip(sides, rows, strict=True)), {str(each.evidence.side): each.evidence for each in lower}
        found: dict[str, Evidence] = {}
        drawn: dict[str, Evidence] = {}
        if self.loaded.dtype != "float32":
            drawn = dict(zip(sides, self._drawn(list(sides.values())), strict=True))
        for name, side in sides.items():
            with suppress(CaptureError), foreign_errors_stop("lower precisions", "choose a smaller model"):
                of_side = self._of_float32(side) if self.loaded.dtype == "float32" else self._of_both(side, float32)
                if of_side is not None:
                    found[name] = of_side.evidence
        return drawn, found

    def _drawn(self, sides: Sequence[RunnableSide]) -> list[Evidence]:
        """Rows on the sides in 16 bits, beside a pair in float32: a fault of the 16-bit kernels alone leaves that as it
        is.
        """
        try:
            return sixteen_rows(self.loaded, self.prompts, sides, BLOCKS, self.say, decides=False)[0]
        except CaptureError as error:
            return [not_drawn(self.loaded.dtype, side.name, error) for side in sides]

    def _of_float32(self, side: RunnableSide) -> Lowered | None:
        return self._widened(self.loaded, side) if self._is_beyond(self.from_model[side.name]) else None

    def _of_both(self, side: RunnableSide, float32: Sequence[Path]) -> Lowered | None:
        """A side of 16 bits that was uploaded in float32 as well, where less of a fault is hidden."""
        loaded, seeds = self.loaded, self.seeds[:SEEDS_OF_MODULES]
        wide = side_in_float32(self.figures, float32, side.name)
        if wide is None:
            return None
        parts = np.split(wide, np.cumsum([len(ids) for ids in self.prompts])[:-1])
        answers = [torch.from_numpy(part).to(loaded.device) for part in parts]
        with in_float32(loaded) as widened:
            recorded = answering(side.name, self.prompts, answers)
            apart = [
                divergence(answer, PREFILL.run_on(widened), ids)
                for answer, ids in zip(answers, self.prompts, strict=True)
            ]
            lower = self._widened(widened, recorded) if self._is_beyond(mean_squares(apart)) else None
        if self.from_model[side.name].mean() <= FOREIGN**2 * self.own.mean():
            return lower
        if lower is not None:
            return checked_in_16_bits(loaded, self.prompts, replace(lower, side=side), seeds, self.say)
        _, _, found = sixteen_bits_alone(loaded, self.prompts, [side], BLOCKS, say=self.say)
        return found[0] if found else None

    def _widened(self, widened: LoadedModel, side: RunnableSide) -> Lowered:
        found = lowered(widened, self.prompts, (PREFILL, side), self.floor, self.seeds, BLOCKS, self.say, is_fixed=True)
        return next(each for each in found if each.evidence.side == side.name)

    def _is_beyond(self, squares: NDArray[np.float64]) -> bool:
        """True of a distance to the model in float32 [positions] that is no rounding."""
        if squares.mean() > FOREIGN**2 * self.floor.mean():
            return True
        return not (has_experts(self.loaded.model) or floor_test(squares, self.floor).is_passed)

    def _uploaded(self, index: int) -> RunnableSide:
        """An uploaded side, by the prompts of this record."""
        begins = {id(ids): sum(map(len, self.prompts[:number])) for number, ids in enumerate(self.prompts)}

        @contextmanager
        def opened(_: LoadedModel, __: ModuleTrace | None) -> Iterator[Run]:
            yield lambda ids, emit: emit(
                0, _uploaded(self.figures, index, begins[id(ids)], len(ids), self.loaded.device)
            )

        return RunnableSide(self.figures.header.sides[index].name, opened)


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
