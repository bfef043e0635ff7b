"""Bounds of a run: how many sides, rows and texts there can be, of a dump as of a run file.

They are far from what is real and near enough that a small file cannot cost much: compressed, a million equal rows or
texts take a few bytes of a file, and some hundred megabytes of the process that reads them.
"""

from __future__ import annotations

# A sweep over every batch size from 1 to 256 with its reference is 257 sides; six repeats of 80 variants are 480.
# Beside its logits a side costs 7 ms to take in and 10 KB of disk, a pair as much again on pages that list all pairs.
MAX_SIDES = 512
MAX_VOCAB = 1 << 22  # 15 times the largest vocabulary in use
MAX_ROWS = 1 << 20  # positions of all prompts together

# Bytes of UTF-8 of a token's text. The longest tokens in use are 128 spaces (of Llama 3 and GPT-4o) or some words of a
# chat template between brackets; as `<0xE2>` for each byte, a token has six times its bytes.
LONGEST_TOKEN = 1024
# Of all tokens of a run: 16 each at MAX_ROWS. Four are usual, nine in Chinese or Hindi.
TOKENS_TOGETHER = 16 << 20
VOCABULARY_TOGETHER = 64 << 20  # 16 each at MAX_VOCAB; the 262,144 of Gemma 3 take 2.3 MB
LONGEST_NAME = 1000  # of a run
LONGEST_SIDE_NAME = 800  # the 200 characters that a key of a dump may have
LONGEST_NOTE = 1 << 20
LONGEST_TEXT = 4096  # of anything else, where nothing is said below

# (table, column) -> bytes of one text.
LONGEST = {
    ("run", "name"): LONGEST_NAME,
    ("run", "command"): 1 << 20,
    ("run", "note"): LONGEST_NOTE,
    ("run", "request"): 8 << 20,  # with prompts
    ("run", "versions"): 1 << 16,
    ("side", "name"): LONGEST_SIDE_NAME,
    ("token", "text"): LONGEST_TOKEN,
    ("vocabulary", "text"): LONGEST_TOKEN,
    ("evidence", "figures"): 1 << 20,
    ("evidence", "says"): 1 << 16,
    ("pair", "because"): 1 << 16,
    ("generation", "text"): 16 << 20,
    ("op", "batch_classes"): 1 << 20,
    ("op", "row_positions"): 16 << 20,
    ("op", "modules"): 1 << 16,
    ("kernel", "detail"): 1 << 16,
    ("response", "text"): 16 << 20,
    ("response", "tokens"): 16 << 20,
    ("response", "warnings"): 1 << 16,
}


def longest(table: str, column: str) -> int:
    """Bytes that a text of this column may have."""
    return LONGEST.get((table, column), LONGEST_TEXT)


# Table -> bytes of its texts together. Of tables that are read a pair at a time all pairs count.
TOGETHER = {
    "run": 12 << 20,
    "side": 4 << 20,
    "pair": 4 << 20,  # of which a pair takes some 300 bytes
    "token": TOKENS_TOGETHER,
    "vocabulary": VOCABULARY_TOGETHER,
    "generation": 16 << 20,  # as the tokens of prompts
    "evidence": 64 << 20,  # 20 rows a pair of 500 bytes take 5 MB at MAX_SIDES
    "remedy": 16 << 20,
    "price": 16 << 20,
    # 60 bytes a row on a CPU, some 250 where names are CUDA's; a large model has 2,000 rows a side.
    "kernel": 128 << 20,
    "op": 64 << 20,
    "response": 128 << 20,
}
TOGETHER_ELSEWHERE = 256 << 20
# Table -> rows.
MOST_ROWS = {
    "run": 1,
    "prompt": MAX_ROWS,
    "token": MAX_ROWS,
    "vocabulary": MAX_VOCAB,
    "side": MAX_SIDES,
    "pair": MAX_SIDES - 1,
    "generation": MAX_ROWS,
    "generated_token": 2 * MAX_ROWS,
    "evidence": 1 << 18,
    "floor_position": 16 * MAX_ROWS,
    "kv": 4 * MAX_ROWS,
    "kv_position": 64 * MAX_ROWS,
    "layer": 4 * MAX_ROWS,
    "layer_position": 64 * MAX_ROWS,
    "op": 1 << 17,
    "kernel": MAX_ROWS,
    "kernel_side": MAX_SIDES,
    "remedy": 1 << 17,
    "price": 1 << 17,
    "response": MAX_ROWS,
}
