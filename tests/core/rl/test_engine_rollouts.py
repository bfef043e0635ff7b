"""Causes of one value per token, in rollouts that llama.cpp and vLLM sampled from SmolLM2."""

import re

import numpy as np
import pytest

from core.rl.causes import explain_tokens
from core.rl.figures import SampledTokens
from tests.core.rl.engine_rollouts import CLEAN, cause_of, planted, sampled

CASES = {
    f"{case.cause} {case.strength}": case
    for case in (*sampled(), *planted())
    if not case.needs_model
}
# less than twice rounding to bfloat16
INVISIBLE = {"top-p 0.95", "top-k 50", "lag 1e-6"}


@pytest.mark.parametrize("name", CASES)
def test_the_cause_is_named_and_nothing_on_a_clean_pair(name):
    case = CASES[name]
    cause, _ = cause_of(case)
    is_silent = case.cause == CLEAN or name in INVISIBLE
    assert cause in (("",) if is_silent else case.expected)


@pytest.mark.parametrize("value", [0.6, 0.8, 1.2])
def test_the_temperature_is_about_that_of_the_engine(value):
    _, says = cause_of(CASES[f"temperature {value}"])
    assert float(re.search(r"about (\S+) times", says)[1]) == pytest.approx(value, rel=0.05)


@pytest.mark.parametrize(
    ("noise", "expected"),
    [
        (0.0, pytest.approx(0.9, rel=0.01)),
        (0.05, None),
    ],
)
def test_top_p_is_the_largest_renormalization_of_exact_values(noise, expected):
    rng = np.random.default_rng(0)
    drawn = rng.dirichlet(np.full(50, 0.3), 512)
    probabilities = -np.sort(-drawn, axis=1)
    # the token that crosses 0.9 still counts, as in samplers
    kept = np.where(probabilities.cumsum(1) - probabilities < 0.9, probabilities, 0)
    kept /= kept.sum(1, keepdims=True)
    drawn = np.array([rng.choice(50, p=row) for row in kept])
    rollout, trainer = (np.log(side[np.arange(512), drawn]) for side in (kept, probabilities))
    index = np.arange(512)
    noisy = trainer + rng.normal(0, noise, 512)
    tokens = SampledTokens(index // 32, index % 32, rollout, noisy)
    (cause,) = explain_tokens(tokens)
    assert cause.name == "renormalized"
    assert cause.parameters["top_p"] == expected
