"""The Flips page: its table, near ties next to flips, and the reason with the position's own
numbers.
"""

import numpy as np
import pandas as pd
import pytest

from app.flips import parts
from core.judging.ingest import ingest
from tests.app import opening
from tests.app.opening import enter, page_text

RUN = "fresh-against-cached"

pytestmark = pytest.mark.usefixtures("own_store")


def opened(**link):
    return opening.open_page("flips", **{"run": RUN, **link})


def table(app):
    (found,) = [
        frame.value for frame in app.dataframe if "reference_margin_ulps" in frame.value.columns
    ]
    return found


def test_every_flip_of_every_prompt_is_listed_with_what_each_side_makes_of_both_tokens():
    app = opened(prompt="1", position="36")
    assert list(table(app).columns)[1:4] == ["position", "reference_token", "variant_token"]
    assert len(table(app).columns) == 7  # in sight; a toggle shows the rest
    enter(app, "toggle", "flip_table_all_columns", True)
    listed = table(app)
    assert {"kl", "max_abs", "reference_token_probability_change"} <= set(listed.columns)
    assert list(zip(listed["prompt"], listed["position"], strict=True)) == [
        (0, 144),
        (1, 30),
        (1, 36),
        (1, 239),
    ]
    assert listed["reference_token"].iloc[2] == ")  (9)"
    assert listed["variant_token"].iloc[2] == "·%  (512)"


@pytest.mark.parametrize(
    ("position", "rows"),
    [("36", [2]), ("30", [1]), ("31", [])],
)
def test_the_row_of_the_selected_position_is_the_marked_one(position, rows):
    app = opened(prompt="1", position="144")
    enter(app, "number_input", "position", int(position))
    assert app.session_state["flip_table"]["selection"]["rows"] == rows


def test_near_ties_are_listed_too_when_asked_for_and_that_is_in_the_address():
    app = opened(prompt="1", position="36")
    enter(app, "segmented_control", "flips_listed", "flips and near ties")
    assert app.query_params["list"] == "flips-and-near-ties"
    found = table(app)
    assert len(found) == 79
    assert int(found["is_flip"].sum()) == 4
    assert "in 729 positions" in page_text(app)
    # a near tie without a flip
    linked = opened(list="flips-and-near-ties", prompt="1", position="142")
    assert "Margin." in page_text(linked)
    assert "is no flip" in page_text(opened(prompt="1", position="142"))


HERE = {
    "reference_token": 1,
    "variant_token": 1,
    "is_flip": False,
    "near_tie": True,
    "could_flip": True,
    "nonfinite_mismatch": 0,
    "max_abs": 0.25,
    "reference_margin": 0.5,
    "variant_margin": 0.75,
    "reference_margin_ulps": 4,
    "variant_margin_ulps": 6,
}
TOP = pd.DataFrame(
    {"token_id": [1, 2], "reference_logit": [4.0, 3.5], "variant_logit": [4.0, 4.25]},
)


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        ({}, "0.5 logits (4 ULPs) on the reference, 0.75 logits (6 ULPs) on the variant."),
        (
            {"variant_margin": 0.125, "variant_margin_ulps": 1},
            "0.125 logits (1 ULP) on the variant",
        ),
        ({"reference_margin": 0.0}, "0 (exact tie) on the reference"),
        ({"is_flip": True, "variant_token": 2}, "+0.5 on the reference, -0.25 on the variant"),
        ({"could_flip": False, "max_abs": 0.125}, "so a flip is impossible here."),
        (
            {"could_flip": False, "max_abs": 0.125, "is_flip": True},
            "the figures contradict each other",
        ),
        ({"nonfinite_mismatch": 3}, "3 logits here NaN or infinite on one side only"),
        ({"variant_margin": np.nan, "variant_margin_ulps": pd.NA}, "no finite margin"),
    ],
)
def test_every_kind_of_position_has_its_reason(here, expected):
    assert expected in parts.explain_flip(pd.Series(HERE | here), TOP)


def test_a_run_without_flips_says_how_close_it_came_and_still_offers_its_near_ties(
    own_store,
    tmp_path,
):
    logits = np.full((2, 8), -4.0, np.float32)
    logits[:, 1], logits[:, 2] = 2.0, 1.5
    moved = logits.copy()
    # one step below the argmax: a near tie, no flip
    moved[1, 2] = np.nextafter(np.float32(2), np.float32(0))
    dump = tmp_path / "near.npz"
    np.savez(dump, reference=logits, variant=moved)
    run_id = ingest(own_store, [dump])
    app = opened(run=run_id, position="0")
    assert "No flips" in page_text(app)
    assert "at all 2 positions" in page_text(app)
    enter(app, "segmented_control", "flips_listed", "flips and near ties")
    assert table(app)["position"].tolist() == [1]
    next(button for button in app.button if "first near tie" in button.label).click().run()
    assert "Margin." in page_text(app)
