"""Digests of sides: of the values, so the same at any place and for any saved dtype; and never of
something else than is said.
"""

import hashlib
import json

import ml_dtypes
import numpy as np
import pytest

from core.numerics.formats import BFLOAT16, FLOAT16, FLOAT32
from core.runs.dumps.export import export_npz
from core.runs.dumps.source_dtype import SideDigest
from core.runs.reader import RunReader
from core.runs.reports.run_json import run_json
from core.runs.store.store import Store
from tests.core.runs.dumps.made_dumps import logits
from tests.core.runs.made_runs import header_of, ingested, write_run

COARSE = logits(0, (6, 40), "bfloat16")
FINE = logits(1, (6, 40))
HALF = FINE.astype(np.float16)


def sha(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def taken(folder, name, **arrays):
    store = Store(folder / "store")
    np.savez(folder / f"{name}.npz", **arrays)
    return ingested(store, folder / f"{name}.npz")


def test_the_same_bfloat16_values_have_the_digest_of_their_bits_in_every_run_and_capture(tmp_path):
    """With float32, upcast with float16, as bits; and written by a capture in float32."""
    wide = COARSE.astype(np.float32)
    bits = COARSE.view(np.uint16)
    named = {"compute_dtype": np.array("bfloat16")}
    header = header_of("float32", (6,), 40, 2)
    sides = [FINE.view(np.uint32), wide.view(np.uint32)]
    captured = write_run(Store(tmp_path / "other"), header, sides)
    runs = [
        taken(tmp_path, "void", reference=FINE, variant=COARSE),
        taken(tmp_path, "bits", reference=bits ^ 1, variant=bits, **named),
        taken(tmp_path, "half", reference=HALF, variant=wide),
        RunReader(captured),
    ]
    assert {run.header.compute_dtype for run in runs} == {"bfloat16", "float16", "float32"}
    for run in runs:
        with run:
            assert run.sides[1].sha256 == sha(COARSE)
            assert run.sides[1].sha256_dtype == "bfloat16"


def test_a_side_that_holds_a_value_of_its_own_dtype_has_the_digest_of_its_own_bits(tmp_path):
    with taken(tmp_path, "both", reference=FINE, variant=HALF) as run:
        digests = [(side.sha256, side.sha256_dtype) for side in run.sides]
        assert digests == [(sha(FINE), "float32"), (sha(HALF), "float16")]
    one = np.nextafter(COARSE.astype(np.float32), np.float32(9))
    wide = COARSE.astype(np.float32)
    # after all other rows have been digested as bfloat16
    wide[-1, -1] = one[-1, -1]  # a single bit, at the very end
    with taken(tmp_path, "one", reference=FINE, variant=wide) as run:
        assert run.sides[1].sha256 == sha(wide)
        assert run.sides[1].sha256_dtype == "float32"


@pytest.mark.parametrize("chunk", [1, 4, 6])
@pytest.mark.parametrize(
    ("fmt", "values", "dtype", "expected"),
    [
        (FLOAT32, COARSE.astype(np.float32), "bfloat16", COARSE),
        (FLOAT32, HALF.astype(np.float32), "float16", HALF),
        (FLOAT32, FINE, "float32", FINE),
        (FLOAT16, HALF, "float16", HALF),
        # bfloat16 holds every whole number up to 256
        (FLOAT16, np.round(HALF), "bfloat16", np.round(HALF).astype(ml_dtypes.bfloat16)),
        (BFLOAT16, COARSE, "bfloat16", COARSE),
        (
            FLOAT32,
            np.full((6, 40), np.nan, np.float32),
            "bfloat16",
            np.full((6, 40), np.nan, ml_dtypes.bfloat16),
        ),
    ],
)
def test_a_digest_does_not_hang_on_how_rows_come(fmt, values, dtype, expected, chunk):
    bits = np.ascontiguousarray(values).view(fmt.carrier)
    digest = SideDigest(fmt)
    for start in range(0, 6, chunk):
        digest.update(bits[start : start + chunk])
    assert digest.stored_digest() == sha(values)
    assert digest.values() == (sha(expected), dtype)


def test_an_exported_npz_matches_the_digest_that_is_shown(tmp_path):
    with taken(tmp_path, "mixed", reference=FINE, variant=COARSE) as run:
        export_npz(run, tmp_path / "out.npz")
        arrays = np.load(tmp_path / "out.npz")
        for side in run.sides:
            assert sha(arrays[side.name]) == side.sha256
        assert json.loads(json.dumps(run_json(run)["sides"]))[1]["sha256_dtype"] == "bfloat16"
