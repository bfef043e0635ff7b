"""Pairs of lists: only rows of equal context meet, and what is said of them is what was sent."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from core.errors import DumpError
from core.judging.lists import judge_responses
from core.numerics.top_tokens import summary_of
from core.responses.alignment import align
from core.responses.files import sides_of
from core.responses.pairing import pairs_of
from core.responses.records import Response, ResponseSide, TopTokenRow, compress_rows
from core.runs.store.store import Store
from core.verdict import IDENTICAL, UNDECIDED
from tests.core.responses.made_sides import compare, engine_side, response, run_of, side, store_run


def test_a_row_is_compared_while_both_have_read_the_same_tokens() -> None:
    """Prompt 5, 6; A goes on 7, 8, 9 and B 7, 1, 9: the row after 7 is the last of equal context,
    at position 2.
    """
    rows = {1: {7: -0.1, 1: -3.0}, 2: {8: -0.5, 1: -0.75}, 3: {9: -0.1, 2: -4.0}}
    other = {1: {7: -0.1, 1: -3.0}, 2: {1: -0.5, 8: -0.75}, 3: {9: -0.2, 2: -4.0}}
    pair = compare(
        side("A", response([5, 6, 7, 8, 9], rows, prompt=2)),
        side("B", response([5, 6, 7, 1, 9], other, prompt=2)),
    )
    assert (pair.positions.tolist(), pair.figures.is_flip.tolist()) == ([1, 2], [False, True])
    (meeting,) = pair.meetings
    assert (meeting.parting, meeting.is_parting_in_prompt) == (3, False)
    assert pair.figures.max_abs[1] == pytest.approx(0.25)
    assert pair.figures.reference_margin[1] == 0.25


def test_the_first_position_that_differs_is_said_unless_it_is_the_first_of_all() -> None:
    """A prompt is scored alike, and what was decoded after it is not."""
    rows = {0: {6: -0.1}, 1: {7: -0.1}, 2: {8: -0.5}, 3: {9: -0.1}}
    later = rows | {2: {8: -0.75}, 3: {9: -0.2}}
    earlier = rows | {0: {6: -0.2}, 3: {9: -0.2}}
    for other, place in ((later, "the first at position 2"), (earlier, "")):
        pair = compare(
            *(
                side(name, response([5, 6, 7, 8, 9], each))
                for name, each in (("A", rows), ("B", other))
            ),
        )
        assert place in pair.in_words
        assert ("first" in pair.in_words) == bool(place)


def test_another_prompt_is_said_and_not_compared() -> None:
    rows = {0: {6: -0.1, 1: -3.0}, 1: {7: -0.1, 1: -3.0}}
    pair = compare(
        side("A", response([5, 6, 7], rows, prompt=2)),
        side("B", response([5, 4, 7], rows, prompt=2)),
    )
    assert pair.positions.tolist() == [0]
    assert pair.meetings[0].is_parting_in_prompt
    assert any("inputs differ" in note for note in pair.notes)
    with pytest.raises(DumpError, match="no position with equal tokens"):
        compare(
            side("A", response([5, 6, 7], {1: rows[1]}, prompt=2)),
            side("B", response([9, 6, 7], {1: rows[1]}, prompt=2)),
        )


def test_a_response_without_its_prompt_begins_where_the_other_generates() -> None:
    """A chat response says generated tokens only: its first row is the one that scored the other's
    first new token.
    """
    known = response(
        [5, 6, 7, 8],
        {0: {6: -1.0, 2: -2.0}, 1: {7: -0.1, 1: -3.0}, 2: {8: -0.5, 1: -1.0}},
        prompt=2,
    )
    bare = response(
        [-1, 7, 8],
        {0: {7: -0.1, 1: -3.0}, 1: {8: -0.25, 1: -1.5}},
        prompt=1,
        start_known=False,
    )
    for reference, variant in ((known, bare), (bare, known)):
        pair = compare(side("A", reference), side("B", variant))
        assert (pair.positions.tolist(), pair.figures.neq.tolist()) == ([1, 2], [0, 2])
        assert any("taken for equal" in note for note in pair.notes)


def test_texts_join_where_one_side_has_no_ids() -> None:
    ids = response([5, 7], {0: {7: -0.1, 1: -3.0}}, texts={7: " seven", 1: " one"})
    texts = response([-1, 0], {0: {0: -0.25, 1: -2.0}}, texts={0: " seven", 1: " one"}, keys="text")
    pair = compare(side("ids", ids), side("texts", texts))
    figures = pair.figures
    assert (figures.common.tolist(), figures.neq.tolist(), figures.is_flip.tolist()) == (
        [2],
        [2],
        [False],
    )
    assert pair.texts[int(figures.reference_token[0])] == " seven"
    twice = replace(ids, texts={7: "same", 1: "same"})
    pair = compare(side("ids", twice), side("texts", texts))
    assert (pair.sent, pair.compared, pair.common_values) == (1, 0, 0)


def test_tokens_of_one_text_cost_their_row_alone() -> None:
    """The first row has two tokens that print as \ufffd; the second has none, and is compared."""
    ids = response(
        [5, 7, 1],
        {0: {7: -0.1, 8: -3.0, 1: -4.0}, 1: {1: -0.5, 7: -1.0}},
        texts={7: "\ufffd", 8: "\ufffd", 1: "b"},
    )
    rows = {0: {0: -0.1, 1: -4.0}, 1: {1: -0.25, 0: -1.5}}
    texts = response([-1, 0, 1], rows, texts={0: "\ufffd", 1: "b"}, keys="text")
    pair = compare(side("ids", ids), side("texts", texts))
    assert (pair.sent, pair.compared, pair.figures.common.tolist()) == (2, 1, [0, 2])
    assert any("1 row left out" in note for note in pair.notes)


def test_generated_rows_after_prompts_of_two_lengths_meet_at_the_start_of_generation() -> None:
    """Chat sends no prompt tokens, only how many: 3 and 4 here, so a BOS or another template."""
    rows = {2: {5: -0.1, 1: -3.0}, 3: {6: -0.2, 1: -2.0}}
    one = response([-1, -1, -1, 5, 6], rows, prompt=3)
    other = response([-1, -1, -1, -1, 5, 6], {at + 1: row for at, row in rows.items()}, prompt=4)
    pair = compare(side("A", one), side("B", other))
    assert (len(pair.positions), pair.differing) == (2, 0)
    assert any("inputs differ" in note for note in pair.notes)


def test_sides_with_other_numbers_of_responses_are_refused_in_a_sentence() -> None:
    one = side("A", response([5, 6], {0: {6: -0.5, 1: -1.0}}))
    with pytest.raises(DumpError, match="1 and 2 responses"):
        compare(one, ResponseSide("B", one.responses * 2))


def test_repeated_answers_of_a_file_are_its_sides() -> None:
    first = response([5, 6], {0: {6: -0.5, 1: -1.0}})
    other = response([8, 6], {0: {6: -0.5, 1: -1.0}})
    sides = sides_of([first, other, first, other], "file")
    assert [(each.name, len(each.responses)) for each in sides] == [
        ("answer 1", 2),
        ("answer 2", 2),
    ]
    for wrong in ([first], [first, other], [first, first, other]):
        with pytest.raises(DumpError, match="equally often"):
            sides_of(wrong, "file")


def test_margins_show_the_dtype_of_the_engine() -> None:
    pair = compare(engine_side("A", 1, 20), engine_side("B", 2, 20))
    assert (pair.compute_dtype, len(pair.positions)) == ("bfloat16", 24)
    margins = pair.figures.reference_margin, pair.figures.variant_margin
    for ulps, margin in zip(pair.margin_ulps, margins, strict=True):
        assert ulps.any()
        assert ((ulps == 0) == (margin == 0)).all()
    same = compare(engine_side("A", 1, 20), engine_side("B", 1, 20))
    assert (same.differing, summary_of(same.figures).bit_identical) == (0, None)


@pytest.mark.parametrize("k", [2, 20])
def test_figures_of_the_top_tokens_are_those_of_whole_rows(k: int) -> None:
    whole, cut = (
        summary_of(compare(engine_side("A", 1, n), engine_side("B", 2, n)).figures)
        for n in (512, k)
    )
    assert (cut.flips, cut.ties, cut.min_margin) == (whole.flips, whole.ties, whole.min_margin)
    assert cut.neq <= whole.neq
    assert cut.max_abs <= whole.max_abs


def test_the_first_of_the_best_is_the_lowest_token() -> None:
    rows = compress_rows(
        [TopTokenRow(0, ((9, -0.5), (3, -0.5), (4, -2.0)), 4), TopTokenRow(2, (), 0)], "here"
    )
    assert (rows.token_ids.tolist(), rows.offsets.tolist(), rows.best.tolist()) == (
        [3, 9, 4],
        [0, 3, 3],
        [3, 0],
    )
    with pytest.raises(DumpError, match="increasing positions"):
        compress_rows([TopTokenRow(1, (), 0), TopTokenRow(1, (), 0)], "here")


def chosen_beside(*values: float | None) -> ResponseSide:
    """Rows of two tokens, the first of which was emitted, and is sent with another value beside the
    list if given.
    """
    rows = [
        TopTokenRow(
            at,
            ((7, -0.5 - 0.1 * at), (8, -2.0)),
            2,
            7,
            chosen=math.nan if value is None else value,
        )
        for at, value in enumerate(values)
    ]
    tokens = (5, *[7] * len(values))
    return side("side", Response("test", "token_id", tokens, compress_rows(rows, "here")))


@pytest.mark.parametrize(
    ("one", "other", "values", "neq", "largest", "verdict"),
    [
        # the one's list has its chosen values
        ([None] * 4, [-0.9, -1.0, -1.1, None], 8 + 3, 3, 0.4, UNDECIDED),
        ([-0.9, -1.0, -1.1, -1.2], [-0.9, -1.0, -1.1, -1.2], 8 + 4, 0, 0.0, IDENTICAL),
        ([-0.9, -1.0, -1.1, -1.2], [-0.9, -1.0, -1.1, -1.7], 8 + 4, 1, 0.5, UNDECIDED),
        ([None] * 4, [-0.50001, None, None, None], 8 + 1, 1, 1e-5, UNDECIDED),
    ],
)
def test_chosen_values_are_compared_with_chosen_values_and_lists_with_lists(
    one: list[float],
    other: list[float],
    values: int,
    neq: int,
    largest: float,
    verdict: str,
    store: Store,
) -> None:
    sides = replace(chosen_beside(*one), name="one"), replace(chosen_beside(*other), name="other")
    pair = compare(*sides)
    assert (pair.common_values, pair.differing) == (values, neq)
    assert pair.figures.max_abs.max() == pytest.approx(largest)
    path = store.path_of(store_run(store, "chosen", *sides))
    stored = run_of(path)
    assert [each.name for each in stored.verdicts] == [verdict]
    assert (stored.pairs[0].common_values, stored.pairs[0].differing) == (values, neq)
    assert stored.pairs[0].placeholders == pair.placeholders


def test_a_contradiction_on_one_side_is_said_first() -> None:
    pair = compare(chosen_beside(*[None] * 8), chosen_beside(*[-1.5] * 7, None))
    assert [(each.kind, each.tokens, each.of) for each in pair.placeholders] == [
        ("contradiction", 7, 8),
    ]


@pytest.mark.parametrize(("rows", "verdict"), [(9, IDENTICAL), (8, UNDECIDED)])
def test_a_verdict_needs_nine_of_ten_rows(rows: int, verdict: str) -> None:
    """The rest was not sent by one side; what is left out begins the sentence."""
    sides = align([chosen_beside(*[None] * rows), chosen_beside(*[None] * 10)])
    pairs = pairs_of(sides)
    (found,) = judge_responses(sides, pairs)
    assert found.name == verdict
    assert f"{rows} of 10 rows compared" in found.because.split(";")[0]
