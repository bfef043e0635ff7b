"""Controls that do not depend on the variant: of one model and the same prompts they are computed once, at first need,
and serve every pair that is judged, and the remedies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import CaptureError
from ...judging.divergence import Divergence, mean_squares
from ..models.float64 import in_float64
from ..models.model import LoadedModel
from ..paths.batch import CHUNK_BYTES, Emit, Run, ignore
from ..paths.engines import RunnableSide, digests_of, side_of
from ..paths.hooks import ModuleTrace
from .answer_precision import PLAIN, Narrow, narrow_answers
from .drawn_roundings import Drawn
from .module_growth import KeptOutputs, is_roomy, run_traced
from .rounding_floor import (
    EXACT_BYTES,
    Floor,
    as_many_as,
    divergence,
    in_float32,
    own_rounding_of,
    rounding_floor,
    whole_side,
)

KEPT_BYTES = 256 << 20  # of the logits of paths, in all dtypes together
_WIDEST = 4  # bytes of a logit of another engine, some of which give float32 whatever they compute in
Key = TypeVar("Key")
Computed = TypeVar("Computed")


@dataclass
class _WatchedPair:
    """Two paths whose next runs in a dtype are followed. kept, compared: of both, by prompt."""

    reference: RunnableSide
    variant: RunnableSide
    dtype: str
    kept: dict[tuple[int, ...], KeptOutputs]
    compared: dict[tuple[int, ...], KeptOutputs]

    def waiting(self, side: RunnableSide, model: LoadedModel, ids: tuple[int, ...]) -> KeptOutputs | None:
        """Trace of a run that is yet to be followed."""
        if model.dtype != self.dtype or side.name not in (self.reference.name, self.variant.name):
            return None
        trace = (self.kept if side.name == self.reference.name else self.compared).get(ids)
        return None if trace is None or trace.has_run else trace


class JudgingSession:
    """One model and the prompts that its pairs are judged on.

    Of a side that is a path, of transformers or of another engine, everything is kept under the path's name; a callable
    may be another one under the same name, and is asked anew for every pair. Whoever changes the model in between makes
    another session.
    """

    def __init__(self, loaded: LoadedModel, prompts: Sequence[Sequence[int]]) -> None:
        self.loaded = loaded
        self.prompts = [tuple(int(token) for token in prompt) for prompt in prompts]
        self._floors: dict[tuple[str, str], tuple[Floor, dict[int, tuple[Divergence, ...]]]] = {}
        self._own_rounding: list[NDArray[np.float64] | None] = []
        self._exact: list[torch.Tensor] = []
        self._errors: dict[str, float] = {}
        self._narrow: dict[str, Narrow | None] = {}
        self._logits: dict[tuple[str, str, tuple[int, ...]], torch.Tensor] = {}
        self._digests: dict[tuple[str, str], str] = {}
        self._module_floors: dict[tuple[object, ...], dict[str, list[NDArray[np.float64]]]] = {}
        self._watched: _WatchedPair | None = None
        self.draws = Drawn(exact=self.kept(PLAIN))

    def floor(
        self, model: LoadedModel, seeds: Sequence[int], path: str = "prefill", *, dtype: str | None = None
    ) -> Floor:
        """`rounding_floor` of the prompts; a seed that was asked for before is not run again. model: the session's, or
        the same weights widened.
        """
        key = (path, dtype or model.dtype)
        first, known = self._floors.get(key, (None, {}))
        missing = [seed for seed in seeds if seed not in known]
        if missing or first is None:
            plain = self.kept(side_of(path)).run_on
            found = rounding_floor(model, self.prompts, missing or list(seeds), path, dtype=dtype, plain=plain)
            known |= dict(zip(found.seeds, found.divergences, strict=True))
            first = first or found
            self._floors[key] = first, known
        return replace(first, seeds=tuple(seeds), divergences=tuple(known[seed] for seed in seeds))

    def plain_logits(self) -> list[torch.Tensor] | None:
        """Logits of a plain prefill of every prompt in the model's own dtype, kept from now on; None where they have no
        room. [prompts][positions, vocab]
        """
        found = [self._logits_of(PLAIN, self.loaded, ids) for ids in self.prompts]
        whole = [logits for logits in found if logits is not None]
        return whole if len(whole) == len(found) else None

    def take_floor(self, seed: int, maps: int, divergences: Sequence[Divergence]) -> None:
        """Keep what a reordered prefill of all prompts in the model's own dtype gave, which was run for another purpose
        too; `floor` does not run that seed again. maps: linear maps reordered.
        """
        dtype = self.loaded.dtype
        first, known = self._floors.get((PLAIN.name, dtype), (None, {}))
        known[seed] = tuple(divergences)
        first = first or Floor(PLAIN.name, dtype, maps, (seed,), (known[seed],))
        self._floors[(PLAIN.name, dtype)] = first, known

    def own_rounding(self) -> NDArray[np.float64] | None:
        """`own_rounding_of` the model on the prompts. [positions]"""
        if not self._own_rounding:
            self._own_rounding.append(own_rounding_of(self.loaded, self.prompts, self.kept(PLAIN).run_on))
        return self._own_rounding[0]

    def narrow(self, side: RunnableSide) -> Narrow | None:
        """`narrow_answers` of the side on the prompts."""
        return self._of_path(side, side.name, self._narrow, lambda: self._narrow_answers(side))

    def kept(self, side: RunnableSide) -> RunnableSide:
        """The side, but a path computes the logits of a prompt once in each dtype, as far as KEPT_BYTES go. Who follows
        its forwards, or asks whether it repeats itself, runs it anew.
        """
        return replace(side, open=partial(self._opened, side)) if side.is_named else side

    def reference(self, model: LoadedModel, side: RunnableSide, ids: Sequence[int]) -> torch.Tensor:
        """All logits of a prompt of the session in the dtype of `model`. [positions, vocab]"""
        known = self._logits_of(side, model, ids) if side.is_named else None
        return whole_side(self._run_of(side, model), ids) if known is None else known

    def forget(self, side: RunnableSide) -> None:
        """Let the logits and module outputs of a side go, which no other pair has."""
        if self._watched is not None and self._watched.variant.name == side.name:
            self._watched.compared = {}
        self._logits = {key: logits for key, logits in self._logits.items() if key[0] != side.name}

    @contextmanager
    def _opened(self, side: RunnableSide, model: LoadedModel, trace: ModuleTrace | None) -> Iterator[Run]:
        def run(ids: Sequence[int], emit: Emit) -> None:
            if trace is not None:
                return side.run_on(model, trace)(ids, emit)
            if (logits := self._logits_of(side, model, ids)) is None:
                return self._run_of(side, model)(ids, emit)
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
            self._logits[key] = whole_side(self._run_of(side, model), ids)
        return self._logits[key]

    def watch(self, reference: RunnableSide, variant: RunnableSide, dtype: str) -> None:
        """Follow the next run of each side in this dtype, module by module, so that `traces` needs none of its own; not
        where they are callables, which may see that they are followed, or where outputs at all positions have no room.
        """
        sides = (reference, variant)
        if any(side.path is None or side.is_one_piece for side in sides) or reference.name == variant.name:
            return
        itemsize = getattr(torch, dtype).itemsize
        with suppress(CaptureError):  # without blocks there is nothing to follow
            if is_roomy(self.loaded, sum(map(len, self.prompts)), itemsize):
                before = self._watched
                is_known = before is not None and (before.reference.name, before.dtype) == (reference.name, dtype)
                kept = before.kept if before is not None and is_known else self._traces({})
                self._watched = _WatchedPair(reference, variant, dtype, kept, self._traces(kept))

    def traces(self, model: LoadedModel, ids: Sequence[int]) -> tuple[KeptOutputs, KeptOutputs] | None:
        """Module outputs of a prompt at all positions: those of the reference, and the variant compared; None where the
        sides are not followed in the dtype of `model`.
        """
        pair = self._watched
        if pair is None or pair.dtype != model.dtype or tuple(ids) not in pair.compared:
            return None
        compared = pair.compared[tuple(ids)]
        if not compared.has_run:
            self._run_of(pair.variant, model)(ids, ignore)
        return pair.kept[tuple(ids)], compared

    def _traces(self, against: dict[tuple[int, ...], KeptOutputs]) -> dict[tuple[int, ...], KeptOutputs]:
        return {ids: KeptOutputs(ids, range(len(ids)), against.get(ids)) for ids in self.prompts}

    def _run_of(self, side: RunnableSide, model: LoadedModel) -> Run:
        """Runs a side, followed where that was asked for and has not been done."""

        def run(ids: Sequence[int], emit: Emit) -> None:
            pair = self._watched
            trace = None if pair is None else pair.waiting(side, model, tuple(ids))
            if pair is None or trace is None:
                return side.run_on(model)(ids, emit)
            if trace.against is not None and not trace.against.has_run:
                self._run_of(pair.reference, model)(ids, ignore)
            return run_traced(model, side, trace, emit=emit)

        return run

    def _narrow_answers(self, side: RunnableSide) -> Narrow | None:
        asked = side if side.path is None else self.kept(side)  # an engine is asked whether it repeats itself
        return narrow_answers(self.loaded, self.prompts, asked, self.kept(PLAIN))

    def digest(self, model: LoadedModel, side: RunnableSide) -> str:
        """sha256 of the bits of a call of the side in the dtype of `model`, over all prompts."""
        key = (side.name, model.dtype)
        return self._of_path(side, key, self._digests, lambda: digests_of(model, self.prompts, [side])[0])

    def error(self, side: RunnableSide) -> float:
        """rms of the side in float32 to a plain forward of the same weights in float64, in logits; over as many prompts
        as fit.
        """
        return self._of_path(side, side.name, self._errors, lambda: self._error(side))

    def module_floor(
        self, key: tuple[object, ...], measured: Callable[[], dict[str, list[NDArray[np.float64]]]]
    ) -> dict[str, list[NDArray[np.float64]]]:
        """Mean squares of the reorderings at every module, by its name; key: dtype, seeds and positions."""
        if key not in self._module_floors:
            self._module_floors[key] = measured()
        return self._module_floors[key]

    def _error(self, side: RunnableSide) -> float:
        chosen = as_many_as(self.prompts, EXACT_BYTES // (8 * self.loaded.vocab_size))
        if not self._exact:
            with in_float64(self.loaded) as widened:
                plain = [torch.tensor([list(ids)], device=self.loaded.device) for ids in chosen]
                self._exact = [widened.model(ids).logits[0] for ids in plain]
        with in_float32(self.loaded) as widened:
            run = self.kept(side).run_on(widened)
            found = [divergence(exact, run, ids) for exact, ids in zip(self._exact, chosen, strict=True)]
        return float(np.sqrt(mean_squares(found).mean()))

    @staticmethod
    def _of_path(side: RunnableSide, key: Key, kept: dict[Key, Computed], ask: Callable[[], Computed]) -> Computed:
        if not side.is_named:
            return ask()
        if key not in kept:
            kept[key] = ask()
        return kept[key]
