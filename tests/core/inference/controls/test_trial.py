"""The verdict on trial: every injected bug is called one, every lower precision is named, and no
other way to compute the same function is (benchmarks/verdicts/trial.py).

`make thorough` takes all cases on two tiny models, a router of near ties among them. Every model of
the trial, in both dtypes, takes half an hour: `python -m benchmarks.verdicts.trial`.
"""

from dataclasses import replace

import pytest
import torch

from benchmarks.verdicts.engines import prefill
from benchmarks.verdicts.kinds import KINDS
from benchmarks.verdicts.mutations import FAULTS, HARMLESS, MUTATIONS
from benchmarks.verdicts.tiny_models import CONFIGS, tiny_model, tiny_prompts
from benchmarks.verdicts.trial import (
    IN_BFLOAT16,
    REFUSED,
    Trial,
    cases_of,
    differences,
    line_of,
    model_named,
    run_trial,
    try_case,
)
from core.evidence import NEIGHBOURS, SAMPLER
from core.inference.models.dtypes import in_float64
from tests.covering import few, thorough

QUICK = ("gpt2", "mixtral")


CASES = {case.name: case for case in (*MUTATIONS, *KINDS)}
PLANTED = [case.name for case in MUTATIONS if case.module is not None]
QUICKLY_PLANTED = (
    ("llama", "keys of two groups swapped in one layer"),
    ("mistral-window", "window one token short"),
    ("gpt2", "rows late from 21 on"),
    (IN_BFLOAT16[0], "left padding not masked"),
)


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
        *thorough([("gpt2", "TF32 by truncation, a future key"), (IN_BFLOAT16[0], "fp8 cache")]),
    ],
)
def test_a_fault_is_caught_and_named_where_it_was_planted(name, case):
    loaded, prompts = model_named(name)
    if not CASES[case].applies(loaded):
        pytest.skip("the model has no such part")
    trial = try_case(CASES[case], name, loaded, prompts[:1])
    assert trial.is_right, line_of(trial)


NAMED = (
    "sampler ignores temperature 0",
    "sums in another order at every call",
    "prefill",
    "a neighbour's row leaks through a shared buffer",
)


@pytest.mark.thorough
@pytest.mark.model
@pytest.mark.parametrize(
    ("name", "prompts", "step"),
    [("gpt2", 1, 5), *thorough([("gpt2", 1, 1), *((each, None, 1) for each in QUICK)])],
)
def test_every_bug_is_called_one_and_nothing_else_is(name, prompts, step):
    """Or every so many of the cases, and those that are named below."""
    cases = cases_of(tiny_model(name))[::step]
    wanted = {case.name for case in cases} | set(NAMED)
    trials = run_trial([name], most_prompts=prompts, selects=lambda case: case.name in wanted)
    assert [line_of(trial) for trial in trials if trial.is_wrong] == []
    refused = [trial.case for trial in trials if trial.verdict == REFUSED]
    # it has eager attention only
    assert refused == (["prefill+sdpa:math"] if name == "gemma2" else [])
    decided = {trial.case: trial for trial in trials}
    assert SAMPLER in decided["sampler ignores temperature 0"].failed
    assert decided["sums in another order at every call"].verdict == "nondeterministic"
    assert decided["prefill"].verdict == "identical"
    assert NEIGHBOURS in decided["a neighbour's row leaks through a shared buffer"].failed


@pytest.mark.spread(1)
@pytest.mark.model
@pytest.mark.parametrize("name", few(CONFIGS, "gpt2", "llama"))
def test_mutations_that_change_the_function_do_change_it_in_float64(name):
    """By a plain comparison that knows nothing of floors: the trial must not count a mutation that
    mutates nothing.
    """
    loaded = tiny_model(name)
    ids = torch.tensor(tiny_prompts(loaded)[0])
    with torch.inference_mode(), in_float64(loaded) as wide:
        model = wide.model
        exact = prefill(model, ids)
        for case in MUTATIONS:
            if case.engine is None or case.sample is not None or not case.applies(loaded):
                continue
            distances = (case.engine(model, ids) - exact).abs()
            apart = float(distances.nan_to_num(torch.inf).max())
            assert (apart > 1e-5) is case.changes(loaded), (case.name, apart)


@pytest.mark.spread(2)
@pytest.mark.model
@pytest.mark.parametrize(
    "name",
    few(
        [
            case.name
            for case in KINDS
            if not case.changes(tiny_model("gpt2")) and case.applies(tiny_model("gpt2"))
        ],
        "partial sums in float32",
        "products of three bfloat16 parts",
    ),
)
def test_a_harmless_twin_is_rounding_in_few_words(name):
    loaded, prompts = model_named("gpt2")
    trial = try_case(CASES[name], "gpt2", loaded, prompts[:1], is_strict=True)
    assert trial.is_right, line_of(trial)


OLD = (
    Trial("llama", "a block of another prompt", FAULTS, "bug suspected", "", 5e5, position=16),
    Trial("llama", "int8 cache", ("lower precision",), "lower precision", "", 9e3, 2e4),
    Trial("llama", "sums in another order", HARMLESS, "nondeterministic", "", 0.99, 1.65),
    Trial("mistral-window bfloat16", "one value x 1.01", FAULTS, "bug suspected", "", 9.0, 9e3),
    Trial("gpt2", "decode", HARMLESS, "identical", ""),
)


@pytest.mark.parametrize(
    ("number", "change", "grave"),
    [
        (0, {"verdict": "rounding", "noise_ratio": 1.0}, True),
        (3, {"verdict": "rounding", "noise_ratio": 1.0}, False),  # below ten floors
        (0, {"position": 17}, False),
        (2, {"verdict": "bug suspected", "noise_ratio": 5.0}, True),
        (4, {"verdict": "bug suspected"}, True),
        (1, {"verdict": "bug suspected"}, False),
    ],
)
def test_what_differs_from_an_earlier_output_is_listed(number, change, grave):
    old = [line_of(trial) for trial in OLD]
    new = [line_of(replace(each, **change) if each is OLD[number] else each) for each in OLD]
    lines, is_grave = differences(old, new)
    assert len(lines) == 2
    assert OLD[number].case in lines[0]
    assert is_grave is grave
    assert differences(old, ["all else", *old]) == (["0 of 5 cases differ"], False)
