"""A judgement: callables and paths as sides, controls that are missing or cannot be run, and the model as it was
afterwards.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.verdicts.engines import attention, prefill, replaced
from benchmarks.verdicts.mutations import norm_epsilon_of_layer, scaled_value
from benchmarks.verdicts.tiny_models import tiny_model, tiny_prompts
from core.errors import CaptureError, UsageError
from core.inference.controls import judge_model, judging_session, module_rungs, rounding_floor
from core.inference.controls.judge_model import judge, judge_pair
from core.inference.controls.reordering import reordered
from core.inference.models import float64
from core.inference.models.float64 import in_float64
from core.inference.models.model import LoadedModel
from core.inference.paths.bases import BASES
from core.inference.paths.batch import Emit, PromptBatch
from core.inference.paths.engines import digests_of
from core.judging.ladder.verdict import Verdict
from core.runs.file.evidence import (
    FAILED,
    FLOAT32,
    MISSING,
    NEIGHBOURS,
    NOTED,
    OWN_DTYPE,
    PASSED,
    PRECISION,
    RUNGS,
    SAMPLER,
    SCREENING,
    STRUCTURE,
    SYMMETRY,
    VALIDITY,
    Check,
    Evidence,
    OtherRowFigures,
)
from tests.core.inference.paths.test_modifiers import state
from tests.core.inference.sameness import logits_of
from tests.covering import few

PROMPT = tuple(range(5, 29))


def rows(verdict: Verdict) -> dict[str, Evidence]:
    """The last row of each rung."""
    return {row.rung: row for row in verdict.evidence}


def growth_of(verdict: Verdict) -> Evidence:
    """The row on where over the modules it leaves the floor."""
    return next(row for row in verdict.evidence if row.check == Check.GROWTH)


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
def test_rungs_and_figures_of_rounding(narrow: LoadedModel) -> None:
    steps: list[str] = []
    found = judge_pair(narrow, [PROMPT, PROMPT[:9]], "prefill", VARIANT, on_progress=steps.append)
    verdict = found.verdict
    sides = [
        torch.cat([logits_of(path, narrow, list(ids)) for ids in (PROMPT, PROMPT[:9])]) for path in ("prefill", VARIANT)
    ]
    assert verdict.name == (
        "identical" if torch.equal(*sides) else "rounding"
    )  # on some processors bfloat16 rounds all of it away
    evidence = rows(verdict)
    not_asked = (VALIDITY, SAMPLER, SCREENING, PRECISION)  # of dumps, and of a pair beyond its floor
    assert list(evidence) == [rung for rung in RUNGS if rung not in not_asked]
    assert {row.outcome for row in verdict.evidence} == {PASSED}
    assert verdict.noise_ratio == evidence[FLOAT32].figures.noise_ratio
    assert verdict.first_place is None
    assert [floor.compute_dtype for floor in found.floors] == ["bfloat16", "float32"]
    assert {len(floor.pair_rms) for floor in found.floors} == {len(PROMPT) + 9}
    assert steps[0] == "both sides in bfloat16"


@pytest.mark.model
def test_a_fault_is_placed_in_its_prompt_and_position(small: LoadedModel) -> None:
    def engine(model: Any, ids: torch.Tensor) -> torch.Tensor:
        logits = prefill(model, ids).clone()
        if len(ids) == len(PROMPT):
            logits[17, 3] += 0.01
        return logits

    verdict = judge_pair(small, [PROMPT[:9], PROMPT], "prefill", engine).verdict
    assert verdict.is_bug_suspected
    assert verdict.first_place == (1, 17)
    places, modules = rows(verdict)[STRUCTURE], growth_of(verdict)
    assert places.figures.positions == 1
    assert "position 17 of prompt 1" in places.says
    assert "wrong comes after them" in modules.says


@pytest.mark.model
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_logit_that_is_not_finite_is_a_bug(value: float, small: LoadedModel) -> None:
    def engine(model: Any, ids: torch.Tensor) -> torch.Tensor:
        logits = prefill(model, ids).clone()
        logits[3, 7] = value
        return logits

    verdict = judge_pair(small, [PROMPT], "prefill", engine).verdict
    assert verdict.is_bug_suspected
    shown = {"nan": "NaN", "inf": "infinity", "-inf": "-infinity"}[str(value)]
    text = small.tokenizer.decode([7])
    assert verdict.because.startswith(
        f"In float32, 'engine' is {shown} at position 3, token 7 ({text!r}), where 'prefill' is "
    )
    assert "no ratio is given" in verdict.because
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
def test_the_side_that_is_not_finite_is_named_and_how_many_more_there_are(small: LoadedModel) -> None:
    verdict = judge_pair(small, [PROMPT[:9], PROMPT], _at_3(torch.nan), "prefill").verdict
    assert "prompt 0, token 7" in verdict.because
    assert "54 logits at 27 positions" in verdict.because
    assert verdict.first_place == (0, 3)
    both = judge_pair(small, [PROMPT], _at_3(torch.nan), _at_3(-torch.inf)).verdict
    assert "'engine' is -infinity at position 3" in both.because
    assert "where 'engine' is NaN" in both.because


@pytest.mark.model
def test_a_nan_that_only_16_bits_have_has_its_place_too(narrow: LoadedModel) -> None:
    verdict = judge_pair(narrow, [PROMPT], "prefill", _at_3(torch.inf, torch.bfloat16)).verdict
    assert verdict.is_bug_suspected
    assert "position 3, token 7" in verdict.because
    assert (verdict.first_place, verdict.noise_ratio) == ((0, 3), None)


@pytest.mark.model
def test_an_overflow_of_float16_is_named_with_its_module_and_nothing_contradicts_it() -> None:
    """Attention scores beyond 65,504, as large biases of queries and keys make; float32 is finite."""
    loaded = tiny_model("llama", "float16")

    def change(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        overflow = (query * 3e4) - (query * 3e4) if query.dtype == torch.float16 else query * 0
        return query + overflow, key, value  # infinity less infinity

    verdict = judge_pair(loaded, [PROMPT], "prefill", _in_attention(change)).verdict
    assert verdict.is_bug_suspected
    assert "Overflow of float16 (largest 65,504) at model.layers.0.self_attn." in verdict.because
    assert "In float32 'engine' is finite" in verdict.because
    assert (verdict.first_place, verdict.noise_ratio) == ((0, 0), None)
    evidence = rows(verdict)
    assert evidence[STRUCTURE].says == "It begins at position 0."
    assert evidence[STRUCTURE].figures.first == (0, 0)
    assert Check.GROWTH not in [row.check for row in verdict.evidence]


@pytest.mark.model
def test_a_nan_needs_no_floor(small: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.inference.controls.reordering.reordering_refusal", lambda _: "its weights are int8")
    verdict = judge_pair(small, [PROMPT], "prefill", _at_3(torch.nan)).verdict
    assert verdict.is_bug_suspected
    assert "'engine' is NaN at position 3" in verdict.because
    assert (verdict.first_place, verdict.noise_ratio) == ((0, 3), None)


def _in_attention(change: Any) -> Any:
    """A plain forward whose first layer's queries, keys and values are changed."""

    def engine(model: Any, ids: torch.Tensor) -> torch.Tensor:
        def changed(original: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, options: Any) -> Any:
            if module.layer_idx == 0:
                query, key, value = change(query, key, value)
            return original(module, query, key, value, mask, options)

        with attention(model, changed):
            return prefill(model, ids)

    return engine


def _times_at_0(tensor: torch.Tensor) -> torch.Tensor:
    changed = tensor.clone()
    changed[:, 0, 0] *= 1.01
    return changed


@pytest.mark.model
@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda query, key, value: (query, key, _times_at_0(value)), 0),
        (lambda query, key, value: (query, _times_at_0(key), value), 1),
        (lambda query, key, value: (_times_at_0(query), key, value), None),
        (lambda query, key, value: (query * 1.01, key, value), 1),
    ],
    ids=["the value of position 0", "the key of position 0", "the query of position 0", "the scale"],
)
def test_a_fault_of_attention_at_position_0_is_named_where_it_can_show(
    change: Any, place: int | None, small: LoadedModel
) -> None:
    """Position 0 sees one key, whose weight is 1 whatever query, key and scale are; logits there say so bit for bit."""
    engine = _in_attention(change)
    with torch.inference_mode():
        ids = torch.tensor(PROMPT)
        moved = (prefill(small.model, ids) != engine(small.model, ids)).any(-1)
    assert (moved.nonzero()[0].item() if moved.any() else None) == place
    verdict = judge_pair(small, [PROMPT], "prefill", engine).verdict
    assert verdict.first_place == (None if place is None else (0, place))
    assert ("where attention has one key" in rows(verdict)[STRUCTURE].says) == (place == 1)


@pytest.mark.model
def test_what_both_sides_mask_alike_is_no_fault(small: LoadedModel) -> None:
    def masked(model: Any, ids: torch.Tensor) -> torch.Tensor:
        logits = prefill(model, ids).clone()
        logits[:, 300:] = -torch.inf
        return logits

    def masked_decode(model: Any, ids: torch.Tensor) -> torch.Tensor:
        logits = scaled_value(1.0)(model, ids)
        logits[:, 300:] = -torch.inf
        return logits

    assert judge_pair(small, [PROMPT], masked, masked_decode).verdict.name in ("rounding", "identical")


@pytest.mark.model
def test_a_fault_in_both_sides_alike_is_not_seen(small: LoadedModel) -> None:
    """The limit that docs/verdict.md names: two sides are compared with each other."""
    engine = scaled_value(1.5)
    verdict = judge_pair(small, [PROMPT], engine, engine).verdict
    assert verdict.name == "identical"


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
        judge_pair(small, [PROMPT], "prefill", engine)


@pytest.mark.parametrize(
    ("prompts", "options", "sentence"),
    [
        ([], {}, "a divergence is measured over at least one prompt; none was given."),
        ([PROMPT, ()], {}, "prompt 2 of 2 is empty; expected at least one token."),
        ([PROMPT * 5], {}, "prompt 1 of 1 has 120 tokens, the model's context is 96; shorten it."),
        ([PROMPT], {"seeds": [3]}, "judging: seeds are [3]; expected at least two, and none twice."),
        ([PROMPT], {"seeds": [3, 3]}, "judging: seeds are [3, 3]; expected at least two, and none twice."),
    ],
)
def test_what_cannot_be_judged_is_refused_first(prompts: Any, options: Any, sentence: str, small: LoadedModel) -> None:
    with pytest.raises(CaptureError) as caught:
        judge_pair(small, prompts, "prefill", "decode", **options)
    assert str(caught.value) == sentence


def test_a_path_that_is_none_is_refused_with_what_exists(small: LoadedModel) -> None:
    with pytest.raises(UsageError, match="no base 'decoed'; bases"):
        judge_pair(small, [PROMPT], "prefill", "decoed")


# Missing controls.


def only_in_bfloat16(model: Any, ids: torch.Tensor) -> torch.Tensor:
    if model.dtype != torch.bfloat16:
        raise RuntimeError("this kernel takes bfloat16\nand nothing else")
    logits = prefill(model, ids).clone()
    logits[2] += 0.01
    return logits


@pytest.mark.model
def test_an_engine_without_float32_leaves_it_undecided(narrow: LoadedModel) -> None:
    verdict = judge_pair(narrow, [PROMPT], "prefill", only_in_bfloat16).verdict
    assert verdict.name == "undecided"
    row = rows(verdict)[FLOAT32]
    assert row.outcome == MISSING
    assert "kernel takes bfloat16" in row.says
    assert rows(verdict)[OWN_DTYPE].outcome == PASSED


@pytest.mark.model
def test_a_large_fault_of_such_an_engine_is_seen_in_its_own_dtype(narrow: LoadedModel) -> None:
    def engine(model: Any, ids: torch.Tensor) -> torch.Tensor:
        return only_in_bfloat16(model, ids).roll(1, 0)

    verdict = judge_pair(narrow, [PROMPT], "prefill", engine).verdict
    assert verdict.is_bug_suspected
    assert rows(verdict)[OWN_DTYPE].outcome == FAILED


@pytest.mark.model
def test_16_bits_without_float32_only_note_what_reorderings_do_not_explain(narrow: LoadedModel, monkeypatch) -> None:
    """Sums in float32 make reorderings of a narrow model move next to nothing, where another kernel's rounding moves
    all.
    """

    def too_large(_: LoadedModel) -> Any:
        raise CaptureError("its weights in float32 take another 9 TB.")

    for module in (judge_model, rounding_floor):
        monkeypatch.setattr(module, "in_float32", too_large)
    verdict = judge_pair(narrow, [PROMPT], "prefill", lambda model, ids: prefill(model, ids).roll(1, 0)).verdict
    assert verdict.name == "undecided"
    assert rows(verdict)[OWN_DTYPE].outcome == NOTED
    assert "9 TB" in verdict.because


@pytest.mark.model
def test_a_model_whose_maps_cannot_be_reordered_is_undecided(
    small: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "core.inference.controls.reordering.reordering_refusal",
        lambda _: "its weights are int8; load it without quantisation",
    )
    verdict = judge_pair(small, [PROMPT], "prefill", "decode").verdict
    assert verdict.name == "undecided"
    assert rows(verdict)[FLOAT32].outcome == MISSING
    assert "load it without quantisation" in verdict.because


@pytest.mark.model
def test_no_room_for_float64_costs_only_the_symmetry(small: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float64.memory, "free_bytes", lambda _: 1000)
    verdict = judge_pair(small, [PROMPT], "prefill", "decode").verdict
    assert verdict.name == "rounding"
    assert rows(verdict)[SYMMETRY].outcome == MISSING
    assert "weights in float64 take another" in rows(verdict)[SYMMETRY].says


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
            judge_pair(narrow, [PROMPT], "prefill", engine)
    else:
        judge_pair(narrow, [PROMPT], "prefill", engine)
    assert state(narrow) == before
    judge_pair(narrow, [PROMPT], "prefill", "decode")
    assert state(narrow) == before


# A fault as small as rounding.


@pytest.mark.model
def test_a_fault_of_two_float32_floors_is_decided_in_float64(small: LoadedModel) -> None:
    """One norm with ten times its epsilon, behind activations so large that float32 hardly shows it."""
    verdict = judge_pair(small, tiny_prompts(small)[:1], "prefill", norm_epsilon_of_layer(1)).verdict
    single, double = (row for row in verdict.evidence if row.rung == FLOAT32)
    assert 1.5 < single.figures.noise_ratio < single.figures.largest_ratio_allowed
    assert single.outcome == NOTED
    assert "Rounding seldom goes as far" in single.says
    assert (double.outcome, double.figures.compute_dtype) == (FAILED, "float64")
    assert verdict.is_bug_suspected
    assert growth_of(verdict).figures.first_module == "model.layers.1.input_layernorm"


@pytest.mark.model
@pytest.mark.parametrize("keeps_float32", [True, False])
def test_noise_as_large_as_float32_rounds_is_not_accused_by_float64(keeps_float32: bool, small: LoadedModel) -> None:
    """Twice the floor: of an engine that computes in float32 whatever it is asked, and of one with a part that does."""
    prompt = tiny_prompts(small)[0]
    noise = np.random.default_rng(0).standard_normal((len(prompt), small.vocab_size))

    def engine(model: Any, ids: torch.Tensor) -> torch.Tensor:
        logits = prefill(model, ids).numpy() + 3e-6 * noise
        return torch.from_numpy(logits.astype(np.float32).astype(np.float64) if keeps_float32 else logits).to(
            model.dtype
        )

    verdict = judge_pair(small, [prompt], "prefill", engine).verdict
    single = rows(verdict)[FLOAT32]
    assert 1.5 < single.figures.noise_ratio < single.figures.largest_ratio_allowed
    assert (single.outcome, single.figures.compute_dtype, verdict.name) == (PASSED, "float32", "rounding")
    assert ("computes in float32 whatever it is asked" in single.says) == keeps_float32


# Experts.


@pytest.mark.thorough
@pytest.mark.model
def test_a_mixture_of_experts_is_decided_in_float64(experts: LoadedModel) -> None:
    before, implementation = state(experts), experts.model.config._experts_implementation
    verdict = judge_pair(experts, tiny_prompts(experts), "prefill", "decode").verdict
    assert verdict.name == "rounding"
    single, double = (row for row in verdict.evidence if row.rung == FLOAT32)
    assert (single.outcome, single.figures.compute_dtype) == (NOTED, "float32")
    assert "mixture of experts" in single.says
    assert (double.outcome, double.figures.compute_dtype) == (PASSED, "float64")
    assert double.figures.floor_rms_logits < 1e-13 < 1e-3 < single.figures.floor_rms_logits  # torn by the router's ties
    assert verdict.noise_ratio == double.figures.noise_ratio
    assert state(experts) == before
    assert experts.model.config._experts_implementation == implementation


@pytest.mark.model
def test_a_fault_behind_a_floor_torn_by_near_ties_is_seen_in_float64(experts: LoadedModel) -> None:
    verdict = judge_pair(experts, tiny_prompts(experts), "prefill", scaled_value(1.01)).verdict
    assert verdict.is_bug_suspected
    single, double = (row for row in verdict.evidence if row.rung == FLOAT32)
    assert single.figures.noise_ratio < single.figures.largest_ratio_allowed
    assert double.outcome == FAILED
    assert double.figures.noise_ratio > 1e9


@pytest.mark.model
@pytest.mark.parametrize(
    ("factor", "outcome", "name"),
    [(1.0, PASSED, "rounding"), (1.0 + 1e-6, PASSED, "rounding"), (3.0, MISSING, "undecided")],
)
def test_experts_without_float64_say_what_stays_in_doubt(factor, outcome, name, monkeypatch) -> None:
    """A jump at one position may be a near tie; that the pair passes may be the floor's."""
    loaded = tiny_model("mixtral")

    def too_large(_: LoadedModel) -> Any:
        raise CaptureError("the weights in float64 take another 9 TB.")

    def engine(model: Any, ids: torch.Tensor) -> torch.Tensor:
        logits = scaled_value(1.0)(model, ids)
        logits[20] *= factor
        return logits

    monkeypatch.setattr(judge_model, "in_float64", too_large)
    verdict = judge_pair(loaded, [PROMPT], "prefill", engine).verdict
    assert rows(verdict)[FLOAT32].outcome == outcome
    assert verdict.name == name
    assert "router between two experts can" in rows(verdict)[FLOAT32].says
    assert "9 TB" in rows(verdict)[FLOAT32].says


@pytest.mark.model
def test_lowered_precision_of_experts_is_seen_in_float32_without_float64() -> None:
    """TF32 is gone in float64, so what is larger everywhere in float32 must not be asked for there."""
    loaded = tiny_model("mixtral")

    def engine(model: Any, ids: torch.Tensor) -> torch.Tensor:
        logits = prefill(model, ids)
        return logits * (1 + 2.0**-12) if logits.dtype == torch.float32 else logits

    verdict = judge_pair(loaded, [PROMPT], "prefill", engine).verdict
    assert verdict.is_bug_suspected
    assert [row.figures.compute_dtype for row in verdict.evidence if row.rung == FLOAT32] == ["float32"]


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

    def digests(loaded, prompts, sides):
        real = digests_of(loaded, prompts, sides)
        if is_unsteady and sides[0].rows > 1:
            return [str(next(calls)) for _ in sides]
        return ["moved" if side.value_of("neighbours") else digest for side, digest in zip(sides, real, strict=True)]

    for module in (judge_model, judging_session):
        monkeypatch.setattr(module, "digests_of", digests)
    found = judge_pair(tiny_model(name), [PROMPT], "prefill", "prefill+batch:2").verdict
    row = next(row for row in found.evidence if row.rung == NEIGHBOURS)
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
    verdict = judge_pair(small, [PROMPT], "prefill", variant).verdict
    assert verdict.name in ("rounding", "identical")
    assert _other_row(verdict).outcome == PASSED


@pytest.mark.model
def test_other_bits_in_another_row_are_held_against_the_floor(
    small: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on two threads in float32, where rows 5 and 7 of 8 are summed in another order than row 0. Here: a reordering
    by row.
    """
    monkeypatch.setitem(BASES, "by_row", replace(BASES["prefill"], compute=_summed_by_row))
    verdict = judge_pair(small, [PROMPT], "prefill", "by_row+batch:4").verdict
    row = _other_row(verdict)
    assert (row.outcome, row.figures.bit_identical) == (PASSED, False)
    assert 0 < row.figures.noise_ratio < 4
    assert verdict.name == "identical"  # in row 0


@pytest.mark.model
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_computed_in_another_row_only_is_a_bug(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: the pair itself is sound, because its prompt is in row 0."""
    monkeypatch.setitem(BASES, "by_row", replace(BASES["prefill"], compute=_wrong_in_later_rows))
    verdict = judge_pair(tiny_model("llama", dtype), [PROMPT], "prefill", "by_row+batch:4").verdict
    assert _other_row(verdict).outcome == FAILED
    assert verdict.name == "bug suspected"
    assert "depends on the row" in verdict.because


def _summed_by_row(batch: PromptBatch, emit: Emit) -> None:
    with nullcontext() if batch.row == 0 else reordered(batch.loaded.model, 7):
        BASES["prefill"].compute(batch, emit)


def _wrong_in_later_rows(batch: PromptBatch, emit: Emit) -> None:
    BASES["prefill"].compute(batch, lambda at, logits: emit(at, logits * (1 + 1e-3 * batch.row)))


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


@pytest.mark.model
def test_a_verdict_stands_where_its_modules_cannot_be_taken_one_at_a_time(small: LoadedModel, monkeypatch) -> None:
    """Some models compute no float64: torch's error is a missing row, not the end of the judgement."""

    def fails(*_: object) -> None:
        raise RuntimeError("not implemented for 'Double'")

    monkeypatch.setattr(module_rungs, "modules_alone", fails)
    verdict = judge_pair(small, tiny_prompts(small)[:1], "prefill", scaled_value(1.01)).verdict
    assert verdict.is_bug_suspected
    (row,) = [row for row in verdict.evidence if row.check == Check.ALONE]
    assert row.outcome == MISSING
    assert "modules cannot be taken one" in row.says
