"""The verdict on trial: every injected bug is called one, every lower precision is named, and no other way to compute
the same function is (benchmarks/verdicts/trial.py).

`make test` takes a fifth of the cases on one tiny model, `make thorough` all on two, a router of near ties among
them. Every model of the trial, in both dtypes, takes half an hour: `python -m benchmarks.verdicts.trial` prints its
table, and ULPSCOPE_WHOLE_TRIAL=1 has these tests run it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from benchmarks.verdicts.engines import prefill
from benchmarks.verdicts.mutations import MUTATIONS
from benchmarks.verdicts.tiny_models import CONFIGS, tiny_model, tiny_prompts
from benchmarks.verdicts.trial import (
    IN_BFLOAT16,
    MODELS,
    SHIPPED,
    Trial,
    cases_of,
    line_of,
    model_named,
    run_trial,
    try_case,
)
from core.inference.models.dtypes import in_float64
from core.runs.file.evidence import NEIGHBOURS, SAMPLER
from tests.covering import few, thorough

QUICK = ("gpt2", "mixtral-ties")
SHIPPED_MODEL = Path(__file__).parents[4] / "sample_runs" / "model" / "config.json"


def _wrong(trials: list[Trial]) -> list[str]:
    return [
        f"{trial.model}: {trial.case}: {trial.verdict}: {trial.because}"
        for trial in trials
        if trial.verdict and not trial.is_right
    ]


PLANTED = {case.name: case for case in MUTATIONS if case.module is not None}
QUICKLY_PLANTED = (("llama", "keys of two groups swapped in one layer"), ("mistral-window", "window one token short"))


@pytest.mark.model
@pytest.mark.parametrize(
    ("name", "case"),
    [
        *QUICKLY_PLANTED,
        *thorough(
            (name, case)
            for name in ("llama", "gpt2", "gemma2", "mistral-window", "mixtral", *IN_BFLOAT16[:1])
            for case in PLANTED
            if (name, case) not in QUICKLY_PLANTED
        ),
    ],
)
def test_a_fault_planted_in_one_place_is_caught_and_named_there(name: str, case: str) -> None:
    loaded, prompts = model_named(name)
    if not PLANTED[case].applies(loaded):
        pytest.skip("the model has no such part")
    trial = try_case(PLANTED[case], name, loaded, prompts[:1])
    assert trial.is_right, line_of(trial)
    assert trial.module == PLANTED[case].module(loaded.model)
    if PLANTED[case].position is not None:
        assert trial.position == PLANTED[case].position(loaded.model)


NAMED = (
    "sampler ignores temperature 0",
    "sums in another order at every call",
    "prefill",
    "a neighbour's row leaks through a shared buffer",
)


@pytest.mark.thorough
@pytest.mark.model
@pytest.mark.parametrize(
    ("name", "prompts", "step"), [("gpt2", 1, 5), *thorough([("gpt2", 1, 1), *((each, None, 1) for each in QUICK)])]
)
def test_every_bug_is_called_one_and_nothing_else_is(name: str, prompts: int | None, step: int) -> None:
    """Or every so many of the cases, and those that are named below."""
    wanted = {case.name for case in cases_of(tiny_model(name))[::step]} | set(NAMED)
    trials = run_trial([name], most_prompts=prompts, wanted=lambda case: case.name in wanted)
    assert _wrong(trials) == []
    refused = [trial.case for trial in trials if trial.verdict is None]
    assert refused == (["prefill+sdpa:math"] if name == "gemma2" else [])  # it has eager attention only
    decided = {trial.case: trial for trial in trials}
    assert decided["sampler ignores temperature 0"].rung == SAMPLER
    assert decided["sums in another order at every call"].verdict == "nondeterministic"
    assert decided["prefill"].verdict == "identical"
    leak = decided["a neighbour's row leaks through a shared buffer"]
    assert leak.rung == NEIGHBOURS


@pytest.mark.model
@pytest.mark.skipif(
    not os.environ.get("ULPSCOPE_WHOLE_TRIAL"), reason="takes half an hour; ULPSCOPE_WHOLE_TRIAL=1 runs it"
)
@pytest.mark.parametrize("name", [name for name in MODELS if name not in QUICK])
def test_it_holds_on_every_model_of_the_trial(name: str) -> None:
    if name in SHIPPED and not SHIPPED_MODEL.is_file():
        pytest.skip("sample_runs/model is not built")
    assert _wrong(run_trial([name])) == []


@pytest.mark.spread(1)
@pytest.mark.model
@pytest.mark.parametrize(
    "case",
    [case for case in MUTATIONS if case.name in ("fp8 cache", "left padding not masked")],
    ids=lambda case: case.name,
)
def test_a_bug_is_caught_and_a_precision_named_in_bfloat16_too(case) -> None:
    name = IN_BFLOAT16[0]
    loaded, prompts = model_named(name)
    trial = try_case(case, name, loaded, prompts)
    assert trial.is_right
    assert trial.own_ratio is not None


@pytest.mark.spread(1)
@pytest.mark.model
@pytest.mark.parametrize("name", few(CONFIGS, "gpt2", "llama"))
def test_mutations_that_change_the_function_do_change_it_in_float64(name: str) -> None:
    """By a plain comparison that knows nothing of floors: the trial must not count a mutation that mutates nothing."""
    loaded = tiny_model(name)
    ids = torch.tensor(tiny_prompts(loaded)[0])
    with torch.inference_mode(), in_float64(loaded) as wide:
        model = wide.model
        exact = prefill(model, ids)
        for case in MUTATIONS:
            if case.engine is None or case.sample is not None or not case.applies(loaded):
                continue
            apart = float((case.engine(model, ids) - exact).abs().nan_to_num(torch.inf).max())
            assert (apart > 1e-5) is case.changes(loaded), (case.name, apart)
