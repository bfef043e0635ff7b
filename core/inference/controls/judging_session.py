"""Controls that do not depend on the variant: of one model and the same prompts they are computed once, at first need,
and serve every pair that is judged, and the remedies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from ...judging.divergence import Divergence
from ...numerics.formats import LOGIT_FORMATS
from ..models.model import LoadedModel
from ..paths.batch import CHUNK_BYTES, Emit, Run
from ..paths.engines import PLAIN, RunnableSide, digest_of, whole_side
from ..paths.hooks import ModuleTrace
from .answer_precision import Narrow, narrow_answers
from .drawn_roundings import Drawn
from .rounding_floor import Floor, own_rounding_of, rounding_floor

KEPT_BYTES = 256 << 20  # of the logits of paths, in all dtypes together
_WIDEST = 4  # bytes of a logit of another engine, some of which give float32 whatever they compute in
Key = TypeVar("Key")
Computed = TypeVar("Computed")


class JudgingSession:
    """One model and the prompts that its pairs are judged on. Results of a path are kept under its name; a callable may
    be another one under the same name, and is run anew for every pair.
    """

    def __init__(self, loaded: LoadedModel, prompts: Sequence[Sequence[int]]) -> None:
        self.loaded = loaded
        self.prompts = [tuple(int(token) for token in prompt) for prompt in prompts]
        self._maps: dict[str, int] = {}  # linear maps reordered, by dtype
        self._floors: dict[tuple[str, int], tuple[Divergence, ...]] = {}  # by dtype and seed
        self._own_rounding: list[NDArray[np.float64] | None] = []
        self._narrow: dict[str, Narrow | None] = {}
        self._logits: dict[tuple[str, str, tuple[int, ...]], torch.Tensor] = {}
        self._digests: dict[tuple[str, str], str] = {}
        self.draws = Drawn(exact=self.kept(PLAIN))

    def floor(self, model: LoadedModel, seeds: Sequence[int]) -> Floor:
        """`rounding_floor`, a seed once. model: the session's, or the same weights widened."""
        dtype = model.dtype
        missing = [seed for seed in seeds if (dtype, seed) not in self._floors]
        if missing:
            fmt = LOGIT_FORMATS.get(dtype) if model is self.loaded else None
            added = rounding_floor(model, self.prompts, missing, row_ulps_of=fmt, plain=self.kept(PLAIN).run_on)
            self._maps.setdefault(dtype, added.maps)
            self._floors |= {(dtype, seed): of for seed, of in zip(missing, added.divergences, strict=True)}
        return Floor(self._maps[dtype], tuple(seeds), tuple(self._floors[dtype, seed] for seed in seeds))

    def own_rounding(self) -> NDArray[np.float64] | None:
        """`own_rounding_of` the model on the prompts. [positions]"""
        if not self._own_rounding:
            self._own_rounding.append(own_rounding_of(self.loaded, self.prompts, self.kept(PLAIN).run_on))
        return self._own_rounding[0]

    def narrow(self, side: RunnableSide) -> Narrow | None:
        """`narrow_answers` of the side on the prompts."""
        asked = side if side.path is None else self.kept(side)  # an engine is asked whether it repeats itself
        return self._once(
            side, side.name, self._narrow, lambda: narrow_answers(self.loaded, self.prompts, asked, self.kept(PLAIN))
        )

    def digest(self, model: LoadedModel, side: RunnableSide) -> str:
        """sha256 of the bits of a call of the side in the dtype of `model`, over all prompts."""
        key = (side.name, model.dtype)
        return self._once(side, key, self._digests, lambda: digest_of(model, self.prompts, side))

    @staticmethod
    def _once(side: RunnableSide, key: Key, kept: dict[Key, Computed], ask: Callable[[], Computed]) -> Computed:
        if not side.is_named:
            return ask()
        if key not in kept:
            kept[key] = ask()
        return kept[key]

    def kept(self, side: RunnableSide) -> RunnableSide:
        """The side, but a path computes its logits once in each dtype, as far as KEPT_BYTES go; not if followed."""
        return replace(side, open=partial(self._opened, side)) if side.is_named else side

    def forget(self, side: RunnableSide) -> None:
        """Let the logits of a side go, which no other pair has."""
        self._logits = {key: logits for key, logits in self._logits.items() if key[0] != side.name}

    @contextmanager
    def _opened(self, side: RunnableSide, model: LoadedModel, trace: ModuleTrace | None) -> Iterator[Run]:
        def run(ids: Sequence[int], emit: Emit) -> None:
            logits = None if trace is not None else self._logits_of(side, model, ids)
            if logits is None:
                return side.run_on(model, trace)(ids, emit)
            step = max(1, CHUNK_BYTES // logits[:1].nbytes)
            for start in range(0, len(logits), step):
                emit(start, logits[start : start + step])
            return None

        yield run

    def _logits_of(self, side: RunnableSide, model: LoadedModel, ids: Sequence[int]) -> torch.Tensor | None:
        """All logits of a prompt, kept from now on; None where they have no room. [positions, vocab]"""
        key = (side.name, model.dtype, tuple(ids))
        if key not in self._logits:
            itemsize = model.torch_dtype.itemsize if side.engine_path is None else _WIDEST
            size = len(ids) * model.vocab_size * itemsize
            if sum(logits.nbytes for logits in self._logits.values()) + size > KEPT_BYTES:
                return None
            self._logits[key] = whole_side(side.run_on(model), ids)
        return self._logits[key]
