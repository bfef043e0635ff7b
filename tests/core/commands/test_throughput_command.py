"""`throughput` as a shell sees it."""

import json

import pytest

MODEL = "sample_runs/model"


@pytest.mark.thorough
@pytest.mark.model
def test_tokens_a_second_by_batch_size(cli):
    done = cli(
        "throughput", MODEL, "decode", "decode+invariant", "--batch", "1,2", "--tokens", "4", "--rounds", "1", "--json"
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["dtype"] == "bfloat16"
    assert [(row["path"], row["batch"], row["tokens"]) for row in told["throughput"]] == [
        ("decode", 1, 4),
        ("decode+invariant", 1, 4),
        ("decode", 2, 8),
        ("decode+invariant", 2, 8),
    ]
    assert all(row["tokens_per_second"] > 0 for row in told["throughput"])


@pytest.mark.parametrize("batch", ["", "1,,2", "0", "1;2", "-3", "many"])
def test_a_list_that_is_none_is_refused_before_a_model_is_loaded(cli, batch):
    done = cli("throughput", "no-such-model", "decode", f"--batch={batch}")
    assert done.returncode == 2
    assert "batch sizes; write 1,2,4,8" in done.stderr
