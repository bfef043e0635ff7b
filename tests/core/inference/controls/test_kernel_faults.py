"""Faults that only the 16-bit kernels of an engine have, and other 16-bit kernels of the same function."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.verdicts.engines import in_16_bits_only
from benchmarks.verdicts.sixteen import FAULTS, PLACE, TWINS
from benchmarks.verdicts.tiny_models import tiny_prompts
from core.inference.controls.model_controls import model_of_dump
from core.inference.models.dtypes import in_float32
from core.inference.models.model import LoadedModel
from core.inference.paths.engines import Engine, side_of, whole_side
from core.judging.dump import judge_stored
from core.judging.ingest import ingest
from core.judging.uploaded_controls import measure_controls
from core.runs.file.evidence import FAILED, FLOAT32, OWN_DTYPE, PASSED, Check
from core.runs.reader import RunReader
from core.runs.store.store import Store
from tests.core.judging.engine_dumps import saved
from tests.covering import covering

pytestmark = pytest.mark.model
OF_ONE_TOKEN = {"residual added twice", "norm of the token before", "tile of the head", "another row of the batch"}


@pytest.mark.spread(4)
@pytest.mark.parametrize(("case", "dtype"), covering(list(FAULTS), ["bfloat16", "float16"]))
def test_a_fault_of_16_bits_alone_is_a_bug(case: str, dtype: str, narrow, half, judged) -> None:
    loaded = narrow if dtype == "bfloat16" else half
    prompts = tiny_prompts(loaded)
    verdict = judged(loaded, prompts, "prefill", in_16_bits_only(FAULTS[case](1.0)))
    assert verdict.is_bug_suspected
    assert {row.outcome for row in verdict.evidence if row.group == FLOAT32} == {PASSED}
    (drawn,) = (row for row in verdict.evidence if row.check is Check.DRAWN)
    assert drawn.outcome == FAILED
    if case in OF_ONE_TOKEN:
        assert verdict.first_place == (0, len(prompts[0]) + PLACE)


@pytest.mark.spread(3)
@pytest.mark.parametrize(("case", "dtype"), covering(list(TWINS), ["bfloat16", "float16"]))
def test_another_16_bit_kernel_of_the_same_function_is_rounding(case: str, dtype: str, narrow, half, judged) -> None:
    loaded = narrow if dtype == "bfloat16" else half
    verdict = judged(loaded, tiny_prompts(loaded), "prefill", in_16_bits_only(TWINS[case]))
    assert verdict.name == "rounding"
    (drawn,) = (row for row in verdict.evidence if row.check is Check.DRAWN)
    assert drawn.outcome == PASSED


def test_a_reference_that_is_not_a_plain_forward_is_asked_too(narrow, judged) -> None:
    engine = in_16_bits_only(FAULTS["residual added twice"](1.0))
    verdict = judged(narrow, tiny_prompts(narrow), engine, "decode")
    assert verdict.is_bug_suspected
    outcomes = {row.side: row.outcome for row in verdict.evidence if row.check is Check.DRAWN}
    assert sorted(outcomes.values()) == [FAILED, PASSED]
    assert outcomes["decode"] == PASSED


def _judged_dump(loaded: LoadedModel, engine: Engine, folder: Path) -> RunReader:
    """A judged dump of the engine compared with a plain forward, judged with its float32 and the model."""
    prompts = tiny_prompts(loaded)
    about = {"token_ids": np.concatenate(prompts), "prompt_lengths": [len(ids) for ids in prompts]}
    sides = {"reference": side_of("prefill"), "variant": side_of(engine)}

    def logits(model: LoadedModel) -> dict[str, np.ndarray]:
        with torch.inference_mode():
            return {
                name: torch.cat([whole_side(side.run_on(model), ids) for ids in prompts]).float().numpy()
                for name, side in sides.items()
            }

    own = saved(folder / "own.npz", **about, **logits(loaded))
    with in_float32(loaded) as widened:
        pair = saved(folder / "pair.npz", **about, **logits(widened))
    store = Store(folder / "s")
    with RunReader(store.path_of(ingest(store, [own]))) as run:
        controls = measure_controls(run, with_model=True, float32=[pair])
        new = judge_stored(store, run, controls, with_model=model_of_dump(loaded, run, float32=[pair]))
    return RunReader(store.path_of(new))


@pytest.mark.parametrize(
    ("engine", "name"),
    [(FAULTS["residual added twice"](1.0), "bug suspected"), (TWINS["products in two halves"], "rounding")],
    ids=["fault", "harmless"],
)
def test_a_dump_with_its_float32_and_the_model_says_the_same(
    engine: Engine, name: str, narrow: LoadedModel, judged, tmp_path: Path
) -> None:
    side = in_16_bits_only(engine)
    verdict = judged(narrow, tiny_prompts(narrow), "prefill", side)
    run = _judged_dump(narrow, side, tmp_path)
    assert (verdict.name, run.pairs[0].verdict) == (name, name)
    assert run.pairs[0].noise_ratio == pytest.approx(verdict.noise_ratio, rel=0.01)
    drawn = {row.side: row.outcome for row in run.evidence(0) if row.check is Check.DRAWN and row.group == OWN_DTYPE}
    assert drawn == {"reference": PASSED, "variant": FAILED if name == "bug suspected" else PASSED}
