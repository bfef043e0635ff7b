"""The table of flips against the whole logits: ranks by sorting all of them, probabilities by a
softmax in float64.
"""

import numpy as np
import pandas as pd
import pytest
from scipy.special import softmax

from core.numerics.formats import BFLOAT16, values_of
from core.runs.queries.flips import SIDES, candidates, flip_table, flips_sentence
from tests.core.runs.made_runs import calm_sides, header_of, opened, sample, write_run

SAMPLES = ("fresh-against-cached", "injected-bug", "batch-1-against-n")
VOCAB = 300


def assert_as_by_hand(run, pair, row):
    """The derived columns of one row are those of all logits of both sides."""
    logits = {}
    order = {}
    for side, index in (("reference", 0), ("variant", pair + 1)):
        bits = run.at(index, row["prompt"], row["position"])
        logits[side] = values_of(bits, run.header.format).astype(np.float64)
        # equal ones by token id
        order[side] = np.argsort(-logits[side], kind="stable").tolist()
    share = {side: softmax(values) for side, values in logits.items()}
    expected = {}
    for side, other in (SIDES, SIDES[::-1]):
        token = order[side][0]
        assert token == row[f"{side}_token"]
        for on in SIDES:
            expected[f"{side}_token_{on}_probability"] = share[on][token]
        change = share["variant"][token] - share["reference"][token]
        expected[f"{side}_token_probability_change"] = change
        expected[f"{side}_token_{other}_rank"] = order[other].index(token) + 1  # 1 is the argmax
    for column, value in expected.items():
        # logsumexp is stored in float64, summed in another order than here
        assert row[column] == pytest.approx(value, abs=1e-9), column


def far_flips(store):
    """bfloat16, prompts of 3 and 5 positions, each a flip: the reference's argmax t is the
    variant's number 100 + t and the other way round.
    """
    header = header_of(vocab=VOCAB)
    logits = np.tile(np.linspace(4, -4, VOCAB), (2, header.rows, 1))
    for row in range(header.rows):
        logits[0, row, row] = 6.0
        logits[1, row, row] = logits[0, row, 100 + row]
        logits[1, row, 200] = 7.0
    sides = logits.astype(BFLOAT16.values).view(np.uint16)
    write_run(store, header, list(sides), "far")
    return opened(store, "far")


@pytest.mark.spread(2)
@pytest.mark.parametrize("near_ties", [False, True])
@pytest.mark.parametrize("name", SAMPLES)
def test_ranks_and_probabilities_are_those_of_the_whole_logits(name, near_ties):
    with sample(name) as run:
        for pair in range(len(run.pairs)):
            positions = run.positions(pair)
            found = flip_table(run, pair, near_ties=near_ties)
            chosen = positions["is_flip"] | (positions["near_tie"] & near_ties)
            place = ["prompt", "position"]
            assert found[place].values.tolist() == positions.loc[chosen, place].values.tolist()
            for _, row in found.iterrows():
                assert_as_by_hand(run, pair, row)
                assert row["reference_text"] == run.vocabulary[row["reference_token"]]


def test_tokens_beyond_the_stored_best_are_read_from_the_logits(store):
    with far_flips(store) as run:
        found = flip_table(run, 0)
        assert len(found) == 8
        # or nothing beyond the stored ones was asked for
        assert found["reference_token_variant_rank"].min() > 20
        for _, row in found.iterrows():
            assert_as_by_hand(run, 0, row)


def test_no_more_rows_are_read_than_allowed_and_the_rest_is_null(store, monkeypatch):
    with far_flips(store) as run:
        read = []
        at = run.at
        monkeypatch.setattr(run, "at", lambda *place: read.append(place) or at(*place))
        monkeypatch.setattr("core.runs.queries.flips.MOST_READ", 3)
        found = flip_table(run, 0)
        assert len(read) == 3
        for figure in ("rank", "probability"):
            names = f"variant_token_reference_{figure}", f"reference_token_variant_{figure}"
            assert found[[*names]].notna().to_numpy().sum() == 3
        # the argmax is always among the stored
        assert found["reference_token_reference_probability"].notna().all()


def test_a_side_that_is_all_nan_has_no_rank_and_no_probability(store):
    header = header_of(vocab=40)
    sides = calm_sides(header)
    sides[1][2] = 0x7FC0
    write_run(store, header, sides, "nan")
    with opened(store, "nan") as run:
        here = flip_table(run, 0).iloc[0]
    assert here["position"] == 2
    unknown = ["token", "text", "token_reference_rank", "token_variant_probability"]
    assert here[[f"variant_{name}" for name in unknown]].isna().all()


def top(*rows):
    """Best tokens of both sides: (token, logit on the reference, logit on the variant)."""
    table = pd.DataFrame(rows, columns=["token_id", "reference_logit", "variant_logit"])
    for side in SIDES:
        table[f"{side}_rank"] = (
            table[f"{side}_logit"].rank(ascending=False, method="first").astype(int)
        )
    return table


def test_two_candidates_stand_on_every_value_that_the_dtype_has_between_them():
    """bfloat16 at 4 to 8 has steps of 2^-5: 1/32; below 4 they are half as long."""
    found = candidates(top((3, 4.0, 4.0), (7, 4.0, 4.0625), (9, 1.0, 1.0)), BFLOAT16)
    assert found.tokens == (3, 7)
    assert found.logits.tolist() == [[4.0, 4.0], [4.0, 4.0625]]  # a tie on the reference
    assert found.grid.tolist() == [3.984375, 4.0, 4.03125, 4.0625, 4.09375]
    assert found.steps == 2


def test_where_no_argmax_changes_the_runner_up_that_is_nearest_on_a_side_is_the_other_candidate():
    found = candidates(top((0, 8.0, 8.0), (1, 7.0, 6.0), (2, 6.0, 7.5)), BFLOAT16)
    assert found.tokens == (0, 2)


@pytest.mark.parametrize("broken", [np.inf, np.nan])
def test_a_candidate_that_is_not_finite_has_no_grid_and_no_steps(broken):
    table = top((0, 8.0, 1.0), (1, 7.0, 2.0))
    table.loc[1, "reference_logit"] = broken
    found = candidates(table, BFLOAT16)
    assert len(found.grid) == 0
    assert found.steps is None
    assert candidates(table[:1], BFLOAT16) is None


@pytest.mark.parametrize(
    ("margins", "sides"),
    [
        ((0.5, 1.0), "All are near ties on the reference."),
        ((0.5, 4.0), "All are near ties on at least one side, 1 on the variant only."),
        ((4.0, 4.0), "All are near ties on the variant only."),
        ((0.5, np.nan), "All are near ties on at least one side, 1 on the variant only."),
    ],
)
def test_near_ties_of_flips_name_the_side_that_has_them(margins, sides):
    """Differences of 2 row ULPs, whose spacing is 0.5: a near tie has a margin of at most 1."""
    table = pd.DataFrame(
        {
            "prompt": 0,
            "position": [0, 1],
            "is_flip": True,
            "near_tie": True,
            "max_abs": 1.0,
            "max_row_ulps": 2.0,
            "reference_margin": margins,
            "variant_margin": 0.0,
        },
    )
    assert flips_sentence(table).endswith(sides)


@pytest.mark.parametrize(
    ("largest", "says"),
    [
        (200.0, "It is a near tie on the reference. Position 2 differs 200x as much as most."),
        (2.0, "It is a near tie on the reference."),
    ],
)
def test_a_flip_at_a_position_that_stands_out_is_not_called_usual(largest, says):
    # one logit raised past the argmax leaves a small margin: the flip is the fault
    table = pd.DataFrame(
        {
            "prompt": 0,
            "position": [0, 1, 2, 3],
            "is_flip": [False, False, True, False],
            "near_tie": True,
            "max_abs": [1.0, 1.0, largest, 1.0],
            "max_row_ulps": [1.0, 1.0, largest, 1.0],
            "reference_margin": 0.5,
            "variant_margin": 0.5,
        },
    )
    assert flips_sentence(table).endswith(says)
