"""The scripts that need a GPU, or minutes, run here with small shapes: their figures are not
checked, that they come is.
"""

import json
import subprocess
import sys

import pytest

from benchmarks import power, sound
from benchmarks.__main__ import ALL, module_of
from benchmarks.families import cells, tiny_family
from benchmarks.verdicts.engines import PREFIX, prefill
from benchmarks.verdicts.mutations import Mutation
from benchmarks.verdicts.planted import PLANTED
from tests.json_lines import read_lines
from tests.places import ROOT


@pytest.mark.parametrize("name", ALL)
def test_every_benchmark_is_found_by_its_name(name):
    assert callable(module_of(name).run)


@pytest.mark.thorough
@pytest.mark.model
def test_the_gpu_script_captures_its_pairs_on_a_processor_too():
    options = "--shape tiny --device cpu --tokens 40"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *options.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    # the variants of the four captures in PAIRS of benchmarks/gpu.py
    assert len(lines) == 1 + 2 + 3 + 6
    assert {line["reference"] for line in lines} == {"prefill", "decode"}
    assert all(line["overhead"] > 0 and line["positions"] == 40 for line in lines)


@pytest.mark.model
def test_power_counts_what_finds_two_faults(tmp_path, monkeypatch, capsys):
    names = "positions after a reused prefix", "temperature in the logits"
    moved, cooled = (next(each for each in PLANTED if each.name == name) for name in names)
    sound = [case for case in power.VARIATIONS if case.name == "chunked:5"]
    monkeypatch.setattr(power, "VARIATIONS", sound)
    results = tmp_path / "results.jsonl"
    options = f"power --quick --seed 11 --family llama --results {results}".split()
    monkeypatch.setattr("sys.argv", [*options, *(f"--fault={name}" for name in names)])
    power.main()
    table = capsys.readouterr().out
    ours = next(line for line in table.splitlines() if line.startswith("| ULPscope, with a model"))
    assert ours.split(" | ")[-2:] == ["8", "0 |"]
    pairs = read_lines(results)
    # in each of two dtypes the sound case and both faults, each fault in two sizes
    assert len(pairs) == 2 * (1 + 2 * 2)
    whole = [pair for pair in pairs if pair["case"] == cooled.name and pair["setting"] == "float32"]
    # a temperature moves no token and no direction
    assert {pair["scores"]["tokens that differ"] for pair in whole} == {0.0}
    assert max(pair["scores"]["cosine"] for pair in whole) < 1e-6
    bench = power.Bench("llama", "float32", 11)
    assert bench.size(moved.of_share(1.0))[1] == PREFIX
    least = next(bench.strengths(cooled))
    assert bench.size(cooled.of_share(least))[0] == pytest.approx(2, rel=0.01)


@pytest.mark.model
def test_accused_pairs_are_counted_and_sound_ones_are_not(tmp_path, monkeypatch, capsys):
    hot = Mutation("half the logits", lambda model, ids: prefill(model, ids) / 2)
    chunks = next(case for case in sound.VARIATIONS if case.name == "chunks of 1, 2, 3 ... tokens")
    monkeypatch.setattr(sound, "VARIATIONS", [hot, chunks])
    monkeypatch.setattr(sound, "families", lambda: ["llama"])
    monkeypatch.setattr(sound, "_CASES", 2)
    monkeypatch.setattr(sound, "_TOKENS", (40, 41))
    results = tmp_path / "results.jsonl"
    monkeypatch.setattr("sys.argv", f"sound --results {results} --seeds 5 5".split())
    sound.main()
    sound.main()  # nothing is run again
    outcomes = read_lines(results)
    accused = [each["case"] for each in outcomes if each["is_accused"]]
    # arrays and lists of twelve prompts, chosen tokens of three groups
    assert accused == [hot.name] * (12 + 12 + 3)
    assert {each["case"] for each in outcomes} == {hot.name, chunks.name}
    assert "| arrays, dense | 24 | 12 |" in capsys.readouterr().out


@pytest.mark.thorough
@pytest.mark.model
@pytest.mark.parametrize("family", ["gpt2", "qwen2"])
def test_a_tiny_family_has_a_vocabulary_that_an_engine_converts(family):
    assert list(cells(tiny_family(family), ["ct2:prefill"])) == [("right", "")]
