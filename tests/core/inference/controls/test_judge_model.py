"""A judgement: callables and paths as sides, controls that are missing or cannot be run, and the model as it was
afterwards.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.verdicts.engines import prefill, replaced
from benchmarks.verdicts.mutations import scaled_value
from benchmarks.verdicts.tiny_models import tiny_model, tiny_prompts
from core.errors import CaptureError
from core.inference.controls import judge_model
from core.inference.controls.judge_model import judge
from core.inference.models.dtypes import in_float64
from core.inference.models.model import LoadedModel
from core.inference.paths.engines import digest_of
from core.runs.file.evidence import (
    FAILED,
    FLOAT32,
    MISSING,
    NEIGHBOURS,
    NOTED,
    OWN_DTYPE,
    PASSED,
    RERUN,
    STRUCTURE,
    Check,
    Evidence,
    OtherRowFigures,
    Verdict,
)
from tests.core.inference.paths.test_modifiers import state
from tests.core.inference.sameness import logits_of
from tests.covering import few

PROMPT = tuple(range(5, 29))


def rows(verdict: Verdict) -> dict[str, Evidence]:
    """The last row of each group."""
    return {row.group: row for row in verdict.evidence}


def alone(verdict: Verdict) -> Evidence:
    """The row on each module alone."""
    return next(row for row in verdict.evidence if row.check == Check.ALONE)


@pytest.fixture(scope="module")
def experts() -> LoadedModel:
    return tiny_model("mixtral-ties")


# Sides.


@pytest.mark.model
@pytest.mark.parametrize(
    "prompt",
    [
        pytest.param(list(PROMPT), id="a list", marks=pytest.mark.thorough),
        pytest.param(torch.tensor(PROMPT), id="a tensor"),
    ],
)
def test_a_bare_model_and_a_callable_are_enough(prompt: Any, small: LoadedModel) -> None:
    """Of the API in DESIGN section 6."""
    seen = []

    def engine(model: Any, ids: torch.Tensor) -> torch.Tensor:
        seen.append((ids.ndim, ids.dtype, tuple(ids.tolist())))
        return prefill(model, ids)

    verdict = judge(small.model, [prompt], variant=engine)
    assert verdict.name == "identical"
    assert set(seen) == {(1, torch.int64, PROMPT)}
    assert judge(small.model, [prompt], variant="decode").name == "rounding"
    assert judge(small.model, [prompt], variant=scaled_value(1.01)).name == "bug suspected"
    assert judge(small.model, [prompt], reference=scaled_value(1.01), variant="prefill").is_bug_suspected


VARIANT = "decode+batch:2+neighbours:same"


@pytest.mark.model
def test_groups_and_figures_of_rounding(narrow: LoadedModel) -> None:
    steps: list[str] = []
    verdict = judge(narrow, [PROMPT, PROMPT[:9]], reference="prefill", variant=VARIANT, on_progress=steps.append)
    sides = [
        torch.cat([logits_of(path, narrow, list(ids)) for ids in (PROMPT, PROMPT[:9])]) for path in ("prefill", VARIANT)
    ]
    assert verdict.name == (
        "identical" if torch.equal(*sides) else "rounding"
    )  # on some processors bfloat16 rounds all of it away
    evidence = rows(verdict)
    drawn = [] if verdict.name == "identical" else [OWN_DTYPE]
    assert list(evidence) == [RERUN, NEIGHBOURS, OWN_DTYPE, FLOAT32]
    assert [row.check for row in verdict.evidence].count(Check.DRAWN) == len(drawn)
    assert {row.outcome for row in verdict.evidence} == {PASSED}
    assert verdict.noise_ratio == evidence[FLOAT32].figures.noise_ratio
    assert verdict.first_place is None
    assert [floor.compute_dtype for floor in verdict.floors] == ["bfloat16", "float32"]
    assert {len(floor.pair_rms) for floor in verdict.floors} == {len(PROMPT) + 9}
    assert steps[0] == "both sides in bfloat16"


@pytest.mark.model
def test_a_fault_is_placed_in_its_prompt_and_position(small: LoadedModel) -> None:
    def engine(model: Any, ids: torch.Tensor) -> torch.Tensor:
        logits = prefill(model, ids).clone()
        if len(ids) == len(PROMPT):
            logits[17, 3] += 0.01
        return logits

    verdict = judge(small, [PROMPT[:9], PROMPT], reference="prefill", variant=engine)
    assert verdict.is_bug_suspected
    assert verdict.first_place == (1, 17)
    places, modules = rows(verdict)[STRUCTURE], alone(verdict)
    assert places.figures.positions == 1
    assert "position 17 of prompt 1" in places.says
    assert modules.says.endswith("or in the head.")


@pytest.mark.model
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_logit_that_is_not_finite_is_a_bug(value: float, small: LoadedModel, judged) -> None:
    def engine(model: Any, ids: torch.Tensor) -> torch.Tensor:
        logits = prefill(model, ids).clone()
        logits[3, 7] = value
        return logits

    verdict = judged(small, [PROMPT], "prefill", engine)
    assert verdict.is_bug_suspected
    shown = {"nan": "NaN", "inf": "infinity", "-inf": "-infinity"}[str(value)]
    text = small.tokenizer.decode([7])
    assert verdict.because.startswith(
        f"In float32, 'engine' is {shown} at position 3, token 7 ({text!r}), where 'prefill' is "
    )
    assert verdict.first_place == (0, 3)
    assert verdict.noise_ratio is None
    figures = rows(verdict)[FLOAT32].figures
    assert (figures.nonfinite_mismatch, figures.first_nonfinite) == (1, (0, 3, 7))
    assert (figures.noise_ratio, figures.worst_position_ratio) == (None, None)
    assert rows(verdict)[STRUCTURE].says == "It begins at position 3."


def _at_3(value: float, *dtypes: torch.dtype) -> Any:
    """A plain forward with this at position 3 and later ones, token 7; of the given dtypes alone where there are
    any.
    """

    def engine(model: Any, ids: torch.Tensor) -> torch.Tensor:
        logits = prefill(model, ids).clone()
        if not dtypes or logits.dtype in dtypes:
            logits[3:, 7:9] = value
        return logits

    return engine


@pytest.mark.model
def test_a_nan_needs_no_floor(small: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.inference.controls.reordering.reordering_refusal", lambda _: "its weights are int8")
    verdict = judge(small, [PROMPT], reference="prefill", variant=_at_3(torch.nan))
    assert verdict.is_bug_suspected
    assert "'engine' is NaN at position 3" in verdict.because
    assert (verdict.first_place, verdict.noise_ratio) == ((0, 3), None)


# What cannot be run.


@pytest.mark.parametrize(
    ("engine", "sentence"),
    [
        (
            lambda model, ids: prefill(model, ids)[None],
            r"'<lambda>' gave \[1, 24, 384\]; expected logits \[24, vocab\]\.",
        ),
        (lambda model, ids: prefill(model, ids)[1:], r"'<lambda>' gave \[23, 384\]; expected logits \[24, vocab\]\."),
        (lambda model, ids: prefill(model, ids).tolist(), r"'<lambda>' gave list; expected logits \[24, vocab\]\."),
        (
            lambda model, ids: prefill(model, ids)[:, :10],
            r"'<lambda>' gave logits of 10 tokens, 'prefill' of 384; both sides need",
        ),
        (lambda model, ids: 1 / 0, r"'<lambda>' failed in float32: ZeroDivisionError: division by zero\."),
    ],
)
def test_an_engine_that_gives_no_logits_is_refused_in_a_sentence(
    engine: Any, sentence: str, small: LoadedModel
) -> None:
    with pytest.raises(CaptureError, match=sentence):
        judge(small, [PROMPT], reference="prefill", variant=engine)


@pytest.mark.parametrize(
    ("prompts", "sentence"),
    [
        ([], "a divergence is measured over at least one prompt; none was given."),
        ([PROMPT, ()], "prompt 2 of 2 is empty; expected at least one token."),
        ([PROMPT * 5], "prompt 1 of 1 has 120 tokens, the model's context is 96; shorten it."),
    ],
)
def test_what_cannot_be_judged_is_refused_first(prompts: Any, sentence: str, small: LoadedModel) -> None:
    with pytest.raises(CaptureError) as caught:
        judge(small, prompts, reference="prefill", variant="decode")
    assert str(caught.value) == sentence


# Missing controls.


def only_in_bfloat16(model: Any, ids: torch.Tensor) -> torch.Tensor:
    if model.dtype != torch.bfloat16:
        raise RuntimeError("this kernel takes bfloat16\nand nothing else")
    logits = prefill(model, ids).clone()
    logits[2] += 0.01
    return logits


@pytest.mark.model
def test_an_engine_without_float32_is_compared_with_roundings_drawn_anew(narrow: LoadedModel, judged) -> None:
    verdict = judged(narrow, [PROMPT], "prefill", only_in_bfloat16)
    assert verdict.name == "likely rounding"
    row = rows(verdict)[FLOAT32]
    assert row.outcome == MISSING
    assert "kernel takes bfloat16" in row.says
    assert {row.outcome for row in verdict.evidence if row.group == OWN_DTYPE} == {PASSED}


@pytest.mark.model
def test_a_large_fault_of_such_an_engine_is_seen_in_its_own_dtype(narrow: LoadedModel, judged) -> None:
    def engine(model: Any, ids: torch.Tensor) -> torch.Tensor:
        return only_in_bfloat16(model, ids).roll(1, 0)

    verdict = judged(narrow, [PROMPT], "prefill", engine)
    assert verdict.is_bug_suspected
    assert rows(verdict)[OWN_DTYPE].outcome == FAILED


@pytest.mark.model
def test_a_model_whose_maps_cannot_be_reordered_is_undecided(
    small: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "core.inference.controls.reordering.reordering_refusal",
        lambda _: "its weights are int8; load it without quantisation",
    )
    verdict = judge(small, [PROMPT], reference="prefill", variant="decode")
    assert verdict.name == "undecided"
    assert rows(verdict)[FLOAT32].outcome == MISSING
    assert "load it without quantisation" in verdict.because


# What is left afterwards.


@pytest.mark.model
@pytest.mark.parametrize("error", few([RuntimeError, KeyboardInterrupt], KeyboardInterrupt))
def test_the_model_is_as_it_was_however_the_judgement_ends(error: type[BaseException], narrow: LoadedModel) -> None:
    before = state(narrow)

    def engine(model: Any, ids: torch.Tensor) -> torch.Tensor:
        if model.dtype == torch.float32:
            raise error("stop")
        return prefill(model, ids)

    if error is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            judge(narrow, [PROMPT], reference="prefill", variant=engine)
    else:
        judge(narrow, [PROMPT], reference="prefill", variant=engine)
    assert state(narrow) == before
    judge(narrow, [PROMPT], reference="prefill", variant="decode")
    assert state(narrow) == before


@pytest.mark.model
def test_a_difference_of_two_float32_floors_is_below_what_a_dense_model_is_accused_of(small: LoadedModel) -> None:
    prompt = tiny_prompts(small)[0]
    noise = torch.from_numpy(3e-6 * np.random.default_rng(0).standard_normal((len(prompt), small.vocab_size)))

    def engine(model: Any, ids: torch.Tensor) -> torch.Tensor:
        return prefill(model, ids) + noise.to(model.dtype)

    verdict = judge(small, [prompt], reference="prefill", variant=engine)
    assert verdict.name == "rounding"
    assert verdict.noise_ratio is not None
    assert 1.5 < verdict.noise_ratio < 4


# Experts.


@pytest.mark.thorough
@pytest.mark.model
def test_a_mixture_of_experts_is_decided_in_float64(experts: LoadedModel) -> None:
    before, implementation = state(experts), experts.model.config._experts_implementation
    verdict = judge(experts, tiny_prompts(experts), reference="prefill", variant="decode")
    assert verdict.name == "rounding"
    single, double = (row for row in verdict.evidence if row.group == FLOAT32)
    assert (single.outcome, single.figures.compute_dtype) == (NOTED, "float32")
    assert (double.outcome, double.figures.compute_dtype) == (PASSED, "float64")
    assert double.figures.floor_rms_logits < 1e-13 < 1e-3 < single.figures.floor_rms_logits  # torn by the router's ties
    assert verdict.noise_ratio == double.figures.noise_ratio
    assert state(experts) == before
    assert experts.model.config._experts_implementation == implementation


@pytest.mark.model
def test_a_fault_behind_a_floor_torn_by_near_ties_is_seen_in_float64(experts: LoadedModel, judged) -> None:
    verdict = judged(experts, tiny_prompts(experts)[:1], "prefill", scaled_value(1.01))
    assert verdict.is_bug_suspected
    single, double = (row for row in verdict.evidence if row.group == FLOAT32)
    assert single.figures.noise_ratio < single.figures.largest_ratio_allowed
    assert double.outcome == FAILED
    assert double.figures.noise_ratio > 1e9


@pytest.mark.model
@pytest.mark.parametrize(
    ("name", "is_unsteady", "outcome", "verdict"),
    [
        ("mixtral", False, NOTED, "identical or rounding"),
        ("llama", False, FAILED, "bug suspected"),
        ("llama", True, NOTED, "nondeterministic"),  # other bits beside the same neighbours too
    ],
)
def test_neighbours_that_move_bits_are_a_leak_of_a_dense_model_that_repeats_its_own(
    name: str, is_unsteady: bool, outcome: str, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Digests are stand-ins: those of a path with other neighbours are others, or every call's are."""
    calls = iter(range(100))

    def digest(loaded, prompts, side):
        if is_unsteady and side.rows > 1:
            return str(next(calls))
        return "moved" if side.value_of("neighbours") else digest_of(loaded, prompts, side)

    monkeypatch.setattr(judge_model, "digest_of", digest)
    found = judge(tiny_model(name), [PROMPT], reference="prefill", variant="prefill+batch:2")
    row = next(row for row in found.evidence if row.group == NEIGHBOURS)
    assert row.outcome == outcome
    assert found.name in verdict.split(" or "), found.table()
    assert ("leaks" in row.says) == (outcome == FAILED)


def _other_row(verdict: Verdict) -> Evidence:
    return next(row for row in verdict.evidence if isinstance(row.figures, OtherRowFigures))


@pytest.mark.model
@pytest.mark.parametrize(
    "variant",
    few(["decode+batch:8", "prefill+batch:3+row:1", "prefill+batch:2+pad:left:3"], "prefill+batch:2+pad:left:3"),
)
def test_the_prompt_in_another_row_is_rounding(variant: str, small: LoadedModel) -> None:
    verdict = judge(small, [PROMPT], reference="prefill", variant=variant)
    assert verdict.name in ("rounding", "identical")
    assert _other_row(verdict).outcome == PASSED


# float64.


@pytest.mark.model
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "mixtral"])
def test_in_float64_nothing_passes_through_float32(name: str) -> None:
    """Norms, softmax, routers and angles cast to float32 by themselves; with those casts two kernels differ by 1e-8,
    not 1e-14.
    """
    loaded = tiny_model(name)
    before = state(loaded)
    ids = torch.tensor(PROMPT)
    with torch.inference_mode(), in_float64(loaded) as wide:
        assert wide.dtype == "float64"
        plain = prefill(wide.model, ids)
        norm = next(module for module in wide.model.modules() if "Norm" in type(module).__name__)
        with replaced(wide.model.config, "_attn_implementation", "eager"):
            eager = prefill(wide.model, ids)
        assert plain.dtype == torch.float64
        assert norm(plain.new_full((1, norm.weight.numel()), 1 / 3)).dtype == torch.float64
    assert float((plain - eager).abs().max()) < 1e-12
    assert state(loaded) == before


@pytest.mark.model
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_float64_is_undone_however_it_ends(error: type[BaseException], narrow: LoadedModel) -> None:
    before = state(narrow)
    with pytest.raises(error), in_float64(narrow):
        raise error
    assert state(narrow) == before
    assert torch.zeros(1, dtype=torch.float32).dtype == torch.float32
