"""Noise floor: how far sums in another order move this model's logits."""

from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np

from ...checks.pair import NoiseFloor
from ...errors import CaptureError
from ...numerics.arrays import Floats
from ...numerics.formats import FloatFormat
from ...numerics.side_divergence import Divergence, concatenate, row_ulp_percentile
from ..models.dtypes import in_float32
from ..models.model import Ids, Inputs, LoadedModel
from ..models.torch_errors import model_errors_stop
from ..paths.engines import PLAIN, Prompts, RunnableSide, divergence, whole_side
from .reordering import reorder

SEEDS = 4
# of logits of one side at once: prompts of a group share the widening of the weights
LOGIT_BYTES = 256 << 20
# what the heatmap marks: of a vocabulary of 50,000, 50 logits of a row are beyond it
_PERCENTILE = 0.999


def rounding_floor(
    loaded: LoadedModel,
    prompts: Prompts,
    seeds: Sequence[int] = range(SEEDS),
    side: RunnableSide = PLAIN,
    *,
    row_ulps_of: FloatFormat | None = None,
    plain: RunnableSide | None = None,
) -> NoiseFloor:
    """Compare a side whose linear maps are reordered, one order a seed, with itself, in the dtype
    of `loaded`.

    row_ulps_of: as of `divergence`; plain: the side itself, if its logits are known.
    """
    draws: list[list[Divergence]] = [[] for _ in seeds]
    maps = 0
    advice = "shorten the prompts, choose a smaller model or another device"
    with model_errors_stop("noise floor", advice), side.open(loaded, None) as run:
        for ids in prompts:
            own = whole_side(plain.run_on(loaded) if plain else run, ids)
            for draw, seed in zip(draws, seeds, strict=True):
                with reorder(loaded.model, seed) as products:
                    draw.append(divergence(own, run, ids, row_ulps_of))
                maps = max(maps, len(products))
    if not maps:
        raise CaptureError("noise floor: no linear map ran that could be reordered; expected some.")
    row_ulps = row_ulp_percentile([one for draw in draws for one in draw], _PERCENTILE)
    control = f"{len(draws)} forwards with other reduction orders in every linear layer"
    return NoiseFloor(
        np.stack([concatenate(draw).squares for draw in draws]),
        control,
        maps,
        row_ulps,
    )


def check_prompts(loaded: LoadedModel, prompts: Inputs) -> list[Ids]:
    """Return the tokens of prompts. CaptureError if there is none, or the model cannot take one."""
    # a tensor of several prompts has no truth value
    if len(prompts) == 0:
        raise CaptureError("a divergence is measured over at least one prompt; none was given.")
    return loaded.tokens_of_all(prompts)


def rows_at_once(loaded: LoadedModel) -> int:
    """Return the positions whose logits in float32 take LOGIT_BYTES."""
    return LOGIT_BYTES // (4 * loaded.vocab_size)


def groups_of(prompts: Prompts, most: int) -> Iterator[list[Ids]]:
    """Yield the prompts in order, so many that their positions are at most `most`, or one."""
    group: list[Ids] = []
    for prompt in prompts:
        if group and sum(map(len, group)) + len(prompt) > most:
            yield group
            group = []
        group.append(prompt)
    yield group


def as_many_as(prompts: Prompts, most: int) -> list[Ids]:
    """Return the prompts whose positions are at most `most` together; at least one."""
    group: list[Ids] = []
    for ids in prompts:
        if sum(map(len, group)) + len(ids) <= most or not group:
            group.append(ids)
    return group


def own_rounding_of(
    loaded: LoadedModel,
    prompts: Prompts,
    plain: RunnableSide,
) -> Floats | None:
    """Mean squares of a plain forward in 16 bits to that in float32; None if float32 does not fit.
    [positions]
    """
    parts = []
    with suppress(CaptureError):
        for group in groups_of(prompts, rows_at_once(loaded)):
            narrow = [whole_side(plain.run_on(loaded), ids) for ids in group]
            with in_float32(loaded) as model:
                for own, ids in zip(narrow, group, strict=True):
                    parts.append(divergence(own, plain.run_on(model), ids))
        return concatenate(parts).squares
    return None
