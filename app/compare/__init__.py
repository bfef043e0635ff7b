"""The Compare page."""

from app.page import Page, PageSetting, words

PAGE = Page(
    "compare",
    "Compare",
    "run",
    (
        PageSetting("with", "compare_with", ""),
        PageSetting("by", "compare_by", "max_abs", words(["max_abs", "max_row_ulps", "max_ulps", "rms", "kl"])),
    ),
)
