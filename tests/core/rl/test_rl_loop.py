"""`MismatchMixin` in a real GRPO loop of TRL, `verl_metrics` on verl's batches: environments of
`make frameworks`.
"""

import json
import os
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.shell import ran

FRAMEWORKS = Path(os.environ.get("ULPSCOPE_FRAMEWORKS", ROOT / ".frameworks"))


def run_in(framework, script, *words):
    """The JSON that a script prints in the environment of a framework: by its path, as verl has a
    package `tests`.
    """
    python = FRAMEWORKS / framework / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no {framework} here: make frameworks")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TRL_EXPERIMENTAL_SILENCE": "1",
    }
    command = [python, "-P", f"tests/core/rl/{script}.py", *words]
    done = ran(command, cwd=ROOT, env=environment, timeout=1800)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.thorough
@pytest.mark.parametrize("version", ["1.13.0", "1.16.0"])
def test_a_temperature_is_named_at_the_step_at_which_it_begins(version):
    result = run_in(f"trl-{version}", "trl_loop", "3")
    assert [value < 0.05 for value in result["mean_abs"]] == [True, True, True, False, False]
    (warning,) = result["warnings"]
    assert warning.startswith("step 3: 'rollout' is sampled at a temperature of about 0.7")


@pytest.mark.thorough
def test_batches_of_verl_get_figures_over_the_tokens_of_the_loss():
    results = run_in("verl-0.9.1", "verl_batch")
    for result in results.values():
        assert result["metrics"]["training/rollout_probs_diff_valid"] == 1
        for name, value in result["torch"].items():
            assert result["metrics"][f"mismatch/{name}"] == pytest.approx(value, rel=1e-3)
    assert results["clean"]["warnings"] == results["attention mask"]["warnings"] == []
    (warning,) = results["nested"]["warnings"]
    assert warning.startswith("'rollout' is sampled at a temperature of about 0.7")
