"""Fixtures of the plugin: a sound result passes, and a failed test shows the figures."""

import os
import re
import subprocess
import sys

import numpy as np

from tests.places import ROOT

TESTS = """
import numpy as np
import torch

exact = np.random.default_rng(0).standard_normal((64, 64))

def test_sound(compare_errors):
    compare_errors(exact.astype(np.float16), None, exact).check()

def test_scaled(compare_errors):
    scaled = exact * np.float32(1.01)
    assert compare_errors(scaled, None, exact, dtype="float16").verdict == "rounding"

def test_operation(judge_op):
    x = torch.ones(64, 64).bfloat16()
    assert judge_op(lambda x: x.exp() * 1.1, torch.exp, x).verdict == "rounding"

def test_dumps(compare):
    assert compare("a.npy", "b.npy", fail_on="flips").outcome == "passed"
"""


def test_a_failed_test_shows_the_evidence_of_its_fixtures(tmp_path):
    (tmp_path / "test_mine.py").write_text(TESTS)
    for name, sign in (("a", 1), ("b", -1)):
        logits = np.arange(64, dtype=np.float32).reshape(4, 16)
        np.save(tmp_path / f"{name}.npy", sign * logits)
    command = [sys.executable, "-m", "pytest", "-p", "core.pytest_plugin", "-p", "no:ulpscope"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-q", "test_mine.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert "3 failed, 1 passed" in done.stdout, done.stdout
    scaled, operation, dumps = re.split("-+ evidence -+", done.stdout)[1:]
    assert "bug suspected: errors are" in scaled
    assert "output: bug suspected" in operation
    assert "flips" in dumps
    assert "GateReport(" not in dumps.split("short test summary")[0]
