"""Figures and tokens as text."""

import pytest

from app import words


@pytest.mark.parametrize(
    ("text", "shown"),
    [(" self", "·self"), ("\n\t", "↵⇥"), ("\r\n", "␍↵"), ("é", "é"), ("\x00", "\\x00"), ("\u200b", "\\x200b"), ("", "")],
)
def test_whitespace_and_control_characters_are_made_visible(text, shown):
    assert words.visible(text) == shown


def test_a_token_without_text_shows_its_id_and_no_token_says_why():
    assert words.token(5, None) == "token 5"
    assert words.token(5, " a") == "·a  (5)"
    assert words.token(None, None) == "none (all NaN)"


@pytest.mark.parametrize(
    ("name", "safe"),
    [("../../etc/passwd", "passwd"), ("C:\\x\\y.npz", "y.npz"), (".hidden", "hidden"), ("a\x00b.npz", "a_b.npz"), ("", "")],
)
def test_an_uploaded_file_name_cannot_leave_its_folder(name, safe):
    assert words.file_name(name) == safe


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 KB"), (13_119_488, "13.1 MB"), (4 * 10**9, "4.0 GB"), (10**13, "10000.0 GB")],
)
def test_sizes_use_the_largest_unit_above_one(count, shown):
    assert words.size(count) == shown
