"""Faults that 16-bit kernels alone have, in dumps whose float32 pair is sound."""

import numpy as np
import pytest

from benchmarks.verdicts.engines import in_16_bits_only, prefill
from benchmarks.verdicts.sixteen import FAULTS, TWINS
from benchmarks.verdicts.tiny_models import tiny_prompts
from core.checks.single_logit import SINGLE_LOGIT
from core.evidence import FAILED, FLOAT32
from core.inference.models.dtypes import in_float32
from core.judging.stored import judge_stored
from core.judging.uploaded_controls import measure_controls
from core.runs.store.store import Store
from core.verdict import Verdict
from tests.core.evidence import rows_of
from tests.core.inference.controls.side_arrays import side_arrays
from tests.core.judging.engine_dumps import saved
from tests.core.runs.made_runs import ingested, opened

pytestmark = pytest.mark.model
BUG, OPEN = "bug suspected", "undecided"


def corrupted(model, ids):
    """One logit of one position is 12 off, in 16 bits alone."""
    logits = prefill(model, ids).clone()
    logits[20, 7] += 12 * (model.dtype.itemsize == 2)
    return logits


def verdict_of(loaded, folder, engine, *, is_swapped=False):
    """The verdict of a dump of a plain forward and the engine with the pair in float32."""
    prompts = tiny_prompts(loaded)
    sides = ["prefill", engine][:: -1 if is_swapped else 1]
    dump = saved(
        folder / "own.npz",
        token_ids=np.concatenate(prompts),
        compute_dtype=np.array(loaded.dtype),
        **side_arrays(loaded, prompts, *sides),
    )
    with in_float32(loaded) as wide:
        pair = saved(folder / "pair.npz", **side_arrays(wide, prompts, "prefill", "decode"))
    store = Store(folder / "store")
    with ingested(store, dump) as run:
        new = judge_stored(store, run, measure_controls(run, float32=[pair]))
    with opened(store, new) as run:
        (stored,) = run.pairs
        return Verdict(stored.verdict or "", stored.because or "", tuple(run.evidence(0)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("case", "verdicts"),
    [
        ("residual added twice", (BUG, OPEN)),
        ("norm of the token before", (BUG, OPEN)),
        ("stale final norm", (BUG,)),
        ("corrupted", (BUG,)),
    ],
)
def test_a_fault_of_16_bits_alone_is_no_rounding(
    case,
    verdicts,
    dtype,
    narrow,
    half,
    tmp_path,
):
    engine = corrupted if case == "corrupted" else in_16_bits_only(FAULTS[case](1.0))
    verdict = verdict_of(narrow if dtype == "bfloat16" else half, tmp_path, engine)
    assert FAILED not in [row.outcome for row in rows_of(verdict.evidence, FLOAT32)]
    assert verdict.name in verdicts


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("case", TWINS)
@pytest.mark.parametrize("is_swapped", [False, True])
def test_another_kernel_of_the_same_function_is_rounding(
    case,
    is_swapped,
    dtype,
    narrow,
    half,
    tmp_path,
):
    """The last one computes in float64 and rounds once: other kernels are ten times further from
    float32.
    """
    loaded = narrow if dtype == "bfloat16" else half
    verdict = verdict_of(loaded, tmp_path, TWINS[case], is_swapped=is_swapped)
    assert verdict.name == "rounding"


def test_a_logit_that_16_bits_alone_corrupt_is_a_suspected_bug_of_a_model(narrow, judged):
    verdict = judged(narrow, tiny_prompts(narrow), "prefill", corrupted)
    (row,) = rows_of(verdict.evidence, SINGLE_LOGIT)
    assert verdict.is_bug_suspected
    assert row.figures.first == (0, 20)
    assert row.figures.token == 7
