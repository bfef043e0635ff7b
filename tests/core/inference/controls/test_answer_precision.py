"""Engines that compute in 16 bits whatever they are asked are found out, and those that answer in float32 are not taken
for one.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks.verdicts.engines import Engine, prefill, walk
from benchmarks.verdicts.mutations import MUTATIONS, scaled_value
from benchmarks.verdicts.tiny_models import tiny_model, tiny_prompts
from benchmarks.verdicts.variations import VARIATIONS, in_float64
from core.inference.controls.answer_precision import narrow_answers
from core.inference.controls.judge_model import judge
from core.inference.models.model import LoadedModel
from core.inference.paths.engines import side_of
from core.runs.file.evidence import FAILED, FLOAT32, MISSING, OWN_DTYPE, Unmeasured
from tests.core.inference.controls.test_judge_model import rows
from tests.covering import few, thorough


@pytest.fixture(scope="module")
def held(narrow: LoadedModel) -> Any:
    """The weights that a served engine loaded by itself, in bfloat16."""
    return copy.deepcopy(narrow.model)


def served(weights: Any, compute: Engine) -> Engine:
    """An engine that does not look at the model it is given."""

    def engine(_: Any, ids: torch.Tensor) -> torch.Tensor:
        return compute(weights, ids)

    return engine


def decode(model: Any, ids: torch.Tensor) -> torch.Tensor:
    return walk(model, ids, range(1, len(ids)))


def upcast(model: Any, ids: torch.Tensor) -> torch.Tensor:
    return decode(model, ids).float()


def biased_after_the_upcast(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """A float32 bias on three tokens."""
    logits = decode(model, ids).float()
    logits[:, 5:8] += 0.123456
    return logits


def head_in_float32(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """bfloat16 hidden states under a head that multiplies and returns in float32: off the grid."""
    hidden = model.model(input_ids=ids[None], use_cache=False).last_hidden_state
    return (hidden.float() @ model.get_output_embeddings().weight.float().T)[0]


def head_in_float32_rounded_as_asked(given: Any, weights: Any, ids: torch.Tensor) -> torch.Tensor:
    return head_in_float32(weights, ids).to(given.dtype)


def unrepeatable_head_in_float32() -> Engine:
    """The same with sums in another order at every call."""
    calls = itertools.count()

    def compute(model: Any, ids: torch.Tensor) -> torch.Tensor:
        hidden = model.model(input_ids=torch.stack([ids] * (1 + next(calls) % 7)), use_cache=False).last_hidden_state[
            :1
        ]
        hidden = (
            hidden
            + (torch.rand(hidden.shape, generator=torch.Generator().manual_seed(next(calls))) - 0.5) * hidden * 2.0**-6
        )
        return (hidden.float() @ model.get_output_embeddings().weight.float().T)[0]

    return compute


ONLY_BFLOAT16 = [prefill, decode, upcast, biased_after_the_upcast, head_in_float32, unrepeatable_head_in_float32()]


@pytest.mark.model
@pytest.mark.parametrize("compute", ONLY_BFLOAT16, ids=lambda engine: engine.__name__)
def test_an_engine_of_bfloat16_weights_is_found_out(compute: Engine, narrow: LoadedModel, held: Any) -> None:
    found = narrow_answers(narrow, [range(5, 29)], side_of(served(held, compute)))
    assert found is not None
    assert found.dtype == "bfloat16"


@pytest.mark.model
def test_hidden_states_of_bfloat16_are_found_out_where_logits_are_rounded_as_asked(
    narrow: LoadedModel, held: Any
) -> None:
    engine = side_of(lambda model, ids: head_in_float32_rounded_as_asked(model, held, ids))
    found = narrow_answers(narrow, [range(5, 29)], engine)
    assert found is not None
    assert found.dtype == "bfloat16"


def always_in_float32(weights: Any, compute: Engine) -> Engine:
    wide = copy.deepcopy(weights).float()
    return lambda _, ids: compute(wide, ids)


@pytest.mark.model
@pytest.mark.parametrize("dtype", few(["bfloat16", "float16"], "bfloat16"))
def test_no_engine_that_answers_in_float32_is_taken_for_one_of_16_bits(dtype: str) -> None:
    """Whatever is wrong with it; engines that compute in float32 from the first are among them, whose two answers are
    the same.
    """
    loaded = tiny_model("llama", dtype)
    prompts = tiny_prompts(loaded)[:1]
    cases: list[tuple[str, Callable[..., Any] | str]] = [
        (case.name, case.engine or case.path)
        for case in (*MUTATIONS, *VARIATIONS)
        if case.applies(loaded) and case.base is None
    ]
    cases += [
        (f"float32 weights of its own: {case.name}", always_in_float32(loaded.model, case.engine))
        for case in MUTATIONS
        if case.applies(loaded) and case.engine is not None and case.name in OWN_FLOAT32
    ]
    cases += [
        ("float32 weights of its own", always_in_float32(loaded.model, decode)),
        ("rounded at the end", in_float64),
    ]
    with torch.inference_mode():
        found = {name: narrow_answers(loaded, prompts, side_of(engine)) for name, engine in cases}
    assert {name: one.says for name, one in found.items() if one is not None} == {}


# Those whose fault is not of the very size of rounding to 16 bits at nine of ten positions, which two equal answers
# cannot be told from.
OWN_FLOAT32 = (
    "one stale slot of an earlier request",
    "one cached value of one head x 1.01",
    "value cache of one head x 1.01",
    "norm epsilon 1e-5 for 1e-6",
    "positions off by one after a reused prefix",
    "another row's logits",
)


# What the judge makes of it.


def short(loaded: LoadedModel) -> list[tuple[int, ...]]:
    """What is asked of these verdicts holds at any length, and a verdict takes a second for twenty tokens."""
    return tiny_prompts(loaded, 16)[:1]


@pytest.mark.spread(1)
@pytest.mark.model
@pytest.mark.parametrize(
    ("compute", "is_reference"),
    [(decode, False), (head_in_float32, True), *thorough([(decode, True), (head_in_float32, False)])],
    ids=lambda each: getattr(each, "__name__", {True: "reference", False: "variant"}.get(each)),
)
def test_a_correct_engine_of_bfloat16_is_no_suspect(
    compute: Engine, is_reference: bool, narrow: LoadedModel, held: Any, judged: Any
) -> None:
    sides = ["prefill", served(held, compute)][:: -1 if is_reference else 1]
    verdict = judged(narrow, short(narrow), *sides)
    assert verdict.name == "likely rounding"
    evidence = rows(verdict)
    assert evidence[FLOAT32].outcome == MISSING
    assert evidence[FLOAT32].figures == Unmeasured(computes_in={"engine": "bfloat16"})


@pytest.mark.model
def test_a_large_fault_of_such_an_engine_is_a_bug_by_its_16_bits(narrow: LoadedModel, held: Any, judged: Any) -> None:
    def engine(_: Any, ids: torch.Tensor) -> torch.Tensor:
        return decode(held, ids).roll(1, 0)

    verdict = judged(narrow, short(narrow), "prefill", engine)
    assert verdict.is_bug_suspected
    assert rows(verdict)[FLOAT32].outcome == MISSING
    assert FAILED in {row.outcome for row in verdict.evidence if row.group == OWN_DTYPE}
    assert verdict.first_place == (0, 0)


@pytest.mark.model
def test_a_fault_of_a_callable_that_follows_the_model_is_still_decided_in_float32(narrow: LoadedModel) -> None:
    """The twin: nothing is excused where float32 is to be had."""
    verdict = judge(narrow, tiny_prompts(narrow), reference="prefill", variant=scaled_value(1.01))
    assert verdict.is_bug_suspected
    assert rows(verdict)[FLOAT32].figures.compute_dtype == "float32"
