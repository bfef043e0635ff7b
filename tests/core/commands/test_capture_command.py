"""`capture`: prompts from files and chats, dry runs, and what is kept where a side fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.core.conftest import environment

ROOT = Path(__file__).resolve().parents[3]
MODEL = ("--model", "sample_runs/model")
WALK = "def walk(self, path):\n    return [step for step in path if step]\n"


@pytest.fixture
def chat_model(tmp_path):
    """The sample model with a chat template, and without any weights: enough to tokenize and to plan."""
    folder = tmp_path / "chat"
    folder.mkdir()
    for file in (ROOT / "sample_runs" / "model").iterdir():
        (folder / file.name).symlink_to(file)
    template = (
        "{% for m in messages %}# {{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}#"
        " assistant:{% endif %}"
    )
    (folder / "chat_template.jinja").write_text(template)
    return folder


def test_a_capture_ends_with_its_figures_and_what_to_type_next_and_its_id_is_all_of_stdout(cli):
    done = cli("capture", *MODEL, "--prompt", WALK)
    assert done.returncode == 0, done.stderr
    (run_id,) = done.stdout.split()
    positions = json.loads(cli("show", run_id, "--json").stdout)["positions"]
    assert f"{positions} positions x 4,096 tokens, ULPs of bfloat16" in done.stderr
    assert done.stderr.count("next: ") == 2
    assert f"next: ulpscope show {run_id}\n" in done.stderr


def texts_of(store: Path, run_id: str) -> list[str]:
    from core.runs.reader import RunReader

    with RunReader(store / f"{run_id}.duckdb") as run:
        return ["".join(prompt.token_texts) for prompt in run.header.prompts]


def test_every_prompt_of_a_file_and_of_the_options_becomes_a_prompt_in_that_order(cli, tmp_path):
    (tmp_path / "lines.txt").write_text("first line\n\nsecond line\n")
    (tmp_path / "lines.jsonl").write_text('{"prompt": "third"}\n{"token_ids": [5, 6, 7]}\n')
    files = ["--prompts", tmp_path / "lines.txt", "--prompts", tmp_path / "lines.jsonl"]
    done = cli("capture", *MODEL, "--prompt", "typed", *files, "--json")
    assert done.returncode == 0, done.stderr
    texts = texts_of(tmp_path / "runs", json.loads(done.stdout)["run_id"])
    assert texts[:4] == ["typed", "first line", "second line", "third"]
    assert len(texts) == 5


def test_chat_puts_each_text_between_the_words_of_the_template(cli, tmp_path, chat_model):
    (tmp_path / "chats.jsonl").write_text(
        json.dumps({"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]})
        + '\n{"text": "three"}\n'
    )
    done = cli(
        "capture",
        "--model",
        chat_model,
        "--prompts",
        tmp_path / "chats.jsonl",
        "--chat",
        "--system",
        "Be short.",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    assert texts_of(tmp_path / "runs", json.loads(done.stdout)["run_id"]) == [
        "# system: Be short.\n# user: one\n# assistant: two\n",
        "# system: Be short.\n# user: three\n# assistant:",
    ]


@pytest.mark.spread(5)
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--prompt", "x", "--chat"], "has no chat template"),
        (["--prompt", "x", "--system", "y"], "--system is part of a chat; add --chat"),
        (["--prompts", "nowhere.jsonl"], "nowhere.jsonl: cannot be read"),
        (["--prompts", "IDS", "--chat"], "--chat is for texts"),
        (["--prompts", "SYSTEM", "--system", "y"], "SYSTEM.jsonl:2: has a system message of its own"),
        (["--prompts", "BAD"], "BAD.jsonl:3: is not JSON"),
        (["--prompts", "FAR"], "token 99999 at position 1"),
        (["--prompt", ""], "is empty"),
    ],
)
@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_prompts_that_cannot_be_taken_are_one_sentence_and_exit_code_2(cli, tmp_path, arguments, sentence, dry):
    lines = {
        "IDS": '{"token_ids": [1, 2]}',
        "SYSTEM": (
            '{"prompt": "a"}\n{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}'
        ),
        "BAD": '{"prompt": "a"}\n\n{"prompt": ',
        "FAR": '{"token_ids": [1, 99999]}',
    }
    for name, content in lines.items():
        (tmp_path / f"{name}.jsonl").write_text(content)
    given = [str(tmp_path / f"{part}.jsonl") if part in lines else part for part in arguments]
    done = cli("capture", *MODEL, *given, *dry)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.glob("runs/*"))


def test_a_dry_run_counts_what_the_capture_then_does_and_stores_nothing(cli, tmp_path):
    arguments = ["capture", *MODEL, "--prompt", WALK, "--variant", "decode", "--variant", "prefill+batch:3", "--json"]
    dry = cli(*arguments, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert not list(tmp_path.glob("runs/*"))
    foreseen = json.loads(dry.stdout)
    run_id = json.loads(cli(*arguments).stdout)["run_id"]
    shown = json.loads(cli("show", run_id, "--json").stdout)
    positions = shown["positions"]
    assert foreseen["positions"] == positions
    assert [side["name"] for side in foreseen["sides"]] == [side["name"] for side in shown["sides"]]
    assert [side["forwards"] for side in foreseen["sides"]] == [1, positions, 1]
    assert [side["tokens"] for side in foreseen["sides"]] == [positions, positions, 3 * positions]
    assert foreseen["logits_bytes"] == 3 * positions * shown["vocab"] * 2
    stored = (tmp_path / "runs" / f"{run_id}.duckdb").stat().st_size
    assert foreseen["logits_bytes"] < stored < 1.5 * foreseen["logits_bytes"] + 2_000_000  # and its vocabulary
    assert foreseen["devices"][0]["device"] == "cpu"
    assert foreseen["name"] == shown["name"]


def test_a_dry_run_for_people_names_every_side_and_the_cost(cli):
    done = cli("capture", *MODEL, "--prompt", WALK, "--reference", "decode", "--sweep", "batch=2,4", "--dry-run")
    assert done.returncode == 0, done.stderr
    for words in ("decode+batch:2", "decode+batch:4", "forwards", "The run file takes", "Caches are compared too."):
        assert words in done.stdout


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    "arguments",
    [
        ["--variant", "decode+batches:2"],
        ["--variant", "prefill"],
        ["--variant", "reuse:4000"],
        ["--variant", "decode+tf32"],
        ["--dtype", "int8"],
        ["--device", "tpu"],
        ["--device", "cuda:99"],
        ["--model", "no/such/folder"],
    ],
)
def test_what_a_capture_refuses_a_dry_run_refuses_in_the_same_words(cli, tmp_path, arguments):
    given = ["capture", *MODEL, "--prompt", WALK, *arguments]
    real, dry = cli(*given), cli(*given, "--dry-run")
    assert (real.returncode, dry.returncode) == (2, 2)
    assert real.stderr == dry.stderr
    assert not list(tmp_path.glob("runs/*"))


@pytest.fixture
def out_of_memory(monkeypatch):
    """The base `static` gives a few positions and then runs out of memory, as a device does."""
    import torch

    from core.inference.paths.bases import BASES

    plain = BASES["static"].compute

    def failing(batch, emit, *values):
        def until_full(position, logits):
            if position == 3:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            emit(position, logits)

        plain(batch, until_full, *values)

    monkeypatch.setitem(BASES, "static", replace(BASES["static"], compute=failing))


def test_where_a_later_side_fails_those_before_it_are_kept_with_the_same_bits(cli, tmp_path, out_of_memory):
    asked = ["capture", *MODEL, "--prompt", WALK, "--prompt", WALK * 2, "--json"]
    done = cli(*asked, "--variant", "decode", "--variant", "static", "--variant", "chunked:4", "--keep-finished")
    assert done.returncode == 2
    kept = json.loads(cli("show", json.loads(done.stdout)["run_id"], "--json").stdout)
    assert [side["name"] for side in kept["sides"]] == ["prefill", "decode"]
    reason = "path 'static': out of memory"
    assert reason in kept["note"]
    assert "without 'static', 'chunked:4': 2" in kept["note"]
    assert f"error: {kept['note']}\n" == done.stderr
    alone = cli(*asked, "--variant", "decode")
    shown = json.loads(cli("show", json.loads(alone.stdout)["run_id"], "--json").stdout)
    assert [side["sha256"] for side in kept["sides"]] == [side["sha256"] for side in shown["sides"]]
    assert {key: kept[key] for key in ("summary", "ulp_histogram", "flips")} == {
        key: shown[key] for key in ("summary", "ulp_histogram", "flips")
    }


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    "arguments",
    [
        ["--variant", "static", "--keep-finished"],  # one side had finished, and one is no pair
        ["--reference", "static", "--variant", "decode", "--keep-finished"],
        ["--variant", "decode", "--variant", "static"],  # nobody asked for it
    ],
)
def test_with_fewer_than_two_finished_sides_or_unasked_nothing_is_stored(cli, tmp_path, out_of_memory, arguments):
    done = cli("capture", *MODEL, "--prompt", WALK, *arguments)
    assert done.returncode == 2
    assert "path 'static': out of memory" in done.stderr
    assert done.stdout == ""
    assert not list(tmp_path.glob("runs/*"))
    assert not list(tmp_path.glob("runs/.partial*"))


def test_a_program_reads_the_id_of_what_was_kept_from_the_last_line_and_the_reason_from_the_errors(cli, out_of_memory):
    arguments = ["--variant", "decode", "--variant", "static", "--keep-finished", "--progress", "json"]
    done = cli("capture", *MODEL, "--prompt", WALK, *arguments)
    assert done.returncode == 2
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["stage"] == "done"
    assert last["run_id"]
    assert done.stderr.startswith("error: path 'static': out of memory")


@pytest.mark.thorough
def test_a_dry_run_reads_no_weights(tmp_path):
    """The weights of this copy are a hole of the right size: a capture of it would give zeros, a dry run is the
    same.
    """
    folder = tmp_path / "model"
    folder.mkdir()
    for file in (ROOT / "sample_runs" / "model").iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).symlink_to(file)
            continue
        with file.open("rb") as whole, (folder / file.name).open("wb") as hole:
            length = int.from_bytes(whole.read(8), "little")
            whole.seek(0)
            hole.write(whole.read(8 + length))
            hole.truncate(file.stat().st_size)
    command = [sys.executable, "-m", "core", "capture", "--prompt", WALK, "--dry-run", "--json", "--model"]
    said = [
        subprocess.run(
            [*command, str(model)],
            cwd=ROOT,
            env={**os.environ, **environment(tmp_path)},
            capture_output=True,
            check=True,
        )
        for model in (folder, "sample_runs/model")
    ]
    first, second = (json.loads(done.stdout) for done in said)
    for moving in ("free_bytes", "devices", "model", "in_words"):  # as busy as the machine is
        del first[moving], second[moving]
    assert first == second


@pytest.mark.model
def test_a_dry_run_foresees_a_side_of_another_engine(cli):
    """Its modifiers are the engine's own, of which the costs of our paths know nothing."""
    done = cli(
        "capture",
        *MODEL[:2],
        "--prompt",
        WALK,
        "--variant",
        "llamacpp:decode+kv:f32",
        "--dtype",
        "float32",
        "--dry-run",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    reference, variant = json.loads(done.stdout)["sides"]
    assert (reference["forwards"], variant["forwards"]) == (1, variant["positions"])
