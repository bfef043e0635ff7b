"""What changed since the last good run of a cell is told, and gated."""

import pytest

from core.errors import UsageError
from core.sweeps.history import CellChange, change_of, conditions_of, gate_of
from core.sweeps.ledger import DONE, FAILED, MISSING, CellCard, CellState
from core.sweeps.matrix import matrix_of

AXES = {
    "model": "models/m",
    "prompts": "p.txt",
    "reference": "prefill",
    "engine": "llamacpp",
    "path": "decode",
    "dtype": "float32",
    "device": "",
}


def card(
    number,
    verdict="rounding",
    flips=0,
    bits=("a", "b"),
    **versions,
):
    """The run of build `number`; later numbers are later."""
    return CellCard(
        f"cell-{'0' * 16}-{number:016x}",
        f"2026-11-{number:02d}T00:00:00",
        verdict,
        1.0,
        flips,
        0.5,
        0.25,
        bits,
        {"build": str(number), **versions},
        (),
    )


def state(*cards, name=DONE, says=""):
    return CellState(
        "0" * 16,
        AXES,
        name,
        says,
        tuple(sorted(cards, key=lambda one: one.created, reverse=True)),
    )


@pytest.mark.parametrize(
    ("before", "now", "what"),
    [
        (card(1), card(2), ()),
        (card(1), card(2, bits=("a", "c")), ("bits",)),
        (card(1), card(2, bits=("c", "b")), ("bits",)),
        (card(1), card(2, flips=1), ("flips",)),
        (card(1), card(2, "bug suspected"), ("verdict",)),
        (card(1), card(2, "lower precision", 3, ("x", "y")), ("bits", "flips", "verdict")),
    ],
)
def test_bits_flips_and_verdict_are_what_changes(before, now, what):
    found = change_of(state(before, now))
    assert found.now == now
    assert found.baseline == before
    assert found.what == what
    assert found.builds == {"build": ("1", "2")}


def test_a_run_with_a_bug_is_not_what_the_next_is_held_against():
    bad = card(2, "bug suspected", 9)
    worse = card(3, "nondeterministic")
    assert change_of(state(card(1), bad, worse, card(4))).baseline == card(1)
    assert change_of(state(bad, worse, card(4))).baseline is None


def test_a_label_names_the_run_that_is_held_against_even_one_with_a_bug():
    pinned = card(2, "bug suspected")
    assert change_of(state(card(1), pinned, card(3)), pinned={pinned.run_id}).baseline == pinned


def test_a_build_that_is_gone_back_to_is_held_against_the_newer_one():
    """Its run was there, and is older than the other's."""
    found = change_of(state(card(1), card(2, flips=1)), card(1).run_id)
    assert found.now == card(1)
    assert found.baseline == card(2, flips=1)
    assert found.what == ("flips",)


def test_both_versions_are_named():
    older = card(1, llamacpp="2026.9")
    newer = card(2, llamacpp="2026.10", flips=2)
    found = change_of(state(older, newer))
    assert found.in_words == "changed: 0 -> 2 flips (build 1 -> 2 and llamacpp 2026.9 -> 2026.10)."
    assert change_of(state(card(1))).in_words == "first run of this cell."
    assert change_of(state(card(1), card(2))).in_words == "unchanged (build 1 -> 2)."
    bits = card(2, "bug suspected", 1, ("x", "y"))
    assert "suspected (build 1 -> 2)" in change_of(state(card(1), bits)).in_words


@pytest.mark.parametrize(
    ("found", "outcomes"),
    [
        (state(card(1), card(2)), ["passed", "passed", "passed"]),
        (state(card(1)), ["undecided", "passed", "passed"]),
        (state(card(1), card(2, flips=1)), ["failed", "passed", "failed"]),
        (state(card(1), card(2, "bug suspected")), ["failed", "failed", "passed"]),
        (state(card(1, flips=1), card(2, flips=1)), ["passed", "passed", "failed"]),
        (state(card(1), card(2, "not judged")), ["failed", "undecided", "passed"]),
        (state(card(1, "undecided")), ["undecided", "undecided", "passed"]),
        (state(name=MISSING), ["undecided"] * 3),
        (state(card(1), name=FAILED, says="no room"), ["failed"] * 3),
    ],
)
def test_the_gate_fails_on_what_it_is_told(found, outcomes):
    gate = gate_of([change_of(found)], ["changed", "bug", "flips"])
    assert [outcome.outcome for outcome in gate.outcomes] == outcomes


def test_conditions_are_listed_with_commas_and_others_refused():
    assert conditions_of(["changed,bug", "bug", "flips"]) == ["changed", "bug", "flips"]
    with pytest.raises(UsageError, match="'kl>1' is not a condition"):
        conditions_of(["bug,kl>1"])


def test_a_place_of_several_cells_shows_the_one_that_failed():
    done = CellState("d", AXES, DONE, cards=(card(1, "bug suspected"),))
    failed = CellState("f", AXES, FAILED, "out of memory")
    missing = CellState("m", AXES, MISSING)
    changes = [CellChange(**vars(done), now=done.cards[0]), CellChange(**vars(missing))]
    failed_too = [*changes, CellChange(**vars(failed))]
    for cells, expected in ((changes, done), (failed_too, failed)):
        ((entry,),) = matrix_of(cells, "engine", "path", "verdict").entries
        assert entry.change.cell == expected.cell
