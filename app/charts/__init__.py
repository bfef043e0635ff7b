"""Figures. Tables in, plotly figures out; no Streamlit, no files.

Every figure is deterministic for its input, because an unchanged figure is not drawn again. Colours: reference blue, variant
vermilion (Okabe-Ito), keys green, values violet, ULPs from blue to yellow; all read on white and on black.
"""

from app.charts.caches import cache_heads, cache_positions, over_layers
from app.charts.classes import class_matrix, class_matrix_height, sweep
from app.charts.comparison import runs_by_distance, runs_by_position
from app.charts.floor import floor_ratio, over_modules, pair_and_floor, residues
from app.charts.layers import module_growth, module_map, module_positions
from app.charts.margins import CROWDED, margin_distribution, near_tie_scatter
from app.charts.ops import batch_classes
from app.charts.positions import over_positions, ulp_histogram
from app.charts.style import ARGMAX, FLIP, KINDS, MISMATCH, QUIET, REFERENCE, ULPS, VARIANT
from app.charts.top import crossing, rank_slopes, top_bars

__all__ = [
    "ARGMAX",
    "CROWDED",
    "FLIP",
    "KINDS",
    "MISMATCH",
    "QUIET",
    "REFERENCE",
    "ULPS",
    "VARIANT",
    "batch_classes",
    "cache_heads",
    "cache_positions",
    "class_matrix",
    "class_matrix_height",
    "crossing",
    "floor_ratio",
    "margin_distribution",
    "module_growth",
    "module_map",
    "module_positions",
    "near_tie_scatter",
    "over_layers",
    "over_modules",
    "over_positions",
    "pair_and_floor",
    "rank_slopes",
    "residues",
    "runs_by_distance",
    "runs_by_position",
    "sweep",
    "top_bars",
    "ulp_histogram",
]  # fmt: skip
