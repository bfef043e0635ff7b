"""Results that do not depend on the variant, computed once for every pair that is judged, and the remedies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch

from ...judging.judge import NoiseFloor
from ...numerics.formats import LOGIT_FORMATS
from ..models.model import LoadedModel
from ..paths.batch import CHUNK_BYTES, Emit, Run
from ..paths.engines import PLAIN, RunnableSide, whole_side
from ..paths.hooks import ModuleTrace
from .drawn_roundings import Drawn
from .rounding_floor import rounding_floor

KEPT_BYTES = 256 << 20  # of the logits of paths, in all dtypes together
_WIDEST = 4  # bytes of a logit of another engine, some of which give float32 whatever they compute in
Computed = TypeVar("Computed")


class JudgingSession:
    """One model and the prompts that its pairs are judged on. Results of a path are kept under its name; a callable may
    be another one under the same name, and is run anew for every pair.
    """

    def __init__(self, loaded: LoadedModel, prompts: Sequence[Sequence[int]]) -> None:
        self.loaded = loaded
        self.prompts = [tuple(int(token) for token in prompt) for prompt in prompts]
        self._results: dict[Any, Any] = {}
        self._logits: dict[tuple[str, str, tuple[int, ...]], torch.Tensor] = {}
        self.draws = Drawn(loaded, self.prompts, exact=self.kept(PLAIN))

    def once(self, key: tuple[Any, ...], compute: Callable[[], Computed], side: RunnableSide = PLAIN) -> Computed:
        """Return what was computed before under this key; of a callable compute it anew."""
        if not side.is_named:
            return compute()
        if key not in self._results:
            self._results[key] = compute()
        result: Computed = self._results[key]
        return result

    def floor(self, model: LoadedModel, seeds: Sequence[int]) -> NoiseFloor:
        """Noise floor in the dtype of `model`: the session's, or the same weights widened."""
        fmt = LOGIT_FORMATS.get(model.dtype) if model is self.loaded else None
        measure = partial(rounding_floor, model, self.prompts, seeds, row_ulps_of=fmt, plain=self.kept(PLAIN))
        return self.once(("floor", model.dtype, *seeds), measure)

    def kept(self, side: RunnableSide) -> RunnableSide:
        """The side, but a path computes its logits once in each dtype, as far as KEPT_BYTES go; not if followed."""
        return replace(side, open=partial(self._opened, side)) if side.is_named else side

    def forget(self, side: RunnableSide) -> None:
        """Let the logits of a side go, which no other pair has."""
        self._logits = {key: logits for key, logits in self._logits.items() if key[0] != side.name}

    @contextmanager
    def _opened(self, side: RunnableSide, model: LoadedModel, trace: ModuleTrace | None) -> Iterator[Run]:
        def run(ids: Sequence[int], emit: Emit) -> None:
            key = (side.name, model.dtype, tuple(ids))
            itemsize = model.torch_dtype.itemsize if side.engine_path is None else _WIDEST
            size = len(ids) * model.vocab_size * itemsize
            if trace is not None:
                return side.run_on(model, trace)(ids, emit)
            if key not in self._logits:
                if sum(logits.nbytes for logits in self._logits.values()) + size > KEPT_BYTES:
                    return side.run_on(model)(ids, emit)
                self._logits[key] = whole_side(side.run_on(model), ids)
            logits = self._logits[key]
            step = max(1, CHUNK_BYTES // logits[:1].nbytes)
            for start in range(0, len(logits), step):
                emit(start, logits[start : start + step])
            return None

        yield run
