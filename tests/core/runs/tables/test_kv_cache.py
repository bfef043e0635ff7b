"""Key/value caches and generated tokens in the run file: counted against numpy, read back, and
absent in files of version 1.
"""

import numpy as np
import pytest

from core.errors import UsageError
from core.numerics.formats import BFLOAT16, values_of
from core.runs.file.records import Generation
from core.runs.tables.kv_cache import KvPart
from core.verdict import FloorRows, Verdict
from tests.core.numerics.oracle import spacing
from tests.core.runs.cache_runs import both, cache, kv_run
from tests.core.runs.made_runs import header_of, opened, writing


def test_differing_elements_are_counted_by_layer_head_and_kind(store):
    reference = cache(0)
    variant = cache(0)
    variant[1, 3:, :4] ^= 1  # head 1, positions 3 and 4, four elements each, one ULP
    parts = both(KvPart(1, 7, "key", 0, reference), variant)
    with opened(store, kv_run(store, parts)) as run:
        table = run.rows("kv", pair=0)
        by_position = run.rows("kv_position", pair=0, prompt=1)
        assert run.rows("kv_position", pair=0, prompt=0).empty
    assert table[["prompt", "layer", "kind"]].to_numpy().tolist() == [[1, 7, "key"]] * 2
    figures = table[["head", "elements", "neq", "max_ulps"]].to_numpy().tolist()
    # a head has 5 positions of 16 values
    assert figures == [[0, 80, 0, 0], [1, 80, 8, 1]]
    assert table["first_position"].fillna(-1).tolist() == [-1, 3]
    a, b = (values_of(side, BFLOAT16).astype(float) for side in (reference, variant))
    gap = np.abs(a - b)
    assert table["max_abs"][1] == gap.max()
    rms = np.sqrt((gap[1] ** 2).mean())
    assert table["rms"][1] == pytest.approx(rms, rel=1e-12)
    # of a head's key at a position
    row_ulps = np.vectorize(spacing)(np.abs(a).max(axis=2), BFLOAT16)
    in_rows = gap / row_ulps[:, :, None]
    assert table["max_row_ulps"].tolist() == in_rows.max(axis=(1, 2)).tolist()
    rms = np.sqrt((in_rows[1] ** 2).mean())
    assert table["rms_row_ulps"][1] == pytest.approx(rms, rel=1e-12)
    assert by_position["max_row_ulps"].tolist() == in_rows.max(axis=(0, 2)).tolist()
    assert by_position["neq"].tolist() == [0, 0, 0, 4, 4]


@pytest.mark.parametrize(
    "parts",
    [
        [(0, KvPart(0, 0, "key", 0, cache(2)))],
        # a state of another shape
        both(KvPart(0, 0, "buffer kv", 4, cache(2, 1, 1)), cache(2, 1, 1, 8)),
    ],
)
def test_a_cache_without_its_like_on_the_other_side_leaves_no_rows(parts, store):
    with opened(store, kv_run(store, parts)) as run:
        assert run.rows("kv", pair=0).empty


def test_caches_of_other_heads_are_refused(store):
    parts = both(KvPart(0, 0, "key", 0, cache(2)), cache(2, heads=1))
    with pytest.raises(UsageError, match="2 heads x 16 vs"):
        kv_run(store, parts)
    assert list(store.directory.iterdir()) == []


def test_generated_tokens_come_back_with_the_place_where_they_diverge(store):
    tokens = (5, 6, 7, 8), (5, 6, 9), (5, 6, 7, 8)
    made = Generation(1, 3, 4, tokens, ("a b c d", "a b x", "a b c d"))
    with writing(store, header_of(sides=3)) as writer:
        writer.write_generation(made)
        run_id = writer.finish()
    with opened(store, run_id) as run:
        assert run.generations == {1: made}
        # position 2 chose the first token, position 4 the one that differs
        assert run.generations[1].parting(1) == 4
        assert run.generations[1].parting(2) is None
    with pytest.raises(UsageError):
        Generation(0, 3, 1, ((5, 6), (5,)), ("", ""))  # more tokens than requested


def test_a_verdict_comes_back_with_its_floor(store):
    header = header_of()
    places = np.arange(header.rows)
    # no float format holds sevenths and ninths, so a narrower column would round them
    floor = FloorRows("float32", places / 7, places / 9)
    with writing(store, header) as writer:
        verdict = Verdict("rounding", "It is rounding.", (), 1.0, (0, 3), (floor,))
        writer.write_verdict(verdict)
        run_id = writer.finish()
    with opened(store, run_id) as run:
        pair = run.pairs[0]
        stored = pair.verdict, pair.because, pair.noise_ratio, pair.first_place
        assert stored == ("rounding", "It is rounding.", 1.0, (0, 3))
        table = run.rows("floor_position", pair=0)
        assert table["pair_rms"].tolist() == floor.pair_rms.tolist()
        assert table["position"].tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
