"""Judge paths and callables on a model: missing controls, reruns, and the model as it was
afterwards.
"""

import pytest
import torch

from benchmarks.verdicts.engines import prefill
from benchmarks.verdicts.mutations import scaled_value
from benchmarks.verdicts.tiny_models import tiny_model, tiny_prompts
from core.checks.drawn import DRAWN
from core.checks.modules_alone import ALONE
from core.checks.other_rows import OTHER_ROW
from core.errors import CaptureError, UsageError
from core.evidence import (
    FAILED,
    FLOAT32,
    MISSING,
    NEIGHBOURS,
    OWN_DTYPE,
    PASSED,
    RERUN,
    STRUCTURE,
)
from core.inference.controls.judge_model import judge
from tests.core.evidence import rows_of
from tests.core.inference.sameness import logits_of
from tests.covering import few

PROMPT = tuple(range(5, 29))


def rows(verdict):
    """The last row of each group."""
    return {row.group: row for row in verdict.evidence}


@pytest.mark.model
def test_a_bare_model_and_a_callable_are_enough(small):
    seen = []
    prompt = torch.tensor(PROMPT)

    def engine(model, ids):
        seen.append((ids.ndim, ids.dtype, tuple(ids.tolist())))
        return prefill(model, ids)

    verdict = judge(small.model, [prompt], variant=engine)
    assert verdict.name == "identical"
    assert set(seen) == {(1, torch.int64, PROMPT)}
    # a tensor of prompts, as a tokenizer returns it
    assert judge(small.model, prompt[None], variant="decode").name == "rounding"
    assert judge(small.model, [prompt], variant=scaled_value(1.01)).name == "bug suspected"
    verdict = judge(small.model, [prompt], reference=scaled_value(1.01), variant="prefill")
    assert verdict.is_bug_suspected


VARIANT = "decode+batch:2+neighbours:same"


@pytest.mark.model
def test_groups_and_figures_of_rounding(narrow):
    steps = []
    verdict = judge(
        narrow,
        [PROMPT, PROMPT[:9]],
        reference="prefill",
        variant=VARIANT,
        on_progress=steps.append,
    )
    sides = [
        torch.cat([logits_of(path, narrow, list(ids)) for ids in (PROMPT, PROMPT[:9])])
        for path in ("prefill", VARIANT)
    ]
    # on some processors bfloat16 rounds all of it away
    is_equal = torch.equal(*sides)
    assert verdict.name == ("identical" if is_equal else "rounding")
    evidence = rows(verdict)
    drawn = [] if is_equal else [OWN_DTYPE]
    assert list(evidence) == [RERUN, NEIGHBOURS, OWN_DTYPE, FLOAT32]
    assert len(rows_of(verdict.evidence, DRAWN)) == len(drawn)
    assert {row.outcome for row in verdict.evidence} == {PASSED}
    assert verdict.noise_ratio == evidence[FLOAT32].figures.noise_ratio
    assert verdict.first_place is None
    assert [floor.compute_dtype for floor in verdict.floors] == ["bfloat16", "float32"]
    assert {len(floor.pair_rms) for floor in verdict.floors} == {len(PROMPT) + 9}
    assert steps[0] == "both sides in bfloat16"


@pytest.mark.model
def test_a_fault_is_placed_in_its_prompt_and_position(small):
    def engine(model, ids):
        logits = prefill(model, ids).clone()
        if len(ids) == len(PROMPT):
            logits[17, 3] += 0.01
        return logits

    verdict = judge(small, [PROMPT[:9], PROMPT], reference="prefill", variant=engine)
    assert verdict.is_bug_suspected
    assert verdict.first_place == (1, 17)
    places = rows(verdict)[STRUCTURE]
    (modules,) = rows_of(verdict.evidence, ALONE)
    assert places.figures.positions == 1
    assert "position 17 of prompt 1" in places.says
    assert modules.says.endswith("or in the head.")


@pytest.mark.model
@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        float("-inf"),
    ],
)
def test_one_logit_that_is_not_finite_is_a_bug_without_a_tokenizer_too(value, small):
    def engine(model, ids):
        logits = prefill(model, ids).clone()
        logits[3, 7] = value
        return logits

    verdict = judge(small.model, [PROMPT], variant=engine)
    assert verdict.is_bug_suspected
    assert "at position 3, token 7" in verdict.because
    assert verdict.first_place == (0, 3)
    assert verdict.noise_ratio is None
    figures = rows(verdict)[FLOAT32].figures
    assert figures.nonfinite_mismatch == 1
    assert figures.first_nonfinite == (0, 3, 7)
    assert figures.noise_ratio is None
    assert figures.worst_position_ratio is None


@pytest.mark.parametrize(
    ("engine", "sentence"),
    [
        (
            lambda model, ids: prefill(model, ids)[None],
            r"gave \[1, 24, 384\]; expected logits \[24, vocab\]",
        ),
        (
            lambda model, ids: prefill(model, ids).tolist(),
            r"gave list; expected logits \[24, vocab\]",
        ),
        (
            lambda model, ids: prefill(model, ids)[:, :10],
            "gave logits of 10 tokens, 'prefill' of 384",
        ),
        (
            lambda model, ids: 1 / 0,
            "'<lambda>' failed in float32: ZeroDivisionError: division by zero",
        ),
    ],
)
def test_an_engine_that_gives_no_logits_is_refused_in_a_sentence(
    engine,
    sentence,
    small,
):
    with pytest.raises(CaptureError, match=sentence):
        judge(small, [PROMPT], reference="prefill", variant=engine)


@pytest.mark.parametrize(
    ("prompts", "sentence"),
    [
        ([], "a divergence is measured over at least one prompt; none was given."),
        ([PROMPT, ()], "prompt 2 of 2 is empty; expected at least one token."),
        (
            [PROMPT * 5],
            "prompt 1 of 1 has 120 tokens; the model's context is 96. Shorten the prompt.",
        ),
    ],
)
def test_what_cannot_be_judged_is_refused_first(prompts, sentence, small):
    with pytest.raises(CaptureError) as caught:
        judge(small, prompts, reference="prefill", variant="decode")
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("model", "prompt"),
    [
        ("smollm2", PROMPT),
        (None, "def f("),
    ],
)
def test_names_and_texts_are_for_the_command(model, prompt, small):
    with pytest.raises(UsageError, match="takes a model and token ids"):
        judge(model or small, [prompt], variant="decode")


def only_in_bfloat16(model, ids):
    if model.dtype != torch.bfloat16:
        raise RuntimeError("this kernel takes bfloat16\nand nothing else")
    logits = prefill(model, ids).clone()
    logits[2] += 0.01
    return logits


@pytest.mark.model
def test_an_engine_without_float32_is_compared_with_roundings_drawn_anew(
    narrow,
    judged,
):
    verdict = judged(narrow, [PROMPT], "prefill", only_in_bfloat16)
    assert verdict.name == "rounding"
    row = rows(verdict)[FLOAT32]
    assert row.outcome == MISSING
    assert "kernel takes bfloat16" in row.says
    assert {row.outcome for row in rows_of(verdict.evidence, OWN_DTYPE)} == {PASSED}
    assert verdict.because == rows_of(verdict.evidence, DRAWN)[0].says
    verdict = judged(
        narrow,
        [PROMPT],
        "prefill",
        lambda *given: only_in_bfloat16(*given).roll(1, 0),
    )
    assert verdict.name == "bug suspected"
    assert rows(verdict)[OWN_DTYPE].outcome == FAILED


@pytest.mark.model
@pytest.mark.parametrize(
    "variant",
    few(
        ["decode+batch:8", "prefill+batch:3+row:1", "prefill+batch:2+pad:left:3"],
        "prefill+batch:2+pad:left:3",
    ),
)
def test_the_prompt_in_another_row_is_rounding(variant, small):
    verdict = judge(small, [PROMPT], reference="prefill", variant=variant)
    assert verdict.name in ("rounding", "identical")
    (row,) = rows_of(verdict.evidence, OTHER_ROW)
    assert row.outcome == PASSED


def freed_buffer(logits):
    """One logit that something else wrote over."""
    logits[7, 3] += 12.6


def last_bits(logits):
    """Every logit one ULP off."""
    logits.view(torch.int16 if logits.itemsize == 2 else torch.int32).bitwise_xor_(1)


def at_every_other_call(change, dtype):
    """Logits of the model; every other call of a prompt in `dtype` changes them."""
    calls = {}

    def engine(model, ids):
        logits = prefill(model, ids).clone()
        key = tuple(ids.tolist())
        if model.dtype == dtype:
            calls[key] = calls.get(key, 0) + 1
            if not calls[key] % 2:
                change(logits)
        return logits

    return engine


@pytest.mark.model
@pytest.mark.parametrize(
    ("change", "is_fault"),
    [
        (freed_buffer, True),
        (last_bits, False),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_rerun_is_nondeterministic_within_the_noise_floor_and_a_bug_beyond_it(
    dtype,
    change,
    is_fault,
):
    loaded = tiny_model("llama", dtype)
    engine = at_every_other_call(change, loaded.torch_dtype)
    verdict = judge(loaded, tiny_prompts(loaded), reference="prefill", variant=engine)
    row = rows_of(verdict.evidence, RERUN)[0]
    assert verdict.name == ("bug suspected" if is_fault else "nondeterministic")
    assert row.figures.beyond_noise_floor is is_fault
    if is_fault:
        assert row.figures.rerun_worst_position_ratio > row.figures.largest_ratio_allowed
        assert "position 7" in row.says
    else:
        assert 0 < row.figures.rerun_noise_ratio < 2
