"""Where the clone is that is under test."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT / "tests" / "cases"
RUNS = ROOT / "tests" / "runs"
MODEL = ROOT / "sample_runs" / "model"
