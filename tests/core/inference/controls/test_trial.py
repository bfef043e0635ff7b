"""The verdict on trial: every injected bug is called one, every lower precision is named, and no
other way to compute the same function is (benchmarks/verdicts/trial.py).

`make thorough` takes all cases on two tiny models, a router of near ties among them. Every model of
the trial, in both dtypes, takes half an hour: `python -m benchmarks.verdicts.trial`.
"""

import pytest
import torch

from benchmarks.verdicts.engines import prefill
from benchmarks.verdicts.kinds import KINDS
from benchmarks.verdicts.mutations import MUTATIONS
from benchmarks.verdicts.tiny_models import CONFIGS, tiny_model, tiny_prompts
from benchmarks.verdicts.trial import (
    IN_BFLOAT16,
    MODELS,
    REFUSED,
    Trial,
    cases_of,
    differences,
    line_of,
    model_named,
    read_line,
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
    wanted = {case.name for case in cases_of(tiny_model(name))[::step]} | set(NAMED)
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
            apart = float((case.engine(model, ids) - exact).abs().nan_to_num(torch.inf).max())
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


OLD = """\
ok    llama             prefix hash collision: a block of another prompt    bug suspected 5e5, 1e6                      model.layers.0.self_attn at 16      
ok    llama             int8 cache                                          lower precision 9e3, 2e4                                                        
ok    llama             sums in another order at every call                 nondeterministic 0.99, 1.65                                                     
ok    mistral-window bfloat16one cached value of one head x 1.01                 bug suspected 9.0, 9e3                      model.layers.0.self_attn at 16      
""".splitlines()  # noqa: E501, W291


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("verdict", "module", "position"),
    [("bug suspected", "a.very.long.module.of.a.model.with.a.name", 8), ("rounding", "", None)],
)
def test_a_printed_line_is_read_back(model, verdict, module, position):
    trial = Trial(
        model,
        "a case",
        (verdict,),
        verdict,
        "",
        37.0,
        51.0,
        module=module,
        position=position,
    )
    key, line = read_line(line_of(trial))
    assert key == (model, "a case")
    assert line.verdict == verdict
    assert line.ratio == 37
    assert line.place == (f"{module} at {position}" if module else "")


@pytest.mark.parametrize(
    ("number", "old", "new", "grave"),
    [
        (0, "bug suspected 5e5", "rounding 1", True),
        (3, "bug suspected 9.0", "rounding 1", False),  # below ten floors
        (0, "at 16", "at 17", False),
        (2, "nondeterministic 0.99", "bug suspected 5", True),
        (1, "lower precision", "bug suspected", False),
    ],
)
def test_what_differs_from_an_earlier_output_is_listed(number, old, new, grave):
    line = OLD[number].replace(old, new.ljust(len(old)))
    if number == 2:
        line = line.replace("ok   ", "WRONG", 1)
    lines, is_grave = differences(OLD, [*OLD[:number], line, *OLD[number + 1 :]])
    assert len(lines) == 2
    assert is_grave is grave
    assert differences(OLD, OLD) == (["0 of 4 cases differ"], False)
