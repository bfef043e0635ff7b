"""Sparse sides made for tests: by hand, and as an engine sends the best of its rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from core.runs.topk.records import ListRow, ListSide, Response, list_rows

Row = dict[int, float]


def response(tokens: list[int], rows: dict[int, Row], *, prompt: int | None = None, **more: Any) -> Response:
    """A response with these log-probabilities by position; prompt: length of it, None where all rows are of it."""
    made = list_rows(
        [
            ListRow(
                at,
                tuple(row.items()),
                len(row),
                tokens[at + 1] if at + 1 < len(tokens) else -1,
                full=len(row) == more.get("vocab"),
            )
            for at, row in rows.items()
        ],
        "here",
    )
    first = None if prompt is None else prompt - 1
    return Response("test", "logprob", "token_id", tuple(tokens), made, generated_from=first, **more)


def side(name: str, *responses: Response) -> ListSide:
    return ListSide(name, responses)


def engine_side(name: str, seed: int, k: int, dtype: torch.dtype = torch.bfloat16) -> ListSide:
    """Top-k of 24 rows as an engine that computes in `dtype` sends them; the seed moves some logits by a little."""
    rng, noise = np.random.default_rng(7), np.random.default_rng(seed)
    rows: dict[int, Row] = {}
    for at in range(24):
        logits = torch.tensor(rng.normal(8, 5, 512) + noise.normal(0, 0.05, 512)).to(dtype)
        best = torch.log_softmax(logits.float(), -1).topk(k)
        rows[at] = dict(zip(best.indices.tolist(), best.values.double().tolist(), strict=True))
    return side(name, response(list(range(25)), rows, vocab=512))
