"""Chart of the Overview: a pair by position, each prompt in a lane of its own."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from ..numerics.arrays import Array, DataFrame, Record
from ..runs.queries.by_position import cells
from ..text import multiple, number, plural
from . import style

# prompts that are all drawn; of more, so many
MOST_LANES = 12
FEW_LANES = 6
MOST_CELLS = 512  # of a lane: about 2 px each in a wide window
_GAP = 17  # px between lanes, for the name of the prompt
_HEIGHTS = {1: 220, 2: 120, 3: 90}  # px of a lane, by the number of lanes
_LOWEST = 36
_FLOOR = "rgba(138, 147, 160, 0.28)"


def position_lanes(
    drawn: DataFrame,
    prompts: Sequence[int],
    unit: str,
    floor_dtype: str = "",
    quantity: str = "largest difference",
    kind: str = "prompt",
) -> go.Figure:
    """Largest difference and RMS at each position of some prompts, log axis, one lane a prompt; the
    noise floor as a band from below, flips and outliers marked. A click gives prompt and position.

    drawn: of `core.runs.queries.by_position`; of a long prompt a point is the largest of a cell.
    floor_dtype: of the deciding check, of which a hover shows the ratio.
    """
    drawn = drawn[drawn["prompt"].isin(prompts)]
    is_single = len(prompts) == 1
    lane = _HEIGHTS.get(len(prompts), _LOWEST)
    height = len(prompts) * lane + (len(prompts) - 1) * _GAP
    axis = _log_axis(drawn, kind, most=min(6, lane // 16))
    traces: list[Record] = []
    layout: Record = {"shapes": [], "annotations": []}
    named: set[str] = set()
    where = "position %{customdata[1]:,}: "
    texts = []
    for size, ratio in drawn[["max_abs", "ratio"]].to_numpy(float).tolist():
        text = f"{number(size)} {unit}"
        if not np.isnan(ratio):
            text += f"<br>RMS {multiple(ratio)} the noise floor in {floor_dtype}"
        texts.append(text)
    drawn = drawn.assign(text=texts)
    if not is_single:
        where = f"{kind} %{{customdata[0]}}, {where}"
    for place, prompt in enumerate(prompts):
        top = 1 - place * (lane + _GAP) / height
        bottom = max(0.0, top - lane / height)
        y = _y_axis(place)
        layout[y.replace("y", "yaxis")] = {**axis, "domain": [bottom, top]}
        of_prompt = drawn[drawn["prompt"] == prompt].reset_index(drop=True)
        for trace in _traces(of_prompt, axis["range"], where, quantity):
            is_new = trace["name"] not in named
            named.add(trace["name"])
            traces.append({**trace, "yaxis": y, "showlegend": is_new})
        if not is_single:
            layout["shapes"].append(
                {
                    "type": "rect",
                    "layer": "below",
                    "xref": "paper",
                    "x0": 0,
                    "x1": 1,
                    "yref": "paper",
                    "y0": bottom,
                    "y1": top,
                    "line": {"width": 0},
                    "fillcolor": style.QUIET,
                    "opacity": 0.07,
                }
            )
            layout["annotations"].append(
                {
                    "text": f"{kind} {prompt}, {plural(len(of_prompt), 'position')}",
                    "font": {"size": 11},
                    "showarrow": False,
                    "xref": "paper",
                    "x": 0,
                    "xanchor": "left",
                    "yref": "paper",
                    "y": top,
                    "yanchor": "bottom",
                }
            )
    # at once: plotly checks all of a layout whenever one part is added
    figure = go.Figure({"data": traces, "layout": layout})
    first = int(drawn["position"].min())
    last = int(drawn["position"].max())
    margin = 0.5 + (last - first) / 200
    figure.update_xaxes(
        range=[first - margin, last + margin],
        anchor=_y_axis(len(prompts) - 1),
        dtick=1 if last - first < 8 else None,
    )
    above = 6 if is_single else _GAP
    return style.layout(
        figure,
        height + 66 + above,
        "position",
        legend={"y": 1 + above / height},
        margin={"t": 28 + above},
        **style.NEAREST_CLICK,
    )


def _y_axis(lane: int) -> str:
    """Return the name of a lane's axis, `y`, `y2` and so on."""
    return f"y{lane + 1}" if lane else "y"


def _traces(
    drawn: DataFrame,
    span: list[float],
    where: str,
    quantity: str,
) -> list[Record]:
    """Return the traces of one prompt, the floor first, behind the others. where: of hovers."""
    shown, step = cells(drawn, MOST_CELLS)
    positions = shown["position"].to_numpy(int)
    floor = shown["floor_rms"].to_numpy(float)
    rms = shown["rms"].to_numpy(float)
    traces: list[Record] = []
    if np.isfinite(floor).any():
        lowest = 10 ** span[0]
        band = np.maximum(np.nan_to_num(floor), lowest / 10)
        left = positions[0] - 0.5 * step
        right = positions[-1] + 0.5 * step
        area = {
            "mode": "lines",
            "name": "noise floor, RMS",
            "hoverinfo": "skip",
            "x": [left, *positions, right],
            "y": [band[0], *band, band[-1]],
            "fill": "tozeroy",
            "fillcolor": _FLOOR,
            "line": {"shape": "hvh", "width": 0},
        }
        dotted = {"width": 1.5, "dash": "dot"}
        traces += [area, *_line(positions, rms, "RMS difference", dotted, "circle-open")]
    largest = shown["max_abs"].to_numpy(float)
    traces += _line(positions, largest, quantity, {"width": 1.8})
    traces[-1] |= _hover(shown, f"{where}{quantity} %{{text}}")
    has_nan = drawn["nonfinite_mismatch"].fillna(0).astype(float) > 0
    marks = {
        # a ring: a flip at the same position is seen inside it
        "outlier": (drawn["is_outlier"], style.MISMATCH, "circle-open", 13),
        "flip": (drawn["is_flip"].eq(True), style.VARIANT, "x", 9),
        "NaN or infinity on one side": (has_nan, style.MISMATCH, "square", 9),
    }
    for name, (mask, color, symbol, size) in marks.items():
        is_marked = mask.to_numpy(bool)
        rows = drawn[is_marked]
        if rows.empty:
            continue
        heights = rows["max_abs"].to_numpy(float)
        is_on_axis = (heights > 0) & ~has_nan[is_marked].to_numpy(bool)
        mark = {
            "mode": "markers",
            "name": name,
            "x": rows["position"].to_numpy(int),
            "y": np.where(is_on_axis, heights, 10 ** span[1]),
            "marker": {"color": color, "symbol": symbol, "size": size},
        }
        if symbol.endswith("-open"):
            mark["marker"]["line"] = {"width": 2}
        traces.append(mark | _hover(rows, f"{where}{name}, %{{text}}"))
    return traces


def _line(
    x: Array,
    y: Array,
    name: str,
    look: Record,
    symbol: str = "circle",
) -> list[Record]:
    """Return a line with gaps at zero; a point without neighbors as a mark of its own. symbol: of
    such marks.
    """
    heights = style.gaps_at_zero(y)
    is_lone = style.is_lone(heights)
    color = {"color": style.REFERENCE}
    common = {"name": name, "hoverinfo": "skip"}
    traces = []
    if is_lone.any():
        marker = {**color, "size": 6, "symbol": symbol}
        marks = {"x": x[is_lone], "y": heights[is_lone], "marker": marker}
        traces.append({**common, **marks, "mode": "markers"})
    line = {"x": x, "y": heights, "line": color | look, "marker": style.UNDRAWN}
    return [*traces, {**common, **line, "mode": "lines+markers"}]


def _hover(rows: DataFrame, about: str) -> Record:
    """Return what a click gives, prompt and position, and what a hover shows: also the ratio."""
    return {
        "customdata": rows[["prompt", "position"]].to_numpy(float),
        "text": rows["text"].tolist(),
        "hoverinfo": None,
        "hovertemplate": f"{about}<extra></extra>",
    }


def _log_axis(drawn: DataFrame, kind: str, most: int) -> Record:
    """Return the log axis that all lanes share. most: labels of a lane."""
    sizes = drawn["max_abs"]
    if kind == "sequence":
        # |r| of one token may be next to 0
        drawn = drawn.assign(max_abs=sizes.clip(lower=sizes[sizes > 0].quantile(0.05)))
    # a floor next to 0 at a few positions would stretch the axis
    floors = drawn["floor_rms"]
    floors = floors.clip(lower=floors.median() / 10)
    columns = ["max_abs"] if floors.isna().all() else ["max_abs", "rms"]
    values = np.append(drawn[columns].to_numpy(float), floors.to_numpy(float))
    low, high = style.span(values, (0.1, 1.0))
    bottom = float(np.log10(low)) - 0.15
    top = float(np.log10(high)) + 0.25
    axis = {**style.log_axis(values), "range": [bottom, top], "zeroline": False}
    return {**axis, "tickvals": style.log_ticks(bottom, top, most)}


def selected_in_lane(prompts: Sequence[int], prompt: int, position: int) -> Record:
    """Line at the selected position, in the lane of its prompt, as a shape of a layout."""
    lane = prompts.index(prompt)
    return style.selected_line(position) | {"yref": f"{_y_axis(lane)} domain"}
