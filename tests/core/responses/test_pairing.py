"""Pairs of lists: only rows of equal context meet, and what is said of them is what was sent."""

import math
from dataclasses import replace

import pytest
import torch

from core.errors import DumpError
from core.judging.lists import judge_responses
from core.numerics.top_tokens import summary_of
from core.responses.alignment import align
from core.responses.files import sides_of
from core.responses.pairing import pairs_of
from core.responses.records import Response, ResponseSide, TopTokenRow, compress_rows
from core.verdict import IDENTICAL, UNDECIDED
from tests.core.responses.made_sides import (
    compare,
    engine_side,
    pair_of,
    response,
    run_of,
    side,
    store_run,
)

# sent without a value of its own
NONE = math.nan


def test_a_row_is_compared_while_both_have_read_the_same_tokens():
    """Prompt 5, 6; A goes on 7, 8, 9 and B 7, 1, 9: the row after 7 is the last of equal context,
    at position 2.
    """
    rows = {
        1: {7: -0.1, 1: -3.0},
        2: {8: -0.5, 1: -0.75},
        3: {9: -0.1, 2: -4.0},
    }
    other = {
        1: {7: -0.1, 1: -3.0},
        2: {1: -0.5, 8: -0.75},
        3: {9: -0.2, 2: -4.0},
    }
    pair = pair_of(
        response([5, 6, 7, 8, 9], rows, prompt=2),
        response([5, 6, 7, 1, 9], other, prompt=2),
    )
    assert pair.positions.tolist() == [1, 2]
    assert pair.figures.is_flip.tolist() == [False, True]
    (meeting,) = pair.meetings
    assert meeting.parting == 3
    assert not meeting.is_parting_in_prompt
    assert pair.figures.max_abs[1] == pytest.approx(0.25)
    assert pair.figures.reference_margin[1] == 0.25


def test_the_first_position_that_differs_is_said_unless_it_is_the_first_of_all():
    """A prompt is scored alike, and what was decoded after it is not."""
    tokens = [5, 6, 7, 8, 9]
    rows = {
        0: {6: -0.1},
        1: {7: -0.1},
        2: {8: -0.5},
        3: {9: -0.1},
    }
    reference = response(tokens, rows)
    later = response(tokens, rows | {2: {8: -0.75}, 3: {9: -0.2}})
    earlier = response(tokens, rows | {0: {6: -0.2}, 3: {9: -0.2}})
    assert "the first at position 2" in pair_of(reference, later).in_words
    assert "first" not in pair_of(reference, earlier).in_words


def test_another_prompt_is_said_and_not_compared():
    rows = {
        0: {6: -0.1, 1: -3.0},
        1: {7: -0.1, 1: -3.0},
    }
    one = response([5, 6, 7], rows, prompt=2)
    other = response([5, 4, 7], rows, prompt=2)
    pair = pair_of(one, other)
    assert pair.positions.tolist() == [0]
    assert pair.meetings[0].is_parting_in_prompt
    assert any("inputs differ" in note for note in pair.notes)
    with pytest.raises(DumpError, match="no position with equal tokens"):
        pair_of(
            response([5, 6, 7], {1: rows[1]}, prompt=2),
            response([9, 6, 7], {1: rows[1]}, prompt=2),
        )


def test_a_response_without_its_prompt_begins_where_the_other_generates():
    """A chat response says generated tokens only: its first row is the one that scored the other's
    first new token.
    """
    first = {7: -0.1, 1: -3.0}
    rows = {
        0: {6: -1.0, 2: -2.0},
        1: first,
        2: {8: -0.5, 1: -1.0},
    }
    known = response([5, 6, 7, 8], rows, prompt=2)
    rows = {0: first, 1: {8: -0.25, 1: -1.5}}
    bare = response([-1, 7, 8], rows, prompt=1, start_known=False)
    for pair in (pair_of(known, bare), pair_of(bare, known)):
        assert pair.positions.tolist() == [1, 2]
        assert pair.figures.neq.tolist() == [0, 2]
        assert any("taken for equal" in note for note in pair.notes)


def test_texts_join_where_one_side_has_no_ids():
    ids = response(
        [5, 7],
        {0: {7: -0.1, 1: -3.0}},
        texts={7: " seven", 1: " one"},
    )
    texts = response(
        [-1, 0],
        {0: {0: -0.25, 1: -2.0}},
        texts={0: " seven", 1: " one"},
        keys="text",
    )
    pair = pair_of(ids, texts)
    assert pair.figures.common.tolist() == [2]
    assert pair.figures.neq.tolist() == [2]
    assert not pair.figures.is_flip.any()
    assert pair.texts[int(pair.figures.reference_token[0])] == " seven"
    twice = replace(ids, texts={7: "same", 1: "same"})
    pair = pair_of(twice, texts)
    assert pair.sent == 1
    assert pair.compared == 0
    assert pair.common_values == 0


def test_tokens_of_one_text_cost_their_row_alone():
    """The first row has two tokens that print as \ufffd; the second has none, and is compared."""
    rows = {
        0: {7: -0.1, 8: -3.0, 1: -4.0},
        1: {1: -0.5, 7: -1.0},
    }
    ids = response([5, 7, 1], rows, texts={7: "\ufffd", 8: "\ufffd", 1: "b"})
    rows = {
        0: {0: -0.1, 1: -4.0},
        1: {1: -0.25, 0: -1.5},
    }
    texts = response(
        [-1, 0, 1],
        rows,
        texts={0: "\ufffd", 1: "b"},
        keys="text",
    )
    pair = pair_of(ids, texts)
    assert pair.sent == 2
    assert pair.compared == 1
    assert pair.figures.common.tolist() == [0, 2]
    assert any("1 row left out" in note for note in pair.notes)


def test_generated_rows_after_prompts_of_two_lengths_meet_at_the_start_of_generation():
    """Chat sends no prompt tokens, only how many: 3 and 4 here, so a BOS or another template."""
    rows = {
        2: {5: -0.1, 1: -3.0},
        3: {6: -0.2, 1: -2.0},
    }
    one = response([-1, -1, -1, 5, 6], rows, prompt=3)
    other = response(
        [-1, -1, -1, -1, 5, 6],
        {at + 1: row for at, row in rows.items()},
        prompt=4,
    )
    pair = pair_of(one, other)
    assert len(pair.positions) == 2
    assert pair.differing == 0
    assert any("inputs differ" in note for note in pair.notes)


def test_sides_with_other_numbers_of_responses_are_refused_in_a_sentence():
    one = side(
        "A",
        response([5, 6], {0: {6: -0.5, 1: -1.0}}),
    )
    with pytest.raises(DumpError, match="1 and 2 responses"):
        compare(one, ResponseSide("B", one.responses * 2))


def test_repeated_answers_of_a_file_are_its_sides():
    first = response([5, 6], {0: {6: -0.5, 1: -1.0}})
    other = response([8, 6], {0: {6: -0.5, 1: -1.0}})
    one, two = sides_of([first, other, first, other], "file")
    assert one.name == "answer 1"
    assert two.name == "answer 2"
    assert len(one.responses) == len(two.responses) == 2
    for wrong in (
        [first],
        [first, other],
        [first, first, other],
    ):
        with pytest.raises(DumpError, match="equally often"):
            sides_of(wrong, "file")


def test_margins_show_the_dtype_of_the_engine():
    pair = compare(engine_side("A", 1, 20), engine_side("B", 2, 20))
    assert pair.compute_dtype == "bfloat16"
    assert len(pair.positions) == 24
    margins = pair.figures.reference_margin, pair.figures.variant_margin
    for ulps, margin in zip(pair.margin_ulps, margins, strict=True):
        assert ulps.any()
        assert ((ulps == 0) == (margin == 0)).all()
    same = compare(engine_side("A", 1, 20), engine_side("B", 1, 20))
    assert same.differing == 0
    assert summary_of(same.figures).bit_identical is None


def test_the_first_of_the_best_is_the_lowest_token():
    tied = TopTokenRow(0, ((9, -0.5), (3, -0.5), (4, -2.0)), 4)
    empty = TopTokenRow(2, (), 0)
    rows = compress_rows([tied, empty], "here")
    assert rows.token_ids.tolist() == [3, 9, 4]
    assert rows.offsets.tolist() == [0, 3, 3]
    assert rows.best.tolist() == [3, 0]
    with pytest.raises(DumpError, match="increasing positions"):
        compress_rows([empty, empty], "here")


def chosen_beside(name, *values):
    """Rows of two tokens, the first of which was emitted, and is sent with another value beside the
    list unless it is NaN.
    """
    rows = []
    for at, value in enumerate(values):
        top = ((7, -0.5 - 0.1 * at), (8, -2.0))
        rows.append(TopTokenRow(at, top, 2, target=7, chosen=value))
    tokens = (5, *[7] * len(values))
    return side(
        name,
        Response(
            "test",
            "token_id",
            tokens,
            compress_rows(rows, "here"),
        ),
    )


CHOSEN = [-0.9, -1.0, -1.1, -1.2]


@pytest.mark.parametrize(
    ("one", "other", "values", "neq", "largest", "verdict"),
    [
        # the one's list has its chosen values
        ([NONE] * 4, [-0.9, -1.0, -1.1, NONE], 8 + 3, 3, 0.4, UNDECIDED),
        (CHOSEN, CHOSEN, 8 + 4, 0, 0.0, IDENTICAL),
        (CHOSEN, [*CHOSEN[:3], -1.7], 8 + 4, 1, 0.5, UNDECIDED),
        ([NONE] * 4, [-0.50001, NONE, NONE, NONE], 8 + 1, 1, 1e-5, UNDECIDED),
    ],
)
def test_chosen_values_are_compared_with_chosen_values_and_lists_with_lists(
    one,
    other,
    values,
    neq,
    largest,
    verdict,
    store,
):
    sides = chosen_beside("one", *one), chosen_beside("other", *other)
    pair = compare(*sides)
    assert pair.common_values == values
    assert pair.differing == neq
    assert pair.figures.max_abs.max() == pytest.approx(largest)
    stored = run_of(store.path_of(store_run(store, "chosen", *sides)))
    assert [each.name for each in stored.verdicts] == [verdict]
    (again,) = stored.pairs
    assert again.common_values == values
    assert again.differing == neq
    assert again.placeholders == pair.placeholders


def test_a_contradiction_on_one_side_is_said_first():
    pair = compare(
        chosen_beside("A", *[NONE] * 8),
        chosen_beside("B", *[-1.5] * 7, NONE),
    )
    (one,) = pair.placeholders
    assert one.kind == "contradiction"
    assert one.tokens == 7
    assert one.of == 8


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        (9, IDENTICAL),
        (8, UNDECIDED),
    ],
)
def test_a_verdict_needs_nine_of_ten_rows(rows, verdict):
    """The rest was not sent by one side; what is left out begins the sentence."""
    sides = align(
        [
            chosen_beside("A", *[NONE] * rows),
            chosen_beside("B", *[NONE] * 10),
        ]
    )
    (found,) = judge_responses(sides, pairs_of(sides))
    assert found.name == verdict
    assert f"{rows} of 10 rows compared" in found.because.split(";")[0]


def test_each_side_has_the_grid_of_its_own_values():
    """The second one has those of the first; the third computes in float32."""
    sides = [
        engine_side("a", 0, 20),
        engine_side("b", 0, 20),
        engine_side("c", 0, 20, torch.float32),
    ]
    grids = [pair.grids for pair in pairs_of(sides)]
    assert [grid and grid.compute_dtype for grid in grids[0]] == ["bfloat16", "bfloat16"]
    assert [grid and grid.compute_dtype for grid in grids[1]] == ["bfloat16", None]
