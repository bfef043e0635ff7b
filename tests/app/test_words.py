"""Figures and tokens as text."""

from app.shell import wording


def test_a_token_without_text_shows_its_id_and_no_token_says_why():
    assert wording.token(5, None) == "token 5"
    assert wording.token(5, " a") == "·a  (5)"
    assert wording.token(None, None) == "none (all NaN)"


def test_logits_are_shown_with_the_digits_they_have_and_undefined_ones_as_such():
    assert [wording.logit(value) for value in (0.34375, 2.0**-24, None, float("nan"))] == [
        "0.34375",
        "5.96046448e-08",
        "undefined",
        "undefined",
    ]
