"""The Runs page, the gallery: filters, table, actions on the ticked runs, and the deleted runs."""

from app.page import Page, PageSetting, words
from app.shell import wording

PAGE = Page(
    "runs",
    "Runs",
    "store",
    (
        PageSetting("search", "gallery_search", ""),
        PageSetting("verdict", "gallery_verdict", "any", words(["any", *wording.VERDICTS])),
        PageSetting(
            "flips",
            "gallery_flips",
            "any",
            {"only": "with flips", "none": "without flips", "any": "any"},
        ),
        PageSetting("hidden", "gallery_hidden", False, {"listed": True, "apart": False}),
    ),
)
