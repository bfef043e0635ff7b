"""Controls of an uploaded dump that its model supplies: it runs on the dump's own tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import CaptureError, UsageError
from ...judging.divergence import mean_squares
from ...judging.dump import DumpControls, WithModel
from ...judging.judge import OtherRows, Pair, Rerun
from ...judging.uploaded_controls import side_in_float32
from ...numerics.formats import values_of
from ...runs.figures import Figures
from ...runs.file.evidence import Evidence
from ..models.model import LoadedModel
from ..paths.batch import Run
from ..paths.engines import PLAIN, RunnableSide, divergences_of
from ..paths.hooks import ModuleTrace
from .judge_model import SEEDS, ModelControls, model_errors_stop
from .judging_session import JudgingSession
from .precisions.catalogue import Precision
from .rounding_floor import check_prompts


def model_of_dump(
    loaded: LoadedModel,
    figures: Figures,
    *,
    float32: Sequence[Path] = (),
    seeds: Sequence[int] = range(SEEDS),
    precisions: Sequence[Precision] = (),
    on_progress: Callable[[str], None] | None = None,
) -> WithModel:
    """Add a model's controls to those of a dump. float32: dumps of the pair in float32.

    Raises:
        UsageError: the dump has no token ids, or is not of this model's vocabulary or dtype.
    """
    header = figures.header
    prompts = [tuple(int(token) for token in prompt.token_ids) for prompt in header.prompts]
    if not all(prompts):
        raise UsageError("This dump has no token_ids, so no model can run on its tokens; save them with the logits.")
    if loaded.vocab_size != header.vocab:
        raise UsageError(f"Model '{loaded.name}' has {loaded.vocab_size} tokens, the dump {header.vocab}.")
    if loaded.dtype != header.compute_dtype:
        raise UsageError(f"Model '{loaded.name}' is loaded in {loaded.dtype}; the dump is in {header.compute_dtype}.")
    check_prompts(loaded, prompts)
    session = JudgingSession(loaded, prompts)

    def with_model(dump: DumpControls) -> _DumpOfModel:
        sides = [_recorded(figures, index, prompts, float32) for index in (0, dump.index + 1)]
        return _DumpOfModel(dump, session, (sides[0], sides[1]), seeds, precisions, on_progress)

    return with_model


class _DumpOfModel(ModelControls):
    """A dump whose noise floor and float32 forward the model computes; the sides themselves are recorded."""

    def __init__(self, dump: DumpControls, session: JudgingSession, *rest: object) -> None:
        super().__init__(session, *rest)  # type: ignore[arg-type]
        self.dump, self.names = dump, dump.names
        self.has_experts = self.has_experts or dump.has_experts
        self.tried = tuple(sorted({*(dump.tried or ()), "model"}))

    @property
    def causes(self) -> Sequence[str]:
        return self.dump.causes

    @property
    def only_16_bits(self) -> Mapping[str, str]:
        return {}

    def validity(self) -> list[Evidence]:
        return self.dump.rows

    def pair(self, dtype: str) -> Pair:
        return self.dump.pair(dtype)

    def rerun(self) -> Rerun:
        return self.dump.rerun()

    def neighbours(self) -> list[OtherRows]:
        return self.dump.neighbours()

    floor = model_errors_stop()(ModelControls.floor)
    exact = model_errors_stop()(ModelControls.exact)
    _errors_of_own_paths = model_errors_stop()(ModelControls._errors_of_own_paths)
    lower_precision = model_errors_stop()(ModelControls.lower_precision)

    @model_errors_stop()
    def from_model(self) -> Mapping[str, NDArray[np.float64]]:
        self.say("the uploaded sides compared with the model")
        return {
            side.name: mean_squares(divergences_of(self.loaded, self.prompts, (PLAIN, side))) for side in self.sides
        }

    def differences(self, row: int, dtype: str) -> NDArray[np.float64] | None:
        return self.dump.differences(row, dtype)

    def modules(self, *_: object) -> list[Evidence]:
        return []

    def source_of(self, _: object) -> str:
        return ""

    def differing(self) -> list[Evidence]:
        return self.dump.differing()

    def arrays_alone(self) -> Evidence | None:
        return self.dump.arrays_alone()


def _recorded(
    figures: Figures, index: int, prompts: Sequence[tuple[int, ...]], float32: Sequence[Path]
) -> RunnableSide:
    """An uploaded side: its logits in the dump's dtype, and in float32 if they were uploaded in it too."""
    header, name = figures.header, figures.header.sides[index].name
    starts = {ids: sum(map(len, prompts[:number])) for number, ids in reversed(list(enumerate(prompts)))}
    wide: list[NDArray[np.float32] | None] = []

    @contextmanager
    def opened(loaded: LoadedModel, _: ModuleTrace | None) -> Iterator[Run]:
        if loaded.dtype != header.compute_dtype and not wide:
            wide.append(side_in_float32(figures, float32, name) if float32 else None)

        def rows_of(ids: Sequence[int]) -> torch.Tensor:
            start = starts[tuple(ids)]
            stop = start + len(ids)
            if loaded.dtype == header.compute_dtype:
                values = values_of(figures.read_rows(index, start, stop), header.format).astype(np.float32)
            elif wide and wide[0] is not None and loaded.dtype == "float32":
                values = wide[0][start:stop]
            else:
                raise CaptureError(f"'{name}' was not uploaded in {loaded.dtype}.")
            return torch.from_numpy(values).to(loaded.device)

        yield lambda ids, emit: emit(0, rows_of(ids))

    return RunnableSide(name, opened)
