"""Bounds of a run: how many sides, rows and texts there can be, of a dump as of a run file.

They are far from what is real and near enough that a small file cannot cost much: compressed, a million equal rows or
texts take a few bytes of a file, and some hundred megabytes of the process that reads them.
"""

from __future__ import annotations

# A sweep over every batch size from 1 to 256 with its reference is 257 sides; six repeats of 80 variants are 480.
# Besides its logits a side costs 7 ms to import and 10 KB of disk, a pair as much again on pages that list all pairs.
MAX_SIDES = 512
MAX_VOCAB = 1 << 22  # 15 times the largest vocabulary in use
MAX_ROWS = 1 << 20  # positions of all prompts together, of whole rows; a longer run of lists is read in parts only
MAX_LISTED_ROWS = 32 * MAX_ROWS  # positions of lists of two sides

# Characters of a token's text. The longest tokens in use are 128 spaces (of Llama 3 and GPT-4o) or some words of a chat
# template between brackets; as `<0xE2>` for each byte, a token has six times its bytes.
LONGEST_TOKEN = 1024
TOKENS_TOGETHER = 16 << 20  # of all tokens of a run: 16 each at MAX_ROWS. Four are usual, nine in Chinese or Hindi.
LONGEST_NAME = 1000  # of a run
LONGEST_SIDE_NAME = 800
LONGEST_NOTE = 1 << 20
