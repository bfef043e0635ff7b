"""Texts of others made harmless; counts, sizes and durations in words."""

from __future__ import annotations

import pytest

from core import text

ORDERS = "a\x1b[31m\u202e\n\udcff"  # a colour, right to left, a line end, a byte that is no UTF-8


def test_foreign_text_in_a_message_is_one_printable_line_of_bounded_length() -> None:
    assert text.shown(ORDERS) == "a\\x1b[31m\\u202e\\n\\udcff"
    assert text.shown("größer π 日本語 ≡") == "größer π 日本語 ≡"
    assert text.shown("\n" * 10**7, 8) == "\\n\\n\\n\\" + "…"
    assert [text.shown(word, 3) for word in ("abc", "abcd")] == ["abc", "ab…"]
    assert text.shown((1, 2)) == "(1, 2)"


def test_what_cannot_be_seen_is_replaced_but_for_what_is_asked_for() -> None:
    assert text.printable(ORDERS) == "a [31m   "
    assert text.printable(ORDERS, "", "\n") == "a[31m\n"


@pytest.mark.parametrize(
    ("token", "seen"),
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
def test_whitespace_and_control_characters_are_made_visible(token: str, seen: str) -> None:
    assert text.visible(token) == seen


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\x\\y.npz", "y.npz"),
        (".hidden", "hidden"),
        ("a\x00b.npz", "a_b.npz"),
        ("é" * 200 + ".npz", "é" * 58 + ".npz"),
        (" .", ""),
        ("", ""),
    ],
)
def test_an_uploaded_file_name_cannot_leave_its_folder(name: str, safe: str) -> None:
    assert text.file_name(name) == safe


@pytest.mark.parametrize(
    ("given", "besides", "made"),
    [
        ("s3://bucket/runs/", "", "s3-bucket-runs"),
        ("größer als 1.5", "", "gr-er-als-1-5"),
        ("größer als 1.5", "._-", "gr-er-als-1.5"),
        ("--", "", ""),
        ("a" * 70, "", "a" * 60),
    ],
)
def test_a_slug_has_letters_digits_and_hyphens_only(given: str, besides: str, made: str) -> None:
    assert text.slug(given, besides) == made


def test_shares_in_short_and_never_rounded_up() -> None:
    assert [text.short_percent(share) for share in (0.004, 0.0984, 0.33, 1)] == ["0.4%", "9.8%", "33%", "100%"]
    assert [text.floored_percent(share) for share in (0.99999, 1, 0.5)] == ["99.99 %", "100.00 %", "50.00 %"]


def test_counts_have_their_noun_and_shares_are_never_rounded_to_nothing_or_all() -> None:
    assert [text.plural(count, "flip") for count in (0, 1, 2000)] == ["0 flips", "1 flip", "2,000 flips"]
    assert text.plural(2, "value is", "values are") == "2 values are"
    assert text.out_of(36_819, 49_152) == "36,819 of 49,152 (74.9%)"
    assert text.out_of(0, 0) == "0 of 0"
    shares = (0.0, 1e-9, 0.0005, 0.9994, 1 - 1e-9, 1.0)
    assert [text.percent(share) for share in shares] == ["0.0%", "<0.1%", "0.1%", "99.9%", ">99.9%", "100.0%"]


def test_numbers_have_their_digits_and_undefined_ones_are_called_so() -> None:
    assert [text.number(value) for value in (12_345, 0.123456, 2.0**70)] == ["12,345", "0.1235", "1.181e+21"]
    numbers = (9999.6, 12_345.6, -2.5e6, 999_999_999.0, 1.5e9)
    assert [text.number(value) for value in numbers] == ["10,000", "12,350", "-2,500,000", "1e+09", "1.5e+09"]
    assert [text.number(value, 2) for value in (99.9, 128.0, 0.5)] == ["100", "130", "0.5"]
    assert [text.number(value) for value in (3794.25, -1234.5, 815.984)] == ["3,794", "-1,234", "816"]
    assert [text.number(value) for value in (None, float("nan"))] == ["undefined", "undefined"]
    assert text.exact(2.0**-24) == "5.96046448e-08"


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KB"),
        (13_119_488, "13.1 MB"),
        (4 * 10**9, "4.0 GB"),
        (10**13, "10,000.0 GB"),
    ],
)
def test_sizes_use_the_largest_unit_above_one(count: int, said: str) -> None:
    assert text.size(count) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0 s"), (99.4, "99 s"), (99.6, "2 min"), (5900, "98 min"), (5990, "1 h 40 min"), (12_000, "3 h 20 min")],
)
def test_times_are_told_as_people_tell_them(seconds: float, said: str) -> None:
    assert text.duration(seconds) == said


@pytest.mark.parametrize(("parts", "said"), [(["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")])
def test_parts_are_joined_as_a_sentence_does(parts: list[str], said: str) -> None:
    assert text.joined(parts) == said


@pytest.mark.parametrize(
    ("ratio", "shown"),
    [
        (0.5321, "0.532"),
        (24.06, "24.1"),
        (999.4, "999"),
        (999.6, "1,000"),
        (15321.0, "15,300"),
        (1234567.0, "1,230,000"),
        (3.2e12, "3.2e+12"),
        (float("inf"), "inf"),
    ],
)
def test_ratios_are_written_in_three_digits(ratio: float, shown: str) -> None:
    assert text.three_digits(ratio) == shown
