"""Causes of one value per token: those of the trial, planted in tokens sampled from random, peaked distributions."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.verdicts.rollouts import cases
from core.judging.explain.rollouts import explain_tokens
from core.numerics.mismatch import SampledTokens


def made():
    """Logits of 256 positions in float64 and as bfloat16 rounds them, and of other weights."""
    random = np.random.default_rng(5)
    exact = random.normal(0, 2.2, (256, 200))
    other = exact + random.normal(0, 0.05, exact.shape)
    return list(cases(exact, exact + random.normal(0, 0.008, exact.shape), other))


CASES = made()


@pytest.mark.parametrize(("expected", "tokens"), [each[1:] for each in CASES], ids=[each[0] for each in CASES])
def test_the_cause_is_named_and_nothing_on_a_clean_pair(expected, tokens):
    causes = explain_tokens(tokens)
    assert (causes[0].name if causes else "") == expected


@pytest.mark.parametrize(
    ("case", "name", "value"), [("temperature 0.8", "temperature", 0.8), ("top-p 0.9", "top_p", 0.9)]
)
def test_the_amount_is_about_the_planted_one(case, name, value):
    (tokens,) = (each[2] for each in CASES if each[0] == case)
    assert explain_tokens(tokens)[0].parameters[name] == pytest.approx(value, rel=0.1)


def test_other_ids_are_placed():
    """Planted in every fourth sequence, from token 8 + number % 5 on, one token later."""
    (tokens,) = (each[2] for each in CASES if each[0] == "other ids in 1 of 4 sequences")
    parameters = explain_tokens(tokens)[0].parameters
    assert parameters == {"sequences": 8, "sequence": 0, "token": 8, "tokens": 1}


def test_the_turn_from_which_on_inputs_differ_is_named():
    (tokens,) = (each[2] for each in CASES if each[0] == "other inputs from turn 3 of 4 on, 0.2")
    assert explain_tokens(tokens)[0].parameters == {"part": "turn 2"}


def test_too_few_tokens_and_equal_sides_have_no_cause():
    index = np.arange(10)
    few = SampledTokens(index * 0, index, -1.0 - index, -1.5 - index)
    assert explain_tokens(few) == []
    index = np.arange(200)
    assert explain_tokens(SampledTokens(index * 0, index, -1.0 - index, -1.0 - index)) == []
