"""Responses of engines on the command line: compared, gated, looked at, stored, shown; nothing half stored."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

PAYLOADS = Path(__file__).parents[1] / "runs" / "topk" / "payloads"
COMPLETION = json.loads((PAYLOADS / "llamacpp_completion.json").read_text())


@pytest.fixture
def changed(tmp_path: Path) -> list[str]:
    """A real answer, and the same one with its second position's best two tokens the other way round."""
    other = copy.deepcopy(COMPLETION)
    row = other["completion_probabilities"][1]
    first, second = row["top_logprobs"][:2]
    first["logprob"], second["logprob"] = second["logprob"], first["logprob"]
    row["logprob"] = first["logprob"]  # of the token that was emitted
    for name, payload in (("A", COMPLETION), ("B", other)):
        (tmp_path / f"{name}.json").write_text(json.dumps(payload))
    return [str(tmp_path / "A.json"), str(tmp_path / "B.json")]


def run(cli: Any, *words: str, code: int = 0) -> str:
    done = cli(*words)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def told(cli: Any, *words: str) -> Any:
    return json.loads(cli(*words, "--json").stdout)


@pytest.mark.parametrize(
    ("condition", "outcome"),
    [
        ("flips:margin>0.001", "failed"),
        ("flips:margin>50", "passed"),
        ("max-abs>0.0001", "failed"),
        ("same-top1<0.9", "failed"),
    ],
)
def test_a_condition_fails_passes_or_is_open(cli: Any, changed: list[str], condition: str, outcome: str) -> None:
    done = cli("compare", *changed, "--fail-on", condition, "--json")
    gate = json.loads(done.stdout)["gate"]
    assert gate["outcome"] == outcome, gate
    assert done.returncode == (1 if outcome == "failed" else 0)
    if outcome == "failed":
        assert (gate["worst"]["prompt"], gate["worst"]["position"]) == (0, 20)


def test_a_difference_of_responses_without_a_cause_leaves_the_verdict_open(cli: Any, changed: list[str]) -> None:
    gate = told(cli, "compare", *changed, "--fail-on", "verdict")["gate"]
    assert (gate["outcome"], gate["conditions"][0]["figure"]) == ("undecided", "undecided")


def test_what_needs_whole_rows_is_refused_in_a_sentence(cli: Any, changed: list[str]) -> None:
    for words, sentence in (
        (("--fail-on", "ulps:4"), "--fail-on ulps:4: ULPs of elements need both sides' complete logits"),
        (("--fail-on", "kl>1"), "--fail-on kl>1: KL needs both sides' complete rows"),
        (("--compute-dtype", "bfloat16"), "are for whole rows of logits"),
    ):
        assert sentence in run(cli, "compare", *changed, *words, code=2)


def test_responses_are_stored_shown_and_compared_again(cli: Any, changed: list[str], tmp_path: Path) -> None:
    store = ("--store", str(tmp_path / "runs"))
    run_id = run(cli, "ingest", *changed, "--name", "one flip", *store).strip()
    said = told(cli, "show", run_id, *store)
    assert (said["name"], said["kind"], said["summary"]["flips"]) == ("one flip", "upload", 1)
    assert said["model"] == "SmolLM2-135M-Instruct"
    assert told(cli, "compare", run_id, *store)["summary"] == told(cli, "compare", *changed)["summary"]
    assert "flips of B: 1" in run(cli, "show", run_id, *store)
    assert "### `B` vs `A`: undecided" in run(cli, "show", run_id, "--markdown", *store)
    card = next(card for card in told(cli, "list", *store) if card["run_id"] == run_id)
    assert (card["kind"], card["sides"], card["flips"]) == ("upload", ["A", "B"], 1)
