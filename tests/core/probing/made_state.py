"""Answers of a made server in several states: the noise of cold requests and a warm difference."""

import numpy as np

from core.judging.axes import AXES
from core.judging.state import StateAnswers, judge_state
from core.responses.records import ResponseSide
from core.runs.file.records import Provenance
from core.runs.response_run import write_responses
from tests.core.responses.made_sides import response


def changed(size, share=1.0, seed=0):
    """Answers to 20 prompts; a share of them differs by this much, nats, from the plain ones."""
    random = np.random.default_rng(seed)
    answers = []
    for number in range(20):
        # the same plain values at any seed: only what moves them differs
        plain = np.random.default_rng(number).normal(size=8)
        is_moved = number < 20 * share
        moves = size * random.normal(size=8) * is_moved
        row = dict(enumerate((plain + moves - 5).tolist()))
        answers.append(response([number] * 8 + [0], {7: row}, prompt=8, cached=8))
    return tuple(answers)


def made_state(noise, size, share=1.0):
    """A wrong block moves its rows by 1 nat, cold requests by `noise`, a share of the warm ones by
    `size`.
    """
    sides = {
        "continuation": changed(noise, seed=2),
        "warm": changed(size, share, seed=3),
    }
    return StateAnswers(
        ResponseSide("cold", changed(0.0)),
        ResponseSide("wrong block", changed(1.0, seed=1)),
        is_cold=True,
        sides={name: ResponseSide(name, answers) for name, answers in sides.items()},
        missing={axis.name: "it sends none" for axis in AXES if axis.name not in sides},
    )


def stored(store, state):
    """Store a state as a run; returns its id."""
    sides, pairs, verdicts = judge_state(state, [state.cold, *state.sides.values()])
    return write_responses(store, "state", Provenance("upload", "made"), sides, pairs, verdicts)
