"""The scripts that need a GPU, or minutes, run here with small shapes: their figures are not
checked, that they come is.
"""

import json
import subprocess
import sys

import pytest

from benchmarks.__main__ import ALL, module_of
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
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 1 + 2 + 3 + 6
    assert {line["reference"] for line in lines} == {"prefill", "decode"}
    assert all(line["overhead"] > 0 and line["positions"] == 40 for line in lines)
