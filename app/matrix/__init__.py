"""The Matrix page."""

from app.page import Page, PageSetting, words
from core.sweeps.matrix import FIGURES
from core.sweeps.plan import AXES

PAGE = Page(
    "matrix",
    "Matrix",
    "store",
    (
        PageSetting("plan", "matrix_plan", ""),
        PageSetting("down", "matrix_rows", "", words(["", *AXES])),
        PageSetting("across", "matrix_columns", "", words(["", *AXES])),
        PageSetting("figure", "matrix_figure", "verdict", words(FIGURES)),
        *(PageSetting(axis, f"matrix_of_{axis}", "any") for axis in AXES),
    ),
)
