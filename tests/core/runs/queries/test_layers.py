"""Outputs of modules in a run file: every figure against numpy in float64, and the views of a page
on planted differences.
"""

import numpy as np
import pytest

from core.runs.queries.layers import (
    MEASURES,
    cells,
    first_module,
    furthest_module,
    layers_json,
    modules,
    sentence,
)
from core.runs.tables.layers import LayerModule, LayerPart
from core.runs.writer import RunWriter
from tests.core.runs.dumps.made_dumps import VALUES, bits_of
from tests.core.runs.layer_runs import GROWING, MODULES, WIDTH, layer_run
from tests.core.runs.made_runs import calm_sides, header_of, opened

NORM = LayerModule(0, "model.norm", "norm")


def compared(store, *sides):
    """A run of one prompt of five positions with these parts of each side."""
    header = header_of(lengths=(5,), sides=len(sides))
    with RunWriter(store, header) as writer:
        rows = writer.layers([[0, 1, 2, 3, 4]])
        for side, (parts, bits) in enumerate(zip(sides, calm_sides(header), strict=True)):
            writer.write(side, 0, bits)
            for part in parts:
                rows.write(side, part)
            rows.end(side, 0)
        return opened(store, writer.finish())


def part(values, dtype="bfloat16", first=0):
    return LayerPart(0, NORM, first, bits_of(values.astype(VALUES[dtype])), dtype)


@pytest.mark.parametrize("dtype", VALUES)
def test_figures_equal_those_of_numpy_in_float64(dtype, store):
    random = np.random.default_rng(0)
    # below 2, so that a step down by the ULP of 1 to 2 is exact
    a = random.uniform(1, 2, (5, 7)).astype(VALUES[dtype])  # in one binade an ULP is one size
    # the fraction bits of each format
    ulp = 2.0 ** -{"float32": 23, "float16": 10, "bfloat16": 7}[dtype]
    wide = a.astype(np.float64)
    steps = random.integers(0, 4, a.shape) * (random.random(a.shape) < 0.5)
    steps[0] = 0
    steps[wide - ulp * steps < 1] = 0  # none that leaves the binade
    b = (wide - ulp * steps).astype(VALUES[dtype])
    variant = [part(b[:2], dtype), part(b[2:], dtype, 2)]
    with compared(store, [part(a, dtype)], variant) as run:
        row = run.rows("layer", pair=0).iloc[0]
        along = run.rows("layer_position", pair=0, prompt=0, ordinal=0)
    difference = np.abs(b.astype(np.float64) - wide)
    largest = wide.max(axis=1)  # which bfloat16 may round to 2
    row_ulps = ulp * 2.0 ** np.floor(np.log2(largest))
    in_rows = difference / row_ulps[:, None]
    squares = difference**2
    expected = {
        "neq": (steps > 0).sum(),
        "elements": 35,
        "finite": 35,
        "positions": 5,
        "max_ulps": steps.max(),
        "max_abs": difference.max(),
        "rms": pytest.approx(np.sqrt(squares.mean()), rel=1e-12),
        "mean_ulps": pytest.approx(steps.mean(), rel=1e-12),
        "max_row_ulps": in_rows.max(),
        "rms_row_ulps": pytest.approx(np.sqrt((in_rows**2).mean()), rel=1e-12),
        "first_position": np.flatnonzero(steps.any(1))[0],
        "dtype": dtype,
    }
    assert {name: row[name] for name in expected} == expected
    assert along["max_row_ulps"].tolist() == in_rows.max(axis=1).tolist()
    assert along["neq"].tolist() == (steps > 0).sum(1).tolist()
    assert along["max_ulps"].tolist() == steps.max(1).tolist()
    assert along["rms"].to_numpy() == pytest.approx(np.sqrt(squares.mean(1)), rel=1e-12)


def test_sides_of_two_dtypes_are_compared_in_float32_which_holds_both(store):
    narrow = np.array([[1.0, 1.5]] * 5)
    # a step of float32 above 1, which bfloat16 would round away
    wide = np.array([[1.0 + 2.0**-23, 1.5]] * 5)
    with compared(store, [part(wide, "float32")], [part(narrow, "bfloat16")]) as run:
        row = run.rows("layer", pair=0).iloc[0]
    figures = row[["dtype", "neq", "max_ulps", "max_abs"]].tolist()
    assert figures == ["float32", 5, 1, 2.0**-23]


WHOLE = part(np.ones((5, 3)))


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    "parts",
    {
        "a position is missing": [part(np.ones((4, 3)))],
        "another width": [part(np.ones((5, 4)))],
        "not understood afterwards": [WHOLE, part(np.ones((1, 0)))],
        "another width afterwards": [WHOLE, part(np.ones((1, 2)), first=4)],
        "another dtype afterwards": [WHOLE, part(np.ones((1, 3)), "float32", first=4)],
    }.items(),
    ids=lambda case: case[0],
)
def test_a_module_that_is_not_followed_everywhere_is_left_out(parts, store):
    for sides in (([WHOLE], parts[1]), (parts[1], [WHOLE])):
        with compared(store, *sides) as run:
            assert run.rows("layer", pair=0).empty
            assert run.rows("layer_position", pair=0, prompt=0).empty


def test_nan_meets_nan_and_nothing_else(store):
    a = np.ones((5, 3))
    b = np.ones((5, 3))
    a[0, 0] = b[0, 0] = a[2, 1] = np.nan
    with compared(store, [part(a)], [part(b)]) as run:
        row = run.rows("layer", pair=0).iloc[0]
        is_mismatch = cells(run, 0, 0, "neq_share")["is_mismatch"]
    figures = row[["neq", "nonfinite_mismatch", "finite", "first_position"]].tolist()
    # 15 elements, less the equal NaNs and the one that is NaN on one side
    assert figures == [1, 1, 13, 2]
    assert np.flatnonzero(is_mismatch).tolist() == [2]


def test_a_module_that_is_nan_on_one_side_has_no_size(store):
    with compared(store, [WHOLE], [part(np.full((5, 3), np.nan))]) as run:
        (plain,) = layers_json(run, 0)["by_module"]
    sizes = "rms", "max_abs", "max_ulps", "mean_ulps", "ratio", "max_row_ulps"
    expected = {"neq": 15, "nonfinite_mismatch": 15, "first_position": 0, **dict.fromkeys(sizes)}
    assert plain.items() >= expected.items()


# ---- what a page makes of them


def test_the_first_module_is_the_first_that_ran_and_differs(store):
    with opened(store, layer_run(store, GROWING)) as run:
        found = {prompt: modules(run, 0, prompt) for prompt in (0, 1, None)}
        text = sentence(run, 0, found[None])
    first = {prompt: first_module(table) for prompt, table in found.items()}
    places = {
        prompt: (each.module, each.first_prompt, each.first_position)
        for prompt, each in first.items()
    }
    projection = "model.layers.0.attn.<b>q</b>_proj", 0, 1
    assert places == {0: projection, 1: ("model.layers.0", 1, 3), None: projection}
    assert found[None]["positions"].tolist() == [8] * len(MODULES)
    assert "position 1 of prompt 0**: 1 of 8" in text
    # 1 element of 24 by 16 ULPs against all by one: the last is furthest from its floor in prompt 0
    furthest = furthest_module(found[0])
    assert furthest.module == "logits"
    assert furthest.ratio == pytest.approx(16 / np.sqrt(3 * WIDTH))


def test_figures_of_several_prompts_are_those_of_all_their_elements(store):
    with opened(store, layer_run(store, GROWING)) as run:
        together = modules(run, 0)
        apart = run.rows("layer", pair=0)
    for row in together.itertuples():
        parts = apart[apart["ordinal"] == row.ordinal]
        finite = parts["finite"].to_numpy(float)
        weights = finite / finite.sum()
        assert row.elements == parts["elements"].sum()
        assert row.neq == parts["neq"].sum()
        for name in ("rms", "rms_row_ulps", "floor_rms"):
            # means of prompts of 3 and 5 positions, weighted by their elements
            square = weights @ parts[name].to_numpy(float) ** 2
            assert getattr(row, name) == pytest.approx(np.sqrt(square), rel=1e-12), name
        mean_ulps = weights @ parts["mean_ulps"].to_numpy(float)
        assert row.mean_ulps == pytest.approx(mean_ulps, rel=1e-12)
        assert row.max_ulps == parts["max_ulps"].max()
        assert row.max_row_ulps == parts["max_row_ulps"].max()


def test_the_floor_is_that_of_the_module_and_an_embedding_has_one_of_nought(store):
    with opened(store, layer_run(store, {(0, 1, 2): 3, **GROWING})) as run:
        table = modules(run, 0)
        along = run.rows("layer_position", pair=0, prompt=1, ordinal=4)
        ratios = cells(run, 0, 1, "ratio")
    grid = ratios.pivot(index="row", columns="cell", values="value").to_numpy()
    assert table["floor_rms"][0] == 0.0
    assert table["ratio"][0] == float("inf")
    # every element by one step of bfloat16 between 1 and 2
    assert table["floor_rms"][4] == pytest.approx(2.0**-7)
    assert along["floor_rms"].to_numpy() == pytest.approx(2.0**-7)
    # the embedding moves although no reordering moves it: infinitely far beyond its floor
    assert np.isinf(grid[0]).tolist() == [False, False, True, False, False]
    assert grid[4, 3] == pytest.approx(2 / np.sqrt(WIDTH))


@pytest.mark.parametrize("measure", MEASURES)
def test_the_map_pools_by_maximum_so_that_nothing_is_lost(measure, store):
    long = 100
    chosen = (tuple(range(long)),)
    run_id = layer_run(store, {(3, 0, 41): 5}, chosen=chosen, lengths=(long,))
    with opened(store, run_id) as run:
        grid = cells(run, 0, 0, measure, most=7)
    # 100 positions in cells of 15 are 7 cells a module
    assert len(grid) == 6 * 7
    (differs,) = grid[grid["value"] > 0].itertuples()
    assert differs.row == 3
    assert differs.first_position <= 41 <= differs.last_position
    # the other measures have units of their own
    assert differs.value == 5 or measure != "max_ulps"
