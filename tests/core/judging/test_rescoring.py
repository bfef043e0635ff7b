"""Which checkpoint a rollout and a trainer agree with, by made values of known distances."""

import numpy as np
import pytest

from core.evidence import MISSING
from core.judging.explain.rescoring import Rescoring, explain_rescored, floor_evidence
from core.judging.explain.rows import RowPair

TOKENS, FLOOR = 400, 0.01
RANDOM = np.random.default_rng(3)
EXACT = -RANDOM.gamma(0.6, 0.9, TOKENS) - 0.2
# by which a step moves the values, in its own unit
UPDATE = RANDOM.normal(0, 1, TOKENS)


def noise(size=FLOOR):
    return RANDOM.normal(0, size, TOKENS)


def scores(rollout, trainer, step, dtypes):
    """Rescorings by three checkpoints, each `step` noise floors of the first dtype from the one
    before.
    """
    one = np.zeros(1, np.int64)
    rows = [
        RowPair(
            at // 40,
            at % 40,
            one,
            rollout[at : at + 1],
            trainer[at : at + 1],
            one,
        )
        for at in range(TOKENS)
    ]
    places = [(row.prompt, row.position) for row in rows]
    rescorings = []
    for number in range(3):
        values = EXACT + number * step * FLOOR * UPDATE
        for dtype, floor in dtypes.items():
            rescoring = Rescoring(
                f"step_{number}",
                dtype,
                ("rollout", "trainer"),
                rows,
                values + noise(floor),
                values + RANDOM.normal(0, floor, (4, TOKENS)),
                np.ones(TOKENS),
                places,
            )
            rescorings.append(rescoring)
    return rescorings


def side(number, step, floor=FLOOR):
    return EXACT + number * step * FLOOR * UPDATE + noise(floor)


BOTH = {"bfloat16": FLOOR, "float32": 1e-5 * FLOOR}


@pytest.mark.parametrize(
    ("step", "rollout", "trainer", "kind", "agrees"),
    [
        (8, 1, 1, "rounding", (["step_1"], ["step_1"])),
        (8, 0, 1, "stale weights", (["step_0"], ["step_1"])),
        (2, 1, 2, "stale weights", (["step_1"], ["step_2"])),
        (0.05, 0, 2, "rounding", (["step_0", "step_1", "step_2"],) * 2),
        (8, 5, 1, "one side", ([], ["step_1"])),
        (8, 5, -3, "another checkpoint", ([], [])),
    ],
)
def test_each_side_agrees_with_the_checkpoint_that_made_it(step, rollout, trainer, kind, agrees):
    made = scores(
        side(rollout, step),
        side(trainer, step),
        step,
        BOTH,
    )
    cause = explain_rescored(made)[0]
    agreements = cause.parameters["agrees"].values()
    assert (cause.name, *agreements) == (kind, *agrees), cause


def test_a_float32_trainer_is_told_apart_where_a_bfloat16_rollout_is_not():
    made = scores(
        side(0, 0.02),
        side(1, 0.02, 1e-5 * FLOOR),
        0.02,
        BOTH,
    )
    cause = explain_rescored(made)[0]
    assert cause.name == "numerics of two settings"
    assert cause.parameters["agrees"] == {
        "rollout": ["step_0", "step_1", "step_2"],
        "trainer": ["step_1"],
    }


def test_sizes_are_in_noise_floors_of_each_checkpoint():
    rollout = side(0, 8)
    trainer = side(2, 8)
    made = scores(rollout, trainer, 8, {"bfloat16": FLOOR})
    rows = explain_rescored(made)[0].parameters["noise_floors"]
    for one, row in zip(made, rows, strict=True):
        floor = np.sqrt(((one.draws - one.plain) ** 2).mean())
        size = np.sqrt(((trainer - one.plain) ** 2).mean())
        assert row["trainer"] == pytest.approx(size / floor)
        assert row["checkpoint"] == one.model


def test_a_side_that_fits_nothing_is_explained_by_the_nearest_checkpoint():
    """Log-probabilities of another token each are the trainer's fault, and the checkpoint shows
    it.
    """
    made = scores(side(1, 8), np.roll(side(1, 8), 1), 8, BOTH)
    names = [cause.name for cause in explain_rescored(made)]
    assert names == ["one side", "shifted"]


def test_a_few_tokens_far_off_do_not_decide_about_the_others():
    """As where a near tie of a router falls the other way: 9 tokens from token 31 of sequence 7
    on.
    """
    trainer = side(1, 8)
    trainer[311:320] -= np.abs(noise(0.5)[:9]) + 0.2
    agrees, some = explain_rescored(scores(side(1, 8), trainer, 8, BOTH))
    assert agrees.name == "rounding"
    assert agrees.parameters["agrees"]["trainer"] == ["step_1"]
    assert some.name == "some tokens"
    assert some.parameters == {"tokens": 9, "sequence": 7}
    trainer = side(1, 8)
    # the tail of rounding: 10 noise floors once in 400
    trainer[311] -= 0.15
    assert len(explain_rescored(scores(side(1, 8), trainer, 8, BOTH))) == 1


def test_a_model_whose_values_never_change_has_no_floor():
    one, *_ = scores(side(0, 1), side(0, 1), 1, {"bfloat16": 0.0})
    assert not one.has_floor
    assert floor_evidence(one).outcome == MISSING
