"""Figures and tokens as text."""

import pytest

from app.shell import wording
from core.runs.file.records import RUNGS


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" self", "·self"),
        ("\n\t", "↵⇥"),
        ("\r\n", "␍↵"),
        ("é", "é"),
        ("\x00", "\\x00"),
        ("\u200b", "\\x200b"),
        ("", ""),
    ],
)
def test_whitespace_and_control_characters_are_made_visible(text, shown):
    assert wording.visible(text) == shown


def test_a_token_without_text_shows_its_id_and_no_token_says_why():
    assert wording.token(5, None) == "token 5"
    assert wording.token(5, " a") == "·a  (5)"
    assert wording.token(None, None) == "none (all NaN)"


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\x\\y.npz", "y.npz"),
        (".hidden", "hidden"),
        ("a\x00b.npz", "a_b.npz"),
        ("", ""),
    ],
)
def test_an_uploaded_file_name_cannot_leave_its_folder(name, safe):
    assert wording.file_name(name) == safe


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KB"),
        (13_119_488, "13.1 MB"),
        (4 * 10**9, "4.0 GB"),
        (10**13, "10000.0 GB"),
    ],
)
def test_sizes_use_the_largest_unit_above_one(count, shown):
    assert wording.size(count) == shown


def test_what_a_row_of_evidence_checked_is_told_by_its_figures_and_its_rung():
    assert wording.checked("validity", ["nonfinite_mismatch", "positions", "first"]) == "NaN and infinity"
    assert wording.checked("validity", ["same_argmax_shifted_by_0", "same_argmax_shifted_by_1"]) == "shift"
    assert wording.checked("float32", ["nonfinite_mismatch"]) == ""  # a figure that many rungs have
    assert set(wording.RUNGS) == set(RUNGS)


def test_logits_are_shown_with_the_digits_they_have_and_undefined_ones_as_such():
    assert [wording.logit(value) for value in (0.34375, 2.0**-24, None, float("nan"))] == [
        "0.34375",
        "5.96046448e-08",
        "undefined",
        "undefined",
    ]
