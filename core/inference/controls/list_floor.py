"""Noise floor of lists: the model's own reorderings on a run's tokens, over the tokens that both sides sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import UsageError
from ...judging.explain.rows import PairRows, RowPair
from ...judging.judge import LISTS, foreign
from ...runs.file.evidence import MISSING, NOTED, PASSED, Check, Evidence, ListFloorFigures, Unmeasured
from ...text import multiple
from ..models.model import LoadedModel
from ..paths.batch import Run
from ..paths.engines import PLAIN
from .judge_model import model_errors_stop
from .reordering import reorder
from .rounding_floor import check_prompts

_SEEDS = range(4)
Say = Callable[[str], None]


def floor_of_rows(loaded: LoadedModel, prompts: Sequence[tuple[int, ...]], pair: PairRows, say: Say) -> Evidence:
    """Compare rows of a pair with a model's noise floor. prompts: all tokens that were read, or more."""
    rows = [row for row in pair.rows if len(row.token_ids)]
    rows_of = {prompt: {row.position: row for row in group} for prompt, group in groupby(rows, lambda row: row.prompt)}
    ids_of = {prompt: prompts[prompt][: max(of_prompt) + 1] for prompt, of_prompt in rows_of.items()}
    check_prompts(loaded, list(ids_of.values()))
    largest = max(*(int(row.token_ids.max()) for row in rows), *map(max, ids_of.values()))
    if largest >= loaded.vocab_size:
        raise UsageError(f"model '{loaded.name}' has {loaded.vocab_size:,} tokens, and the run token {largest:,}.")
    squares = []  # mean squares of the pair, of reorderings to the model, and of both sides to it. [7, positions] each
    with model_errors_stop(), PLAIN.open(loaded, None) as run:
        for prompt, of_prompt in rows_of.items():
            say(f"{len(_SEEDS)} reorderings of prompt {prompt} in {loaded.dtype}")
            plain, draws = _values_of(run, ids_of[prompt], of_prompt, pair.values), []
            for seed in _SEEDS:
                with reorder(loaded.model, seed):
                    draws.append(_values_of(run, ids_of[prompt], of_prompt, pair.values))
            x, y = (np.concatenate([row.side(side) for row in of_prompt.values()]) for side in (0, 1))
            differences = np.square([y - x, *(values - plain for values in (*draws, x, y))])
            sizes = [len(row.x) for row in of_prompt.values()]
            squares.append(np.add.reduceat(differences, np.cumsum([0, *sizes[:-1]]), axis=1) / sizes)
    return _evidence(loaded, pair.names, np.concatenate(squares, axis=1))


def _values_of(run: Run, ids: Sequence[int], rows: Mapping[int, RowPair], values: str) -> NDArray[np.float64]:
    """Return the values of these rows one after another, as an engine sends them: log-probabilities in float32."""
    pieces = []

    def add(start: int, logits: torch.Tensor) -> None:
        for at, row in enumerate(logits, start=start):
            if at in rows:
                row = row.float() if values == "logit" else row.float().log_softmax(-1)
                pieces.append(row[torch.from_numpy(rows[at].token_ids).to(row.device)].double().cpu().numpy())

    run(ids, add)
    return np.concatenate(pieces)


def _evidence(loaded: LoadedModel, names: tuple[str, str], squares: NDArray[np.float64]) -> Evidence:
    floor, model = squares[1:-2].mean(axis=0), f"'{loaded.name}'"
    if not floor.any() or not np.isfinite(squares).all():
        says = f"{model} in {loaded.dtype} has no noise floor: sums in another order change no value, or one is NaN."
        return Evidence(Check.LIST_FLOOR, model, Unmeasured(), MISSING, says)
    ratio, *distances = map(float, np.sqrt(squares[[0, -2, -1]].mean(axis=1) / floor.mean()))
    # A position whose floor is next to 0 has no scale of its own.
    worst = float(np.sqrt(squares[0] / np.maximum(floor, max(np.median(floor), 1e-300))).max())
    outcome, says = NOTED, foreign(dict(zip(names, distances, strict=True)))[0]
    size = f"{multiple(ratio)} the noise floor of {model} in {loaded.dtype}, up to {multiple(worst)} at one position"
    if not says and ratio <= LISTS.over_all and worst <= LISTS.at_a_place:
        outcome, says = PASSED, f"Rounding noise: the pair is {size}."
    figures = ListFloorFigures(
        compute_dtype=loaded.dtype,
        noise_ratio=ratio,
        worst_position_ratio=worst,
        reference_noise_ratio=distances[0],
        variant_noise_ratio=distances[1],
    )
    says = says or f"The pair is {size}: a lower precision, or a fault."
    return Evidence(Check.LIST_FLOOR, model, figures, outcome, says)
