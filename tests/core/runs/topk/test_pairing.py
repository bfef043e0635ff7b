"""Pairs of lists: only rows of equal context meet, and what is said of them is what was sent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from core.errors import DumpError
from core.numerics.topk import summary_of
from core.runs.topk import pairing
from core.runs.topk.files import sides_of
from core.runs.topk.records import ListRow, ListSide, list_rows
from tests.core.runs.topk.made_sides import compare, engine_side, response, side


def test_a_row_is_compared_while_both_have_read_the_same_tokens() -> None:
    """Prompt 5, 6; A goes on 7, 8, 9 and B 7, 1, 9: the row after 7 is the last of equal context, at position 2."""
    rows = {1: {7: -0.1, 1: -3.0}, 2: {8: -0.5, 1: -0.75}, 3: {9: -0.1, 2: -4.0}}
    other = {1: {7: -0.1, 1: -3.0}, 2: {1: -0.5, 8: -0.75}, 3: {9: -0.2, 2: -4.0}}
    pair = compare(
        side("A", response([5, 6, 7, 8, 9], rows, prompt=2)), side("B", response([5, 6, 7, 1, 9], other, prompt=2))
    )
    assert [(place.position, place.figures.is_flip) for place in pair.positions] == [(1, False), (2, True)]
    (meeting,) = pair.meetings
    assert (meeting.parting, meeting.is_parting_in_prompt) == (3, False)
    assert pair.positions[1].figures.max_abs == pytest.approx(0.25)
    assert pair.positions[1].figures.reference.margin == 0.25


def test_another_prompt_is_said_and_not_compared() -> None:
    rows = {0: {6: -0.1, 1: -3.0}, 1: {7: -0.1, 1: -3.0}}
    pair = compare(side("A", response([5, 6, 7], rows, prompt=2)), side("B", response([5, 4, 7], rows, prompt=2)))
    assert [place.position for place in pair.positions] == [0]
    assert pair.meetings[0].is_parting_in_prompt
    assert any("inputs differ" in note for note in pair.notes)
    with pytest.raises(DumpError, match="no position with equal tokens"):
        compare(side("A", response([5, 6, 7], {1: rows[1]}, prompt=2)),
                      side("B", response([9, 6, 7], {1: rows[1]}, prompt=2)))  # fmt: skip


def test_a_response_without_its_prompt_begins_where_the_other_generates() -> None:
    """A chat response says generated tokens only: its first row is the one that scored the other's first new token."""
    known = response([5, 6, 7, 8], {0: {6: -1.0, 2: -2.0}, 1: {7: -0.1, 1: -3.0}, 2: {8: -0.5, 1: -1.0}}, prompt=2)
    bare = response([-1, 7, 8], {0: {7: -0.1, 1: -3.0}, 1: {8: -0.25, 1: -1.5}}, prompt=1, start_known=False)
    for reference, variant in ((known, bare), (bare, known)):
        pair = compare(side("A", reference), side("B", variant))
        assert [place.position for place in pair.positions] == [1, 2]
        assert [place.figures.neq for place in pair.positions] == [0, 2]
        assert any("taken for equal" in note for note in pair.notes)


def test_texts_join_where_one_side_has_no_ids() -> None:
    ids = response([5, 7], {0: {7: -0.1, 1: -3.0}}, texts={7: " seven", 1: " one"})
    texts = response([-1, 0], {0: {0: -0.25, 1: -2.0}}, texts={0: " seven", 1: " one"})
    texts = replace(texts, keys="text")
    pair = compare(side("ids", ids), side("texts", texts))
    (place,) = pair.positions
    assert (place.figures.common, place.figures.neq, place.figures.is_flip) == (2, 2, False)
    assert pair.texts[place.figures.reference.token or 0] == " seven"
    twice = replace(ids, texts={7: "same", 1: "same"})
    with pytest.raises(DumpError, match="print alike"):
        compare(side("ids", twice), side("texts", texts))


def test_tokens_of_one_text_cost_their_row_alone() -> None:
    """The first row has two tokens that print as \ufffd; the second has none, and is compared."""
    ids = response(
        [5, 7, 1], {0: {7: -0.1, 8: -3.0, 1: -4.0}, 1: {1: -0.5, 7: -1.0}}, texts={7: "\ufffd", 8: "\ufffd", 1: "b"}
    )
    texts = replace(
        response([-1, 0, 1], {0: {0: -0.1, 1: -4.0}, 1: {1: -0.25, 0: -1.5}}, texts={0: "\ufffd", 1: "b"}), keys="text"
    )
    pair = compare(side("ids", ids), side("texts", texts))
    assert [place.position for place in pair.positions] == [1]
    assert any("1 row left out" in note for note in pair.notes)


LONG = {
    0: {5: -0.1, 1: -3.0},
    1: {6: -0.2, 1: -2.0},
    2: {7: -0.3, 1: -2.5},
    3: {8: -0.4, 1: -1.5},
    4: {9: -0.5, 1: -1.0},
}


@pytest.mark.parametrize("missing", [1, 2])
@pytest.mark.parametrize("is_reference", [True, False])
def test_rows_that_one_side_lacks_at_its_start_move_none_of_the_others(missing: int, is_reference: bool) -> None:
    """Generated tokens 5 to 9; the other side has no rows of the first ones, and moved values elsewhere."""
    whole = response([-1, 5, 6, 7, 8, 9], LONG, prompt=1, start_known=False)
    rest = {at - missing: row for at, row in LONG.items() if at >= missing}
    cut = response([-1, *range(5 + missing, 10)], rest, prompt=1, start_known=False)
    sides = side("A", cut if is_reference else whole), side("B", whole if is_reference else cut)
    pair = compare(*sides)
    assert [place.position for place in pair.positions] == list(range(missing, 5))
    assert pair.differing == 0
    assert any("aligned by their tokens" in note for note in pair.notes)


def test_a_first_token_that_differs_is_no_missing_row() -> None:
    """One side answers 'A B C D E' and the other 'B C D E': the text says that no row is missing."""
    texts = {5: "A", 6: "B", 7: "C", 8: "D", 9: "E", 1: "x"}
    whole = response([-1, 5, 6, 7, 8, 9], LONG, prompt=1, start_known=False, texts=texts, text="ABCDE")
    rest = {at - 1: row for at, row in LONG.items() if at}
    other = response([-1, 6, 7, 8, 9], rest, prompt=1, start_known=False, texts=texts, text="BCDE")
    pair = compare(side("A", whole), side("B", other))
    assert [(place.position, place.figures.is_flip) for place in pair.positions] == [(0, True)]
    lost = compare(side("A", whole), side("B", replace(other, text="ABCDE")))
    assert [place.position for place in lost.positions] == [1, 2, 3, 4]


def test_prompt_rows_are_aligned_only_if_the_prompts_are_equally_long() -> None:
    """Prompt tokens 5 to 9, of which one side lacks the first row; a prompt of one token less is another prompt."""
    whole = response([-1, 5, 6, 7, 8, 9], LONG)
    rest = {at - 1: row for at, row in LONG.items() if at}
    cut = response([-1, 6, 7, 8, 9, -1], rest)
    pair = compare(side("A", whole), side("B", cut))
    assert ([place.position for place in pair.positions], pair.differing) == ([1, 2, 3, 4], 0)


def test_prompts_of_two_lengths_meet_where_generation_starts() -> None:
    """Chat sends no prompt tokens, only how many: 3 and 4 here, so a BOS or another template."""
    rows = {2: {5: -0.1, 1: -3.0}, 3: {6: -0.2, 1: -2.0}}
    one = response([-1, -1, -1, 5, 6], rows, prompt=3)
    other = response([-1, -1, -1, -1, 5, 6], {at + 1: row for at, row in rows.items()}, prompt=4)
    pair = compare(side("A", one), side("B", other))
    assert (len(pair.positions), pair.differing) == (2, 0)
    assert any("inputs differ" in note for note in pair.notes)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda one: ListSide("B", one.responses * 2), "1 and 2 responses"),
        (lambda one: ListSide("B", (replace(one.responses[0], values="prob"),)), "logprobs and probs"),
    ],
)
def test_sides_that_cannot_be_compared_are_refused_in_a_sentence(change: Any, sentence: str) -> None:
    one = side("A", response([5, 6], {0: {6: -0.5, 1: -1.0}}))
    with pytest.raises(DumpError, match=sentence):
        compare(one, change(one))


def test_repeated_answers_of_a_file_are_its_sides() -> None:
    first = response([5, 6], {0: {6: -0.5, 1: -1.0}})
    other = response([8, 6], {0: {6: -0.5, 1: -1.0}})
    sides = sides_of([first, other, first, other], "file")
    assert [(each.name, len(each.responses)) for each in sides] == [("answer 1", 2), ("answer 2", 2)]
    for wrong in ([first], [first, other], [first, first, other]):
        with pytest.raises(DumpError, match="equally often"):
            sides_of(wrong, "file")


def test_margins_show_the_dtype_of_the_engine() -> None:
    pair = compare(engine_side("A", 1, 20), engine_side("B", 2, 20))
    assert (pair.compute_dtype, len(pair.positions)) == ("bfloat16", 24)
    for place in pair.positions:
        for steps, row in zip(place.margin_ulps, (place.figures.reference, place.figures.variant), strict=True):
            assert steps is None or (steps == 0) == (row.margin == 0)
    assert any(steps for place in pair.positions for steps in place.margin_ulps)
    same = compare(engine_side("A", 1, 20), engine_side("B", 1, 20))
    assert (same.differing, summary_of([place.figures for place in same.positions]).bit_identical) == (0, None)


@pytest.mark.parametrize("k", [2, 20])
def test_figures_of_the_top_tokens_are_those_of_whole_rows(k: int) -> None:
    whole, cut = (
        summary_of([place.figures for place in compare(engine_side("A", 1, n), engine_side("B", 2, n)).positions])
        for n in (512, k)
    )
    assert (cut.flips, cut.ties, cut.min_margin) == (whole.flips, whole.ties, whole.min_margin)
    assert cut.neq <= whole.neq
    assert cut.max_abs <= whole.max_abs
    assert whole.max_kl is not None
    assert cut.max_kl is None


def test_rows_of_other_contexts_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: without the parting, rows after different tokens are compared as if they were alike."""
    monkeypatch.setattr(pairing, "parting_of", lambda *sides: None)
    with pytest.raises(AssertionError):
        test_a_row_is_compared_while_both_have_read_the_same_tokens()


def test_the_first_of_the_best_is_the_lowest_token() -> None:
    made = list_rows([ListRow(0, ((9, -0.5), (3, -0.5), (4, -2.0)), 3)], "here")
    listed = pairing._row_at(made, 0)
    assert listed.token_ids.tolist() == [3, 9, 4]
