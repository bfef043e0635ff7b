"""Causes are named where they were injected into real pairs, with what was injected; clean pairs and faults have none.

The whole trial is `python -m benchmarks.verdicts.causes`; here every cause once.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.verdicts.causes import CLEAN, INJECTIONS, LISTED, complete, inject_and_explain, lists, pair_of
from core.errors import DumpError
from core.judging.explain.causes import explain, explain_pair
from core.judging.explain.rows import complete_rows, rows_of_lists, rows_of_run
from core.judging.explain.scoring import Cause
from core.runs.reader import RunReader
from core.runs.topk.pairing import compare_sides
from tests.core.runs.topk.made_sides import response, side
from tests.covering import few, thorough

SAMPLES = Path(__file__).resolve().parents[3] / "sample_runs"


@pytest.mark.parametrize(
    ("kind", "strength", "parameter", "value"),
    [
        ("temperature", 0.7, "temperature", 0.7),
        ("temperature, float32", 1.0001, "temperature", 1.0001),
        ("constant", 5.0, "constant", 5.0),
        ("rows shifted", 2, "rows", 2),
        ("rows shifted", -1, "rows", -1),
        ("soft cap", 10.0, "cap", 10.0),
        ("presence", 2.0, "strength", 2.0),
        ("frequency", 2.0, "strength", 2.0),
        ("repetition", 1.5, "strength", 1.5),
        ("logit bias", 5.0, "largest", 5.0),
        ("top-k", 20, "top_k", 20),
        ("top-p", 0.9, "top_p", 0.9),
        ("cut vocabulary", 64, "tokens", 64),
        ("rounded", 1, "to", "bfloat16"),
        ("decimals", 2, "to", "2 decimals"),
    ],
)
def test_what_was_injected_is_named_with_its_size(kind: str, strength: float, parameter: str, value: float) -> None:
    (cause,) = inject_and_explain(kind, strength)
    assert cause.name == INJECTIONS[kind][0][0]
    fitted = cause.parameters[parameter]
    assert fitted == value if isinstance(value, str | int) else fitted == pytest.approx(value, rel=0.03, abs=0.02)


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("kind", "strength"),
    [
        ("temperature", 0.7),
        ("presence", 2.0),
        *thorough([("rows shifted", 1), ("frequency", 2.0), ("logit bias", 5.0)]),
    ],
)
def test_lists_of_twenty_name_it_too(kind: str, strength: float) -> None:
    assert LISTED == 20
    assert inject_and_explain(kind, strength, LISTED)[0].name == INJECTIONS[kind][0][0]


@pytest.mark.parametrize(("kind", "strength"), [("presence", 1.0), ("frequency", 0.5)])
def test_a_penalty_is_seen_in_lists_of_three(kind: str, strength: float) -> None:
    (cause,) = inject_and_explain(kind, strength, 3)
    assert (cause.name, cause.parameters["kind"]) == ("penalty", kind)
    assert cause.parameters["strength"] == pytest.approx(strength, rel=1e-6)


@pytest.mark.parametrize("name", few(CLEAN, "batch-1-against-n", "injected-bug"))
def test_nothing_is_named_on_pairs_without_a_simple_cause(name: str) -> None:
    pair = pair_of(name)
    assert explain(complete(pair, pair.x, pair.y)).causes == []
    assert explain(lists(pair, pair.x, pair.y)).causes == []


def test_a_stored_run_is_looked_at_as_it_is() -> None:
    with RunReader(SAMPLES / "where-it-starts.duckdb") as run:
        rows = rows_of_run(run, 0)
    pair = pair_of("where-it-starts")
    assert rows.dtype == "bfloat16"
    for row in rows.rows:
        assert np.array_equal(row.x, pair.x[row.position, row.token_ids])
        assert np.array_equal(row.y, pair.y[row.position, row.token_ids])


def test_noise_of_any_size_is_no_cause() -> None:
    pair = pair_of("where-it-starts")
    for size in (1e-3, 0.1, 1.0, 10.0):
        y = pair.x + np.random.default_rng(3).normal(0, size, pair.x.shape)
        assert explain(complete(pair, pair.x, y)).causes == [], size


@pytest.mark.parametrize(("bos", "words"), [(1, "has token 1 in front,"), (5, "has token 5 in front twice,")])
def test_a_bos_on_one_side_is_named_whatever_was_generated_after_it(bos: int, words: str) -> None:
    prompt = [5, 6, 7, 8]
    plain = response([*prompt, 9, 3], {at: {9: -0.5, 3: -1.0} for at in (3, 4)}, prompt=4)
    other = response([bos, *prompt, 2, 2], {at: {9: -0.5, 3: -1.0} for at in (4, 5)}, prompt=5)
    with pytest.raises(DumpError, match=words):
        compare_sides(side("plain", plain), side("with", other))


def test_a_doubled_bos_is_named_where_some_rows_can_be_compared() -> None:
    prompt = [5, 6, 7, 8]
    sides = [
        side(name, response(tokens, {at: {9: -0.5, 3: -1.0} for at in range(len(tokens) - 1)}))
        for name, tokens in (("once", prompt), ("twice", [5, *prompt]))
    ]
    found = explain(rows_of_lists(compare_sides(*sides), *sides)).causes
    assert (found[0].name, found[0].parameters["token"]) == ("other tokens", 5)


def test_a_sampler_is_seen_and_greedy_decoding_is_not() -> None:
    tokens = list(range(13))
    greedy = response(tokens, {at: {at + 1: -0.5, at: -1.0} for at in range(3, 12)}, prompt=4)
    sampled = response(tokens, {at: {500: -0.5, at + 1: -1.0} for at in range(3, 12)}, prompt=4)
    sides = side("greedy", greedy), side("sampled", sampled)
    found = [cause for cause in explain(rows_of_lists(compare_sides(*sides), *sides)).causes if cause.name == "sampler"]
    assert [cause.parameters["positions"] for cause in found] == [9]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("empty", [np.nan, -np.inf, 0.0])
@pytest.mark.parametrize("is_variant", [True, False])
def test_rows_without_a_number_or_of_one_value_have_no_cause(empty: float, is_variant: bool) -> None:
    """A side that was never written, or all masked: other checks name it, and nothing here fails on it."""
    rows = np.random.default_rng(0).normal(0, 3, (20, 300))
    sides = (rows, np.full_like(rows, empty)) if is_variant else (np.full_like(rows, empty), rows)
    found = complete_rows(("a", "b"), "float32", ((),), [20], 300, lambda side, _, position: sides[side][position])
    assert explain(found).causes == []


def test_what_a_cause_leaves_is_named_in_floors() -> None:
    scaled = Cause("temperature", "Scaled.", explained=0.99, left_rms=0.3, left_floors=3.0)
    assert "3 noise floors" in scaled.text
    assert Cause("masking", "Seen.").text == "Seen."


def test_a_judged_pair_without_a_cause_has_none() -> None:
    with RunReader(SAMPLES / "fresh-against-cached.duckdb") as run:
        assert explain_pair(run, 0).causes == []
