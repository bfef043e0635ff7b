"""A small run with planted choices, made by torch's own topk."""

import itertools

import numpy as np
import torch

from core.checks.choices import choices_row
from core.runs.tables.choices import choice_rows
from core.verdict import ROUNDING, Verdict
from tests.core.runs.made_runs import header_of, writing

GROUPS, GATE, INDEXER = ("layers.0.gate", 0), ("layers.0.gate", 1), ("layers.1.indexer", 0)
PLACES = GROUPS, GATE, INDEXER
LENGTHS = 3, 5
ULP = 2.0**-23  # of float32 at the largest score, 1
BEYOND = 0.25 / ULP  # row ULPs


def scores_of(side, prompt, number):
    """[positions, candidates]: two are chosen. Of the second prompt the variant chooses other keys
    at a near tie at position 2, and another expert far from one at position 4.
    """
    # the last that is chosen and the first left out are 3 row ULPs apart
    scores = torch.tensor([1.0, 0.5 + 3 * ULP, 0.5, 0.0]).repeat(LENGTHS[prompt], 1)
    swapped = torch.tensor([0, 2, 1, 3])
    if side and PLACES[number] == GROUPS:
        # of a choice that is not the module's last
        return scores[:, swapped]
    if side and prompt and PLACES[number] == INDEXER:
        scores[2] = scores[2, swapped]
    if side and prompt and PLACES[number] == GATE:
        scores[4] = torch.tensor([1.0, 0.25, 0.5 + 3 * ULP, 0.0])
    return scores


def cut_of(scores):
    best = scores.topk(3)
    # both scores at the cut, and the largest one, whose spacing is the row ULP
    cut = torch.cat([best.values[:, 1:], scores.abs().amax(1, keepdim=True)], 1)
    ids = best.indices[:, :2].sort().values
    return ids.numpy(), cut.double().numpy(), "float32"


def choice_run(store, *, rounding_row_ulps=None):
    """Of every position the argmax is another one. rounding_row_ulps: as a check measured it."""
    header = header_of("float32", LENGTHS, vocab=4)
    logits = np.zeros((2, header.rows, 4), np.float32)
    logits[0, :, 0] = 1.0
    logits[1, :, 3] = 1.0
    with writing(store, header, list(logits.view(np.uint32)), "choices") as writer:
        for side, prompt in itertools.product(range(2), repeat=2):
            rows = []
            for n, place in enumerate(PLACES):
                cut = cut_of(scores_of(side, prompt, n))
                rows.append(choice_rows(side, prompt, n, place, *cut))
            writer.write_choices(rows)
        if rounding_row_ulps is not None:
            about = [], header.lengths, "side_1", "float32", rounding_row_ulps, 0.125
            writer.write_verdict(Verdict(ROUNDING, "", (choices_row(*about),)))
        return writer.finish()
