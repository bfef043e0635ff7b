"""`generate` and `search` as a shell sees them: what is printed, what is kept, exit codes."""

import json

import pytest

from core.runs.reader import RunReader
from core.runs.store.store import open_store

SHAPES = "sample_runs/prompts/shapes.txt"
MODEL = ("--model", "sample_runs/model")


@pytest.mark.model
def test_generate_keeps_what_each_side_wrote_and_the_command_that_repeats_it(cli):
    done = cli("generate", *MODEL, "--prompt-file", SHAPES, "--variant", "decode+batch:2", "--tokens", "5", "--json")
    assert done.returncode == 0, done.stderr
    with RunReader(open_store().path_of(json.loads(done.stdout)["run_id"])) as run:
        made = run.generations[0]
        assert [len(tokens) for tokens in made.tokens] == [5, 5]
        assert run.header.provenance.command == (
            f"ulpscope generate --model sample_runs/model --prompt-file {SHAPES}"
            " --reference prefill --variant decode+batch:2 --tokens 5 --dtype bfloat16"
        )
        assert not run.kv(0).empty


@pytest.mark.model
def test_a_dry_run_of_generate_counts_both_passes(cli):
    done = cli("generate", *MODEL, "--prompt", "def main():", "--tokens", "4", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    sides = json.loads(done.stdout)["sides"]
    prompt = sides[0]["positions"] - 3
    # prefill: one forward and three steps; decode: one a position. Each twice, to find the tokens and to keep their
    # logits.
    assert [side["forwards"] for side in sides] == [2 * (1 + 3), 2 * (prompt + 3)]


@pytest.mark.model
def test_a_search_that_finds_nothing_says_what_it_tried_and_exits_with_1(cli, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("def main():\n\nimport os\n")
    done = cli("search", *MODEL, "--prompts", file, "--variant", "prefill+batch:2", "--json")
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert told["run_id"] is None
    assert told["prompts"] == 2
    assert told["why"] == "all prompts were tried"
    assert told["closest"] > 0
    assert open_store().paths() == []


@pytest.mark.thorough
@pytest.mark.model
def test_a_search_keeps_the_prompts_it_found_as_a_run_with_those_flips(cli):
    done = cli(
        "search",
        *MODEL,
        "--prompt",
        "x = 1",
        *(["--prompt-file", "sample_runs/prompts/parser.txt"]),
        *(["--prompt-file", "sample_runs/prompts/scheduler.txt"]),
        "--variant",
        "decode",
        "--flips",
        "1",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    flips = [(flip["position"], flip["reference_token"], flip["variant_token"]) for flip in told["flips"]]
    with RunReader(open_store().path_of(told["run_id"])) as run:
        table = run.positions(0)
        kept = table[table["is_flip"]][["position", "reference_token", "variant_token"]]
        assert [tuple(row) for row in kept.to_numpy().tolist()] == flips


@pytest.mark.thorough
@pytest.mark.model
def test_a_search_over_continuations_prints_texts_and_margins_beside_positions(cli, monkeypatch):
    """The second token of one path's continuation is planted as another, so that they part on every processor."""
    from transformers import AutoTokenizer

    from core.inference.generating import search as module

    real = module.continue_all

    def other(path, *rest, **options):
        for made, margins in real(path, *rest, **options):
            yield ((made[0], 12, *made[2:]) if "batch" in str(path) else made), (margins[0], 0.0625, *margins[2:])

    monkeypatch.setattr(module, "continue_all", other)
    options = ["search", *MODEL, "--prompt", "def main():", "--variant", "prefill+batch:2", "--tokens", "3"]
    told = json.loads(cli(*options, "--json").stdout)
    (flip,) = told["flips"]
    tokenizer = AutoTokenizer.from_pretrained("sample_runs/model")
    texts = {token: tokenizer.decode([token]) for token in (flip["reference_token"], 12)}
    assert (flip["reference_text"], flip["variant_text"]) == (texts[flip["reference_token"]], texts[12])
    assert (flip["reference_margin"], flip["variant_margin"]) == (0.0625, 0.0625)
    table = cli(*options).stdout
    assert f"{flip['reference_token']} {flip['reference_text']!r}" in table
    assert f"12 {texts[12]!r}" in table
    assert "0.0625 / 0.0625" in table


def test_wrong_budgets_are_refused_before_a_model_is_loaded(cli):
    done = cli("search", *MODEL, "--prompt", "x", "--max-prompts", "0")
    assert done.returncode == 2
    assert "search tries at least one" in done.stderr


@pytest.mark.model
def test_for_programs_every_line_of_a_search_is_one_object(cli):
    done = cli("search", *MODEL, "--prompt", "def main():", "--variant", "prefill+batch:2", "--progress", "json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[-1]["stage"] == "done"


@pytest.mark.model
def test_the_reference_may_be_decode_without_naming_a_variant_and_a_value_of_its_own_sweep(cli):
    done = cli("capture", *MODEL, "--prompt", "def main():", "--reference", "decode", "--json")
    assert done.returncode == 0, done.stderr
    with RunReader(open_store().path_of(json.loads(done.stdout)["run_id"])) as run:
        assert [side.name for side in run.sides] == ["decode", "prefill"]
    done = cli(
        "capture",
        *MODEL,
        "--prompt",
        "def main():",
        "--reference",
        "decode+batch:1",
        "--sweep",
        "batch=1,2",
        "--dry-run",
        "--json",
    )
    assert [side["path"] for side in json.loads(done.stdout)["sides"]] == ["decode+batch:1", "decode+batch:2"]
