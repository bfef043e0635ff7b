"""Controls of an uploaded dump that its model supplies: it runs on the dump's own tokens."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...checks.drawn import Exact
from ...checks.lower_precision import PrecisionVerdict
from ...checks.pair import NoiseFloor
from ...errors import CaptureError, UsageError
from ...evidence import Evidence
from ...judging.dump_controls import DumpControls, MakeControls
from ...judging.uploaded_controls import side_in_float32
from ...numerics.arrays import Floats, Values
from ...numerics.formats import values_of
from ...progress import Progress, no_progress
from ...runs.figures import Figures
from ..models.model import Ids, LoadedModel
from ..models.torch_errors import model_errors_stop
from ..paths.batch import Run
from ..paths.engines import PLAIN, RunnableSide, divergence_of
from ..paths.hooks import ModuleTrace
from .judge_model import JudgingSession, ModelControls
from .precisions.catalogue import Precision


def model_of_dump(
    loaded: LoadedModel,
    figures: Figures,
    *,
    float32: Sequence[Path] = (),
    precisions: Sequence[Precision] = (),
    on_progress: Progress = no_progress,
) -> MakeControls:
    """Return how the controls of a dump are made with a model. float32: dumps of the pair in
    float32.

    Raises:
        UsageError: the dump has no token ids, or is not of this model's vocabulary or dtype.
    """
    header = figures.header
    prompts = [prompt.token_ids for prompt in header.prompts]
    if not all(prompts):
        raise UsageError(
            "This dump has no token_ids, so no model can run on its tokens; save them with the"
            " logits.",
        )
    if loaded.vocab_size != header.vocab:
        raise UsageError(
            f"Model '{loaded.name}' has {loaded.vocab_size} tokens, the dump {header.vocab}.",
        )
    if loaded.dtype != header.compute_dtype:
        raise UsageError(
            f"Model '{loaded.name}' is loaded in {loaded.dtype}; the dump is in"
            f" {header.compute_dtype}.",
        )
    session = JudgingSession(loaded, prompts)

    def controls_of(dump: Figures, pair: int, *others: Any) -> DumpControls:
        reference, variant = (
            _recording_of(dump, index, session.prompts, float32) for index in (0, pair + 1)
        )
        model = ModelControls(session, (reference, variant), precisions, on_progress)
        return _DumpOfModel(model, dump, pair, *others)

    return controls_of


class _DumpOfModel(DumpControls):
    """A dump whose noise floor and float32 forward the model computes; the sides themselves are
    recorded.
    """

    def __init__(self, model: ModelControls, *dump: Any) -> None:
        super().__init__(*dump)
        self.model = model
        self.has_experts = self.has_experts or model.has_experts

    @property
    @model_errors_stop()
    def chooses_keys(self) -> bool:
        return self.model.chooses_keys

    def validity(self) -> list[Evidence]:
        # `exact` compares the errors of the sides
        return [*self.rows, *self.single_token()]

    @model_errors_stop()
    def floor(self, dtype: str) -> NoiseFloor:
        return self.model.floor(dtype)

    @model_errors_stop()
    def larger_floor(self, dtype: str) -> NoiseFloor:
        return self.model.larger_floor(dtype)

    @model_errors_stop()
    def lower_precision(self, *about: Any, **more: Any) -> Sequence[PrecisionVerdict]:
        return self.model.lower_precision(*about, **more)

    @model_errors_stop()
    def exact(self) -> Exact:
        exact = self.model.exact()
        return replace(exact, own_paths=model_errors_stop()(exact.own_paths))

    @model_errors_stop()
    def from_model(self) -> Mapping[str, Floats]:
        self.model.say("the uploaded sides compared with the model")
        loaded = self.model.loaded
        prompts = self.model.prompts
        sides = self.model.sides
        return {side.name: divergence_of(loaded, prompts, (PLAIN, side)).squares for side in sides}


def _recording_of(
    figures: Figures,
    index: int,
    prompts: Sequence[Ids],
    float32: Sequence[Path],
) -> RunnableSide:
    """Replay an uploaded side: its logits in the dump's dtype, and in float32 if they were uploaded
    in it too.
    """
    header = figures.header
    name = header.sides[index].name
    starts: dict[Ids, int] = {}
    begin = 0
    for ids in prompts:
        # the first of equal ones
        starts.setdefault(ids, begin)
        begin += len(ids)

    @cache
    def in_float32() -> Values | None:
        return side_in_float32(figures, float32, name) if float32 else None

    @contextmanager
    def replay(loaded: LoadedModel, _: ModuleTrace | None) -> Iterator[Run]:
        def rows_of(ids: Sequence[int]) -> torch.Tensor:
            start = starts[tuple(ids)]
            stop = start + len(ids)
            if loaded.dtype == header.compute_dtype:
                values = values_of(figures.read_rows(index, start, stop), header.format)
                return torch.from_numpy(values.astype(np.float32)).to(loaded.device)
            wide = in_float32() if loaded.dtype == "float32" else None
            if wide is None:
                raise CaptureError(f"'{name}' was not uploaded in {loaded.dtype}.")
            return torch.from_numpy(wide[start:stop]).to(loaded.device)

        yield lambda ids, emit: emit(0, rows_of(ids))

    return RunnableSide(name, replay)
