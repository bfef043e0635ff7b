"""Print the verdicts over the paths of judged_paths.json, as JSON. Run with the portable kernels of
test_golden.py.
"""

import json
from pathlib import Path

import torch

from benchmarks.verdicts.trial import cases_of, model_named, registered
from core.evidence import FAILED
from core.inference.controls.judge_model import JudgingSession, judge
from core.inference.models.torch_errors import quiet

PATHS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


def judge_paths(model, names):
    """Verdicts of the cases so named, over the first prompt of one model of the trial."""
    loaded, prompts = model_named(model)
    session = JudgingSession(loaded, prompts[:1])
    outputs = {}
    for case in (case for case in cases_of(loaded) if case.name in names):
        with registered(case):
            variant = case.path or case.engine
            assert variant is not None
            verdict = judge(
                loaded,
                prompts[:1],
                reference=case.reference,
                variant=variant,
                session=session,
            )
        outputs[case.name] = {
            "verdict": verdict.name,
            "ratio": verdict.noise_ratio,
            "first_place": None if verdict.first_place is None else list(verdict.first_place),
            "failed": [row.group for row in verdict.evidence if row.outcome == FAILED],
        }
    return outputs


if __name__ == "__main__":
    torch.set_num_threads(1)
    # oneDNN chooses its kernels by the processor
    torch.backends.mkldnn.enabled = False
    with quiet():
        print(json.dumps({model: judge_paths(model, names) for model, names in PATHS.items()}))
