"""`compare` of a rollout's and a trainer's log-probabilities: gates on figures, several files and
folders.
"""

import shutil

import numpy as np
import pytest

from core.errors import DumpError
from core.rl.formats import files_in
from tests.json_lines import read_lines, write_lines
from tests.places import CASES, ROLLOUTS

EXPECTED = np.load(ROLLOUTS / "expected.npz")
RANK = ROLLOUTS / "token_exports" / "step_4" / "rank_0.jsonl"  # sequences 0 and 1


def r_of(*sequences):
    """Trainer minus rollout over the tokens of the loss."""
    parts = []
    for n in sequences:
        r = EXPECTED[f"trainer{n}"].astype(float) - EXPECTED[f"rollout{n}"].astype(float)
        parts.append(r[EXPECTED[f"mask{n}"] != 0])
    return np.concatenate(parts)


R = r_of(0, 1)
# by its definition (Schulman 2020)
K3 = np.mean(np.exp(R) - 1 - R)


def test_a_figure_passes_up_to_its_limit_and_fails_beyond(cli):
    # wider than the rounding of both sums, and far below any real change
    limits = K3 * (1 - 1e-9), K3 * (1 + 1e-9)
    conditions = [f"k3>{limit:.15g}" for limit in limits]
    done = cli("compare", RANK, "--fail-on", ",".join(conditions), "--json")
    assert done.returncode == 1
    gate = done.json["gate"]
    assert [each["outcome"] for each in gate["conditions"]] == ["failed", "passed"]
    assert gate["conditions"][0]["figure"] == pytest.approx(K3, rel=1e-9)
    assert gate["worst"]["max_abs"] == np.abs(R).max()


def test_a_framework_has_its_own_figures(cli):
    condition = f"mismatch_kl/all/mean>{K3 * 1.001}"
    cli("compare", RANK, "--as", "prime-rl", "--fail-on", condition).succeeded()


def test_a_figure_that_is_undefined_is_null_and_undecided(cli, tmp_path):
    file = tmp_path / "a.jsonl"
    # constant sides have no correlation
    file.write_text('{"token_ids": [1, 2], "rollout": [-1, -1], "trainer": [-1.5, -1.5]}')
    done = cli("compare", file, "--fail-on", "pearson<0.9", "--json")
    report = done.json
    assert done.returncode == 0
    assert report["gate"]["outcome"] == "undecided"
    (pearson,) = (row for row in report["mismatch"]["figures"] if row["name"] == "pearson")
    assert pearson["value"] is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((RANK, "--fail-on", "gen_kl_error>1"), "is a figure of nemo-rl; add --as nemo-rl"),
        (
            (RANK, "--as", "verl", "--fail-on", "p99>1"),
            "is a figure of ulpscope; add --as ulpscope",
        ),
        (
            (CASES / "flips_fp16.npz", "--fail-on", "k3>1"),
            "is for a rollout's and a trainer's",
        ),
    ],
)
def test_a_figure_that_was_not_computed_is_refused(cli, words, says):
    assert says in cli("compare", *words).refusal


@pytest.fixture
def steps(tmp_path):
    """Two files of NeMo-RL, of steps 9 and 10; in the later one the trainer is 0.25 lower at every
    token.
    """
    rows = read_lines(ROLLOUTS / "train_data_step6.jsonl")
    folder = tmp_path / "logs"
    folder.mkdir()
    for step, change in ((9, 0.0), (10, 0.25)):
        moved = []
        for row in rows:
            (trainer,) = row["prev_logprobs"]
            moved.append(row | {"prev_logprobs": [[value - change for value in trainer]]})
        write_lines(folder / f"train_data_step{step}.jsonl", moved)
    return folder


def test_files_of_several_steps_are_one_run_with_figures_by_step(cli, steps):
    # given the later step first
    paths = [steps / f"train_data_step{step}.jsonl" for step in (10, 9)]
    mismatch = cli("compare", *paths, "--json").json["mismatch"]
    of_steps = [r_of(0, 1, 2), r_of(0, 1, 2) - 0.25]
    assert [row["step"] for row in mismatch["by_step"]] == [9, 10]
    for row, r in zip(mismatch["by_step"], of_steps, strict=True):
        assert row["tokens"] == len(r)
        expected = {
            "mean_abs": np.abs(r).mean(),
            "k3": np.mean(np.exp(r) - 1 - r),
            "ratio": np.exp(r).mean(),
            "max_abs": np.abs(r).max(),
        }
        found = {name: row[name] for name in expected}
        assert found == pytest.approx(expected, rel=1e-6)
    printed = cli("compare", *paths).stdout
    assert "by step" in printed


def test_the_current_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DumpError, match=r"^\.: "):
        files_in(["."])


def test_a_folder_is_its_files_in_the_order_of_their_numbers(cli, steps, tmp_path):
    run_id = cli("ingest", steps, "--store", tmp_path / "runs").stdout.strip()
    shown = cli("show", run_id, "--json", "--store", tmp_path / "runs").json
    assert shown["name"] == "train_data_step9 + train_data_step10"
    ranks = ROLLOUTS / "token_exports"
    of_folder = cli("compare", ranks, "--json").json
    of_files = cli("compare", *sorted(ranks.glob("*/*.jsonl")), "--json").json
    assert of_folder["mismatch"] == of_files["mismatch"]
    miles = cli("compare", ROLLOUTS / "miles", "--json").json["mismatch"]
    assert miles["tokens"] == len(r_of(0, 1, 2))
    assert miles["by_step"][0]["step"] == 9


def test_hidden_files_and_folders_are_not_read(tmp_path):
    for name in (".venv/step_1", "step_1"):
        shutil.copytree(RANK.parent, tmp_path / name)
    shutil.copy(RANK, tmp_path / "step_1" / ".rank_0.jsonl")
    assert files_in([tmp_path]) == sorted((tmp_path / "step_1").glob("rank*"))


def test_a_folder_without_sampled_tokens_and_three_dumps_are_refused(cli, tmp_path):
    dump = CASES / "flips_fp16.npz"
    for paths, says in (([tmp_path], "without a file of sampled tokens"), ([dump] * 3, "not 3")):
        assert says in cli("compare", *paths).refusal
