"""Figures of trainer against rollout: those of the frameworks' own code on the same arrays.

`figures.json` was written by the functions of verl 0.9.1, slime, prime-rl, ROLL and ms-swift 4.6;
of TRL, NeMo-RL, OpenRLHF, AReaL and miles after the lines of their files, in torch and float64.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from core.rl.figures import FRAMEWORKS, Batch, Sequences, intervals

EXPECTED = json.loads((Path(__file__).parent / "figures.json").read_text())
LENGTHS = np.array([40, 400, 64, 48])


def pairs():
    random = np.random.default_rng(42)
    rollout = -random.gamma(0.6, 0.9, LENGTHS.sum())
    trainer = np.minimum(rollout + random.normal(0, 0.05, LENGTHS.sum()), -1e-6)
    # ratios of 0.3, 2.5 and 7e-5: outside IcePop's bounds, above TIS, below the veto
    trainer[[3, 130, 470]] = rollout[[3, 130, 470]] + [-1.2, 0.9, -9.5]
    return rollout, np.minimum(trainer, -1e-6)


@pytest.mark.parametrize(
    ("framework", "name"),
    [(each, name) for each, names in EXPECTED.items() for name in names],
)
def test_a_figure_is_its_frameworks(framework, name):
    batch = Batch(Sequences.of(*pairs(), LENGTHS))
    (figure,) = (each for each in FRAMEWORKS[framework].figures if each.name == name)
    # verl divides by the number of tokens + 1e-8
    rest = 2e-10 if framework == "verl" else 1e-15
    # by the mean weight + 1e-8, squared
    if name == "rollout_corr/rollout_is_eff_sample_size":
        rest = 3e-8
    expected = EXPECTED[framework][name]
    assert figure.value(batch) == pytest.approx(expected, rel=1e-9, abs=rest)


def test_every_figure_of_a_framework_is_compared():
    names = {}
    for name, framework in FRAMEWORKS.items():
        # ULPscope's own figures have no source: they are tested by their formulas
        if framework.source:
            names[name] = {figure.name for figure in framework.figures}
    assert names == {name: set(values) for name, values in EXPECTED.items()}


def test_our_figures_by_their_formulas():
    rollout, trainer = pairs()
    batch = Batch(Sequences.of(rollout, trainer, LENGTHS))
    values = {each.name: each.value(batch) for each in FRAMEWORKS["ulpscope"].figures}
    r = trainer - rollout
    ratio = np.exp(r)
    truncated = np.minimum(ratio, 2)
    change = np.exp(trainer) - np.exp(rollout)
    of_sequence = np.split(r, np.cumsum(LENGTHS)[:-1])
    geometric = np.exp([each.mean() for each in of_sequence])
    correlation = np.corrcoef(rollout, trainer)
    of_probabilities = np.corrcoef(np.exp(rollout), np.exp(trainer))
    has_veto = [(np.exp(each) < 1e-4).any() for each in of_sequence]
    expected = {
        "mean_abs": np.abs(r).mean(),
        "max_abs": np.abs(r).max(),
        "k1": -r.mean(),
        "k2": (r**2).mean() / 2,
        "k3": (ratio - 1 - r).mean(),
        "ratio": ratio.mean(),
        "ratio_sequence": np.exp([each.sum() for each in of_sequence]).mean(),
        "ratio_geometric": geometric.mean(),
        "ess": ratio.sum() ** 2 / (len(r) * (ratio**2).sum()),
        "ess_truncated": truncated.sum() ** 2 / (len(r) * (truncated**2).sum()),
        "chi2": (ratio**2).mean() - 1,
        "chi2_geometric": (geometric**2).mean() - 1,
        "pearson": correlation[0, 1],
        "pearson_probability": of_probabilities[0, 1],
        "above_tis": (ratio > 2).mean(),
        "outside_icepop": ((ratio < 0.5) | (ratio > 5)).mean(),
        "beyond_dppo": (np.abs(change) > 0.2).mean(),
        "vetoed": np.mean(has_veto),
        "outside_geometric": np.mean((geometric < 0.999) | (geometric > 1.002)),
    }
    assert {name: values[name] for name in expected} == pytest.approx(expected, rel=1e-12)


def test_chi2_of_tokens_that_the_trainer_likes_less_is_negative():
    sequences = Sequences.of(np.array([-2.0]), np.array([-3.0]), np.ones(1, int))
    batch = Batch(sequences)
    figures = [each for each in FRAMEWORKS["ulpscope"].figures if "chi2" in each.name]
    values = [each.value(batch) for each in figures if "can be negative" in each.definition]
    # of one sequence of one token the three are the same
    assert values == pytest.approx([np.exp(-2) - 1] * 3)


def test_an_interval_holds_the_mean_of_sequences_as_often_as_it_says():
    """Sequences of one token: the bootstrap's interval is about that of the normal distribution,
    1.96 deviations.
    """
    random = np.random.default_rng(0)
    rollout = -random.gamma(2.0, 1.0, 400)
    r = random.normal(0, 0.1, 400)
    sequences = Sequences.of(rollout, rollout + r, np.ones(400, int))
    (k1,) = (each for each in FRAMEWORKS["ulpscope"].figures if each.name == "k1")
    low, high = intervals(sequences, [k1], draws=1000)[0]
    # of 400 sequences; the 2.5 % quantile of 1000 draws has a standard error of 4 % of it
    half = 1.96 * r.std() / 20
    assert low == pytest.approx(-r.mean() - half, abs=0.2 * half)
    assert high == pytest.approx(-r.mean() + half, abs=0.2 * half)


def test_trl_drops_sequences_whose_ratio_is_above_3():
    """3 is the default of `vllm_importance_sampling_cap` in TRL's GRPOConfig."""
    rollout = np.full(2, -2.0)
    trainer = rollout + np.log([2.9, 3.1])
    kept = Sequences.of(rollout, trainer, np.ones(2, np.int64)).values["kept ratio"]
    assert kept == pytest.approx([2.9, 0.0])
