"""`MismatchMixin` in a real GRPO loop of TRL, in environments of their own (`make frameworks`)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = Path(os.environ.get("ULPSCOPE_FRAMEWORKS", ROOT / ".frameworks"))


@pytest.mark.thorough
@pytest.mark.parametrize("version", ["1.13.0", "1.16.0"])
def test_a_temperature_is_named_at_the_step_at_which_it_begins(version):
    python = FRAMEWORKS / f"trl-{version}" / "bin" / "python"
    if not python.exists():
        pytest.skip("no TRL here: make frameworks")
    command = [python, "-m", "tests.core.trl_loop", "3"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRL_EXPERIMENTAL_SILENCE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert [value < 0.05 for value in result["mean_abs"]] == [True, True, True, False, False]
    (warning,) = result["warnings"]
    assert warning.startswith("step 3: 'rollout' is sampled at a temperature of about 0.7")
