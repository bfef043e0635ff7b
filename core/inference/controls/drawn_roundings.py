"""Randomized rounding to 16 bits: what the same function might as well have come out as in the same
dtype.

A model's own paths round the same values to the same bits nearly everywhere: what one of them does
says little of an engine whose kernels round elsewhere. So each operation's result is computed from
the same 16-bit inputs in float32, moved by up to a quarter of a 16-bit unit in the last place, and
rounded. The model's own paths must look like one more draw, or the draws decide nothing. Equal
values are moved alike, as kernels do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ...checks.drawn import Errors, Exact, error_rows
from ...errors import CaptureError
from ...evidence import Evidence
from ...numerics.arrays import Floats
from ...numerics.side_divergence import ALIKE, SystematicError, systematic_error
from ...numerics.statistic import FloorTest
from ...progress import Progress, no_progress
from ..models.dtypes import in_float32
from ..models.model import LoadedModel, has_experts
from ..models.torch_errors import foreign_errors_stop
from ..paths.batch import Run
from ..paths.engines import PLAIN, Prompts, RunnableSide, side_of, whole_side
from ..paths.hooks import ModuleTrace
from ..paths.paths import parse_path
from .reordering import reorder, reordering_refusal
from .rounding_floor import groups_of

# bits of a float32 significand that the dtype does not have
_SPARE_BITS = {torch.bfloat16: 16, torch.float16: 13}
DRAWS = 8
# token-by-token decode is one of the model's paths up to so many positions
_DECODED = 1024


class DrawnRounding(TorchDispatchMode):
    """Draw every rounding to `dtype` anew for one forward, alike for the same seed; not in-place
    operations.

    weights: of the model in float32, kept from one forward to the next; None if they change.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        seed: int,
        weights: dict[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
        super().__init__()
        self._dtype, self._seed, self._calls, self._weights = dtype, seed, 0, weights
        self.roundings = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._calls += 1
        if func._schema.is_mutable:
            return func(*args, **kwargs)
        leaves = tree_leaves((args, kwargs))
        tensors = [each for each in leaves if isinstance(each, torch.Tensor)]
        floats = [each for each in tensors if each.is_floating_point() and each.ndim]
        is_view = any(each.alias_info is not None for each in func._schema.returns)
        has_dtype = any(isinstance(each, torch.dtype) for each in leaves)
        if (
            floats
            and not is_view
            and not has_dtype
            and all(each.dtype == self._dtype for each in floats)
        ):
            # the operation's own 16 bits are not needed
            result = wide = self._wide(func, args, kwargs)
        else:
            result = func(*args, **kwargs)
            first = _first(result)
            if not isinstance(first, torch.Tensor) or first.dtype != self._dtype:
                return result
            if any(
                each.untyped_storage()._cdata == first.untyped_storage()._cdata for each in tensors
            ):
                return result  # a view
            is_cast = func.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.to)
            wide = tensors[0].float() if is_cast else self._wide(func, args, kwargs)
            if _first(wide).shape != first.shape:
                return result
        first = _first(wide)
        if not isinstance(first, torch.Tensor) or first.dtype != torch.float32:
            # indices and comparisons have nothing to round
            return result
        narrow = self._round(first)
        return type(result)((narrow, *result[1:])) if isinstance(result, tuple | list) else narrow

    def _wide(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute the same operation in float32."""
        return func(*tree_map(self._widen, args), **tree_map(self._widen, kwargs))

    def _widen(self, value: Any) -> Any:
        if (
            isinstance(value, torch.nn.Parameter)
            and value.dtype == self._dtype
            and self._weights is not None
        ):
            if value not in self._weights:
                self._weights[value] = value.float()
            return self._weights[value]
        if isinstance(value, torch.Tensor) and value.dtype == self._dtype:
            return value.float()
        return torch.float32 if value is self._dtype else value

    def _round(self, wide: torch.Tensor) -> torch.Tensor:
        """Move values by up to a quarter of a unit in the last place and round; what is exact in 16
        bits stays.

        The move is a hash of the value's bits, alike for the same: multiply and shift, as in
        splitmix.
        """
        bits, spare = wide.contiguous().view(torch.int32), _SPARE_BITS[self._dtype]
        seed = self._seed * 1_000_003 + self._calls
        moves = bits.mul(-1640531535).add_((seed * 0x9E3779B1) & 0x7FFFFFFF)
        moves = moves.bitwise_xor_(moves >> 15).mul_(-2048144777).bitwise_right_shift_(33 - spare)
        # copies, gathered rows and infinities need no rounding
        is_exact = bits.bitwise_and((1 << spare) - 1) == 0
        self.roundings += 1
        return moves.masked_fill_(is_exact, 0).add_(bits).view(torch.float32).to(self._dtype)


def _first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple | list) and result else result


@dataclass
class RoundingDraws:
    """Errors in a model's 16 bits to its float32 forward, and those of DRAWS forwards with
    randomized rounding.

    plain: what the sides ought to compute; exact: runs it in float32; draws: their errors, and own:
    that of plain, made at first need.
    """

    loaded: LoadedModel
    prompts: Prompts
    plain: RunnableSide = PLAIN
    exact: RunnableSide | None = None
    draws: list[Errors] = field(default_factory=list)
    own: Errors | None = None

    def measure(
        self,
        sides: Sequence[RunnableSide],
        say: Progress = no_progress,
    ) -> Exact:
        """Measure the sides, and the model's own paths when they are asked for."""

        def by_name(sides: Sequence[RunnableSide]) -> dict[str, Errors]:
            return {
                side.name: each for side, each in zip(sides, self.errors(sides, say), strict=True)
            }

        errors, model = by_name(sides), self.loaded  # and the draws
        experts = has_experts(model.model)
        return Exact(
            errors,
            self.draws,
            lambda: by_name(self._own_paths()),
            self.own,
            f"'{model.name}'",
            experts,
        )

    def compare(
        self,
        side: RunnableSide,
        blocks: Sequence[int],
        say: Progress = no_progress,
        *,
        always_check_draws: bool = True,
    ) -> tuple[Evidence, FloorTest]:
        """Compare a side's error in 16 bits with that of randomized rounding. always_check_draws:
        as of `error_rows`
        """
        lengths, exact = [len(ids) for ids in self.prompts], self.measure([side], say)
        return error_rows(
            exact,
            self.loaded.dtype,
            lengths,
            blocks,
            always_check_draws=always_check_draws,
        )[0]

    def errors(
        self,
        sides: Sequence[RunnableSide],
        say: Progress = no_progress,
    ) -> list[Errors]:
        """Return the errors of each side. CaptureError if float32 does not fit, or a side fails."""
        loaded = self.loaded
        if loaded.torch_dtype not in _SPARE_BITS:
            raise CaptureError(
                f"randomized rounding needs bfloat16 or float16, not {loaded.dtype}.",
            )
        weights: dict[torch.Tensor, torch.Tensor] | None = {} if self.plain is PLAIN else None
        draws = [] if self.draws else [draw_of(self.plain, seed, weights) for seed in range(DRAWS)]
        measured = [*sides, *draws]
        if self.own is None:
            measured.append(self.plain)
        pieces: dict[RunnableSide, list[Floats]] = {side: [] for side in measured}
        systems = dict.fromkeys(pieces, SystematicError())
        for group in groups_of(loaded, self.prompts):
            if weights:
                weights.clear()
            say("a forward in float32")
            with in_float32(loaded) as wide_model:
                exact = [
                    whole_side((self.exact or self.plain).run_on(wide_model), ids) for ids in group
                ]
            for side, of_side in pieces.items():
                say(f"'{side.name}' compared with it")
                for ids, wide in zip(group, exact, strict=True):
                    rows: list[torch.Tensor] = []
                    side.run_on(loaded)(ids, partial(_add_error, wide, of_side, rows))
                    logits = wide[:: _step(wide)]
                    systems[side] += systematic_error(
                        torch.cat(rows),
                        logits.where(logits.isfinite(), 0.0),
                    )
        errors = {
            side: Errors(np.concatenate(each), systems[side].size) for side, each in pieces.items()
        }
        self.draws = self.draws or [errors[draw] for draw in draws]
        self.own = self.own or errors[self.plain]
        return [errors[side] for side in sides]

    def _own_paths(self) -> list[RunnableSide]:
        """Return the model's own paths, which the draws must be a measure of."""

        @contextmanager
        def reordering(loaded: LoadedModel, trace: ModuleTrace | None) -> Iterator[Run]:
            with self.plain.open(loaded, trace) as run, reorder(loaded.model, 0):
                yield run

        paths = [self.plain]
        # eager attention rounds its weights too, which others do not
        if self.plain is PLAIN:
            names = [
                "prefill+attn:eager",
                *(["decode"] if sum(map(len, self.prompts)) <= _DECODED else []),
            ]
            paths += [
                side_of(name) for name in names if parse_path(name).refusal(self.loaded) is None
            ]
        if reordering_refusal(self.loaded.model) is None:
            paths.append(RunnableSide(f"{self.plain.name}, reordered sums", reordering))
        return paths


def draw_of(
    plain: RunnableSide,
    seed: int,
    weights: dict[torch.Tensor, torch.Tensor] | None = None,
) -> RunnableSide:
    """Return a forward with randomized rounding; weights: as of `DrawnRounding`."""

    @contextmanager
    def drawing(loaded: LoadedModel, trace: ModuleTrace | None) -> Iterator[Run]:
        mode = DrawnRounding(loaded.torch_dtype, seed, weights)
        stop = foreign_errors_stop("randomized rounding", "choose eager attention")
        with stop, mode, plain.open(loaded, trace) as run:
            yield run
        if not mode.roundings:
            raise CaptureError(
                "randomized rounding: torch saw no operation that rounds; leave compile out.",
            )

    return RunnableSide(f"draw {seed}", drawing)


def _step(exact: torch.Tensor) -> int:
    """Return the step between positions whose errors are compared with one another."""
    return -(-len(exact) // ALIKE)


def _add_error(
    exact: torch.Tensor,
    pieces: list[Floats],
    rows: list[torch.Tensor],
    start: int,
    logits: torch.Tensor,
) -> None:
    """Add the errors of some positions, without a number that all logits of one share: most of
    rounding in trained models is one, and no probability shows it. Infinite if one is not finite,
    unlike in float32. rows: gets the errors at every `_step`, 0 if not finite.

    exact, logits: [positions, vocab]
    """
    wide = exact[start : start + len(logits)]
    error = logits - wide
    finite = error.isfinite()
    is_same = (
        finite
        if bool(finite.all())
        else finite | (logits == wide) | (logits.isnan() & wide.isnan())
    )
    step = _step(exact)
    rows.append(torch.where(finite, error, 0.0)[-start % step :: step])
    error, count = (
        error if is_same is finite else torch.where(finite, error, 0.0),
        finite.sum(1).clamp_min(1),
    )
    mean = error.sum(1, dtype=torch.float64) / count
    squares = torch.linalg.vector_norm(error, dim=1, dtype=torch.float64).square() / count
    errors = (squares - mean.square()).clamp_min(0)
    pieces.append(
        (errors if is_same is finite else errors.where(is_same.all(1), torch.inf)).cpu().numpy(),
    )
