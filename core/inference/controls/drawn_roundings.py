"""Randomized rounding to 16 bits: what the same function might as well have come out as in the same
dtype.

A model's own paths round the same values to the same bits nearly everywhere: what one of them does
says little of an engine whose kernels round elsewhere. So each operation's result is computed from
the same 16-bit inputs in float32, moved by up to a quarter of a 16-bit unit in the last place, and
rounded. The model's own paths must look like one more draw, or the draws decide nothing. Equal
values are moved alike, as kernels do.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ...checks.drawn import Errors, Exact, error_rows
from ...closeness.randomized_rounding import DTYPES, DrawnRounding
from ...errors import CaptureError
from ...evidence import Evidence
from ...numerics.arrays import Floats
from ...numerics.side_divergence import ALIKE, SystematicError, systematic_error
from ...numerics.statistic import FloorTest
from ...progress import Progress, no_progress
from ..models.dtypes import in_float32
from ..models.model import LoadedModel
from ..models.torch_errors import foreign_errors_stop
from ..paths.batch import Run
from ..paths.engines import PLAIN, Prompts, RunnableSide, side_of, whole_side
from ..paths.hooks import ModuleTrace
from ..paths.paths import parse_path
from .choices import Replay
from .reordering import reorder, reordering_refusal
from .rounding_floor import groups_of, rows_at_once

DRAWS = 8
# token-by-token decode is one of the model's paths up to so many positions
_DECODED = 1024


@dataclass
class RoundingDraws:
    """Errors in a model's 16 bits to its float32 forward, and those of DRAWS forwards with
    randomized rounding.

    plain: what the sides ought to compute; exact: runs it in float32; draws: their errors, and own:
    that of plain, made at first need; replay: choices that all of them are forced to make.
    """

    loaded: LoadedModel
    prompts: Prompts
    plain: RunnableSide = PLAIN
    exact: RunnableSide | None = None
    draws: list[Errors] = field(default_factory=list)
    own: Errors | None = None
    replay: Replay = field(default_factory=Replay)

    def measure(
        self,
        sides: Sequence[RunnableSide],
        say: Progress = no_progress,
    ) -> Exact:
        """Measure the sides, and the model's own paths when they are asked for."""
        # and the draws
        errors = self.errors(sides, say)
        model = self.loaded
        return Exact(
            errors,
            self.draws,
            lambda: self.errors(self._own_paths(), say),
            None if model.has_few_values else self.own,
            f"'{model.name}'",
            model.has_experts and not self.replay.choices,
            shares_scale=model.has_few_values,
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
        return error_rows(
            self.measure([side], say),
            self.loaded.dtype,
            self.loaded.lengths_of(self.prompts),
            blocks,
            always_check_draws=always_check_draws,
        )[0]

    def errors(
        self,
        sides: Sequence[RunnableSide],
        say: Progress = no_progress,
    ) -> dict[str, Errors]:
        """Return the errors of each side. CaptureError if float32 does not fit, or a side fails."""
        loaded = self.loaded
        if loaded.torch_dtype not in DTYPES:
            raise CaptureError(
                f"randomized rounding needs bfloat16 or float16, not {loaded.dtype}.",
            )
        weights: dict[Tensor, Tensor] | None = {} if self.plain is PLAIN else None
        draws = [] if self.draws else [draw_of(self.plain, seed, weights) for seed in range(DRAWS)]
        wide_side = self.exact or self.plain
        forced = {side: self.replay.of(side) for side in (*sides, self.plain, wide_side)}
        forced |= {draw: self.replay.of_rounding(draw) for draw in draws}
        pieces: dict[RunnableSide, list[Floats]] = {side: [] for side in (*sides, *draws)}
        if self.own is None:
            pieces[self.plain] = []
        systems = dict.fromkeys(pieces, SystematicError())
        is_shift_seen = loaded.encoder is not None
        for group in groups_of(self.prompts, rows_at_once(loaded)):
            if weights:
                weights.clear()
            say("a forward in float32")
            with in_float32(loaded) as wide_model:
                exact = [whole_side(forced[wide_side].run_on(wide_model), ids) for ids in group]
            for side, of_side in pieces.items():
                say(f"'{side.name}' compared with it")
                for ids, wide in zip(group, exact, strict=True):
                    rows: list[Tensor] = []
                    add = partial(_add_error, wide, of_side, rows, is_shift_seen=is_shift_seen)
                    forced[side].run_on(loaded)(ids, add)
                    logits = wide[:: _step(wide)]
                    logits = logits.where(logits.isfinite(), 0.0)
                    systems[side] += systematic_error(torch.cat(rows), logits)
        errors = {
            side: Errors(np.concatenate(each), systems[side].size) for side, each in pieces.items()
        }
        self.draws = self.draws or [errors[draw] for draw in draws]
        self.own = self.own or errors[self.plain]
        return {side.name: errors[side] for side in sides}

    def _own_paths(self) -> list[RunnableSide]:
        """Return the model's own paths, which the draws must be a measure of."""

        @contextmanager
        def reordering(loaded: LoadedModel, trace: ModuleTrace | None) -> Iterator[Run]:
            with self.plain.open(loaded, trace) as run, reorder(loaded.model, 0):
                yield run

        paths = [self.plain]
        base = "prefill" if self.loaded.encoder is None else "encode"
        names = []
        if self.plain is PLAIN:
            # eager attention rounds its weights too, which others do not
            names.append(f"{base}+attn:eager")
            if sum(map(len, self.prompts)) <= _DECODED:
                names.append("decode")
        paths += [side_of(name) for name in names if not parse_path(name).refusal(self.loaded)]
        if reordering_refusal(self.loaded.model) is None:
            paths.append(RunnableSide(f"{self.plain.name}, reordered sums", reordering))
        return paths


def draw_of(
    plain: RunnableSide,
    seed: int,
    weights: dict[Tensor, Tensor] | None,
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


def _step(exact: Tensor) -> int:
    """Return the step between positions whose errors are compared with one another."""
    return -(-len(exact) // ALIKE)


def _add_error(
    exact: Tensor,
    pieces: list[Floats],
    rows: list[Tensor],
    start: int,
    logits: Tensor,
    *,
    is_shift_seen: bool = False,
) -> None:
    """Add the errors of some positions, without a number that all logits of one share: most of
    rounding in trained models is one, and no probability shows it. Infinite if one is not finite,
    unlike in float32. rows: gets the errors at every `_step`, 0 if not finite; is_shift_seen: of
    values that are no logits.

    exact, logits: [positions, vocab]
    """
    wide = exact[start : start + len(logits)]
    error = logits - wide
    finite = error.isfinite()
    is_whole = bool(finite.all())
    if not is_whole:
        error = torch.where(finite, error, 0.0)
    step = _step(exact)
    rows.append(error[-start % step :: step])
    count = finite.sum(1).clamp_min(1)
    mean = error.sum(1, dtype=torch.float64) / count
    squares = torch.linalg.vector_norm(error, dim=1, dtype=torch.float64).square() / count
    errors = squares if is_shift_seen else (squares - mean.square()).clamp_min(0)
    if not is_whole:
        is_same = finite | (logits == wide) | (logits.isnan() & wide.isnan())
        errors = errors.where(is_same.all(1), torch.inf)
    pieces.append(errors.cpu().numpy())
