"""Judging four variants of a capture over judging one, in one session, and each by itself as it was
before sessions.
"""

from __future__ import annotations

import torch

from benchmarks.timing import Line, interleaved
from core.inference.controls.judge_model import JudgingSession, judge
from core.inference.models.model import load_model

VARIANTS = ("decode", "prefill+batch:2", "prefill+batch:8", "chunked:16")
TOKENS = 32
ROUNDS = 3


def run() -> list[Line]:
    """Seconds and ratios for two prompts of 32 tokens on the shipped model in bfloat16, with all
    controls.
    """
    loaded = load_model("sample_runs/model", dtype="bfloat16", device="cpu")
    ids = torch.randint(
        2,
        loaded.vocab_size,
        (2, TOKENS),
        generator=torch.Generator().manual_seed(0),
    ).tolist()

    def judge_all(variants, *, is_one_session):
        session = JudgingSession(loaded, ids)
        for variant in variants:
            judge(
                loaded,
                ids,
                reference="prefill",
                variant=variant,
                session=session if is_one_session else None,
            )

    seconds = interleaved(
        {
            "one": lambda: judge_all(VARIANTS[:1], is_one_session=True),
            "four": lambda: judge_all(VARIANTS, is_one_session=True),
            "each alone": lambda: judge_all(VARIANTS, is_one_session=False),
        },
        ROUNDS,
    )
    one, four, alone = seconds["one"], seconds["four"], seconds["each alone"]
    return [
        Line(
            "judging four variants over judging one",
            "",
            f"{four / one:.2f} ({alone / one:.2f} each by itself)",
            f"{one:.1f} s for one, {four:.1f} s in one session, {alone:.1f} s each by itself;"
            f" medians of {ROUNDS}",
        ),
    ]
