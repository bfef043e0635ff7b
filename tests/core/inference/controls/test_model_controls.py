"""A model beside a dump: its floor decides, a dump of another model is told from one of this, and a wrong side is
named.
"""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

from benchmarks.verdicts.engines import PREFIX, Engine, prefill
from benchmarks.verdicts.mutations import another_prompt, fp8, overwriting, round_cache
from benchmarks.verdicts.precisions import q4_0, stale_slot_in_fp8, with_weights
from benchmarks.verdicts.tiny_models import tiny_model, tiny_prompts
from core.errors import UsageError
from core.inference.controls.model_controls import model_of_dump
from core.inference.models.dtypes import in_float32
from core.inference.models.model import LoadedModel
from core.inference.paths.engines import whole_side
from core.inference.paths.paths import open_path, parse_path
from core.judging.dump import judge_stored
from core.judging.ingest import ingest
from core.judging.uploaded_controls import measure_controls
from core.runs.file.evidence import FAILED, FLOAT32, MISSING, OWN_DTYPE, PASSED, PRECISION, Check
from core.runs.reader import RunReader
from core.runs.store.store import Store
from tests.core.judging.engine_dumps import saved

pytestmark = pytest.mark.model
BLOCK = 7  # rows of the variant that a fault replaces by their neighbours'


def _side(loaded: LoadedModel, path: str, prompts: list[tuple[int, ...]]) -> np.ndarray:
    with torch.inference_mode(), open_path(parse_path(path), loaded) as run:
        return np.concatenate([whole_side(run, ids).float().numpy() for ids in prompts])


def _dumps(loaded: LoadedModel, folder: Path, variant: str = "decode") -> tuple[Path, Path, list[tuple[int, ...]]]:
    """(the pair in its own dtype, the pair in float32, the prompts)"""
    prompts = [ids[:28] for ids in tiny_prompts(loaded)[:2]]
    about = {"token_ids": np.concatenate(prompts), "prompt_lengths": [len(ids) for ids in prompts]}
    paths = {"reference": "prefill", "variant": variant}
    own = saved(folder / "own.npz", **about, **{side: _side(loaded, path, prompts) for side, path in paths.items()})
    with in_float32(loaded) as wide:
        pair = saved(folder / "pair.npz", **about, **{side: _side(wide, path, prompts) for side, path in paths.items()})
    return own, pair, prompts


@pytest.fixture(scope="module")
def dumped(narrow: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[tuple[int, ...]]]:
    return _dumps(narrow, tmp_path_factory.mktemp("dumps"))


@pytest.fixture(scope="module")
def of_another(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[tuple[int, ...]]]:
    """Of another model of the same shape."""
    return _dumps(tiny_model("llama", "bfloat16", seed=5), tmp_path_factory.mktemp("others"))


def _judged(store: Store, dump: Path, loaded: LoadedModel, **given: list[Path]) -> RunReader:
    with RunReader(store.path_of(ingest(store, [dump]))) as run:
        model = model_of_dump(loaded, run, float32=given.get("float32", ()))
        new = judge_stored(store, run, measure_controls(run, with_model=True, **given), with_model=model)
    return RunReader(store.path_of(new))


def _outcomes(run: RunReader) -> dict[str, str]:
    return {row.group: row.outcome for row in run.evidence(0)}


def test_a_dump_of_the_model_itself_is_rounding_by_its_own_floor_and_leaves_the_model_as_it_was(
    narrow, dumped, tmp_path
):
    own, pair, _ = dumped
    before = {name: tensor.clone() for name, tensor in narrow.model.state_dict().items()}
    run = _judged(Store(tmp_path / "s"), own, narrow, float32=[pair])
    assert all(torch.equal(tensor, before[name]) for name, tensor in narrow.model.state_dict().items())
    assert run.pairs[0].verdict == "rounding"
    assert 0.2 < run.pairs[0].noise_ratio < 4
    outcomes = _outcomes(run)
    assert (outcomes[OWN_DTYPE], outcomes[FLOAT32]) == (PASSED, PASSED)
    assert set(run.rows("floor_position", pair=0)["compute_dtype"]) == {"bfloat16", "float32"}


def test_a_side_that_is_not_what_the_model_computes_is_named(narrow, dumped, tmp_path):
    own, _, _ = dumped
    arrays = dict(np.load(own))
    arrays["variant"][5 : 5 + BLOCK] = arrays["variant"][4 : 4 + BLOCK][::-1]
    run = _judged(Store(tmp_path / "s"), saved(tmp_path / "bad.npz", **arrays), narrow)
    assert run.pairs[0].verdict == "bug suspected"
    assert "'variant'" in run.pairs[0].because


def test_a_dump_of_another_model_gets_no_verdict_from_this_one(narrow, of_another, tmp_path):
    own, _, _ = of_another
    run = _judged(Store(tmp_path / "s"), own, narrow)
    assert run.pairs[0].verdict == "undecided"
    assert MISSING in {row.outcome for row in run.evidence(0) if row.check is Check.FROM_MODEL}
    assert FAILED not in {row.outcome for row in run.evidence(0)}


def test_a_float32_dump_needs_only_the_model(tmp_path):
    loaded = tiny_model("gpt2", "float32")
    prompts = [ids[:40] for ids in tiny_prompts(loaded)]
    about = {"token_ids": np.concatenate(prompts), "prompt_lengths": [len(ids) for ids in prompts]}
    sides = {
        side: _side(loaded, path, prompts) for side, path in (("reference", "prefill"), ("variant", "decode+batch:3"))
    }
    run = _judged(Store(tmp_path / "s"), saved(tmp_path / "d.npz", **about, **sides), loaded)
    assert run.pairs[0].verdict == "rounding"
    sides["variant"][11] *= 1.0001
    run = _judged(Store(tmp_path / "t"), saved(tmp_path / "e.npz", **about, **sides), loaded)
    assert run.pairs[0].verdict == "bug suspected"
    assert _outcomes(run)[FLOAT32] == FAILED


@pytest.mark.thorough
def test_a_side_in_a_lower_precision_is_named_and_a_fault_on_top_of_it_stays_a_bug(tmp_path):
    """An engine with an 8-bit cache, another whose logits were sent in bfloat16, and the first with three rows in the
    wrong place.
    """
    loaded = tiny_model("llama", "float32")
    prompts = [ids[:30] for ids in tiny_prompts(loaded)]
    about = {"token_ids": np.concatenate(prompts), "prompt_lengths": [len(ids) for ids in prompts]}
    plain = _side(loaded, "prefill", prompts)
    with torch.inference_mode():
        cached = np.concatenate([round_cache(fp8)(loaded.model, torch.tensor(ids)).numpy() for ids in prompts])
    wrong = cached.copy()
    wrong[20:23] = cached[19:22]
    for name, variant, verdict, says in (
        ("cache", cached, "lower precision", "KV cache in fp8_e4m3"),
        ("sent", plain.astype(ml_dtypes.bfloat16).astype(np.float32), "lower precision", "logits in bf16"),
        ("wrong", wrong, "bug suspected", "A fault on top of a lower precision, KV cache in fp8_e4m3"),
    ):
        run = _judged(
            Store(tmp_path / name), saved(tmp_path / f"{name}.npz", **about, reference=plain, variant=variant), loaded
        )
        assert run.pairs[0].verdict == verdict
        assert any(says in row.says for row in run.evidence(0))


def _of_engine(loaded: LoadedModel, engine: Engine, folder: Path, *, tokens: int) -> tuple[Path, Path]:
    """(a dump of the plain forward and an engine in the model's own dtype, the same in float32)"""
    prompts = [ids[:tokens] for ids in tiny_prompts(loaded)]
    prompts.append(tuple(prompts[0]))  # the same tokens once more
    about = {"token_ids": np.concatenate(prompts), "prompt_lengths": [len(ids) for ids in prompts]}

    def sides() -> dict[str, np.ndarray]:
        with torch.inference_mode():
            return {
                name: np.concatenate([each(loaded.model, torch.tensor(ids)).float().numpy() for ids in prompts])
                for name, each in (("reference", prefill), ("variant", engine))
            }

    own = saved(folder / "own.npz", **about, **sides())
    with in_float32(loaded):
        return own, saved(folder / "pair.npz", **about, **sides())


STALE = overwriting(another_prompt, PREFIX, -3)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("sound", "wrong", "says"),
    [
        (round_cache(fp8), stale_slot_in_fp8, ["KV cache in fp8_e4m3"]),
        (with_weights(q4_0), with_weights(q4_0, STALE), ["in q4_0"]),
    ],
    ids=["cache", "weights"],
)
def test_a_side_of_16_bits_in_a_lower_precision_is_named_with_and_without_its_float32(
    sound: Engine, wrong: Engine, says: list[str], tmp_path: Path, narrow: LoadedModel
) -> None:
    """The twin: a stale slot as well. With the pair in float32 the precision is shown there."""
    for engine, verdict in ((sound, "lower precision"), (wrong, "bug suspected")):
        (folder := tmp_path / verdict).mkdir()
        own, pair = _of_engine(narrow, engine, folder, tokens=26)
        for number, given in enumerate(({}, {"float32": [pair]})):
            run = _judged(Store(folder / f"{number}"), own, narrow, **given)
            assert run.pairs[0].verdict == verdict, run.pairs[0].because
            if engine is sound:
                assert all(each in run.pairs[0].because for each in says)
                (row,) = [row for row in run.evidence(0) if row.group == PRECISION and row.outcome == PASSED]
                assert row.check is (Check.EXPLAINED if given else Check.DRAWN_PRECISION)


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
    own, _, _ = dumped
    arrays = dict(np.load(own))
    change(arrays)
    store = Store(tmp_path / "s")
    with (
        RunReader(store.path_of(ingest(store, [saved(tmp_path / "odd.npz", **arrays)]))) as run,
        pytest.raises(UsageError, match=sentence),
    ):
        model_of_dump(narrow, run)
