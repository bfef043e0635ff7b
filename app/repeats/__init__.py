"""The Repeats page."""

from app.page import Page, PageSetting, words

PAGE = Page(
    "repeats",
    "Repeats",
    "run",
    (PageSetting("figure", "class_measure", "neq", words(["neq", "max_abs", "max_row_ulps", "max_ulps", "flips"])),),
)
