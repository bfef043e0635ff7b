"""`compare` of a rollout's and a trainer's log-probabilities: gates on figures."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

CASES = Path(__file__).resolve().parents[2] / "cases" / "rollouts"
EXPECTED = np.load(CASES / "expected.npz")
RANK = CASES / "token_exports" / "step_4" / "rank_0.jsonl"  # sequences 0 and 1


def r_of(*sequences: int) -> np.ndarray:
    """Trainer minus rollout over the tokens of the loss."""
    parts = [EXPECTED[f"trainer{n}"].astype(float) - EXPECTED[f"rollout{n}"].astype(float) for n in sequences]
    return np.concatenate([part[EXPECTED[f"mask{n}"] != 0] for n, part in zip(sequences, parts, strict=True)])


R = r_of(0, 1)
FIGURES = {
    "k3>": np.mean(np.exp(R) - 1 - R),
    "mean_abs>": np.abs(R).mean(),
    "max_abs>": np.abs(R).max(),
    "p99>": np.quantile(np.abs(R), 0.99),
    "ess<": np.exp(R).sum() ** 2 / (len(R) * (np.exp(R) ** 2).sum()),
    "perplexity_rollout>": np.mean(
        [np.exp(-EXPECTED[f"rollout{n}"].astype(float)[EXPECTED[f"mask{n}"] != 0].mean()) for n in (0, 1)]
    ),
}


def test_a_figure_passes_up_to_its_limit_and_fails_beyond(cli, tmp_path):
    conditions = []
    for text, value in FIGURES.items():
        beyond, within = (value * (1 + step * (1 if text.endswith("<") else -1)) for step in (1e-9, -1e-9))
        conditions += [f"{text}{beyond:.15g}", f"{text}{within:.15g}"]
    done = cli("compare", RANK, "--fail-on", ",".join(conditions), "--json", "--junit", tmp_path / "gate.xml")
    assert done.returncode == 1
    gate = json.loads(done.stdout)["gate"]
    assert [each["outcome"] for each in gate["conditions"]] == ["failed", "passed"] * len(FIGURES)
    values = [each["figure"] for each in gate["conditions"][::2]]
    assert values == pytest.approx(list(FIGURES.values()), rel=1e-9)
    assert gate["worst"]["max_abs"] == np.abs(R).max()
    (suite,) = ET.parse(tmp_path / "gate.xml").getroot()
    assert (suite.attrib["tests"], suite.attrib["failures"]) == ("12", "6")


def test_a_framework_has_its_own_figures(cli):
    done = cli("compare", RANK, "--as", "prime-rl", "--fail-on", f"mismatch_kl/all/mean>{FIGURES['k3>'] * 1.001}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((RANK, "--fail-on", "gen_kl_error>1"), "is a figure of nemo-rl; add --as nemo-rl"),
        ((RANK, "--as", "verl", "--fail-on", "p99>1"), "is a figure of ulpscope; add --as ulpscope"),
        ((CASES.parent / "flips_fp16.npz", "--fail-on", "k3>1"), "is for a rollout's and a trainer's"),
    ],
)
def test_a_figure_that_was_not_computed_is_refused(cli, words, says):
    done = cli("compare", *words)
    assert done.returncode == 2
    assert says in " ".join(done.stderr.split())
