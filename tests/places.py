"""Where the clone is that is under test."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
