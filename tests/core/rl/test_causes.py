"""Causes of one value per token: those of the trial, planted in tokens sampled from random, peaked
distributions.
"""

from functools import partial

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from benchmarks.verdicts.rollouts import cases, with_values
from core.judging.lists import judge_tokens
from core.numerics.top_tokens import summary_of_counts
from core.rl.causes import explain_tokens
from core.rl.figures import SampledTokens
from core.rl.writing import TokenPair


def made():
    """Logits of 256 positions in float64 and as bfloat16 rounds them, and of other weights."""
    random = np.random.default_rng(5)
    exact = random.normal(0, 2.2, (256, 200))
    other = exact + random.normal(0, 0.05, exact.shape)
    return list(cases(exact, exact + random.normal(0, 0.008, exact.shape), other))


CASES = made()
TOKENS = {name: tokens for name, _, tokens in CASES}


@pytest.mark.parametrize(("name", "expected"), [each[:2] for each in CASES])
def test_the_cause_is_named_and_nothing_on_a_clean_pair(name, expected):
    causes = explain_tokens(TOKENS[name])
    assert (causes[0].name if causes else "") == expected


def test_a_cause_of_one_step_alone_is_placed_there():
    tokens = TOKENS["temperature 0.7 at the last step"]
    (cause,) = explain_tokens(tokens)
    last = tokens.groups["step"].max()
    assert cause.says.startswith(
        f"At step {last}: 'rollout' is sampled at a temperature of about 0.",
    )
    assert cause.parameters["temperature"] == pytest.approx(0.7, rel=0.1)


def test_other_ids_are_placed():
    """Planted in every fourth sequence, from token 8 + number % 5 on, one token later."""
    tokens = TOKENS["other ids in 1 of 4 sequences"]
    parameters = explain_tokens(tokens)[0].parameters
    assert parameters == {
        "sequences": 8,
        "sequence": 0,
        "token": 8,
        "tokens": 1,
    }


def test_the_turn_from_which_on_inputs_differ_is_named():
    tokens = TOKENS["other inputs from turn 3 of 4 on, 0.2"]
    assert explain_tokens(tokens)[0].parameters == {"part": "turn 2"}


IN_TURNS = TOKENS["turns, lags and steps of one quality"]
PLAIN = SampledTokens(IN_TURNS.sequence, IN_TURNS.position, IN_TURNS.rollout, IN_TURNS.trainer)


def with_side(side, change, of=PLAIN):
    """Tokens of which one side, [responses, 32], is changed in place or replaced."""
    values = getattr(of, side).reshape(32, 32).copy()
    replaced = change(values, np.random.default_rng(1))
    return with_values(of, **{side: (values if replaced is None else replaced).ravel()})


def put(values, rows, columns, new):
    values[rows, columns] = new


def put_in(value, count, values, random):
    values.ravel()[random.choice(1024, count, replace=False)] = value


def reorder(values, order):
    return values[:, np.concatenate([np.arange(8) + 8 * chunk for chunk in order])]


PLANTED = {
    **{
        f"{value:g} for {count} tokens": (
            "placeholders",
            "rollout",
            partial(put_in, value, count),
        )
        # vLLM sends -9999 for a probability of 0, and -65504 is float16's lowest
        for value in (-100.0, -9999.0, -65504.0)
        for count in (1, 2, 4)
    },
    **{
        f"at least {low}": ("clipped", "trainer", lambda v, g, low=low: np.maximum(v, low))
        for low in (-3.0, -5.0, -8.0)
    },
    "log2": (
        "other units",
        "rollout",
        lambda v, g: v / np.log(2),
    ),
    "log10 of the trainer": (
        "other units",
        "trainer",
        lambda v, g: v / np.log(10),
    ),
    "a constant": (
        "other units",
        "trainer",
        lambda v, g: v - 4.5,
    ),
    "shift of a quarter": (
        "shifted",
        "trainer",
        lambda v, g: put(v, np.s_[::4], np.s_[:-1], v[::4, 1:]),
    ),
    "one place": (
        "part of the response",
        "trainer",
        lambda v, g: put(v, np.s_[:], 20, -g.gamma(2, 2, 32)),
    ),
    "three places": (
        "part of the response",
        "trainer",
        lambda v, g: put(v, np.s_[:], [9, 18, 27], -g.gamma(2, 2, (32, 3))),
    ),
    "chunks in another order": (
        "other order",
        "trainer",
        lambda v, g: reorder(v, (0, 2, 1, 3)),
    ),
    "responses exchanged": (
        "exchanged",
        "trainer",
        lambda v, g: put(v, np.s_[:8], np.s_[:], v[[1, 0, 3, 2, 5, 4, 7, 6]]),
    ),
    "all responses moved on": (
        "exchanged",
        "trainer",
        lambda v, g: np.roll(v, 1, axis=0),
    ),
    "a wrong last chunk": (
        "part of the response",
        "trainer",
        lambda v, g: put(v, 3, np.s_[22:], -g.gamma(1, 3, 10)),
    ),
    "two tokens": (
        "some tokens",
        "trainer",
        lambda v, g: put(v, [3, 9], [4, 7], [-15, -13]),
    ),
    "a tiny first token": (
        "",
        "trainer",
        lambda v, g: PLAIN.rollout.reshape(32, 32) + 3e-5 * (np.arange(32) == 0),
    ),
    "sums to the end": (
        "",
        "rollout",
        lambda v, g: v[:, ::-1].cumsum(axis=1)[:, ::-1],
    ),
    "the sum at the last token, 0 before": (
        "placeholders",
        "rollout",
        lambda v, g: np.where(np.arange(32) == 31, v.sum(axis=1, keepdims=True), 0),
    ),
    "log2 with 0 for 10 %": (
        "placeholders",
        "rollout",
        lambda v, g: np.where(g.random(v.shape) < 0.1, 0, v / np.log(2)),
    ),
    "values of other tokens": (
        "",
        "trainer",
        lambda v, g: g.permutation(v.ravel()),
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_values_of_other_kinds_and_places_are_named(name):
    expected, side, change = PLANTED[name]
    causes = explain_tokens(with_side(side, change))
    assert (causes[0].name if causes else "") == expected


@pytest.mark.parametrize("side", ["rollout", "trainer"])
@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("the running sum of", lambda v: v.cumsum(axis=1)),
        ("the running mean of", lambda v: v.cumsum(axis=1) / np.arange(1, 33)),
        ("the sum over the response of", lambda v: v.sum(axis=1, keepdims=True) + 0 * v),
        ("the mean over the response of", lambda v: v.mean(axis=1, keepdims=True) + 0 * v),
    ],
)
def test_sums_and_means_are_told_apart_on_either_side(words, change, side):
    other = "trainer" if side == "rollout" else "rollout"
    (cause,) = explain_tokens(with_side(side, lambda v, g: change(v)))
    assert (cause.name, cause.says) == ("other units", f"'{side}' is {words} '{other}'.")


def test_a_constant_is_no_top_p():
    (cause,) = explain_tokens(with_side("rollout", lambda v, g: v - 1.0))
    assert cause.parameters["offset"] == pytest.approx(-1.0, abs=0.1)


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (np.full((32, 1), 0.3), "other units"),
        (np.full((32, 1), 0.69), "other units"),
        (np.full((32, 1), 0.1), ""),
        (np.arange(32)[:, None] / 16, ""),
        (np.arange(32)[:, None] % 2, ""),
    ],
    ids=["0.3", "0.69", "0.1", "other ones by response", "of every second response"],
)
def test_a_constant_of_certain_tokens_too_is_no_top_p(offset, expected):
    """Top-p adds nothing to a token that is certain."""
    random = np.random.default_rng(4)
    own = -random.gamma(0.4, 3, (32, 32))
    # an engine's rounding, which a certain token has none of
    noise = 0.01 * random.normal(size=own.shape) * np.minimum(1, -own)
    rollout = own + noise - offset
    tokens = with_values(PLAIN, trainer=own.ravel(), rollout=rollout.ravel())
    assert [cause.name for cause in explain_tokens(tokens)] == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("dtype", "rounded"),
    [
        ("bfloat16", lambda values: torch.tensor(values).bfloat16().double()),
        ("bfloat16", lambda values: torch.tensor(values).to(torch.float8_e4m3fn).float()),
        ("whole numbers", np.floor),
        ("whole numbers", np.trunc),
    ],
    ids=["bfloat16", "float8", "down", "to 0"],
)
@pytest.mark.parametrize("side", ["rollout", "trainer"])
def test_the_coarsest_grid_of_a_side_is_named_and_no_fault(side, dtype, rounded):
    # three times as wide: a grid is named of a side with at least 8 different values
    wide = with_values(PLAIN, rollout=3 * PLAIN.rollout, trainer=3 * PLAIN.trainer)
    tokens = with_side(side, lambda v, g: np.asarray(rounded(v), float), wide)
    (cause,) = explain_tokens(tokens)
    assert cause.parameters["dtype"] == dtype
    assert not cause.is_fault


@pytest.mark.parametrize("side", ["rollout", "trainer"])
@pytest.mark.parametrize("rounded", [np.floor, np.rint, np.trunc])
def test_a_few_whole_numbers_are_no_placeholders(side, rounded):
    own = -3 * np.random.default_rng(8).random(1024)
    plain = with_values(PLAIN, rollout=own, trainer=own)
    assert explain_tokens(with_values(plain, **{side: rounded(own)})) == []


def judged(tokens, largest):
    """The verdict of tokens whose k3 is at most so large."""
    summary = summary_of_counts(
        1024,
        1024,
        float(np.abs(tokens.r).max()),
        1.0,
    )
    return judge_tokens(TokenPair(1024, summary, largest, (None, None), tokens))


def test_what_is_no_fault_does_not_hide_the_size():
    # in reverse order the tokens agree no more, and no cause explains that
    reversed_values = torch.tensor(PLAIN.trainer[::-1].copy())
    rollout = reversed_values.bfloat16().double().numpy()
    verdict = judged(with_values(PLAIN, rollout=rollout), 3.25)
    assert verdict.name == "undecided"
    assert "3.25 nats, beyond what NeMo-RL calls normal" in verdict.because


def test_log_ratios_in_place_of_values_are_a_suspected_bug():
    ratios = np.random.default_rng(0).normal(0, 0.01, 1024)
    assert judged(with_values(PLAIN, trainer=ratios), 100.0).name == "bug suspected"


def test_certain_tokens_of_moved_values_are_no_placeholders():
    is_certain = np.random.default_rng(2).random(1024) < 0.2
    own = np.where(is_certain, 0.0, PLAIN.trainer)
    tokens = with_values(PLAIN, rollout=own, trainer=np.roll(own, -1))
    assert [cause.name for cause in explain_tokens(tokens)] == ["shifted"]


def test_log_ratios_are_not_the_values_of_a_certain_response():
    rollout = PLAIN.rollout.reshape(32, 32).copy()
    # a response of nearly certain tokens has values about as small as log-ratios
    rollout[5] *= 1e-3
    ratios = np.random.default_rng(0).normal(0, 0.01, 1024)
    assert explain_tokens(with_values(PLAIN, rollout=rollout.ravel(), trainer=ratios)) == []


def test_exchanged_responses_of_other_lengths_are_named():
    lengths = np.resize([12, 20, 32], 32)
    kept = (np.arange(32) < lengths[:, None]).ravel()

    def exchange(values, random):
        for one in range(0, 32, 2):
            both = min(lengths[one : one + 2])
            values[[one, one + 1], :both] = values[[one + 1, one], :both]

    tokens = with_side("trainer", exchange).select(kept)
    assert explain_tokens(tokens)[0].name == "exchanged"


def test_equal_beginnings_of_few_groups_are_no_part():
    """Responses of two prompts share their first tokens, and so what rounds there."""

    def repeat(values, random):
        values[:, :6] = np.repeat(values[[0, 16], :6], 16, axis=0)

    noise = np.random.default_rng(2).normal(0, 1e-3, (32, 32))
    apart = PLAIN.rollout.reshape(32, 32) + noise
    # repeated 16 times, each of the two would pass for a place that differs in many responses
    apart[[0, 16], 5] += 0.02
    tokens = with_side("rollout", repeat)
    tokens = with_side("trainer", lambda v, g: repeat(apart, g) or apart, tokens)
    assert explain_tokens(tokens) == []


@pytest.mark.parametrize("side", ["rollout", "trainer"])
@pytest.mark.parametrize("factor", [0.6, 0.8, 1.2])
def test_a_temperature_is_found_beside_outliers(factor, side):
    hot = TOKENS[f"temperature {factor}"]
    values = getattr(hot, side).copy()
    # three of 1,024: a fit by least squares would follow them
    values[[70, 300, 900]] -= [30, 25, 12]
    (cause,) = explain_tokens(with_values(hot, **{side: values}))
    assert cause.name == "temperature"
    assert cause.is_fault
    assert cause.parameters["temperature"] == pytest.approx(factor, rel=0.1)


def test_the_most_likely_token_in_place_of_the_sampled_one_is_no_top_p():
    random = np.random.default_rng(3)
    logits = random.normal(0, 2.2, (1024, 200))
    values = log_softmax(logits, axis=1)
    # Gumbel's trick: the argmax of log-probabilities and such noise is a sample
    drawn = (values + random.gumbel(size=values.shape)).argmax(axis=1)
    trainer = values[np.arange(1024), drawn]
    tokens = with_values(
        PLAIN,
        rollout=values.max(axis=1) + random.normal(0, 0.02, 1024),
        trainer=trainer,
    )
    assert [cause.name for cause in explain_tokens(tokens)] == ["another token"]


def test_the_place_of_a_bad_token_is_named():
    *_, change = PLANTED["one place"]
    (cause,) = explain_tokens(with_side("trainer", change))
    assert cause.parameters == {"part": "token 20 of each response"}
    *_, change = PLANTED["a wrong last chunk"]
    cause, *_ = explain_tokens(with_side("trainer", change))
    assert "token 22 of sequence 3" in cause.says


def test_values_that_both_sides_repeat_are_no_placeholders():
    own = np.resize([-1.0, -2.0, -0.5, -0.1], 1024)
    alike = with_values(PLAIN, trainer=own, rollout=own - 0.01 * (own == -1))
    assert explain_tokens(alike) == []
    assert explain_tokens(with_values(PLAIN, rollout=0 * own))[0].name == "placeholders"


def test_too_few_tokens_and_equal_sides_have_no_cause():
    # fewer than the 64 tokens among which causes are looked for
    index = np.arange(10)
    few = SampledTokens(index * 0, index, -1.0 - index, -1.5 - index)
    assert explain_tokens(few) == []
    index = np.arange(200)
    assert explain_tokens(SampledTokens(index * 0, index, -1.0 - index, -1.0 - index)) == []


@pytest.mark.parametrize("count", [1, 4, 7])
def test_a_last_bit_of_a_few_tokens_has_no_cause(count):
    random = np.random.default_rng(0)
    trainer = -random.exponential(size=len(PLAIN.r)).astype(np.float32)
    rollout = trainer.copy()
    places = 100 * np.arange(count) + 3
    rollout[places] = np.nextafter(rollout[places], np.float32(0))
    sides = {"rollout": rollout.astype(float), "trainer": trainer.astype(float)}
    assert explain_tokens(with_values(PLAIN, **sides)) == []


@pytest.mark.parametrize("size", [0.001, 0.02])
@pytest.mark.parametrize("part", [lambda place: place >= 20, lambda place: place == 31])
def test_a_part_that_rounds_behind_equal_bits_has_no_cause(part, size):
    noise = np.random.default_rng(0).normal(0, size, len(PLAIN.r))
    # a few bits differ in a prefix computed by another kernel
    last_bits = np.where(PLAIN.position % 8 == 0, 1e-6, 0)
    for before in (0, last_bits):
        rollout = PLAIN.trainer + np.where(part(PLAIN.position), noise, before)
        assert explain_tokens(with_values(PLAIN, rollout=rollout)) == []
    # the same part is named if it differs by more than a prefix of other kernels could hide
    one_way = 0.5 + np.abs(noise)
    rollout = PLAIN.trainer - np.where(part(PLAIN.position), one_way, 0)
    assert explain_tokens(with_values(PLAIN, rollout=rollout))[0].name == "part of the response"
