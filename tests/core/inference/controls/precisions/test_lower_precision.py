"""A lower precision is named and is no bug; a fault on top of one, or as large and as even as one,
stays a bug.
"""

import copy
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
import torch
from scipy.stats import norm
from transformers import LlamaConfig
from transformers.models.llama import modeling_llama

from benchmarks.families import tiny_family
from benchmarks.verdicts.engines import PREFIX, attending, cached, left_by, prefill, rewriting
from benchmarks.verdicts.mutations import (
    MUTATIONS,
    another_prompt,
    attention_scaled_by_head_dim,
    fp8,
    overwriting,
    round_cache,
    scaled_head,
)
from benchmarks.verdicts.precisions import (
    ON_TOP,
    PRECISIONS,
    eight_bits,
    q4_0,
    stale_slot_in_fp8,
    with_weights,
)
from benchmarks.verdicts.tiny_models import SHAPE, model_of, tiny_model, tiny_prompts
from core import capture_request
from core.checks.modules_alone import AloneFigures
from core.errors import UsageError
from core.evidence import FAILED, NOTED, PASSED, PRECISION
from core.inference.controls.drawn_roundings import RoundingDraws
from core.inference.controls.judge_model import judge
from core.inference.controls.precisions.catalogue import (
    ACTIVATIONS,
    CACHE,
    FORMATS,
    HEAD,
    LAYERS,
    NF4_LEVELS,
    PRODUCTS,
    Precision,
    Stored,
    cast,
    catalogue,
    gguf,
    int8,
    nf4,
    parse_precisions,
    tf32,
)
from core.inference.controls.precisions.lowered import (
    Question,
    best_precisions,
    lowered_in_16_bits,
    lowered_of_pair,
)
from core.inference.controls.rounding_floor import rounding_floor
from core.inference.models.dtypes import in_float32
from core.inference.paths.engines import PLAIN, side_of, whole_side
from core.inference.paths.paths import parse_path
from core.numerics.statistic import BLOCKS
from core.verdict import BUG_SUSPECTED, LOWER_PRECISION
from tests.core.evidence import rows_of

pytestmark = pytest.mark.model
CASES = {case.name: case for case in (*MUTATIONS, *PRECISIONS, *ON_TOP)}
NAMED = {
    "int8 cache": "KV cache in int8 (rounded after its first read)",
    "fp8 cache, attention written out": "KV cache in fp8_e4m3 (rounded after its first read)",
    "TF32 where float32 was promised": "products in tf32",
    "head in bfloat16 where float32 was promised": "head in bf16",
    "weights in Q4_0": "weights of linear layers in q4_0",
    "weights of 8 bits": "weights of linear layers in int8",
    "weights in NF4": "weights of linear layers in nf4",
    "logits in bfloat16": "logits in bf16",
    "all of it in bfloat16": "all of it in bfloat16",
}


def _one_prompt(loaded):
    return [tiny_prompts(loaded)[0][:28]]


def _row(verdict):
    (row,) = rows_of(verdict.evidence, PRECISION)
    return row


def _computing_in(precision, loaded):
    """An engine that computes as the model does in a precision."""

    def engine(model, ids):
        with precision.side.open(loaded, None) as run:
            return whole_side(run, ids.tolist())

    return engine


@pytest.mark.spread(3)
@pytest.mark.parametrize("name", NAMED)
def test_a_lower_precision_is_named_with_its_size_in_floors(judged, small, name):
    verdict = judged(small, _one_prompt(small), "prefill", CASES[name].engine)
    row = _row(verdict)
    assert verdict.name == LOWER_PRECISION
    assert row.figures.precision == NAMED[name]
    assert row.figures.noise_ratio > 100
    assert verdict.first_place is None


def test_a_path_in_16_bits_is_named_by_its_dtype_if_its_logits_have_no_grid(judged):
    """xLSTM's head computes in float32."""
    loaded = tiny_family("xlstm")
    verdict = judged(loaded, _one_prompt(loaded), "prefill", "decode+dtype:float16")
    assert verdict.name == LOWER_PRECISION
    assert _row(verdict).figures.precision == "all of it in float16"


@pytest.mark.spread(1)
@pytest.mark.parametrize("case", ON_TOP, ids=lambda case: case.name)
def test_a_fault_on_top_of_a_lower_precision_stays_a_bug_and_has_its_own_place(
    judged,
    small,
    case,
):
    verdict = judged(small, _one_prompt(small), "prefill", case.engine)
    assert verdict.name == BUG_SUSPECTED
    row = _row(verdict)
    assert row.outcome == FAILED
    named = [part for part in ("Q4_0", "fp8") if part in case.name] or ["all of it in bfloat16"]
    assert named[0].lower() in row.figures.precision
    # it is read from there on; the cache is in fp8 from 8
    if "slot" in case.name:
        assert verdict.first_place == (0, 16)


@pytest.mark.thorough
def test_both_sides_may_be_in_a_lower_precision_each_in_its_own(judged, small):
    cached = round_cache(fp8)
    quantised = with_weights(q4_0)
    verdict = judged(small, _one_prompt(small), cached, quantised)
    assert verdict.name == LOWER_PRECISION
    names = {row.figures.precision for row in rows_of(verdict.evidence, PRECISION)}
    assert names == {NAMED["fp8 cache, attention written out"], NAMED["weights in Q4_0"]}
    # the twin
    assert judged(small, _one_prompt(small), scaled_head(1.01), quantised).name == BUG_SUSPECTED


@pytest.mark.thorough
def test_a_small_fault_of_one_side_is_not_excused_by_the_precision_of_the_other(
    judged,
    small,
):
    """One position of the reference is off by 3 in 100,000: its rms over all positions is within
    ten floors.
    """

    def faulty(model, ids):
        logits = prefill(model, ids)
        logits[20] *= 1.00003
        return logits

    verdict = judged(small, _one_prompt(small), faulty, with_weights(q4_0))
    assert verdict.name == BUG_SUSPECTED


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("sound", "wrong", "place"),
    [
        # of the fault; the cache is rounded from 8 on
        (round_cache(fp8), stale_slot_in_fp8, (0, 16)),
        (with_weights(q4_0), with_weights(q4_0, overwriting(another_prompt, PREFIX, -3)), None),
    ],
    ids=["fp8 cache", "weights in Q4_0"],
)
def test_an_engine_that_has_16_bits_only_is_held_beside_the_model_in_that_precision(
    judged,
    narrow,
    sound,
    wrong,
    place,
):
    """A served engine in bfloat16; and with a stale slot as well."""
    own = copy.deepcopy(narrow.model)
    prompts = [tiny_prompts(narrow)[0][:24]]
    verdict = judged(narrow, prompts, "prefill", lambda _, ids: sound(own, ids))
    assert verdict.name == LOWER_PRECISION
    assert verdict.first_place is None
    assert _row(verdict).figures.fault_seen_over_all > 1
    verdict = judged(narrow, prompts, "prefill", lambda _, ids: wrong(own, ids))
    assert verdict.name == BUG_SUSPECTED
    assert place in (None, verdict.first_place)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_of_an_engine_in_16_bits_no_fault_is_excused_by_a_precision(name):
    """Some are as large as a cache of 8 bits makes, and none is what it makes. A head's output
    times 1.01 is below what 16 bits show, so over weights of 4 bits it is below what the sentence
    says would be seen.
    """
    loaded = tiny_model(name, "bfloat16")
    own = copy.deepcopy(loaded.model)
    ids = [tiny_prompts(loaded)[0][:32]]
    faults = [case for case in (*MUTATIONS, *ON_TOP) if not case.is_precision]
    tried = [case for case in faults if case.applies(loaded)]
    seen = []
    excused = []
    for case in tried:
        if case.engine is None or case.sample is not None or "x 1.01 over weights" in case.name:
            continue
        side = side_of(lambda _, tokens, engine=case.engine: engine(own, tokens))
        with torch.inference_mode():
            row, test = RoundingDraws(loaded, ids).compare(side, BLOCKS)
            if row.outcome == FAILED:
                seen.append(case.name)
            if row.outcome == FAILED and test.is_finite:
                verdict = lowered_in_16_bits(Question(ids), loaded, side, test)
                excused += [case.name] * (verdict.evidence.outcome == PASSED)
    assert excused == []
    assert len(seen) > 12


@pytest.mark.thorough
def test_a_fault_of_the_16_bit_kernels_alone_is_not_excused_by_a_precision(
    judged,
    narrow,
):
    """Weights of 4 bits in both dtypes; in bfloat16 attention is scaled by another number
    besides.
    """

    def wrong_in_bfloat16(model, ids):
        inner = attention_scaled_by_head_dim if model.dtype == torch.bfloat16 else prefill
        return with_weights(q4_0, inner)(model, ids)

    prompts = [tiny_prompts(narrow)[0][:24]]
    assert judged(narrow, prompts, "prefill", with_weights(q4_0)).name == LOWER_PRECISION
    verdict = judged(narrow, prompts, "prefill", wrong_in_bfloat16)
    assert verdict.name == BUG_SUSPECTED
    assert _row(verdict).figures.left_noise_ratio_bfloat16 > 10


# ---- faults of the model's own forwards, which a candidate has too


@contextmanager
def step_without_rope(*_, dtypes=(torch.float32, torch.bfloat16)):
    """A forward of one token skips the rotary embedding."""
    rotate = modeling_llama.apply_rotary_pos_emb

    def rotate_many(query, key, *arguments):
        is_skipped = query.shape[2] == 1 and query.dtype in dtypes
        return (query, key) if is_skipped else rotate(query, key, *arguments)

    with mock.patch.object(modeling_llama, "apply_rotary_pos_emb", rotate_many):
        yield


def _without_oldest(call):
    if call.query.shape[2] == 1 < call.key.shape[2]:
        call.mask[..., 0] = False
    return call.run()


step_without_oldest_key = attending(_without_oldest)


@pytest.mark.parametrize(
    ("fault", "dtype", "path", "declared", "position"),
    [
        (step_without_rope, "float32", "decode", [], 1),
        (step_without_oldest_key, "float32", "decode+batch:2", [], 1),
        (step_without_rope, "float32", "reuse:27", [], 27),
        (step_without_rope, "float32", "static", ["kv=int8", "kv=bf16", "weights=q8_0"], 1),
        (step_without_oldest_key, "bfloat16", "decode", ["kv=int8"], 1),
    ],
)
def test_a_fault_of_the_models_own_step_is_no_precision(
    fault,
    dtype,
    path,
    declared,
    position,
):
    loaded = tiny_model("llama", dtype)
    with fault(loaded.model):
        verdict = judge(
            loaded,
            _one_prompt(loaded),
            variant=path,
            precisions=parse_precisions(declared),
        )
    assert verdict.name == BUG_SUSPECTED
    assert verdict.first_place == (0, position)
    assert _row(verdict).outcome == NOTED
    assert "int8" not in verdict.because
    assert "the model's forwards of this path differ" in _row(verdict).says


@pytest.mark.thorough
def test_a_fault_of_the_models_own_16_bit_step_is_not_excused_by_a_cache_of_8_bits(
    narrow,
):
    engine = cached(range(8, 48), rewriting(fp8))
    prompts = _one_prompt(narrow)
    assert judge(narrow, prompts, variant=engine).name == LOWER_PRECISION
    with step_without_rope(dtypes=[torch.bfloat16]):
        verdict = judge(narrow, prompts, variant=engine)
    assert verdict.name == BUG_SUSPECTED
    assert _row(verdict).figures.left_noise_ratio_bfloat16 > 10


# ---- caches in 16 bits of a model in float32, as llama.cpp has by default


def _cache_in(dtype):
    return lambda values: torch.from_numpy(values.numpy().astype(dtype).astype(np.float32))


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (np.float16, "fp16"),
        (ml_dtypes.bfloat16, "bf16"),
    ],
)
def test_an_undeclared_cache_in_16_bits_is_named_and_a_stale_slot_in_it_is_a_bug(
    judged,
    small,
    dtype,
    name,
):
    prompts = _one_prompt(small)
    rounded = rewriting(_cache_in(dtype))
    written_rounded = _computing_in(Precision(CACHE, "", _cache_in(dtype)), small)
    for engine, later in (
        (written_rounded, ""),
        (cached(8, rounded), " (rounded after its first read)"),
    ):
        verdict = judged(small, prompts, "prefill", engine)
        assert verdict.name == LOWER_PRECISION
        assert _row(verdict).figures.precision == f"KV cache in {name}{later}"
    verdict = judged(
        small,
        prompts,
        "prefill",
        cached(8, rounded, left_by(another_prompt, PREFIX, -3)),
    )
    assert verdict.name == BUG_SUSPECTED
    alone = next(row.figures for row in verdict.evidence if isinstance(row.figures, AloneFigures))
    assert alone.first == (0, PREFIX)
    # on some processors the first row that reads the slot is within what bfloat16 rounds
    latest = PREFIX + (name == "bf16")
    assert verdict.first_place in ((0, PREFIX), (0, latest))


def test_a_cache_rounded_before_it_is_read_is_found_if_its_first_positions_are_quiet(
    small,
):
    """All tokens may attend to a first one of tiny values, whose rounding is within the noise
    floor.
    """
    prompts = _one_prompt(small)
    (true,) = parse_precisions(["kv=fp8_e4m3"])
    differs = np.arange(len(prompts[0])) >= 2
    with torch.inference_mode():
        floor = float(rounding_floor(small, prompts).squares.mean())
        best = best_precisions(Question(prompts), small, small, true.side, differs, [true], floor)
    assert best == [true]


# ---- settings of engines


def _engine(compute):
    """A side of an engine with a float16 cache by default, which at its widest is the plain path
    of the model.
    """
    settings = {
        "kv": {
            "default": "f16",
            "widest": "f32",
            "bits": {"f16": 11},
        }
    }
    path = SimpleNamespace(
        engine=SimpleNamespace(modifiers=settings, activations={}),
        settings={},
        with_modifier=lambda *_: parse_path("prefill"),
    )
    return replace(side_of(compute), engine_path=path)


def _float16_cache(model, ids):
    return cached(8, rewriting(_cache_in(np.float16)))(model, ids)


def _repeating_a_row(model, ids):
    logits = _float16_cache(model, ids)
    logits[20] += 1e-2 * (logits[19] - logits[20])
    return logits


def _scaled(model, ids):
    return prefill(model, ids) * 1.01


@pytest.mark.parametrize(
    ("reference", "engine", "outcomes", "place"),
    [
        (PLAIN, _float16_cache, [PASSED], None),
        # among 280 sound positions no rms shows it
        (PLAIN, _repeating_a_row, [FAILED], (0, 20)),
        # a setting that changes nothing
        (side_of(_scaled), prefill, [NOTED], None),
        # nor does one excuse the other side
        (side_of(_scaled), _float16_cache, [PASSED, NOTED], None),
    ],
    ids=["float16 cache", "fault at a position", "no rounding", "fault of the other side"],
)
def test_settings_of_an_engine_excuse_what_they_round_alone(
    small,
    reference,
    engine,
    outcomes,
    place,
):
    prompts = [tiny_prompts(small)[0][:28]] * 10
    with torch.inference_mode():
        floors = {"float32": rounding_floor(small, prompts)}
        rows = lowered_of_pair(
            Question(prompts),
            small,
            [reference, _engine(engine)],
            floors,
            "float32",
            fails_in_own_dtype=False,
        )
    assert [row.evidence.outcome for row in rows] == outcomes
    assert rows[0].place == place


def test_a_precision_of_ones_own_is_tried_and_without_it_the_cache_is_a_bug(small):
    """A cache in float8 with a calibrated scale, which nobody can guess."""

    def calibrated(values):
        return (values / 0.37).to(torch.float8_e4m3fn).to(values.dtype) * 0.37

    def broken(_):
        raise ValueError("no such format here")

    prompts = _one_prompt(small)
    known = Precision(CACHE, "float8_e4m3fn with the scale 0.37", calibrated)
    engine = _computing_in(known, small)
    assert judge(small, prompts, variant=engine).name == BUG_SUSPECTED
    verdict = judge(
        small,
        prompts,
        variant=engine,
        precisions=[Precision(CACHE, "x", broken), known],
    )
    assert verdict.name == LOWER_PRECISION
    assert _row(verdict).figures.precision == known.name


DECLARED = {
    "kv=int8": Precision(CACHE, "", lambda values: int8(values, axis=-2)),
    "kv=bf16": Precision(CACHE, "", lambda values: values.bfloat16().float()),
    "weights=fp16": Precision(LAYERS, "", lambda values: values.half().to(values.dtype)),
    "products=tf32": Precision(
        PRODUCTS,
        "",
        lambda v: (v.contiguous().view(torch.int32) & -(1 << 13)).view(v.dtype),
    ),
    "activations=fp16": Precision(ACTIVATIONS, "", lambda values: values.half().to(values.dtype)),
    "head=int8": Precision(HEAD, "", int8),
}


@pytest.mark.spread(2)
@pytest.mark.parametrize("text", DECLARED)
def test_what_is_declared_is_confirmed_and_is_no_excuse_for_another_fault(
    judged,
    small,
    text,
):
    """The twin: a row of logits is that of the position before it."""
    prompts = _one_prompt(small)
    given = parse_precisions([text])
    engine = _computing_in(DECLARED[text], small)

    def faulty(model, ids):
        logits = engine(model, ids)
        logits[20] = logits[19]
        return logits

    verdict = judge(small, prompts, variant=engine, precisions=given)
    assert verdict.name == LOWER_PRECISION
    assert _row(verdict).figures.precision in {each.name for each in given}
    verdict = judge(small, prompts, variant=faulty, precisions=given)
    assert verdict.name == BUG_SUSPECTED
    assert verdict.first_place == (0, 20)


def test_every_precision_of_the_catalogue_is_another_function_and_leaves_the_model_as_it_was(
    small,
):
    before = {name: parameter.clone() for name, parameter in small.model.named_parameters()}
    ids = list(range(3, 40))
    with torch.inference_mode():
        plain = small.model(torch.tensor([ids])).logits[0]
        found = {}
        for each in catalogue(small):
            found[each.name] = whole_side(each.side.run_on(small), ids)
    for logits in found.values():
        assert logits.isfinite().all()
        assert not torch.equal(logits, plain)
    distinct = {logits.numpy().tobytes() for logits in found.values()}
    assert len(distinct) == len(found)
    after = dict(small.model.named_parameters())
    assert all(torch.equal(parameter, before[name]) for name, parameter in after.items())


@pytest.mark.parametrize("function", ["silu", "relu"])
def test_activation_functions_are_rounded_whether_transformers_or_torch_defines_them(function):
    loaded = model_of(LlamaConfig(**SHAPE, hidden_act=function))
    (prompt,) = _one_prompt(loaded)
    precision = parse_precisions(["activations=bf16"])[0]
    with torch.inference_mode():
        plain, rounded = (
            whole_side(side.run_on(loaded), prompt) for side in (PLAIN, precision.side)
        )
    assert not torch.equal(plain, rounded)


def test_noise_that_hides_where_a_cache_begins_to_be_rounded_is_looked_around(narrow):
    """16 bits differ from position 10 on alone, and the cache was rounded from position 8 on."""
    prompts = _one_prompt(narrow)
    with torch.inference_mode(), in_float32(narrow) as widened:
        fp8_cache = next(
            each for each in catalogue(widened) if each.part == CACHE and "e4m3" in each.format
        )
        true = replace(fp8_cache, storage=Stored(8, 8))
        side = replace(true.side, name="engine")
        differs = np.arange(len(prompts[0])) >= 10
        best = best_precisions(Question(prompts), widened, widened, side, differs, [fp8_cache])
    assert best[0] == true


def test_formats_hold_the_values_that_their_definitions_say():
    values = torch.tensor([[0.1, -0.7, 1.0, 3.3, -2.05, 0.0, 448.0, 0.0021]])
    for dtype, other in (
        (torch.float8_e4m3fn, ml_dtypes.float8_e4m3fn),
        (torch.float8_e5m2, ml_dtypes.float8_e5m2),
    ):
        expected = values.numpy().astype(other).astype(np.float32)
        assert np.array_equal(cast(values, dtype).numpy(), expected)
    # saturated, as engines do; torch alone makes NaN of it
    beyond = torch.tensor([1e6, -500.0])
    assert cast(beyond, torch.float8_e4m3fn).tolist() == [448.0, -448.0]
    # TF32 keeps 10 bits: 1 + 2^-11 lies between 1 and 1 + 2^-10 and goes to the even one, 1 + 3 *
    # 2^-11 to 1 + 2^-9
    given = torch.tensor([1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-10, -3.0000001])
    assert tf32(given).tolist() == [1.0, 1 + 2.0**-9, 1 + 2.0**-10, -3.0]
    assert tf32(given, truncates=True).tolist() == [1.0, 1 + 2.0**-10, 1 + 2.0**-10, -3.0]
    # int8 from -127 to 127: the scale of this row is 1
    row = torch.tensor([[127.0, -3.4, 2.6, 0.49]])
    assert int8(row).tolist() == [[127.0, -3.0, 3.0, 0.0]]
    # Q8_0: the scale is the largest magnitude over 127 in float16
    row = torch.zeros(1, 32)
    row[0, :3] = torch.tensor([127.0, 63.5, -1.4])
    assert gguf(row, "Q8_0")[0, :4].tolist() == [127.0, 64.0, -1.0, 0.0]
    # Q4_0: the value of largest magnitude is -8 steps, its opposite cannot be had and becomes 7
    row[0, :4] = torch.tensor([-8.0, 8.0, 2.4, -3.5])
    assert gguf(row, "Q4_0")[0, :5].tolist() == [-8.0, 7.0, 2.0, -3.0, 0.0]
    assert nf4(torch.tensor([[2.0, -2.0, 0.4, 0.01]]))[0].tolist() == pytest.approx(
        [2.0, -2.0, 0.3218604, 0.0],
        abs=1e-6,
    )


def test_every_part_and_format_that_a_command_takes_is_a_precision():
    assert set(FORMATS) == set(capture_request.FORMATS)
    texts = [f"{part}={name}" for part in capture_request.PARTS for name in capture_request.FORMATS]
    assert len({each.name for each in parse_precisions(texts)}) >= len(texts)
    for text in ("kv", "kv=fp4", "cache=int8", "=int8", ""):
        with pytest.raises(UsageError, match="fp8_e4m3"):
            parse_precisions([text])


def test_the_levels_of_nf4_are_those_of_its_definition():
    """Quantiles of the normal distribution, evenly apart on either side of 0, scaled to 1 (QLoRA,
    section 3).
    """
    # as bitsandbytes has it: half way between 1 - 1/30 and 1 - 1/32
    least = 0.9677083
    above, below = (norm.ppf(np.linspace(least, 0.5, count)[:-1]) for count in (9, 8))
    levels = np.sort([*above, 0.0, *-below]) / above.max()
    np.testing.assert_allclose(NF4_LEVELS, levels, atol=2e-7)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize(
    ("dtype", "variant"),
    [("float32", "prefill+tf32"), ("bfloat16", with_weights(eight_bits))],
)
def test_a_precision_on_a_gpu_is_named(dtype, variant):
    loaded = tiny_model("llama", dtype, device="cuda")
    assert judge(loaded, tiny_prompts(loaded), variant=variant).name == LOWER_PRECISION
