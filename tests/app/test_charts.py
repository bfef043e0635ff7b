"""Figures: what must not be lost in drawing."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from app.compare import charts as compare_charts
from app.components import best_token_charts, chart_style
from app.components.chart_style import add_lone, log_axis
from app.flips import charts as flips_charts
from app.kv_cache import charts as kv_cache_charts
from app.near_ties import charts as near_ties_charts
from app.overview import charts as overview_charts
from core.runs.views.flips import Candidates
from core.runs.views.kv_cache import HeadGrid, PositionGrid


def marked(figure, name: str = "differs") -> set[tuple[float, float]]:
    """(middle, row) of every upright line of that name; each reaches over the height of its row and is at most 3 pixels
    wide.
    """
    found = set()
    for one in figure.data:
        if one.name == name:
            assert one.mode == "lines"
            assert one.line.width <= 3
            for x, y in zip(np.reshape(one.x, (-1, 3)), np.reshape(one.y, (-1, 3)), strict=True):
                assert x[0] == x[1]
                assert y[1] - y[0] == 1
                assert np.isnan([x[2], y[2]]).all()
                assert (x[0], y[0] + 0.5) not in found
                found.add((x[0], y[0] + 0.5))
    return found


def position_map(layers: int = 3, positions: int = 1000, width: int = 3) -> PositionGrid:
    """Equal caches but for layer 1 around position 500; layer 2 holds nothing before position 300."""
    edges = np.minimum(np.arange(-(-positions // width) + 1) * width, positions)
    share = np.zeros((layers, len(edges) - 1))
    share[1, 500 // width] = 0.25
    share[2, : 300 // width] = np.nan
    return PositionGrid("key", np.array([3, 7, 11]), edges, share, share * 8, share * 2, share > 1)


def trace(figure, name):
    (found,) = (one for one in figure.data if one.name == name)
    return found


def candidates(*logits: float, grid: tuple[float, ...]) -> Candidates:
    return Candidates((3, 7), np.reshape(np.array(logits), (2, 2)), np.array(grid), 1)


def test_a_tie_of_two_candidates_is_two_marks_on_one_line_of_the_grid():
    found = candidates(4.0, 4.0, 4.0, 4.03125, grid=(3.984375, 4.0, 4.03125, 4.0625))
    figure = flips_charts.on_grid(found, ("prefill", "decode"), ("<b>a</b>", "b%"), "bfloat16")
    first, second = (one for one in figure.data if not one.showlegend and one.x[0] is not None)
    assert [tuple(zip(one.x, one.marker.color, strict=True)) for one in (first, second)] == [
        ((4.0, chart_style.REFERENCE), (4.0, chart_style.VARIANT)),
        ((4.0, chart_style.REFERENCE), (4.03125, chart_style.VARIANT)),
    ]
    assert first.y[0] > 1 > second.y[0]  # above each other on the reference's line
    assert [shape.x0 for shape in figure.layout.shapes if shape.x0 == shape.x1] == list(found.grid)
    assert list(figure.layout.xaxis.ticktext) == ["3.984375", "4", "4.03125", "4.0625"]
    assert "<b>" not in (figure.to_json() or "").replace("\\u003c", "<").replace("&lt;b", "")
    assert [one.name for one in figure.data if one.x[0] is None] == ["&lt;b&gt;a&lt;/b&gt;", "b%"]


def test_candidates_too_many_steps_apart_have_no_lines():
    figure = flips_charts.on_grid(candidates(1.0, 2.0, 1.0, 9.0, grid=()), ("a", "b"), ("x", "y"), "float32")
    assert [shape for shape in figure.layout.shapes if shape.x0 == shape.x1] == []
    assert figure.layout.xaxis.title.text == "logit"


def test_every_cell_of_the_cache_map_that_was_compared_can_be_clicked_and_leads_into_itself():
    grid = position_map()
    cells = trace(kv_cache_charts.cache_positions(grid, "neq_share", "bfloat16", 0), "cells")
    assert len(cells.x) == np.count_nonzero(~np.isnan(grid.neq_share))
    for x, y, (position, share) in zip(cells.x, cells.y, cells.customdata, strict=True):
        i, j = int(y), np.searchsorted(grid.edges, x, side="right") - 1
        assert grid.edges[j] <= position < grid.edges[j + 1]
        assert share == grid.neq_share[i, j]
    assert cells.marker.maxdisplayed == 1  # unseen points by the thousand would each be an element of the page
    assert {(place, number) for place, number in zip(cells.y, cells.text, strict=True)} == {
        (0, "3"),
        (1, "7"),
        (2, "11"),
    }


@pytest.mark.parametrize("measure", ["neq_share", "max_row_ulps", "max_ulps"])
def test_the_only_differing_cell_of_a_cache_map_has_a_line_however_thin_the_cell_is(measure):
    figure = kv_cache_charts.cache_positions(position_map(), measure, "bfloat16", 0)
    ((x, row),) = marked(figure)
    assert (498 <= x < 501, row) == (True, 1)
    assert figure.layout.yaxis.ticktext[1] == "7"


def misplaced(figure, grid: PositionGrid) -> set:
    """Cells that differ without a line, and lines where nothing does."""
    middles = (grid.edges[:-1] + grid.edges[1:] - 1) / 2
    return marked(figure) ^ {(middles[j], float(i)) for i, j in zip(*np.nonzero(grid.neq_share > 0), strict=True)}


@pytest.mark.parametrize("share", [0.02, 0.9])
def test_lines_are_where_cells_differ_and_nowhere_else_the_largest_on_top(share):
    grid = position_map(width=1)
    random = np.random.default_rng(1)
    grid.neq_share[:] = np.where(random.random(grid.neq_share.shape) < share, random.random(grid.neq_share.shape), 0.0)
    figure = kv_cache_charts.cache_positions(grid, "neq_share", "bfloat16", 0)
    assert misplaced(figure, grid) == set()
    lines = [one for one in figure.data if one.name == "differs"]
    of = {place: grid.neq_share[int(place[1]), int(place[0])] for place in marked(figure)}
    largest = [max(of[x, y + 0.5] for x, y in zip(one.x[::3], one.y[::3], strict=True)) for one in lines]
    assert largest == sorted(largest)
    assert {one.line.width for one in lines} == ({2} if share < 0.1 else {1})
    lines[0].x = lines[0].x + 0.25  # a line beside its cell must be noticed
    assert misplaced(figure, grid)


def test_nan_on_one_side_is_red_in_its_cell_and_on_top():
    grid = position_map()
    grid.is_mismatch[0, 40] = True
    figure = kv_cache_charts.cache_positions(grid, "neq_share", "bfloat16", 0)
    assert marked(figure, "NaN or infinity on one side") == {(121.0, 0.0)}
    assert "infinity on one side" in [one.name for one in figure.data][-1]
    assert figure.data[-1].line.color == chart_style.MISMATCH


def test_equal_cells_have_a_ground_and_cells_that_were_not_compared_have_none():
    ground = kv_cache_charts.cache_positions(position_map(), "neq_share", "bfloat16", 0).data[0].z
    assert ground[0].tolist() == [1] * 334
    assert np.isnan(ground[1, 166])
    assert np.isnan(ground[2, :100]).all()
    assert not np.isnan(ground[2, 100:]).any()


def test_keys_and_values_share_one_colour_scale():
    keys = HeadGrid("key", np.arange(2), np.arange(1), np.array([[0.0], [1e-6]]), np.zeros((2, 1), bool))
    values = HeadGrid("value", np.arange(2), np.arange(1), np.array([[0.0], [0.5]]), np.zeros((2, 1), bool))
    for measure, top in (("neq_share", 0.5), ("rms", -1.0)):  # log2 of 0.5
        figure = kv_cache_charts.cache_heads([keys, values], measure, "bfloat16")
        assert figure.layout.coloraxis.cmax == pytest.approx(top)
        coloured = [one for one in figure.data if one.coloraxis == "coloraxis"]
        assert [int(np.isfinite(one.z).sum()) for one in coloured] == [
            1,
            1,
        ]  # one element of a million is coloured as well


def test_layers_without_a_difference_have_no_point_on_a_log_axis_and_one_at_0_of_a_share():
    table = pd.DataFrame(
        {"layer": [0, 0, 1, 1], "kind": ["key", "value"] * 2, "neq_share": [0, 0, 0.5, 0.25], "rms": [0, 0, 1, 2]}
    )
    shares = kv_cache_charts.over_layers(table, "neq_share", "bfloat16")
    assert [one.y.tolist() for one in shares.data] == [[0, 0.5], [0, 0.25]]
    rms = kv_cache_charts.over_layers(table, "rms", "bfloat16")
    assert [np.isnan(one.y).tolist() for one in rms.data] == [[True, False]] * 2


@pytest.mark.parametrize("low", [1e-9, 3.1e-5, 0.02, 7.0])
@pytest.mark.parametrize("spread", [1.0, 1.0001, 2.3, 40.0, 1e7])
@pytest.mark.parametrize("layers", [3, 80])
def test_a_colour_bar_always_has_labels_that_fit(low, spread, layers):
    cells = np.linspace(low, low * spread, layers)[:, None]
    grid = HeadGrid("key", np.arange(layers), np.arange(1), cells, np.zeros(cells.shape, bool))
    axis = kv_cache_charts.cache_heads([grid], "rms", "bfloat16").layout.coloraxis
    assert 1 <= len(axis.colorbar.tickvals) <= (4 if layers == 3 else 8)
    assert axis.cmin < axis.cmax


def near_tie_table(positions: int, prompts: int = 1, seed: int = 0) -> pd.DataFrame:
    """Margins and differences of every size, each tenth margin and each twelfth difference 0; near ties and flips as
    they follow.
    """
    random = np.random.default_rng(seed)
    margin, difference = (10 ** random.uniform(-4, 1, positions) for _ in range(2))
    margin[::10], difference[::12] = 0.0, 0.0
    near = margin <= 2 * difference
    return pd.DataFrame(
        {
            "prompt": np.repeat(np.arange(prompts), positions // prompts),
            "position": np.tile(np.arange(positions // prompts), prompts),
            "reference_margin": margin,
            "variant_margin": margin * 1.5,
            "max_abs": difference,
            "could_flip": near,
            "is_flip": near & (np.arange(positions) % 5 == 0),
            "nonfinite_mismatch": np.zeros(positions, int),
            "reference_margin_ulps": np.round(margin * 128).astype(int),
            "variant_margin_ulps": np.round(margin * 192).astype(int),
        }
    )


def told(figure) -> dict[int, tuple[float, float]]:
    """Of every point that can be hovered, clicked and brushed: its row, and where it is."""
    found = {}
    for one in figure.data:
        if one.customdata is not None:
            for row, x, y in zip(one.customdata[:, 0], one.x, one.y, strict=True):
                assert int(row) not in found
                found[int(row)] = (x, y)
    return found


@pytest.mark.parametrize("positions", [300, 6000])
def test_every_position_can_be_brushed_where_it_stands_however_many_there_are(positions):
    table = near_tie_table(positions)
    found = told(near_ties_charts.near_tie_scatter(table, [()], (0, 7)))
    assert sorted(found) == list(range(positions))
    for row in range(positions):
        x, y = found[row]
        if table["max_abs"][row]:
            assert x == table["max_abs"][row]
        if table["reference_margin"][row]:
            assert y == table["reference_margin"][row]


def test_a_crowd_is_shaded_by_density_and_a_lone_position_in_it_is_still_seen():
    table = near_tie_table(6000)
    quiet = table["max_abs"].gt(0) & ~table["could_flip"]
    table.loc[quiet, ["reference_margin", "variant_margin"]] = 5.0
    table.loc[quiet, "max_abs"] = 0.01
    lone = int(np.flatnonzero(quiet)[3])
    table.loc[lone, ["reference_margin", "variant_margin", "max_abs"]] = [0.9, 0.9, 2e-3]
    figure = near_ties_charts.near_tie_scatter(table, [()], (0, 7))
    dense = [one for one in figure.data if one.name == "density"]
    assert len(dense) >= 1
    for one in dense:
        (kind,) = [
            other for other in figure.data if other.customdata is not None and other.marker.color == told_colour(one)
        ]
        counts = np.round(10 ** np.nan_to_num(one.z, nan=-np.inf))
        assert counts.sum() == len(kind.customdata)  # nothing is left out, nothing counted twice
        assert kind.marker.maxdisplayed == 1  # unseen points by the thousand would each be an element of the page
    column = np.searchsorted(dense[0].x, 2e-3, side="right") - 1
    row = np.searchsorted(dense[0].y, 0.9, side="right") - 1
    assert dense[0].z[row, column] == 0  # log10 of one position
    assert dense[0].colorscale[0][1].endswith(",0.28)")
    assert not [
        one
        for one in near_ties_charts.near_tie_scatter(near_tie_table(1900), [()], (0, 7)).data
        if one.name == "density"
    ]


def told_colour(density) -> str:
    red, green, blue = (int(part) for part in density.colorscale[0][1][5:].split(",")[:3])
    return f"#{red:02X}{green:02X}{blue:02X}"


def contradicting(figure) -> int:
    """Points of `no flip possible` below the line of the bound, where there is one."""
    line = trace(figure, "margin = 2 × difference")
    (points,) = (one for one in figure.data if str(one.name).startswith("no flip possible"))
    x, y = np.array(points.x), np.array(points.y)
    assert np.allclose(line.y, 2 * np.array(line.x))  # a straight line in logarithms
    return int(((x >= line.x[0]) & (x <= line.x[-1]) & (y < 2 * x)).sum())


def equal_but_for_one() -> pd.DataFrame:
    """Small margins where nothing differs, as in a run of which one position differs."""
    table = near_tie_table(300)
    table["max_abs"], table["near_tie"], table["is_flip"] = 0.0, False, False
    table["reference_margin"] = table["variant_margin"] = np.geomspace(0.0156, 8, 300)
    table.loc[150, "max_abs"] = 0.06
    return table


def test_no_point_without_a_possible_flip_lies_below_the_bound_as_it_is_drawn():
    for table in (equal_but_for_one(), near_tie_table(300)):
        figure = near_ties_charts.near_tie_scatter(table, [()], (0, 7))
        assert contradicting(figure) == 0
    figure = near_ties_charts.near_tie_scatter(equal_but_for_one(), [()], (0, 7))
    line = trace(figure, "margin = 2 × difference")
    line.x, line.y = np.array([0.01, 0.12]), np.array([0.02, 0.24])  # through the gutter
    assert contradicting(figure) > 0


@pytest.mark.parametrize(
    ("scale", "zero", "first"), [(1.0, "0.02", "0.04"), (1e-6, "2x10<sup>−8</sup>", "5x10<sup>−8</sup>")]
)
def test_a_gutter_has_no_number_but_0(scale, zero, first):
    table = equal_but_for_one()
    table["max_abs"] *= scale
    figure = near_ties_charts.near_tie_scatter(table, [()], (0, 7))
    axis = figure.layout.xaxis  # the gutter ends at 0.0337: half a decade below 0.06, and a quarter up
    assert axis.labelalias[zero].strip() == ""
    assert first not in axis.labelalias
    assert axis.minorloglabels == "complete"
    (note,) = (note for note in figure.layout.annotations if note.text == "<b>0</b>")
    assert 10**note.x == pytest.approx(0.06 * scale / 10**0.5)


def test_zeros_stand_in_a_shaded_gutter_below_every_other_value():
    table = near_tie_table(300)
    figure = near_ties_charts.near_tie_scatter(table, [()], (0, 7))
    found = told(figure)
    zero, other = table["reference_margin"] == 0, table["reference_margin"] > 0
    place = {found[row][1] for row in np.flatnonzero(zero)}
    assert len(place) == 1
    band = [shape for shape in figure.layout.shapes if shape.type == "rect" and shape.xref.startswith("x domain")]
    assert band[0].y0 < place.pop() < band[0].y1 < table["reference_margin"][other].min()


def test_what_is_brushed_keeps_its_colour_and_the_rest_fades():
    table = near_tie_table(300)
    brushed = [3, 50, 299]
    figure = near_ties_charts.near_tie_scatter(table, [()], (0, 7), brushed)
    chosen = [
        int(one.customdata[place, 0])
        for one in figure.data
        if one.customdata is not None
        for place in one.selectedpoints
    ]
    assert sorted(chosen) == brushed
    assert all(one.unselected.marker.opacity < 0.3 for one in figure.data if one.customdata is not None)


def test_points_of_several_prompts_say_which_prompt_and_the_selected_one_is_ringed():
    table = near_tie_table(40, prompts=2)
    figure = near_ties_charts.near_tie_scatter(table, [("<b>a",) * 20, ()], (1, 7))
    texts = [text for one in figure.data if one.customdata is not None for text in one.text]
    assert sum(text.startswith("prompt 0, position ") for text in texts) == 20
    assert any("&lt;b&gt;a" in text for text in texts)
    assert not any("<b>" in text for text in texts)
    ring = trace(figure, "position 7")
    assert (ring.x[0], ring.y[0]) == told(figure)[27]


@pytest.mark.parametrize("unit", ["ULPs", "logits"])
def test_every_margin_is_in_the_bin_that_its_label_says(unit):
    table = near_tie_table(500)
    figure = near_ties_charts.margin_distribution(table, 4 if unit == "ULPs" else 0.1, "bfloat16", unit)
    for bars, side in zip(figure.data, ("reference", "variant"), strict=True):
        margins = table[f"{side}_margin_ulps" if unit == "ULPs" else f"{side}_margin"].to_numpy(float)
        assert sum(bars.y) == len(margins)
        for label, count in zip(bars.x, bars.y, strict=True):
            low = float(label.split("-")[0].replace(",", "")) if unit == "ULPs" else float(label)
            if unit == "logits" and low:
                low = 2.0 ** round(np.log2(low))  # the label is rounded
            inside = margins == 0 if low == 0 else (margins >= low) & (margins < 2 * low)
            assert count == inside.sum(), label


@pytest.mark.parametrize("threshold", [0.0, 0.001, 0.02, 0.1, 1.0, 5.0])
def test_the_threshold_stands_between_the_bins_below_and_above_it(threshold):
    table = near_tie_table(500)
    figure = near_ties_charts.margin_distribution(table, threshold, "bfloat16", "logits")
    places = [float(shape.x0) for shape in figure.layout.shapes]
    lows = [2.0 ** round(np.log2(float(label))) for label in figure.data[0].x[1:]]
    below = sum(2 * low <= threshold for low in lows)  # bins that end below the threshold, after that of 0
    assert places == [] or 0.5 + below <= places[0] <= 0.5 + below + 1
    assert bool(places) == (threshold <= 2 * lows[-1])


def best(reference: list[int], variant: list[int], texts: list[str | None] | None = None) -> pd.DataFrame:
    """A table of best tokens with these ranks, 1 the argmax."""
    count = len(reference)
    return pd.DataFrame(
        {
            "token_id": np.arange(count) + 100,
            "text": pd.Series(texts or [f"t{i}" for i in range(count)], dtype=object),
            "reference_rank": reference,
            "variant_rank": variant,
            "reference_logit": -np.array(reference, float),
            "variant_logit": -np.array(variant, float),
            "reference_probability": 0.1,
            "variant_probability": 0.1,
        }
    )


@pytest.mark.parametrize(
    ("variant", "crossed"),
    [
        ([1, 2, 3, 4], []),
        ([2, 1, 3, 4], [0, 1]),
        ([1, 2, 4, 3], [2, 3]),
        ([4, 1, 2, 3], [0, 1, 2, 3]),
        ([1, 3, 5, 8], []),
    ],
)
def test_tokens_that_change_places_are_found_and_coloured(variant, crossed):
    top = best([1, 2, 3, 4], variant)
    assert np.flatnonzero(best_token_charts.crossing(top)).tolist() == crossed
    figure = best_token_charts.rank_slopes(top, "a", "b")
    coloured = [place for place, line in enumerate(figure.data) if line.line.color != chart_style.QUIET]
    assert coloured == crossed


def test_tokens_beyond_the_best_stand_below_them_in_their_order_and_are_dashed():
    figure = best_token_charts.rank_slopes(
        best([1, 2, 3, 41, 10], [1, 9, 2, 3, 4], ["<b>", None, "x", "y", "z"]), "<i>", "b", count=3
    )
    assert [line.y[0] for line in figure.data] == [1, 2, 3, 5.5, 4.5]
    assert [line.y[1] for line in figure.data] == [1, 5.5, 2, 3, 4.5]
    assert [line.line.dash for line in figure.data] == ["solid", "dash", "solid", "dash", "dash"]
    said = [note.text for note in figure.layout.annotations]
    assert any("41" in text for text in said)
    assert not any("<i>" in text or "<b><b>" in text for text in said)
    assert "token 101" in " ".join(said)


def labels_of(axis: dict, values: np.ndarray) -> int:
    """How many ticks with a number a log axis of these values has."""
    low, high = axis.get("range", np.log10([values.min(), values.max()]))
    digits = (1,) if axis["dtick"] == 1 else (1, 2, 5)
    return sum(low <= power + np.log10(digit) <= high for power in range(-12, 12) for digit in digits)


@pytest.mark.parametrize("low", [1.3e-9, 3.1e-5, 0.02, 0.0625, 1.0, 7.0, 1_676_458.0])
@pytest.mark.parametrize("spread", [1.0, 1.0001, 1.7, 4.4, 40.0, 1e4])
def test_a_log_axis_has_two_labels_whatever_its_values(low, spread):
    values = low * np.array([1.0, spread, np.nan, 0.0])
    axis = log_axis(values)
    known = values[values > 0]
    assert labels_of(axis, known) >= 2
    assert "range" not in axis or (10 ** axis["range"][0] <= known.min() and known.max() <= 10 ** axis["range"][1])
    assert labels_of({"dtick": 1}, np.array([0.03, 0.4])) == 1  # as the axes were: one label, and this check sees it


def test_the_histogram_counts_from_below_one_so_that_one_element_and_a_million_are_told_apart():
    axis = overview_charts.ulp_histogram({0: 15_100_758, 1: 1_676_458, 2: 1}, "bfloat16").layout.yaxis
    assert 10 ** axis.range[0] == pytest.approx(0.5)
    assert 10 ** axis.range[1] > 15_100_758
    assert axis.dtick == 1


def test_a_point_without_neighbours_is_a_dot_and_no_other_is():
    figure = go.Figure()
    nan = np.nan
    add_lone(figure, np.arange(8), np.array([1.0, nan, 2.0, 3.0, nan, nan, 4.0, nan]), "#000000")
    (dots,) = figure.data
    assert dots.x.tolist() == [0, 6]
    assert dots.y.tolist() == [1.0, 4.0]


def test_bars_have_their_sides_colour_to_the_edge_and_the_argmax_a_sign():
    figure = best_token_charts.top_bars(best([1, 2, 3], [2, 1, 3]), "a", "b")
    assert [bars.marker.color for bars in figure.data] == [chart_style.REFERENCE, chart_style.VARIANT]
    assert [bars.marker.line.width for bars in figure.data] == [0, 0]
    assert [["▶" in text for text in bars.text] for bars in figure.data] == [[True, False, False], [False, True, False]]


def test_flips_of_compared_runs_are_drawn_over_every_line_in_the_colour_of_flips_and_named_once():
    at, flips = np.arange(5), np.array([1, 3])
    curves = [
        ("one", at, np.array([1.0, 2.0, 0.0, 3.0, 1.0]), flips),
        ("two", at, np.array([1.0, 0.5, 0.0, 0.7, 1.0]), flips[:1]),
    ]
    figure = compare_charts.runs_by_position(curves, "difference", 0)
    crosses = [one for one in figure.data if one.name == "flip"]
    assert list(figure.data[-2:]) == crosses
    assert [one.x.tolist() for one in crosses] == [[1, 3], [1]]
    assert [one.showlegend for one in crosses] == [True, False]
    assert {one.marker.color for one in crosses} == {chart_style.VARIANT}
    assert not {one.line.color for one in figure.data if one.mode == "lines"} & {chart_style.VARIANT}
