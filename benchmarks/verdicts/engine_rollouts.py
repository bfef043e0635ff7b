"""Causes on trial in rollouts that llama.cpp and vLLM sampled from SmolLM2 (docs/guides/rl.md).

python -m benchmarks.verdicts.engine_rollouts                   # causes that the tokens show
python -m benchmarks.verdicts.engine_rollouts --model smollm2   # and those that need the checkpoint
"""

from __future__ import annotations

import argparse
from itertools import groupby

from tests.core.rl.engine_rollouts import CLEAN, cause_of, planted, sampled


def main() -> int:
    """Print the table, then the cases that are not as expected; exit code 1 if a clean pair has a
    cause.
    """
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", help="the checkpoint, as smollm2")
    model = parser.parse_args().model
    notes, wrong_on_clean = [], 0
    print("| cause | strengths | right | other | none |\n|---|---|---|---|---|")
    for cause, group in groupby([*sampled(), *planted()], key=lambda case: case.cause):
        cases = [case for case in group if model or not case.needs_model]
        counts = {"right": 0, "other": 0, "none": 0}
        for case in cases:
            name, says = cause_of(case, model if case.needs_model or cause == CLEAN else None)
            if not name:
                counts["none"] += 1
            elif name in case.expected:
                counts["right"] += 1
            else:
                counts["other"] += 1
            if name not in (case.expected or ("",)):
                notes.append(f"{cause}, {case.strength}: {says or 'no cause'}")
        strengths = (
            f"{len(cases)} pairs" if cause == CLEAN else ", ".join(case.strength for case in cases)
        )
        if cases:
            print(
                f"| {cause} | {strengths} | {counts['right']} | {counts['other']} |"
                f" {counts['none']} |",
                flush=True,
            )
        wrong_on_clean += counts["other"] if cause == CLEAN else 0
    print("\n" + "\n".join(notes))
    return int(wrong_on_clean > 0)


if __name__ == "__main__":
    raise SystemExit(main())
