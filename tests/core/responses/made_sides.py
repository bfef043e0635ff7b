"""Sides of lists made for tests: by hand, and as an engine sends the best of its rows."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from core.judging.lists import judge_responses
from core.responses.alignment import align
from core.responses.pairing import compare_sides, pairs_of
from core.responses.records import Response, ResponseSide, TopTokenRow, compress_rows
from core.runs.file.records import Provenance
from core.runs.reader import RunReader
from core.runs.response_run import write_responses

MADE = Path(__file__).with_name("made")


def sent(name):
    """A payload as its engine's source says that it is sent."""
    return json.loads((MADE / f"{name}.json").read_text())


def row_of(response, index):
    ids, values = response.rows.row(index)
    return dict(zip(ids.tolist(), values.tolist(), strict=True))


def places_of(response):
    """Positions of its rows."""
    return response.rows.positions.tolist()


def by_text(response, index):
    row = row_of(response, index)
    return {response.texts[token]: value for token, value in row.items()}


def response(
    tokens,
    rows,
    *,
    prompt=None,
    **more,
):
    """A response with these log-probabilities by position; prompt: length of it, None if all rows
    are of it.
    """
    listed = []
    for at, row in rows.items():
        # a row scores the token after it
        target = tokens[at + 1] if at + 1 < len(tokens) else -1
        listed.append(TopTokenRow(at, tuple(row.items()), len(row), target))
    first = None if prompt is None else prompt - 1
    made = {"keys": "token_id", "generated_from": first} | more
    return Response("test", tokens=tuple(tokens), rows=compress_rows(listed, "here"), **made)


def side(name, *responses):
    return ResponseSide(name, responses)


def engine_side(name, seed, k, dtype=torch.bfloat16):
    """Top-k of 24 rows as an engine that computes in `dtype` sends them; the seed moves some logits
    by a little.
    """
    rng = np.random.default_rng(7)
    noise = np.random.default_rng(seed)
    rows = {}
    for at in range(24):
        moved = rng.normal(8, 5, 512) + noise.normal(0, 0.05, 512)
        logits = torch.tensor(moved).to(dtype)
        best = torch.log_softmax(logits.float(), -1).topk(k)
        values = best.values.double().tolist()
        rows[at] = dict(zip(best.indices.tolist(), values, strict=True))
    return side(name, response(list(range(25)), rows, vocab=512))


def compare(reference, variant):
    """The pair of two sides as they were sent."""
    return compare_sides(*align([reference, variant]))


def pair_of(one, other):
    """The pair of two responses."""
    return compare(side("A", one), side("B", other))


def store_run(store, name, *sides, **more):
    """A run of these sides, judged as uploads are; -> its id"""
    lined = align(sides)
    pairs = pairs_of(lined)
    return write_responses(
        store,
        name,
        Provenance("upload", "m"),
        lined,
        pairs,
        judge_responses(lined, pairs),
        **more,
    )


def run_of(path):
    """A stored run of lists with its sides, pairs and verdicts (variant, name, because)."""
    with RunReader(path) as run:
        sides = run.responses()
        verdicts = [
            SimpleNamespace(variant=pair.variant, name=pair.verdict, because=pair.because)
            for pair in run.pairs
        ]
        header = SimpleNamespace(name=run.header.name, **vars(run.header.provenance))
        return SimpleNamespace(header=header, sides=sides, pairs=pairs_of(sides), verdicts=verdicts)
