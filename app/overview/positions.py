"""The pair by position on the Overview: a chart with a lane for each prompt, and its flips."""

from functools import partial

import streamlit as st

from app.components import plots
from app.flips import parts
from app.shell import selection, store_cache
from core.plots import lanes
from core.runs.queries import by_position as query
from core.runs.queries.flips import flips_sentence
from core.text import number, opening

_KEY = "by_position"
_OF_FLIPS = (
    "prompt",
    "position",
    "is_flip",
    "reference_token",
    "variant_token",
    "max_abs",
)
_MOST_FLIPS = 5  # in sight


def chart(view: selection.View, *, is_rollout: bool) -> None:
    """Draw the pair by position; nothing if it does not differ, or has one position only."""
    differs = (view.table["max_abs"] > 0).any() or view.pair.summary.nonfinite_mismatch
    if not differs or view.compared_positions == 1:
        return
    header = view.header
    st.subheader(header.worded(f"Difference by position, {header.unit}"))
    # of a long run the table holds one prompt
    of = (view.pair.index, view.prompt if header.is_long else None)
    drawn = store_cache.remember(
        _KEY, view.run, of, partial(query.by_position, view.run, view.pair.index, view.table)
    )
    is_few = len(header.prompts) <= lanes.MOST_LANES
    most = lanes.MOST_LANES if is_few else lanes.FEW_LANES
    prompts = query.telling_prompts(drawn, view.prompt, most)
    checks = query.floor_checks(view.run, view.pair.index)
    words = ("|r|", "sequence") if is_rollout else ()
    floor_dtype = checks[-1].compute_dtype if checks else ""
    figure = plots.cached(
        view.run,
        (*of, *prompts),
        lanes.position_lanes,
        drawn,
        prompts,
        header.unit,
        floor_dtype,
        *words,
    )
    # apart from the cached traces: a step then draws the line alone
    line = lanes.selected_in_lane(prompts, view.prompt, view.position)
    figure = figure._replace(shapes=(*figure.shapes, line))
    plots.draw(figure, _KEY, "by-position", plots.select_place, of=str(prompts))
    sentences = [f"{opening(header.quantity)}, log axis."]
    if drawn["floor_rms"].notna().any():
        sentences.append("Gray: the noise floor, with which the RMS difference is compared.")
    elif checks and drawn["ratio"].notna().any():
        sentences.append(f"The noise floor was measured in {floor_dtype}; see its check below.")
    elif header.is_list:
        sentences.append("Lists of tokens have no noise floor by position.")
    else:
        sentences.append("No noise floor was measured for this pair.")
    if drawn["is_outlier"].any():
        limit = f"{number(checks[-1].position_ratio_allowed)}x the noise floor"
        sentences.append(f"Outlier: beyond {limit} in {floor_dtype}.")
    if is_rollout:
        sentences.append("Cut below the 5th percentile of |r|.")
    if drawn["max_abs"].eq(0).any():
        sentences.append("No point: equal there.")
    total = len(header.prompts)
    if len(prompts) < total and not header.is_long:
        sentences.append(
            f"{len(prompts)} of {total:,}: the selected one and those with the largest difference.",
        )
    longest = int(drawn.groupby("prompt").size().max())
    if longest > lanes.MOST_CELLS:
        step = -(-longest // lanes.MOST_CELLS)
        sentences.append(f"Of long prompts a point is the largest of up to {step} positions.")
    st.caption(" ".join(sentences))


def flips(view: selection.View) -> None:
    """Draw the flips of all prompts as a list; a click selects one."""
    table = view.table
    st.subheader("Flips")
    of = (view.pair.index, view.prompt if view.header.is_long else None)
    # 14 ms of 24,000 positions
    read = partial(flips_sentence, table)
    st.markdown(store_cache.remember("flips_sentence", view.run, of, read))
    rows = table[table["is_flip"].eq(True)].filter(_OF_FLIPS)
    if len(rows):
        parts.draw_positions(rows, view.run, "overview_flips", _MOST_FLIPS, of)
