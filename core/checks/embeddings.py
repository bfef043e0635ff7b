"""Do cosines, nearest neighbors or the order of scores change? It never decides."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from ..evidence import NOTED, ORDER, Check, CheckFigures, Evidence, FirstPlace
from ..numerics.embeddings import MOST_ROWS, Directions, Neighbors, ScoreOrder
from ..places import of_values, place_in_words, place_of
from ..text import number, plural


class EmbeddingFigures(CheckFigures):
    """Rows as vectors; None if a row is 0 or not finite, or there are too many rows."""

    largest_cosine_distance: Annotated[float | None, "1 - cosine, largest"]
    mean_cosine_distance: Annotated[float | None, "1 - cosine, mean"]
    first: FirstPlace
    largest_norm_change: Annotated[float | None, "norm, largest relative change"]
    neighbors_changed: Annotated[int | None, "rows whose nearest neighbor changes"]
    neighbors_of: Annotated[int | None, "rows compared with each other"]
    neighbor_margin: Annotated[float | None, "margin in cosine at which one changes, largest"]


class ScoreFigures(CheckFigures):
    pairs_changed: Annotated[int, "pairs of scores that change order"]
    pairs: Annotated[int, "pairs of scores"]
    largest_gap: Annotated[float, "gap of a pair that changes, largest"]
    near_ties: Annotated[int, "near ties in the order"]


EMBEDDINGS = Check("cosines and neighbors", ORDER, EmbeddingFigures)
SCORES = Check("order of scores", ORDER, ScoreFigures)


def embedding_row(
    rows: Directions,
    nearest: Neighbors | None,
    lengths: Sequence[int],
) -> Evidence:
    """Return the row on vectors. nearest: None if they were not compared with each other."""
    distance = rows.cosine_distance
    largest = mean = norm = first = None
    says = "No row has a direction on both sides."
    if not np.isnan(distance).all():
        worst = int(np.nanargmax(distance))
        largest, mean = float(distance[worst]), float(np.nanmean(distance))
        norm, first = float(np.nanmax(np.abs(rows.norm_change))), place_of(worst, lengths)
        place = of_values(place_in_words(worst, lengths))
        says = (
            f"Cosine is at least 1 - {number(largest)} ({place}), 1 - {number(mean)} on average;"
            f" norms change by at most {number(norm)} of their size."
        )
    if nearest and not nearest.neighbors_changed:
        says += f" All {plural(nearest.neighbors_of, 'row')} keep their nearest neighbor."
    elif nearest:
        says += (
            f" {nearest.neighbors_changed:,} of {plural(nearest.neighbors_of, 'row')} have another"
            f" nearest neighbor, at margins in cosine up to {number(nearest.neighbor_margin)}."
        )
    elif len(distance) > MOST_ROWS:
        says += f" Neighbors of more than {MOST_ROWS:,} rows are not compared."
    of_neighbors = nearest._asdict() if nearest else dict.fromkeys(Neighbors._fields)
    return Evidence(
        EMBEDDINGS,
        "each row as a vector",
        EmbeddingFigures(
            largest_cosine_distance=largest,
            mean_cosine_distance=mean,
            first=first,
            largest_norm_change=norm,
            **of_neighbors,
        ),
        NOTED,
        says,
    )


def score_row(order: ScoreOrder) -> Evidence:
    """Return the row on one score a row."""
    says = f"All {plural(order.pairs, 'pair')} of scores keep their order"
    if order.pairs_changed:
        says = (
            f"{order.pairs_changed:,} of {plural(order.pairs, 'pair')} of scores change order, at"
            f" gaps up to {number(order.largest_gap)}"
        )
    says += f"; {plural(order.near_ties, 'near tie')}."
    return Evidence(SCORES, "scores of one prompt", ScoreFigures(**order._asdict()), NOTED, says)
