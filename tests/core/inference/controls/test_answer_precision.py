"""Engines that compute in 16 bits whatever they are asked are detected; those that answer in
float32 are not.
"""

import copy
import itertools

import pytest
import torch

from benchmarks.verdicts.engines import prefill, walk
from benchmarks.verdicts.mutations import MUTATIONS
from benchmarks.verdicts.tiny_models import tiny_model, tiny_prompts
from benchmarks.verdicts.variations import VARIATIONS, in_float64, in_two_halves
from core.evidence import FLOAT32, MISSING, Unmeasured
from core.inference.controls.answer_precision import narrow_answers
from core.inference.paths.engines import side_of
from tests.core.evidence import rows_of
from tests.covering import few, thorough

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def held(narrow):
    """The weights that a served engine loaded by itself, in bfloat16."""
    return copy.deepcopy(narrow.model)


def served(weights, compute):
    """An engine that does not look at the model it is given."""

    def engine(_, ids):
        return compute(weights, ids)

    return engine


def decode(model, ids):
    return walk(model, ids, range(1, len(ids)))


def upcast(model, ids):
    return decode(model, ids).float()


def biased_after_the_upcast(model, ids):
    """A float32 bias on three tokens."""
    logits = decode(model, ids).float()
    logits[:, 5:8] += 0.123456
    return logits


def head_in_float32(model, ids):
    """bfloat16 hidden states under a head that multiplies and returns in float32: off the grid."""
    return under_the_head(model, model.model(ids[None], use_cache=False).last_hidden_state)


def under_the_head(model, hidden):
    return (hidden.float() @ model.get_output_embeddings().weight.float().T)[0]


def unrepeatable_head_in_float32():
    """The same with sums in another order at every call."""
    calls = itertools.count()

    def compute(model, ids):
        rows = torch.stack([ids] * (1 + next(calls) % 7))
        hidden = model.model(input_ids=rows, use_cache=False).last_hidden_state[:1]
        generator = torch.Generator().manual_seed(next(calls))
        # within a unit of bfloat16 on either side
        noise = (torch.rand(hidden.shape, generator=generator) - 0.5) * 2.0**-6
        hidden = hidden + noise * hidden
        return under_the_head(model, hidden)

    return compute


ONLY_BFLOAT16 = [
    prefill,
    decode,
    upcast,
    biased_after_the_upcast,
    head_in_float32,
    unrepeatable_head_in_float32(),
]


@pytest.mark.parametrize("compute", ONLY_BFLOAT16, ids=lambda engine: engine.__name__)
def test_an_engine_of_bfloat16_weights_is_found_out(compute, narrow, held):
    found = narrow_answers(narrow, [range(5, 29)], side_of(served(held, compute)))
    assert found.dtype == "bfloat16"


def test_hidden_states_of_bfloat16_are_found_out_where_logits_are_rounded_as_asked(
    narrow,
    held,
):
    engine = side_of(lambda model, ids: head_in_float32(held, ids).to(model.dtype))
    found = narrow_answers(narrow, [range(5, 29)], engine)
    assert found.dtype == "bfloat16"


@pytest.mark.parametrize("dtype", few(["bfloat16", "float16"], "bfloat16"))
def test_no_engine_that_answers_in_float32_is_taken_for_one_of_16_bits(dtype):
    """Whatever is wrong with it; engines that compute in float32 from the first are among them,
    whose two answers are the same.
    """
    loaded = tiny_model("llama", dtype)
    prompts = tiny_prompts(loaded)[:1]
    cases = [
        (case.name, case.engine or case.path)
        for case in (*MUTATIONS, *VARIATIONS)
        if case.applies(loaded) and case.base is None
    ]
    own = {
        "decode": decode,
        **{case.name: case.engine for case in MUTATIONS if case.name in OWN_FLOAT32},
    }
    wide = copy.deepcopy(loaded.model).float()
    cases += [
        (f"float32 weights of its own: {name}", served(wide, engine))
        for name, engine in own.items()
    ]
    cases.append(("rounded at the end", in_float64))
    with torch.inference_mode():
        found = {name: narrow_answers(loaded, prompts, side_of(engine)) for name, engine in cases}
    assert {name: one.says for name, one in found.items() if one is not None} == {}


# Those whose fault is not of the very size of rounding to 16 bits at nine of ten positions, which
# two equal answers cannot be told from.
OWN_FLOAT32 = (
    "one stale slot of an earlier request",
    "one cached value of one head x 1.01",
    "value cache of one head x 1.01",
    "norm epsilon 1e-5 for 1e-6",
    "positions off by one after a reused prefix",
    "another row's logits",
)


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("compute", "is_reference"),
    [
        (in_two_halves, False),
        (head_in_float32, True),
        *thorough([(in_two_halves, True), (head_in_float32, False)]),
    ],
    ids=lambda each: getattr(each, "__name__", {True: "reference", False: "variant"}.get(each)),
)
def test_a_correct_engine_of_bfloat16_is_no_suspect(
    compute,
    is_reference,
    narrow,
    held,
    judged,
):
    sides = ["prefill", served(held, compute)][:: -1 if is_reference else 1]
    verdict = judged(narrow, tiny_prompts(narrow, 16)[:1], *sides)
    assert verdict.name == "rounding"
    (row,) = rows_of(verdict.evidence, FLOAT32)
    assert row.outcome == MISSING
    assert row.figures == Unmeasured(computes_in={"engine": "bfloat16"})
