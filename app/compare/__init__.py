"""The Compare page: tabs Side by side (runs), Classes (of the sides of one run), Sweeps, Watched
endpoints.
"""

from app.page import Page, PageSetting, words
from core.sweeps.matrix import FIGURES
from core.sweeps.plan import AXES

SIDE_BY_SIDE = Page(
    "side_by_side",
    "Side by side",
    "run",
    (
        PageSetting("with", "compare_with", ""),
        PageSetting(
            "by",
            "compare_by",
            "max_abs",
            words(["max_abs", "max_row_ulps", "max_ulps", "rms", "kl"]),
        ),
    ),
)
CLASSES = Page(
    "classes",
    "Classes",
    "run",
    absent=lambda run, _: "" if len(run.sides) > 2 and run.header.k is None else "two sides",
)
SWEEPS = Page(
    "sweeps",
    "Sweeps",
    "store",
    (
        PageSetting("plan", "matrix_plan", ""),
        PageSetting("down", "matrix_rows", "", words(["", *AXES])),
        PageSetting("across", "matrix_columns", "", words(["", *AXES])),
        PageSetting("figure", "matrix_figure", "verdict", words(FIGURES)),
        *(PageSetting(axis, f"matrix_of_{axis}", "any") for axis in AXES),
    ),
)
WATCHES = Page("watches", "Watched endpoints", "store")
PAGE = Page("compare", "Compare", "run", tabs=(SIDE_BY_SIDE, CLASSES, SWEEPS, WATCHES))
