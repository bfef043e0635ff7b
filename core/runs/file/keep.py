"""Stored logits of a run: all or none. Figures are always of all logits.

Of 512 positions of 128,256 tokens in bfloat16, two sides of 263 MB: 298 MB with all, 0.7 MB with
figures.
"""

from .records import FIGURES, RunHeader

# Bytes of a run file without its logits: per position of a side, and per run. Files of random
# bfloat16 logits, 40 to 4,096 positions, 1,000 to 128,256 tokens, 2 and 5 sides, took 0.4 to 0.9 of
# that; one of float32 1.5, for there are as many ULP distances in its histogram.
_BYTES_OF_A_ROW = 900
_BYTES_OF_A_RUN = 400_000


def note_of(header: RunHeader) -> str:
    """Note on what the figures of a run are over; empty if all logits are there."""
    if not header.is_list:
        return "Kept: figures only, no logits." if header.keep == FIGURES else ""
    if header.k == 1:
        return "One log-probability per position: figures cover those that both sides have."
    return (
        f"A server sent the log-probabilities of its top {header.k:,} tokens per position: figures"
        " cover the values that both sides sent."
    )


def refusal(header: RunHeader) -> str:
    """Sentence on why the run has no logits."""
    if not header.is_list:
        return "this run keeps figures only, no logits; capture it again with --keep all."
    return "this run has log-probabilities of some tokens only."


def expected_bytes(keep: str, sides: int, rows: int, side_bytes: int) -> int:
    """Bytes of a run file, about. side_bytes: of one side's logits."""
    if keep == FIGURES:
        return _BYTES_OF_A_RUN + sides * rows * _BYTES_OF_A_ROW
    return sides * side_bytes
