"""Responses of engines on the command line: compared, gated, looked at, stored, shown; nothing half
stored.
"""

import copy
import json
from pathlib import Path

import pytest

from tests.places import PAYLOADS

COMPLETION = json.loads((PAYLOADS / "llamacpp_completion.json").read_text())


@pytest.fixture
def changed(tmp_path):
    """A real answer, and the same one with its second position's best two tokens the other way
    round.
    """
    other = copy.deepcopy(COMPLETION)
    row = other["completion_probabilities"][1]
    first, second = row["top_logprobs"][:2]
    first["logprob"], second["logprob"] = second["logprob"], first["logprob"]
    row["logprob"] = first["logprob"]  # of the token that was emitted
    for name, payload in (("A", COMPLETION), ("B", other)):
        (tmp_path / f"{name}.json").write_text(json.dumps(payload))
    return [str(tmp_path / "A.json"), str(tmp_path / "B.json")]


def told(cli, *words):
    return cli(*words, "--json").json


@pytest.mark.parametrize(
    ("condition", "outcome"),
    [
        ("flips:margin>0.001", "failed"),
        ("flips:margin>50", "passed"),
    ],
)
def test_a_condition_fails_or_passes(cli, changed, condition, outcome):
    done = cli("compare", *changed, "--fail-on", condition, "--json")
    gate = done.json["gate"]
    assert gate["outcome"] == outcome, gate
    assert done.returncode == (1 if outcome == "failed" else 0)
    if outcome == "failed":
        assert gate["worst"]["prompt"] == 0
        assert gate["worst"]["position"] == 20


def test_what_needs_whole_rows_is_refused_in_a_sentence(cli, changed):
    for words, sentence in (
        (
            ("--fail-on", "ulps:4"),
            "condition ulps:4: ULPs of elements need both sides' complete logits",
        ),
        (("--fail-on", "kl>1"), "condition kl>1: KL needs both sides' complete rows"),
        (("--compute-dtype", "bfloat16"), "are for whole rows of logits"),
    ):
        assert sentence in cli("compare", *changed, *words).refusal


def test_responses_are_stored_shown_and_compared_again(cli, changed, tmp_path):
    store = ("--store", str(tmp_path / "runs"))
    run_id = cli("ingest", *changed, "--name", "one flip", *store).stdout.strip()
    said = told(cli, "show", run_id, *store)
    assert said["name"] == "one flip"
    assert said["kind"] == "upload"
    assert said["summary"]["flips"] == 1
    assert said["model"] == "SmolLM2-135M-Instruct"
    of_files = told(cli, "compare", *changed)
    assert told(cli, "compare", run_id, *store)["summary"] == of_files["summary"]
    (note,) = of_files["notes"]
    assert note in cli("compare", *changed).stderr
    assert "flips of B: 1" in cli("show", run_id, *store).stdout
    assert "### `B` vs `A`: undecided" in cli("show", run_id, "--markdown", *store).stdout
    card = next(card for card in told(cli, "list", *store) if card["run_id"] == run_id)
    assert card["flips"] == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a file's name is empty"),
        ('{"prompt": "a", "tokens": [1], "logits": [[1.5, 2.5]]}\n' * 2, "np.save"),  # of MaxText
        ("[[1.5, 2.5], [3.5, 4.5]]", "np.save"),
        ('{"lst": [["trt", []]], "polygraphy_class": "RunResults"}', "RunResults.load"),
    ],
)
@pytest.mark.parametrize("command", ["compare", "ingest", "inspect"])
def test_what_is_no_response_is_refused_with_what_to_do(
    cli,
    tmp_path,
    monkeypatch,
    command,
    text,
    words,
):
    monkeypatch.chdir(tmp_path)
    Path("file.json").write_text(text)
    name = "file.json" if text else ""
    assert words in cli(command, name, name).refusal
