"""What the arrays alone say: a verdict without controls, on dumps as people upload them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.judging.ingest import ingest
from core.runs.queries.flips import telling_place
from core.runs.reader import RunReader
from core.runs.store.store import Store
from tests.core.judging.engine_dumps import in_bfloat16, in_float32, saved, states

X, HEAD = states()
PLAIN, OTHER = in_bfloat16(X, HEAD, 1), in_bfloat16(X, HEAD, 2)
WIDE, WIDE_OTHER = in_float32(X, HEAD, 1), in_float32(X, HEAD, 2)
FLOAT32 = {"compute_dtype": np.array("float32")}


def stored(folder: Path, **arrays: Any) -> RunReader:
    store = Store(folder / "store")
    return RunReader(store.path_of(ingest(store, [saved(folder / "dump.npz", **arrays)])))


def verdict_of(run: RunReader) -> str | None:
    return run.pairs[0].verdict


@pytest.mark.parametrize(("reference", "variant", "more"), [(PLAIN, OTHER, {}), (WIDE, WIDE_OTHER, FLOAT32)])
def test_another_order_of_summation_is_likely_rounding(tmp_path, reference, variant, more):
    assert verdict_of(stored(tmp_path, reference=reference, variant=variant, **more)) == "likely rounding"


@pytest.mark.parametrize("reference", [PLAIN, WIDE], ids=["bfloat16", "float32"])
def test_unrelated_arrays_are_a_suspected_bug(tmp_path, reference):
    random = np.random.default_rng(0)
    unrelated = (random.standard_normal(reference.shape) * reference.std()).astype(np.float32)
    assert verdict_of(stored(tmp_path, reference=reference, variant=unrelated)) == "bug suspected"


@pytest.mark.parametrize(("reference", "variant"), [(PLAIN, OTHER), (WIDE, WIDE_OTHER)], ids=["bfloat16", "float32"])
def test_one_swapped_row_is_a_suspected_bug_and_the_pair_opens_there(tmp_path, reference, variant):
    swapped = variant.copy()
    swapped[11] = variant[29]
    with stored(tmp_path, reference=reference, variant=swapped) as run:
        assert verdict_of(run) == "bug suspected"
        assert telling_place(run.positions(0)) == (0, 11)


def test_float32_arrays_of_16_bit_rounding_are_not_accused_unless_float32_is_named(tmp_path):
    """A log-softmax hides the grid of the bfloat16 logits that it was taken of."""

    def log_softmax(logits: np.ndarray) -> np.ndarray:
        wide = logits.astype(np.float64)
        return (wide - np.log(np.exp(wide).sum(1, keepdims=True))).astype(np.float32)

    sides = {"reference": log_softmax(PLAIN), "variant": log_softmax(OTHER)}
    assert verdict_of(stored(tmp_path, **sides)) == "undecided"
    (tmp_path / "named").mkdir()
    assert verdict_of(stored(tmp_path / "named", **sides, **FLOAT32)) == "bug suspected"


def test_a_difference_of_medium_size_stays_undecided(tmp_path):
    random = np.random.default_rng(1)
    step = 2.0 ** (np.floor(np.log2(np.abs(PLAIN).max())) - 7)  # of bfloat16 at the largest logit
    moved = np.round(PLAIN / step + 6 * random.choice([-1, 1], PLAIN.shape)).astype(np.float32) * np.float32(step)
    run = stored(tmp_path, reference=PLAIN, variant=moved, compute_dtype=np.array("bfloat16"))
    assert verdict_of(run) == "undecided"
