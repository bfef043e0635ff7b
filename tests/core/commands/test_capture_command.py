"""`capture`: prompts from files and chats, and dry runs."""

import pytest

from tests.core.runs.made_runs import opened

MODEL = ("--model", "sample_runs/model")
WALK = "def walk(self, path):\n    return [step for step in path if step]\n"


def test_every_prompt_of_a_file_and_of_the_options_becomes_a_prompt_in_that_order(
    cli,
    store,
    tmp_path,
):
    (tmp_path / "lines.txt").write_text("first line\n\nsecond line\n")
    (tmp_path / "lines.jsonl").write_text('{"prompt": "third"}\n{"token_ids": [5, 6, 7]}\n')
    files = ["--prompts", tmp_path / "lines.txt", "--prompts", tmp_path / "lines.jsonl"]
    done = cli("capture", *MODEL, "--prompt", "typed", *files, "--json").succeeded()
    with opened(store, done.json["run_id"]) as run:
        texts = ["".join(prompt.token_texts) for prompt in run.header.prompts]
    assert texts[:4] == ["typed", "first line", "second line", "third"]
    assert len(texts) == 5


@pytest.mark.spread(4)
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--prompt", "x", "--chat"], "has no chat template"),
        (["--prompt", "x", "--system", "y"], "--system is part of a chat; add --chat"),
        (["--prompts", "IDS", "--chat"], "--chat is for texts"),
        (["--prompts", "SYSTEM", "--system", "y"], "SYSTEM.jsonl:2: has its own system message"),
        (["--prompts", "FAR"], "token 99999 at position 1"),
        (["--prompt", ""], "is empty"),
    ],
)
def test_prompts_that_cannot_be_taken_are_one_sentence_and_exit_code_2(
    cli,
    tmp_path,
    arguments,
    sentence,
):
    lines = {
        "IDS": '{"token_ids": [1, 2]}',
        "SYSTEM": (
            '{"prompt": "a"}\n{"messages": [{"role": "system", "content": "s"}, {"role": "user",'
            ' "content": "u"}]}'
        ),
        "FAR": '{"token_ids": [1, 99999]}',
    }
    for name, content in lines.items():
        (tmp_path / f"{name}.jsonl").write_text(content)
    given = [str(tmp_path / f"{part}.jsonl") if part in lines else part for part in arguments]
    assert sentence in cli("capture", *MODEL, *given).refusal
    assert not list(tmp_path.glob("runs/*"))


def test_a_dry_run_counts_what_the_capture_then_does_and_stores_nothing(cli, tmp_path):
    arguments = [
        "capture",
        *MODEL,
        "--prompt",
        WALK,
        "--variant",
        "decode",
        "--variant",
        "prefill+batch:3",
        "--json",
    ]
    dry = cli(*arguments, "--dry-run").succeeded()
    assert not list(tmp_path.glob("runs/*"))
    foreseen = dry.json
    run_id = cli(*arguments).json["run_id"]
    shown = cli("show", run_id, "--json").json
    positions = shown["positions"]
    assert foreseen["positions"] == positions
    assert [side["name"] for side in foreseen["sides"]] == [side["name"] for side in shown["sides"]]
    # three sides of two bytes a logit
    assert foreseen["logits_bytes"] == 3 * positions * shown["vocab"] * 2
    stored = (tmp_path / "runs" / f"{run_id}.duckdb").stat().st_size
    # and its vocabulary
    assert foreseen["logits_bytes"] < stored < 1.5 * foreseen["logits_bytes"] + 2_000_000
    assert foreseen["devices"][0]["device"] == "cpu"
    assert foreseen["name"] == shown["name"]
