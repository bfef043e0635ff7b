"""Figures: what must not be lost in drawing."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from app.compare import charts as compare_charts
from app.components import best_tokens
from core.numerics.formats import BFLOAT16
from core.plots import lanes, pairs, style
from core.plots import layers as internals
from core.plots import near_ties as near_ties_charts
from core.runs.queries.by_position import cells, telling_prompts
from core.runs.queries.flips import on_grid


def trace(figure, name):
    (found,) = (one for one in figure.data if one.name == name)
    return found


def position_cells():
    """Three layers x two cells of two positions; layer 11 holds nothing in the first, layer 7 has a
    NaN in the last.
    """
    return pd.DataFrame(
        {
            "row": [3, 3, 7, 7, 11],
            "cell": [0, 1, 0, 1, 1],
            "first_position": [4, 6, 4, 6, 6],
            "last_position": [5, 7, 5, 7, 7],
            "value": [0.0, 0.25, 0.5, 0.0, 0.0],
            "is_mismatch": [False, False, False, True, False],
        },
    )


@pytest.mark.parametrize(
    "measure",
    ["ratio", "neq_share", "max_row_ulps", "max_ulps"],
)
def test_every_cell_of_a_map_that_was_compared_can_be_clicked_and_leads_into_itself(measure):
    cells = position_cells()
    names = {layer: f"layer {layer}" for layer in (3, 7, 11)}
    figure = internals.position_map(cells, names, {3: "3"}, measure, 4)
    points = trace(figure, "cells")
    clicked = cells[["row", "first_position", "value"]]
    assert np.array(points.customdata).tolist() == clicked.to_numpy().tolist()
    assert list(zip(points.x, points.y, points.text, strict=True)) == [
        (4.5, 0, "layer 3"),
        (6.5, 0, "layer 3"),
        (4.5, 1, "layer 7"),
        (6.5, 1, "layer 7"),
        (6.5, 2, "layer 11"),
    ]
    # unseen points by the thousand would each be an element of the page
    assert points.marker.maxdisplayed == 1
    # equal cells have a flat color of their own: a log scale has no place for 0
    equal, shown, odd = (one for one in figure.data if one.type == "heatmap")
    assert np.isnan(equal.z).tolist() == [[False, True], [True, False], [True, False]]
    assert np.isnan(shown.z).tolist() == [[True, False], [False, True], [True, True]]
    assert np.isnan(odd.z).tolist() == [[True, True], [True, False], [True, True]]


def test_heads_of_keys_and_values_have_one_color_scale():
    table = pd.DataFrame(
        {
            "layer": [0, 0, 2, 2],
            "kind": ["key", "value"] * 2,
            "head": 0,
            "rms": [0, 0, 1.0, 100.0],
        },
    )
    # the scale is shared with other maps: 1 to 1,000 is 0 to 3 in powers of ten
    every = np.array([1.0, 1000.0])
    figure = internals.head_maps(table.assign(nonfinite_mismatch=0), "rms", every)
    shown = [one for one in figure.data if one.coloraxis is not None]
    assert [one.z.tolist()[1] for one in shown] == [[0.0], [2.0]]
    assert figure.layout.coloraxis.cmin == 0.0
    assert figure.layout.coloraxis.cmax == 3.0
    assert shown[0].y == ("0", "2")  # as categories: a gap would read as equal


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ([0.5, 1.0, 4.0], ("0.1", "100")),
        ([5.66, 57.0, 2600.0], ("0.1", "≥ 100")),
        ([0.01, 1.0, 4.0], ("≤ 0.1", "100")),
        ([1.0, 4.0, np.inf], ("0.1", "≥ 100")),
    ],
)
def test_a_ratio_has_the_same_color_in_every_run_and_an_end_says_what_is_behind_it(values, ends):
    cells = position_cells().iloc[:3].assign(value=values)
    names = {3: "3", 7: "7"}
    figure = internals.position_map(cells, names, names, "ratio", 4)
    axis = figure.layout.coloraxis
    # powers of ten of 0.1x and 100x, whatever the values are
    assert axis.cmin == -1.0
    assert axis.cmax == 2.0
    assert (axis.colorbar.ticktext[0], axis.colorbar.ticktext[-1]) == ends
    # only there the hover says that the noise floor is 0
    assert len(trace(figure, "noise floor of 0").y) == np.isinf(values).sum()


def test_maps_next_to_each_other_share_a_color_scale():
    cells = position_cells()
    names = {layer: str(layer) for layer in (3, 7, 11)}
    figure = internals.position_map(cells, names, names, "max_row_ulps", 4, np.array([0.5, 10.0]))
    assert figure.layout.coloraxis.cmax == 10.0


def growing_modules():
    """Five modules that all differ; the embedding has a noise floor of 0."""
    kinds = ["embedding", "projection", "residual", "residual", "head"]
    names = ["embed", "layers.0.q", "layers.0", "layers.1", "logits"]
    return pd.DataFrame(
        {
            "ordinal": range(5),
            "module": names,
            "kind": kinds,
            "block": pd.array([None, 0, 0, 1, None], "Int64"),
            "dtype": ["bfloat16", *["float32"] * 4],
            "neq": 1,
            "neq_share": 0.5,
            "rms": [1.0, 5.0, 2.0, 9.0, 40.0],
            "floor_rms": [0.0, 1.0, 1.0, 1.0, 1.0],
            "ratio": [np.inf, 5.0, 2.0, 9.0, 40.0],
        },
    )


def test_growth_names_the_first_module_beyond_noise_and_its_line_ends_before_the_logits():
    figure = internals.module_growth(growing_modules())
    line = trace(figure, "residual stream")
    assert line.x.tolist() == [2, 3]
    assert line.y.tolist() == [2.0, 9.0]
    # a floor of 0 in bfloat16 says nothing
    beyond = trace(figure, "first beyond noise")
    assert beyond.x == (1,)
    assert beyond.y == (5.0,)
    (name,) = figure.layout.annotations
    assert name.x == 1
    assert name.y == np.log10(5.0)
    assert name.text == "layer 0 q"
    assert figure.layout.xaxis.ticktext[-1] == "logits"


def test_growth_is_over_the_noise_floor_with_its_limit_and_infinity_is_above_all():
    figure = internals.module_growth(growing_modules())
    every = trace(figure, "other modules")
    # the infinite ratio is drawn at twice the largest finite one
    assert every.y.tolist() == [80.0, 5.0, 2.0, 9.0, 40.0]
    assert every.customdata[1].tolist() == [1, 5.0, 1.0, 0.5, "5.00x"]
    # the noise floor, and the limit of rounding in the verdict on logits
    assert [shape.y0 for shape in figure.layout.shapes] == [1.0, 4.0]
    # the name is above every point and within the plot
    (name,) = figure.layout.annotations
    assert np.log10(80) < name.ay < figure.layout.yaxis.range[1]


def test_growth_without_noise_floors_is_the_difference():
    modules = growing_modules().assign(floor_rms=np.nan, ratio=np.nan)
    figure = internals.module_growth(modules)
    assert trace(figure, "other modules").y.tolist() == [1.0, 5.0, 2.0, 9.0, 40.0]
    assert not figure.layout.shapes


def near_tie_table(positions):
    """Margins and differences of every size, each tenth margin and each twelfth difference 0."""
    random = np.random.default_rng(0)
    margin = 10 ** random.uniform(-4, 1, positions)
    difference = 10 ** random.uniform(-4, 1, positions)
    margin[::10] = 0.0
    difference[::12] = 0.0
    # both logits of a margin may move by the largest difference, towards each other
    near = margin <= 2 * difference
    return pd.DataFrame(
        {
            "prompt": 0,
            "position": np.arange(positions),
            "reference_margin": margin,
            "variant_margin": margin * 1.5,
            "max_abs": difference,
            "could_flip": near,
            "is_flip": near & (np.arange(positions) % 5 == 0),
            "nonfinite_mismatch": np.zeros(positions, int),
        },
    )


def test_a_crowd_is_shaded_by_density_in_which_every_position_counts_once():
    figure = near_ties_charts.near_tie_scatter(near_tie_table(6000), [()])
    dense = [one for one in figure.data if one.name == "density"]
    points = [one for one in figure.data if one.customdata is not None]
    crowds = [one for one in points if len(one.customdata) > 2000]
    counts = [round(np.nansum(10**one.z)) for one in dense]
    assert counts == [len(one.customdata) for one in crowds]
    # unseen points would each be an element of the page
    assert {one.marker.maxdisplayed for one in crowds} == {1}
    for one in dense:
        # a cell of one position has the lightest shade, so it is seen
        assert np.nanmin(one.z) == 0
        assert one.colorscale[0][1].endswith(",0.28)")
    # shading begins at 2,000 positions of a kind
    few = near_ties_charts.near_tie_scatter(near_tie_table(1900), [()])
    assert not [one for one in few.data if one.name == "density"]


def equal_but_for_one():
    """Small margins at positions that do not differ, as in a run of which one position differs."""
    table = near_tie_table(300)
    table["max_abs"] = 0.0
    table["could_flip"] = False
    table["is_flip"] = False
    # from a step of bfloat16 at logits of 2 to 4
    table["reference_margin"] = table["variant_margin"] = np.geomspace(0.0156, 8, 300)
    table.loc[150, "max_abs"] = 0.06
    return table


@pytest.mark.parametrize(
    "table",
    [equal_but_for_one(), near_tie_table(300)],
    ids=["equal but for one", "random"],
)
def test_no_point_without_a_possible_flip_lies_below_the_bound_as_it_is_drawn(table):
    figure = near_ties_charts.near_tie_scatter(table, [()])
    line = trace(figure, "margin = 2 × difference")
    assert np.allclose(line.y, 2 * np.array(line.x))  # a straight line in logarithms
    (points,) = (one for one in figure.data if str(one.name).startswith("no flip possible"))
    x = np.array(points.x)
    y = np.array(points.y)
    first, last = line.x
    is_along = (first <= x) & (x <= last)
    assert not (is_along & (y < 2 * x)).any()


@pytest.mark.parametrize(
    "equal",
    [0, 9],
    ids=["all differ", "some are equal"],
)
@pytest.mark.parametrize("tied", [0, 9], ids=["no tie", "ties"])
@pytest.mark.parametrize(
    "difference",
    [1e-4, 1e4],
    ids=["far below", "far above"],
)
def test_the_bound_is_in_sight_however_far_the_differences_are(difference, tied, equal):
    table = equal_but_for_one().assign(max_abs=difference)
    # `loc` takes the last label too: with 0 one row is left, and stays as it is (times True)
    table.loc[:tied, ["reference_margin", "variant_margin"]] *= not tied
    table.loc[20 : 20 + equal, "max_abs"] *= not equal
    figure = near_ties_charts.near_tie_scatter(table, [()])
    line = trace(figure, "margin = 2 × difference")
    left, right = 10.0 ** np.array(figure.layout.xaxis.range)
    bottom, top = 10.0 ** np.array(figure.layout.yaxis.range)
    x = np.geomspace(*line.x, 1000)
    y = 2 * x
    is_across = (left < x) & (x < right)
    assert (is_across & (bottom < y) & (y < top)).any()


def test_zeros_stand_in_a_shaded_gutter_below_every_other_value():
    table = near_tie_table(300)
    figure = near_ties_charts.near_tie_scatter(table, [()])
    points = [one for one in figure.data if one.customdata is not None]
    place, smallest, *_ = np.unique(np.concatenate([one.y for one in points]))
    rectangles = [shape for shape in figure.layout.shapes if shape.type == "rect"]
    band = next(shape for shape in rectangles if shape.xref.startswith("x domain"))
    margins = table["reference_margin"]
    assert smallest == margins[margins > 0].min()
    assert band.y0 < place < band.y1 < smallest
    axis = figure.layout.yaxis
    assert axis.tickvals[0] == place
    assert axis.ticktext[0] == "0"
    assert min(axis.tickvals[1:]) >= band.y1


def test_equal_sides_have_one_difference_and_no_position_that_could_flip():
    table = near_tie_table(300).assign(max_abs=0.0, could_flip=True, is_flip=False)
    figure = near_ties_charts.near_tie_scatter(table, [()])
    assert figure.layout.xaxis.ticktext == ("0",)
    assert not any(str(one.name).startswith("could flip") for one in figure.data)


def test_every_side_of_a_run_has_a_line_with_a_mark_a_token_on_the_grid_of_the_dtype():
    """bfloat16 at 4 to 8 has steps of 1/32."""
    sides = ("a", "<b>", "c")
    top = pd.DataFrame(
        {
            "token_id": [7, 9],
            "a_logit": [4.0625, 4.0],
            "<b>_logit": [4.0, 4.0625],
            "c_logit": 4.0,
        },
    )
    grid = on_grid(top, sides, BFLOAT16)
    figure = go.Figure(best_tokens.grid_chart(grid, sides, ("x", "y"), "bfloat16"))
    marks = [one for one in figure.data if len(one.x) == 3]
    assert [one.x for one in marks] == [(4.0625, 4.0, 4.0), (4.0, 4.0625, 4.0)]
    assert [[round(height) for height in one.y] for one in marks] == [[2, 1, 0]] * 2
    assert marks[0].marker.symbol != marks[1].marker.symbol
    assert marks[0].marker.color == (style.REFERENCE, style.VARIANT, style.VARIANT)
    assert figure.layout.yaxis.ticktext == ("a", "&lt;b&gt;", "c")
    # the grid has a value more on each side, below 4 in steps of 1/64; then half of its widest step
    assert figure.layout.xaxis.range == (3.984375 - 1 / 64, 4.09375 + 1 / 64)


def test_flips_of_compared_runs_are_drawn_over_every_line_in_the_colour_of_flips_and_named_once():
    values = {"one": [1.0, 2.0, 0.0, 3.0, 1.0], "two": [1.0, 0.5, 0.0, 0.7, 1.0]}
    flips = {"one": [1, 3], "two": [1]}
    curves = []
    for name, sizes in values.items():
        table = pd.DataFrame({"prompt": 0, "position": range(5), "max_abs": sizes})
        table["is_flip"] = table["position"].isin(flips[name])
        curves.append((name, table))
    figure = pairs.runs_by_position(curves, 0, "max_abs", "difference")
    crosses = [one for one in figure.data if one.name == "flip"]
    assert list(figure.data[-2:]) == crosses
    assert [one.x.tolist() for one in crosses] == [[1, 3], [1]]
    assert [one.showlegend for one in crosses] == [True, False]
    assert {one.marker.color for one in crosses} == {style.VARIANT}
    # a run in the color of flips would hide its crosses
    assert not {one.line.color for one in figure.data if one.mode == "lines"} & {style.VARIANT}


def by_position_rows():
    """Two prompts; two positions are equal, one has no floor, one a NaN, one an outlier."""
    rows = {
        "prompt": [0, 0, 0, 3, 3],
        "position": [0, 1, 2, 0, 1],
        "max_abs": [0.0, 0.5, 2.0, 0.25, 0.0],
        "rms": [0.0, 0.125, 0.5, 0.0625, 0.0],
        "floor_rms": [0.1, 0.1, 0.0, 0.1, 0.1],
        "ratio": [0.0, 1.25, np.inf, 0.625, np.nan],
        "is_flip": [False, True, False, False, False],
        "is_outlier": [False, False, True, False, False],
        "nonfinite_mismatch": [0, 0, 0, 0, 2],
    }
    return pd.DataFrame(rows)


def test_each_prompt_has_a_lane_with_its_marks_and_every_position_can_be_clicked():
    figure = lanes.position_lanes(by_position_rows(), [0, 3], "logits")
    lines = [one for one in figure.data if one.name == "largest difference" and "lines" in one.mode]
    assert [one.yaxis for one in lines] == ["y", "y2"]
    assert [one.customdata[:, :2].tolist() for one in lines] == [
        [[0, 0], [0, 1], [0, 2]],
        [[3, 0], [3, 1]],
    ]
    assert np.isnan(lines[0].y).tolist() == [True, False, False]
    named = [one for one in figure.data if one.mode == "markers" and "difference" not in one.name]
    marks = {one.name: (one.yaxis, one.x.tolist()) for one in named}
    odd = "NaN or infinity on one side"
    assert marks == {"flip": ("y", [1]), "outlier": ("y", [2]), odd: ("y2", [1])}
    assert figure.layout.yaxis.domain[0] > figure.layout.yaxis2.domain[1]
    shape = lanes.selected_in_lane([0, 3], 3, 1)
    assert shape["x0"] == 1
    assert shape["yref"] == "y2 domain"


def test_lanes_of_sequences_begin_where_most_of_their_tokens_are():
    # a token that hardly moves would stretch the axis by five powers of ten
    sizes = np.append(np.full(99, 0.1), 1e-6)
    drawn = by_position_rows().iloc[[1] * 100].assign(max_abs=sizes)
    figure = lanes.position_lanes(drawn, [0], "nats", kind="sequence")
    assert figure.layout.yaxis.range[0] > -2


def test_a_cell_of_a_long_prompt_is_its_largest_difference_and_the_rms_over_it():
    drawn, step = cells(by_position_rows(), 3)
    assert step == 2
    assert drawn["max_abs"].tolist() == [0.5, 2.0, 0.0]
    # the mean square of 0 and 0.125
    assert drawn["rms"].iloc[0] == pytest.approx(0.125 / 2**0.5)
    assert telling_prompts(by_position_rows(), 3, 2) == [0, 3]


def test_the_only_line_of_runs_by_distance_is_named():
    table = pd.DataFrame({"distance": [1, 10], "share": [0.5, 0.1]})
    figure = compare_charts.runs_by_distance([("one run", table)])
    assert figure.layout.showlegend
    assert [line.name for line in figure.data] == ["one run"]
    # of nine powers of ten
    assert figure.layout.xaxis.dtick is None
    assert figure.layout.xaxis.nticks == 5


@pytest.mark.parametrize(("count", "most"), [(1, 6), (6, 2)])
def test_narrow_lanes_have_few_labels(count, most):
    rows = by_position_rows().iloc[[1]].assign(rms=0.6, floor_rms=0.6)  # within a decade
    prompts = list(range(count))
    drawn = pd.concat([rows.assign(prompt=prompt, max_abs=0.6 + prompt) for prompt in prompts])
    ticks = lanes.position_lanes(drawn, prompts, "logits").layout.yaxis.tickvals
    assert 1 <= len(ticks) <= most
