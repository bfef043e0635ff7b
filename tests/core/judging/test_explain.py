"""Causes are named where they were injected into real pairs, with what was injected; clean pairs
and faults have none.

The whole trial is `python -m benchmarks.verdicts.causes`; here every cause once.
"""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import log_softmax

from benchmarks.verdicts.causes import (
    CLEAN,
    INJECTIONS,
    complete,
    inject_and_explain,
    lists,
    pair_of,
)
from core.errors import DumpError
from core.judging.explain.causes import explain
from core.judging.explain.rows import complete_rows, rows_of_lists, rows_of_run
from core.numerics.constant_rows import is_left_out
from core.responses.pairing import compare_sides
from core.runs.reader import RunReader
from tests.core.responses.made_sides import engine_side, response, row_of, side
from tests.covering import few, thorough
from tests.places import ROOT

SAMPLES = ROOT / "sample_runs"
pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize(
    ("kind", "strength", "parameter", "value"),
    [
        ("temperature", 0.7, "temperature", 0.7),
        ("temperature, float32", 1.0001, "temperature", 1.0001),
        ("constant", 5.0, "constant", 5.0),
        ("rows shifted", 2, "rows", 2),
        ("rows shifted", -1, "rows", -1),
        ("rows swapped", 1, "positions", 2),
        ("one row repeated", 0.4, "prompt", 0),
        ("soft cap", 10.0, "cap", 10.0),
        ("presence", 2.0, "strength", 2.0),
        ("frequency", 2.0, "strength", 2.0),
        ("repetition", 1.5, "strength", 1.5),
        ("logit bias", 5.0, "largest", 5.0),
        ("top-k", 20, "top_k", 20),
        ("top-p", 0.9, "top_p", 0.9),
        ("tokens masked", 3, "count", 3),
        ("cut vocabulary", 64, "tokens", 64),
        ("padded with 0", 64, "tokens", 64),
        ("rounded", 1, "to", "bfloat16"),
        ("decimals", 2, "to", "2 decimals"),
    ],
)
def test_what_was_injected_is_named_with_its_size(kind, strength, parameter, value):
    (cause,) = inject_and_explain(kind, strength)
    assert cause.name == INJECTIONS[kind][0][0]
    fitted = cause.parameters[parameter]
    expected = value
    if isinstance(value, float):
        expected = pytest.approx(value, rel=0.03, abs=0.02)
    assert fitted == expected


@pytest.mark.parametrize(
    ("kind", "strength", "size"),
    [
        ("temperature", 0.7, 20),
        ("presence", 1.0, 3),
        ("frequency", 0.5, 3),
        *thorough(
            [
                ("presence", 2.0, 20),
                ("rows shifted", 1, 20),
                ("frequency", 2.0, 20),
                ("logit bias", 5.0, 20),
            ],
        ),
    ],
)
def test_lists_of_top_tokens_name_it_too(kind, strength, size):
    cause = inject_and_explain(kind, strength, size)[0]
    assert cause.name == INJECTIONS[kind][0][0]
    if size == 3:
        assert cause.parameters["kind"] == kind
        assert cause.parameters["strength"] == pytest.approx(strength, rel=1e-6)


@pytest.mark.parametrize("name", few(CLEAN, "batch-1-against-n", "injected-bug"))
def test_nothing_is_named_on_pairs_without_a_simple_cause(name):
    pair = pair_of(name)
    assert explain(complete(pair)).causes == []
    assert explain(lists(pair)).causes == []


def test_a_stored_run_is_looked_at_as_it_is():
    with RunReader(SAMPLES / "where-it-starts.duckdb") as run:
        rows = rows_of_run(run, 0)
    pair = pair_of("where-it-starts")
    assert rows.dtype == "bfloat16"
    for row in rows.rows:
        assert np.array_equal(row.x, pair.x[row.position, row.token_ids])
        assert np.array_equal(row.y, pair.y[row.position, row.token_ids])


def test_noise_of_any_size_is_no_cause():
    pair = pair_of("where-it-starts")
    for size in (1e-3, 0.1, 1.0, 10.0):
        y = pair.x + np.random.default_rng(3).normal(0, size, pair.x.shape)
        assert explain(complete(replace(pair, y=y))).causes == [], size


# Small inputs as users send them.

ROWS, VOCAB = 24, 600
_RANDOM = np.random.default_rng(5)
# few directions next to the vocabulary, as a hidden size is, and a bias that makes tokens frequent
_HIDDEN = _RANDOM.normal(size=(ROWS, 32))
_HEAD = _RANDOM.normal(0, 0.8, (32, VOCAB))
LOGITS = _HIDDEN @ _HEAD + _RANDOM.normal(0, 2, VOCAB)
# as float32 rounds
OTHER = LOGITS + _RANDOM.normal(0, 2e-6, LOGITS.shape)
TOKENS = tuple((np.arange(ROWS) * 7 % 11).tolist())
LOWEST = [-1e4, float(np.finfo(np.float32).min), -np.inf]


def causes_of(y, x=LOGITS):
    sides = (x.astype(np.float32), y.astype(np.float32))

    def read(which, start, stop):
        return sides[which][start:stop]

    rows = complete_rows(
        ("a", "b"),
        "float32",
        (TOKENS,),
        [(0, position) for position in range(len(x))],
        x.shape[1],
        read,
    )
    return explain(rows).causes


def changed(ids, value, y=OTHER):
    made = y.copy()
    made[:, ids] = value
    return made


@pytest.mark.parametrize("filler", LOWEST)
def test_masked_tokens_leave_the_figures_of_other_causes(filler):
    least = np.sort(OTHER, axis=1)[:, -40][:, None]
    (mask,) = causes_of(np.where(least <= OTHER, OTHER, filler))
    assert mask.name == "masking"
    assert mask.parameters == {"top_k": 40}
    temperature, mask = causes_of(changed(slice(100, 160), filler, OTHER / 0.7))
    assert temperature.name == "temperature"
    assert mask.name == "masking"
    assert temperature.parameters["temperature"] == pytest.approx(0.7, rel=1e-4)


@pytest.mark.parametrize(
    ("ids", "first"),
    [
        ([3, 9, 200], 3),
        (slice(0, 50), 0),
        (slice(300, 340), 300),
    ],
)
def test_a_vocabulary_is_cut_only_at_its_end(ids, first):
    (cause,) = causes_of(changed(ids, -np.inf))
    assert cause.name == "masking"
    assert cause.parameters["tokens"][0] == first


def test_a_mask_that_is_added_to_logits_is_a_mask_and_a_large_logit_makes_none():
    row = np.linspace(-10, 20, 300)
    masked = row.copy()
    masked[:9] -= 1e4
    assert np.flatnonzero(is_left_out(masked)).tolist() == list(range(9))
    row[4] += 1e9
    assert not is_left_out(row).any()
    row[4] -= 1e9
    # a temperature of 0.002
    assert not is_left_out(row * 500).any()
    assert not is_left_out(np.zeros(300)).any()


@pytest.mark.parametrize(
    "change",
    [
        lambda y: np.zeros_like(y),
        # never written
        lambda y: np.full_like(y, np.nan),
        lambda y: np.full_like(y, -np.inf),
        lambda y: np.where(np.arange(ROWS)[:, None] < 16, 0.0, y),
        lambda y: np.where(np.arange(VOCAB) % 3 == 0, 0.0, y),
        lambda y: np.random.default_rng(0).normal(0, 1, y.shape),
        lambda y: np.exp(log_softmax(y, axis=1)),
        np.abs,
        lambda y: -y,
    ],
)
def test_other_values_are_no_simple_cause(change):
    assert causes_of(change(OTHER)) == []
    assert causes_of(OTHER, change(LOGITS)) == []


def test_log_probabilities_at_a_temperature_are_no_constant():
    (cause,) = causes_of(log_softmax(OTHER / 0.7, axis=1))
    assert cause.name == "temperature"
    assert cause.parameters["temperature"] == pytest.approx(0.7, rel=1e-4)


def causes_of_lists(*sides):
    return explain(rows_of_lists(compare_sides(*sides), *sides)).causes


@pytest.mark.parametrize("size", [1, 3, 5, 20])
def test_clean_lists_have_no_cause(size):
    """Lists of the top tokens of each row; of size 1 of the next token."""
    tokens = [*TOKENS, 0]
    sides = []
    for values in log_softmax([LOGITS, OTHER], axis=2):
        best = np.argsort(-values, axis=1)[:, :size]
        if size == 1:
            best = np.array(tokens[1:])[:, None]
        rows = {}
        for at in range(ROWS):
            rows[at] = {int(token): float(values[at, token]) for token in best[at]}
        sides.append(side(f"size {len(sides)}", response(tokens, rows)))
    assert causes_of_lists(*sides) == []


@pytest.mark.parametrize("shift", [1, 2, -1])
def test_chosen_values_of_other_tokens_are_shifted_rows(shift):
    # 37 is prime to 23: of 23 values in a row no two are equal
    values = [-0.5 - (at * 37 % 23) / 5 for at in range(30)]
    tokens = list(range(100, 131))
    sides = []
    for name, move in (("a", 0), ("b", shift)):
        rows = {at: {tokens[at + 1]: values[at + move]} for at in range(3, 27)}
        sides.append(side(name, response(tokens, rows)))
    (cause,) = causes_of_lists(*sides)
    assert cause.name == "shifted rows"
    assert cause.parameters == {"rows": shift}


def alike(start, stop):
    """One list at each of these positions."""
    return {at: {9: -0.5, 3: -1.0} for at in range(start, stop)}


@pytest.mark.parametrize(
    ("bos", "words"),
    [(1, "has token 1 in front,"), (5, "has token 5 in front twice,")],
)
def test_a_bos_on_one_side_is_named_whatever_was_generated_after_it(bos, words):
    prompt = [5, 6, 7, 8]
    plain = response([*prompt, 9, 3], alike(3, 5), prompt=4)
    other = response([bos, *prompt, 2, 2], alike(4, 6), prompt=5)
    with pytest.raises(DumpError, match=words):
        compare_sides(side("plain", plain), side("with", other))


def test_a_doubled_bos_is_named_where_some_rows_can_be_compared():
    sides = []
    for name, tokens in (("once", [5, 6, 7, 8]), ("twice", [5, 5, 6, 7, 8])):
        sides.append(side(name, response(tokens, alike(0, len(tokens) - 1))))
    first, *_ = causes_of_lists(*sides)
    assert first.name == "other tokens"
    assert first.parameters["token"] == 5


def test_a_sampler_is_seen_and_greedy_decoding_is_not():
    tokens = list(range(13))
    places = range(3, 12)
    best = {at: {at + 1: -0.5, at: -1.0} for at in places}
    another = {at: {500: -0.5, at + 1: -1.0} for at in places}
    greedy, sampled = (response(tokens, rows, prompt=4) for rows in (best, another))
    causes = causes_of_lists(side("a", greedy), side("b", sampled))
    found = [cause.parameters["positions"] for cause in causes if cause.name == "sampler"]
    assert found == [9]


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("name", CLEAN)
def test_short_lists_of_a_clean_pair_hold_no_other_rows(name, size):
    """Rows of two listed tokens share one by chance, and up to a constant that is equal."""
    pair = pair_of(name)
    for count in (12, 16, 24, 48):
        short = replace(pair, x=pair.x[:count], y=pair.y[:count])
        assert explain(lists(short, size)).causes == []


@pytest.mark.parametrize("size", [4, 5, 20])
def test_lists_in_another_order_hold_other_rows(size):
    pair = pair_of("fresh-against-cached")
    order = np.random.default_rng(0).permutation(24)
    moved = replace(pair, x=pair.x[:24], y=pair.y[order])
    (cause,) = explain(lists(moved, size)).causes
    assert cause.name == "other rows"
    moved_rows = order != np.arange(24)
    assert cause.parameters == {"positions": int(moved_rows.sum())}


def _scattered(row):
    random = np.random.default_rng(3)
    signs = random.choice([-3, 3], len(row)).tolist()
    return {token: value + sign for (token, value), sign in zip(row.items(), signs, strict=True)}


# of a row's values, largest first
MOVED = {
    "a value": lambda row: row | {[*row][2]: [*row.values()][2] - 3},
    "two exchanged": lambda row: (
        dict(zip([*row][::-1], row.values(), strict=True)) | dict(list(row.items())[1:-1])
    ),
    "a token left out": lambda row: dict([*row.items()][1:]),
    "no value": dict,
    "a list cut short": lambda row: dict([*row.items()][:-1]),
    "all values, as by other experts": _scattered,
}


@pytest.mark.parametrize("size", [5, 20])
@pytest.mark.parametrize("change", MOVED)
def test_a_value_of_a_list_that_moves_alone_is_a_fault(change, size):
    (answer,) = engine_side("b", 2, size).responses
    rows = {at: row_of(answer, at) for at in range(24)}
    rows[11] = MOVED[change](rows[11])
    variant = side("b", response(answer.tokens, rows, vocab=512))
    causes = causes_of_lists(engine_side("a", 1, size), variant)
    places = [cause.parameters for cause in causes if cause.name == "single value"]
    # of 20 values three may be named, of 5 one: two of five are no exception
    alone = ["a value", "two exchanged", "a token left out"][: 1 if size == 5 else 3]
    expected = [{"prompt": 0, "position": 11}] if change in alone else []
    assert places == expected
