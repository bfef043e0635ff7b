"""`generate` and `search` as a shell sees them: what is printed, what is kept, exit codes."""

import pytest

from core.runs.store.store import open_store
from tests.core.runs.made_runs import opened

pytestmark = pytest.mark.model
SHAPES = "sample_runs/prompts/shapes.txt"
MODEL = ("--model", "sample_runs/model")


def test_generate_keeps_what_each_side_wrote_and_the_command_that_repeats_it(cli):
    done = cli(
        "generate",
        *MODEL,
        "--prompt-file",
        SHAPES,
        "--variant",
        "decode+batch:2",
        "--tokens",
        "5",
        "--json",
    ).succeeded()
    with opened(open_store(), done.json["run_id"]) as run:
        made = run.generations[0]
        assert [len(tokens) for tokens in made.tokens] == [5, 5]
        assert run.header.provenance.command == (
            f"ulpscope generate --model sample_runs/model --prompt-file {SHAPES}"
            " --reference prefill --variant decode+batch:2 --tokens 5 --dtype bfloat16"
        )
        assert not run.rows("kv", pair=0).empty


@pytest.mark.thorough
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
    ).succeeded()
    told = done.json
    flips = [
        (flip["position"], flip["reference_token"], flip["variant_token"]) for flip in told["flips"]
    ]
    with opened(open_store(), told["run_id"]) as run:
        table = run.positions(0)
        kept = table[table["is_flip"]][["position", "reference_token", "variant_token"]]
        assert [tuple(row) for row in kept.to_numpy().tolist()] == flips


def test_the_reference_may_be_decode_without_naming_a_variant(cli):
    done = cli(
        "capture", *MODEL, "--prompt", "def main():", "--reference", "decode", "--json"
    ).succeeded()
    with opened(open_store(), done.json["run_id"]) as run:
        assert [side.name for side in run.sides] == ["decode", "prefill"]
