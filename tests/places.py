"""Where the clone is that is under test."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT / "tests" / "cases"
ROLLOUTS = CASES / "rollouts"
RUNS = ROOT / "tests" / "runs"
MODEL = ROOT / "sample_runs" / "model"
# real answers of servers
PAYLOADS = ROOT / "tests" / "core" / "responses" / "payloads"
