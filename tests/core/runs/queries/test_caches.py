"""What is shown of key/value caches: counted against numpy on the caches themselves, with planted
differences.
"""

import itertools

import numpy as np
import pytest

from core.numerics.formats import BFLOAT16, values_of
from core.runs.queries.caches import caches_json, cells, merge, summaries
from core.runs.tables.kv_cache import KvPart
from tests.core.runs.cache_runs import KEY_VALUE, both, cache, kv_run
from tests.core.runs.made_runs import opened


def read(store, parts, **how):
    return opened(store, kv_run(store, parts, **how))


def planted(count, shape):
    """Bits to exclusive-or: exactly `count` elements one ULP away."""
    change = np.zeros(shape, np.uint16)
    change.ravel()[np.random.default_rng(1).permutation(change.size)[:count]] = 1
    return change


def test_the_public_figure_of_layer_0_is_told_to_the_element(store):
    """Report C: 13 086 of 75 776 elements of layer 0's keys: 74 positions of 8 heads of 128."""
    count = 13_086
    keys = cache(0, 8, 74, 128)
    values = cache(1, 8, 74, 128)
    parts = both(KvPart(0, 0, "key", 0, keys), keys ^ planted(count, keys.shape))
    parts += both(KvPart(0, 0, "value", 0, values), values.copy())
    with read(store, parts, lengths=(74,)) as run:
        found = summaries(run, 0)[None]
    assert found["layer_0_keys"]["neq"] == count
    assert found["layer_0_keys"]["elements"] == 75_776
    assert found["values"]["neq"] == 0
    assert found["values"]["first_layer"] is None
    assert found["together"]["neq_share"] == count / (2 * 75_776)
    assert found["together"]["first_kinds"] == ["key"]


def many():
    """Caches of two prompts and three layers with random differences from layer 1 and position 2
    on, and both bits of each.
    """
    parts = []
    bits = {}
    random = np.random.default_rng(7)
    for prompt, layer, kind in itertools.product(range(2), range(3), KEY_VALUE):
        reference = cache(int(random.integers(1 << 30)), positions=(5, 4)[prompt])
        changed = reference.copy()
        steps = random.integers(0, 3, changed[:, 2:].shape, dtype=np.uint16)
        # times 0 in layer 0, which stays equal
        changed[:, 2:] += layer * steps
        parts += both(KvPart(prompt, layer, kind, 0, reference), changed)
        bits[prompt, layer, kind] = (reference, changed)
    return parts, bits


def figures_with_numpy(pairs):
    a, b = (np.concatenate([pair[side].ravel() for pair in pairs]) for side in (0, 1))
    gap = values_of(a, BFLOAT16).astype(float) - values_of(b, BFLOAT16).astype(float)
    return {
        "neq": (a != b).sum(),
        "elements": a.size,
        "rms": pytest.approx(np.sqrt((gap**2).mean()), rel=1e-12),
        "max_abs": np.abs(gap).max(),
    }


def test_figures_of_all_prompts_and_of_one_agree_with_numpy(store):
    parts, bits = many()
    with read(store, parts, lengths=(5, 4)) as run:
        found = summaries(run, 0)
        assert [one["prompt"] for one in caches_json(run, 0)["by_prompt"]] == [0, 1]
    kinds_of = {"together": KEY_VALUE, "keys": ("key",), "values": ("value",)}
    for of, prompts in ((None, (0, 1)), (1, (1,))):
        for part, kinds in kinds_of.items():
            pairs = []
            for (prompt, _, kind), both_sides in bits.items():
                if prompt in prompts and kind in kinds:
                    pairs.append(both_sides)
            figures = found[of][part]
            expected = figures_with_numpy(pairs)
            assert {name: figures[name] for name in expected} == expected
            assert figures["first_layer"] == 1
            assert figures["first_position"] == 2
        assert found[of]["together"]["first_kinds"] == ["key", "value"]


def test_layers_agree_with_numpy(store):
    parts, bits = many()
    with read(store, parts, lengths=(5, 4)) as run:
        rows = merge(run, 0, None, "layer", "kind")
    assert list(zip(rows["layer"], rows["kind"], strict=True)) == [
        place[1:] for place in bits if place[0] == 0
    ]
    for row in rows.itertuples():
        expected = figures_with_numpy([bits[p, row.layer, row.kind] for p in (0, 1)])
        assert row.neq == expected["neq"]
        assert row.rms == expected["rms"]


def test_the_first_place_is_one_place_of_the_first_layer(store):
    """Layer 1 differs from position 3 and element 2 on, in its second head; layer 2 from position 1
    on.
    """
    bits = cache(0)
    changed = [bits.copy() for _ in range(3)]
    changed[1][1, 3:, 2:] += 1
    changed[2][0, 1:] += 1
    parts = []
    for layer in range(3):
        parts += both(KvPart(0, layer, "key", 0, bits), changed[layer])
        parts += both(KvPart(0, layer, "value", 0, bits), bits.copy())
    with read(store, parts) as run:
        first = summaries(run, 0)[None]["together"]
    names = "layer", "prompt", "head", "position", "element"
    assert [first[f"first_{name}"] for name in names] == [1, 0, 1, 3, 2]


def test_latents_count_as_keys_and_any_other_kind_as_a_state(store):
    bits = cache(0, 1)
    state = cache(1, 4, 1)
    parts = []
    for kind in ("latent", "rotary key", "indexer key"):
        parts += both(KvPart(0, 1, kind, 0, bits), bits ^ 1)
    parts += both(KvPart(0, 0, "linear cache", 4, state), state ^ 1)
    with read(store, parts) as run:
        found = summaries(run, 0)[None]
    assert found["keys"]["neq"] == 3 * bits.size
    assert found["states"]["neq"] == state.size
    # they differ at one place, so the order is that of their names
    assert found["keys"]["first_kinds"] == ["indexer key", "latent", "rotary key"]
    assert found["together"]["first_kinds"] == ["linear cache"]
    assert found["values"] is None


def test_one_differing_element_stays_visible_in_a_coarse_map(store):
    bits = cache(3, 1, 2049, 4)
    changed = bits.copy()
    changed[0, 2048, 0] ^= 1
    parts = both(KvPart(0, 0, "key", 0, bits), changed)
    with read(store, parts, lengths=(2049,)) as run:
        grid = cells(run, 0, 0, "key", "neq_share", most=7)
    assert len(grid) == 7
    (seen,) = grid[grid["value"] > 0].itertuples()
    assert seen.first_position <= 2048 == seen.last_position
    # of that position, not of the cell
    assert seen.value == 0.25


def test_positions_that_a_window_dropped_are_not_called_equal(store):
    bits = cache(1)
    parts = [
        (0, KvPart(1, 0, "key", 0, bits)),
        (1, KvPart(1, 0, "key", 2, bits[:, 2:].copy())),
        *both(KvPart(1, 1, "key", 0, bits), bits.copy()),
    ]
    with read(store, parts) as run:
        grid = cells(run, 0, 1, "key", "max_ulps")
        heads = run.rows("kv", pair=0)
    # 3 of 5 positions are compared, each with its own
    assert heads["elements"].tolist() == [48, 48, 80, 80]
    assert not heads["neq"].any()
    assert grid.groupby("row")["first_position"].agg(list).tolist() == [
        [2, 3, 4],
        [0, 1, 2, 3, 4],
    ]


def test_a_nan_on_one_side_is_marked_and_equal_nans_are_not(store):
    bits = cache(1)
    bits[0, 1, 0] = 0x7FC0  # NaN
    changed = bits.copy()
    changed[1, 3, 0] = 0x7FC0
    with read(store, both(KvPart(1, 0, "key", 0, bits), changed)) as run:
        is_mismatch = cells(run, 0, 1, "key", "max_ulps")["is_mismatch"]
        assert np.flatnonzero(is_mismatch).tolist() == [3]
        assert merge(run, 0, None, "head")["nonfinite_mismatch"].tolist() == [0, 1]
        assert summaries(run, 0)[None]["together"]["nonfinite_mismatch"] == 1
