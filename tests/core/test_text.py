"""Texts of others made harmless; counts, sizes and durations in words."""

import pytest

from core import text

ORDERS = "a\x1b[31m\u202e\n\udcff"  # a colour, right to left, a line end, a byte that is no UTF-8


def test_foreign_text_in_a_message_is_one_printable_line_of_bounded_length():
    assert text.clean(ORDERS) == "a\\x1b[31m\\u202e\\n\\udcff"
    assert text.clean("größer π 日本語 ≡") == "größer π 日本語 ≡"
    assert text.clean("\n" * 10**7, 8) == "\\n\\n\\n\\" + "…"
    assert [text.clean(word, 3) for word in ("abc", "abcd")] == ["abc", "ab…"]
    assert text.clean((1, 2)) == "(1, 2)"


def test_what_cannot_be_seen_is_replaced_but_for_what_is_asked_for():
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
def test_whitespace_and_control_characters_are_made_visible(token, seen):
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
def test_an_uploaded_file_name_cannot_leave_its_folder(name, safe):
    assert text.file_name(name) == safe


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("s3://bucket/runs/", "s3-bucket-runs"),
        ("größer als 1.5", "gr-er-als-1-5"),
        ("--", ""),
        ("a" * 70, "a" * 60),
    ],
)
def test_a_slug_has_letters_digits_and_hyphens_only(given, made):
    assert text.slug(given) == made


def test_counts_have_their_noun_and_shares_are_never_rounded_to_nothing_or_all():
    assert [text.plural(count, "flip") for count in (0, 1, 2000)] == [
        "0 flips",
        "1 flip",
        "2,000 flips",
    ]
    assert text.plural(2, "value is", "values are") == "2 values are"
    assert text.out_of(36_819, 49_152) == "36,819 of 49,152 (74.9%)"
    assert text.out_of(0, 0) == "0 of 0"
    shares = (0.0, 1e-9, 0.0005, 0.9994, 1 - 1e-9, 1.0)
    assert [text.percent(share) for share in shares] == [
        "0.0%",
        "<0.1%",
        "0.1%",
        "99.9%",
        ">99.9%",
        "100.0%",
    ]


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
def test_sizes_use_the_largest_unit_above_one(count, said):
    assert text.size(count) == said


@pytest.mark.parametrize(
    ("tokens", "joined"),
    [
        (("a <0xE2><0x82>", "<0xAC>!"), ["a \u20ac", "!"]),
        (("<0xF0>", "<0x9F>", "<0x98>", "<0x80>"), ["\U0001f600", "", "", ""]),
        (
            ("\u20ac", "<0xE2>", "<0x82>", " x"),
            ["\u20ac", "<0xE2>", "<0x82>", " x"],
        ),  # cut: not a character
        (("<0xE4><0xBD>", "<0xA0><0xE5>"), ["\u4f60", "<0xE5>"]),
    ],
)
def test_bytes_of_neighboring_tokens_become_their_character(tokens, joined):
    assert text.join_bytes(tokens) == joined


def test_a_number_has_three_digits_and_a_column_or_an_axis_one_form():
    numbers = [text.number(value) for value in (0.31249, 35_612.0, 1.234e-5, 2.5e9, 1234, None)]
    assert [text.number(value) for value in (0.99984, 0.99999)] == ["0.9998", "0.9999"]
    assert numbers == ["0.312", "35,600", "1.23e-5", "2.5e+9", "1,234", "undefined"]
    assert text.column([0.9, 1.104, 35_600.0, None]) == ["0.90", "1.10", "35,600.00", ""]
    assert text.column([0.0838, 6.824e-6, 0.0]) == ["8.38e-2", "6.82e-6", "0"]
    assert text.column([12.0, 1500.0]) == ["12", "1,500"]
    assert text.on_axis([0.001, 1.0, 1000.0]) == ["0.001", "1", "1,000"]
    assert text.on_axis([1e-5, 1.0, 1000.0]) == ["1e-5", "1e+0", "1e+3"]
    assert text.exact_decimals([12.9375, 13.0, -0.125]) == 4
    assert text.exact_decimals([1.25, 1e-12]) is None
    assert [text.scaling(factor) for factor in (0.8, 1.42857, 1.000002, 1.0)] == [
        "0.8",
        "1.429",
        "1.000002",
        "1",
    ]
    ratios = (0.0, 0.0049, 0.005, 9.994, 35_612.0)
    assert [text.multiple(ratio) for ratio in ratios] == [
        "0.00x",
        "<0.01x",
        "0.01x",
        "9.99x",
        "35,600x",
    ]


def test_a_count_of_positions_is_read_at_once():
    counts = [text.all_of(*each, "position") for each in ((107, 109), (2000, 2000), (1, 1))]
    assert counts == ["107 of 109 positions", "all 2,000 positions", "the only position"]
