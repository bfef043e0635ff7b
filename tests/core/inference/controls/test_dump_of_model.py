"""A model with a dump: its noise floor decides, other models' dumps get no verdict, and a wrong
side is named.
"""

import numpy as np
import pytest
import torch

from benchmarks.verdicts.engines import in_16_bits_only
from benchmarks.verdicts.mutations import fp8, round_cache
from benchmarks.verdicts.precisions import stale_slot_in_fp8
from benchmarks.verdicts.sixteen import FAULTS, TWINS
from benchmarks.verdicts.tiny_models import tiny_model, tiny_prompts
from benchmarks.verdicts.variations import in_two_halves
from core.checks.drawn import DRAWN
from core.checks.from_model import FROM_MODEL
from core.checks.lower_precision import DRAWN_PRECISION, ONE_PRECISION
from core.checks.pair import WIDE_PAIR
from core.checks.single_token import SINGLE_TOKEN
from core.errors import UsageError
from core.evidence import FAILED, FLOAT32, MISSING, OWN_DTYPE, PASSED, PRECISION
from core.inference.controls.dump_of_model import model_of_dump
from core.inference.controls.rounding_floor import rounding_floor
from core.inference.models.dtypes import in_float32
from core.judging.stored import judge_stored
from core.judging.uploaded_controls import measure_controls
from core.runs.store.store import Store
from tests.core.evidence import rows_of
from tests.core.inference.controls.side_arrays import side_arrays
from tests.core.judging.engine_dumps import saved
from tests.core.runs.made_runs import ingested, opened, verdict_of

pytestmark = pytest.mark.model


def _prompts(loaded, tokens=28):
    return [ids[:tokens] for ids in tiny_prompts(loaded)[:2]]


def _arrays(loaded, prompts, variant="decode"):
    """What a dump of a plain forward and a variant has, in the model's dtype."""
    return {
        "token_ids": np.concatenate(prompts),
        "prompt_lengths": np.array([len(ids) for ids in prompts]),
        **side_arrays(loaded, prompts, "prefill", variant),
    }


def _dumps(loaded, folder, prompts, variant="decode"):
    """(the pair in the model's own dtype, the pair in float32)"""
    folder.mkdir(exist_ok=True)
    own = saved(folder / "own.npz", **_arrays(loaded, prompts, variant))
    with in_float32(loaded) as wide:
        return own, saved(folder / "pair.npz", **_arrays(wide, prompts, variant))


@pytest.fixture(scope="module")
def dumped(narrow, tmp_path_factory):
    return _dumps(narrow, tmp_path_factory.mktemp("dumps"), _prompts(narrow))


def _judged(folder, dump, loaded, **given):
    """The judged run of a dump, given as a file or as its arrays."""
    if isinstance(dump, dict):
        dump = saved(folder / "d.npz", **dump)
    store = Store(folder / "store")
    with ingested(store, dump) as run:
        model = model_of_dump(loaded, run, float32=given.get("float32", ()))
        new = judge_stored(
            store,
            run,
            measure_controls(run, with_model=True, **given),
            make_controls=model,
        )
    return opened(store, new)


def _outcomes(run):
    return {row.group: row.outcome for row in run.evidence(0)}


def test_a_dump_of_the_model_itself_is_rounding_by_its_own_floor_and_leaves_the_model_as_it_was(
    narrow,
    dumped,
    tmp_path,
):
    own, pair = dumped
    before = {name: tensor.clone() for name, tensor in narrow.model.state_dict().items()}
    run = _judged(tmp_path, own, narrow, float32=[pair])
    after = narrow.model.state_dict()
    assert all(torch.equal(tensor, before[name]) for name, tensor in after.items())
    assert verdict_of(run) == "rounding"
    assert 0.2 < run.pairs[0].noise_ratio < 4
    outcomes = _outcomes(run)
    assert outcomes[OWN_DTYPE] == PASSED
    assert outcomes[FLOAT32] == PASSED
    assert set(run.rows("floor_position", pair=0)["compute_dtype"]) == {"bfloat16", "float32"}


def test_a_side_that_is_not_what_the_model_computes_is_named(narrow, dumped, tmp_path):
    arrays = dict(np.load(dumped[0]))
    arrays["variant"][5:12] = arrays["variant"][4:11][::-1]
    run = _judged(tmp_path, arrays, narrow)
    assert verdict_of(run) == "bug suspected"
    assert "'variant'" in run.pairs[0].because


def test_a_bias_on_one_token_is_found_with_the_model_too(narrow, dumped, tmp_path):
    """The model's floors look at positions, and none of them shows it."""
    arrays = dict(np.load(dumped[0]))
    variant = torch.tensor(arrays["variant"])
    variant[:, 7] += 8 * np.std(arrays["variant"] - arrays["reference"])
    arrays["variant"] = variant.bfloat16().float().numpy()
    run = _judged(tmp_path, arrays, narrow)
    (row,) = rows_of(run.evidence(0), SINGLE_TOKEN)
    assert row.figures.token == 7
    assert verdict_of(run) == "bug suspected"


def test_a_dump_of_another_model_gets_no_verdict_from_this_one(narrow, tmp_path):
    other = tiny_model("llama", "bfloat16", seed=5)
    run = _judged(
        tmp_path,
        _arrays(other, _prompts(other), in_two_halves),
        narrow,
    )
    assert verdict_of(run) == "undecided"
    assert MISSING in {row.outcome for row in rows_of(run.evidence(0), FROM_MODEL)}
    assert FAILED not in {row.outcome for row in run.evidence(0)}


@pytest.mark.parametrize(
    ("factor", "verdict", "outcome"),
    [(1, "rounding", PASSED), (1.0001, "bug suspected", FAILED)],
)
def test_a_float32_dump_needs_only_the_model(factor, verdict, outcome, tmp_path):
    loaded = tiny_model("gpt2", "float32")
    arrays = _arrays(loaded, _prompts(loaded, 40), "decode+batch:3")
    arrays["variant"][11] *= factor
    run = _judged(tmp_path, arrays, loaded)
    assert verdict_of(run) == verdict
    assert _outcomes(run)[FLOAT32] == outcome


@pytest.mark.parametrize(
    ("floors", "draws"),
    [
        (1.0, 4),
        (9.0, 16),
        (1000.0, 4),
    ],
)
def test_a_position_of_a_dump_beyond_few_draws_is_compared_with_more(floors, draws, tmp_path):
    loaded = tiny_model("gpt2", "float32")
    prompts = _prompts(loaded, 40)
    arrays = _arrays(loaded, prompts, "decode+batch:3")
    size = floors * np.sqrt(rounding_floor(loaded, prompts).squares[:, 11].mean())
    signs = np.where(np.arange(loaded.vocab_size) % 2, size, -size)
    arrays["variant"][11] = arrays["reference"][11] + signs
    run = _judged(tmp_path, arrays, loaded)
    (row,) = rows_of(run.evidence(0), WIDE_PAIR)
    assert len(row.figures.seed_ratios) == draws
    assert row.outcome == (PASSED if floors == 1 else FAILED)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("engine", "verdict"),
    [(round_cache(fp8), "lower precision"), (stale_slot_in_fp8, "bug suspected")],
    ids=["sound", "a stale slot"],
)
def test_a_side_of_16_bits_in_a_lower_precision_is_named_with_and_without_its_float32(
    engine,
    verdict,
    tmp_path,
    narrow,
):
    """With the pair in float32 the precision is shown there.

    The last prompt is the first one once more.
    """
    prompts = _prompts(narrow, 26)
    own, pair = _dumps(narrow, tmp_path / "dumps", [*prompts, prompts[0]], engine)
    for given, check in (({}, DRAWN_PRECISION), ({"float32": [pair]}, ONE_PRECISION)):
        run = _judged(tmp_path / check.name, own, narrow, **given)
        assert verdict_of(run) == verdict, run.pairs[0].because
        if verdict == "lower precision":
            assert "KV cache in fp8_e4m3" in run.pairs[0].because
            (row,) = [row for row in rows_of(run.evidence(0), PRECISION) if row.outcome == PASSED]
            assert row.check is check


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        (FAULTS["residual added twice"](1.0), "bug suspected"),
        (TWINS["products in two halves"], "rounding"),
    ],
    ids=["fault", "harmless"],
)
def test_a_dump_with_its_float32_and_the_model_says_what_the_model_says_itself(
    engine,
    name,
    narrow,
    judged,
    tmp_path,
):
    side = in_16_bits_only(engine)
    prompts = tiny_prompts(narrow)
    verdict = judged(narrow, prompts, "prefill", side)
    own, pair = _dumps(narrow, tmp_path, prompts, side)
    run = _judged(tmp_path, own, narrow, float32=[pair])
    assert verdict.name == name
    assert verdict_of(run) == name
    assert run.pairs[0].noise_ratio == pytest.approx(verdict.noise_ratio, rel=0.01)
    rows = [row for row in rows_of(run.evidence(0), DRAWN) if row.group == OWN_DTYPE]
    drawn = {row.side: row.outcome for row in rows}
    of_variant = FAILED if name == "bug suspected" else PASSED
    assert drawn == {"reference": PASSED, "variant": of_variant}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda arrays: arrays.pop("token_ids"), "has no token_ids"),
        (
            lambda arrays: arrays.update({k: arrays[k][:, :-1] for k in ("reference", "variant")}),
            "384 tokens, the dump 383",
        ),
    ],
)
def test_a_dump_that_no_model_can_be_run_on_is_refused(change, sentence, narrow, dumped, tmp_path):
    arrays = dict(np.load(dumped[0]))
    change(arrays)
    with pytest.raises(UsageError, match=sentence):
        _judged(tmp_path, arrays, narrow)
