"""Causes of small inputs as users send them: masks by a number, one row, three values a row, chosen values, halves of
two causes. Amounts are those that were put in.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from core.judging.constant_rows import is_left_out
from core.judging.explain.causes import Explanation, explain
from core.judging.explain.rows import complete_rows, rows_of_lists
from core.runs.topk.pairing import compare_sides
from tests.core.runs.topk.made_sides import response, side

ROWS, VOCAB = 24, 600
_RANDOM = np.random.default_rng(5)
LOGITS = _RANDOM.normal(size=(ROWS, 32)) @ _RANDOM.normal(0, 0.8, (32, VOCAB)) + _RANDOM.normal(0, 2, VOCAB)
OTHER = LOGITS + _RANDOM.normal(0, 2e-6, LOGITS.shape)  # as float32 rounds
TOKENS = tuple((np.arange(ROWS) * 7 % 11).tolist())

pytestmark = pytest.mark.filterwarnings("error")


def explained(y: np.ndarray, x: np.ndarray = LOGITS, dtype: str = "float32") -> Explanation:
    sides = (x.astype(np.float32), y.astype(np.float32))
    return explain(
        complete_rows(
            ("a", "b"), dtype, (TOKENS,), [len(x)], x.shape[1], lambda which, _, position: sides[which][position]
        )
    )


def names(found: Explanation) -> list[str]:
    return [cause.name for cause in found.causes]


def changed(ids: object, value: float, y: np.ndarray = OTHER) -> np.ndarray:
    made = y.copy()
    made[:, ids] = value
    return made


def top_k(y: np.ndarray, count: int, filler: float) -> np.ndarray:
    least = np.sort(y, axis=1)[:, -count][:, None]
    return np.where(y >= least, y, filler)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


LOWEST = [-1e4, -1e9, -65504.0, float(np.finfo(np.float32).min), -3.3895313892515355e38, -np.inf]


@pytest.mark.parametrize("filler", LOWEST)
def test_a_mask_by_a_number_is_a_mask(filler: float) -> None:
    found = explained(top_k(OTHER, 40, filler))
    assert names(found) == ["masking"]
    assert found.causes[0].parameters == {"top_k": 40}


@pytest.mark.parametrize("filler", LOWEST)
def test_masked_tokens_leave_the_figures_of_other_causes(filler: float) -> None:
    found = explained(changed(slice(100, 160), filler, OTHER / 0.7))
    assert names(found) == ["temperature", "masking"]
    assert found.causes[0].parameters["temperature"] == pytest.approx(0.7, rel=1e-4)


@pytest.mark.parametrize(("ids", "first"), [([0], 0), ([3, 9, 200], 3), (slice(0, 50), 0), (slice(300, 340), 300)])
def test_a_vocabulary_is_cut_only_at_its_end(ids: object, first: int) -> None:
    found = explained(changed(ids, -np.inf))
    assert names(found) == ["masking"]
    assert found.causes[0].parameters["tokens"][0] == first  # type: ignore[index]
    assert names(explained(changed(slice(560, VOCAB), -np.inf))) == ["cut vocabulary"]


def test_a_mask_that_is_added_to_logits_is_a_mask_and_a_large_logit_makes_none() -> None:
    row = np.linspace(-10, 20, 300)
    assert is_left_out(row - 1e4 * (np.arange(300) < 9)).nonzero()[0].tolist() == list(range(9))
    assert not is_left_out(row + 1e9 * (np.arange(300) == 4)).any()
    assert not is_left_out(row * 500).any()  # a temperature of 0.002
    assert not is_left_out(np.zeros(300)).any()


@pytest.mark.parametrize(
    "change",
    [
        lambda y: np.zeros_like(y),
        lambda y: np.where(np.arange(ROWS)[:, None] < 16, 0.0, y),
        lambda y: np.where(np.arange(VOCAB) % 3 == 0, 0.0, y),
        lambda y: np.random.default_rng(0).normal(0, 1, y.shape),
        lambda y: np.exp(log_softmax(y)),
        np.abs,
        lambda y: -y,
    ],
)
def test_other_values_are_no_simple_cause(change: Callable[[np.ndarray], np.ndarray]) -> None:
    assert names(explained(change(OTHER))) == []


def test_padding_of_a_vocabulary_is_no_bias() -> None:
    (cause,) = explained(changed(slice(576, VOCAB), 0.0)).causes
    assert (cause.name, cause.parameters) == ("padded vocabulary", {"first": 576, "tokens": 24})


def test_log_probabilities_at_a_temperature_are_no_constant() -> None:
    (cause,) = explained(log_softmax(OTHER / 0.7)).causes
    assert cause.name == "temperature"
    assert cause.parameters["temperature"] == pytest.approx(0.7, rel=1e-4)


def test_one_row_everywhere_and_swapped_rows_are_named() -> None:
    stale = np.repeat(OTHER[-1:], ROWS, axis=0)
    (cause,) = explained(stale).causes
    assert (cause.name, cause.parameters["position"]) == ("repeated rows", ROWS - 1)
    swapped = OTHER.copy()
    swapped[[4, 9]] = OTHER[[9, 4]]
    (cause,) = explained(swapped).causes
    assert (cause.name, cause.parameters["positions"]) == ("other rows", 2)


def lists(values: np.ndarray, name: str, size: int) -> object:
    """Lists of the top `size` tokens of each row; of size 1 of the next token."""
    tokens = [*TOKENS, 0]
    best = np.argsort(-values, axis=1)[:, :size] if size > 1 else np.array(tokens[1:])[:, None]
    rows = {
        at: {int(token): float(values[at, token]) for token in best[at] if np.isfinite(values[at, token])}
        for at in range(len(values))
    }
    return side(name, response(tokens, rows))


def of_lists(x: np.ndarray, y: np.ndarray, size: int) -> Explanation:
    sides = lists(log_softmax(x), "a", size), lists(log_softmax(y), "b", size)
    return explain(rows_of_lists(compare_sides(*sides), *sides))


@pytest.mark.parametrize("size", [1, 3, 5, 20])
def test_clean_lists_have_no_cause(size: int) -> None:
    assert names(of_lists(LOGITS, OTHER, size)) == []


@pytest.mark.parametrize("shift", [1, 2, -1])
def test_chosen_values_of_other_tokens_are_shifted_rows(shift: int) -> None:
    values = [-0.5 - (at * 37 % 23) / 5 for at in range(30)]
    tokens = list(range(100, 131))
    at = range(3, 27)
    sides = [
        side(name, response(tokens, {place: {tokens[place + 1]: values[place + move]} for place in at}))
        for name, move in (("a", 0), ("b", shift))
    ]
    (cause,) = explain(rows_of_lists(compare_sides(*sides), *sides)).causes
    assert (cause.name, cause.parameters) == ("shifted rows", {"rows": shift})
