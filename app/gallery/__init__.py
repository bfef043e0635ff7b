"""The Runs page, the gallery: its filters, its table, the actions on the ticked runs, and the deleted runs."""

from app.page import Page, PageSetting, words
from app.shell import wording
from core.numerics.formats import LOGIT_FORMATS

SORTS = {  # and what each is called
    "newest": "newest first",
    "oldest": "oldest first",
    "name": "name",
    "verdict": "gravest verdict",
    "flips": "most flips",
    "rms": "largest rms row ULPs",
    "max row ULPs": "largest max row ULPs",
    "positions": "most positions",
}
PAGE = Page(
    "runs",
    "Runs",
    "store",
    (
        PageSetting("search", "gallery_search", ""),
        PageSetting("dtype", "gallery_dtype", "any", words(["any", *LOGIT_FORMATS])),
        PageSetting("verdict", "gallery_verdict", "any", words(["any", *wording.VERDICTS])),
        PageSetting("flips", "gallery_flips", "any", {"only": "with flips", "none": "without flips", "any": "any"}),
        PageSetting("device", "gallery_device", ""),
        PageSetting("tag", "gallery_tag", "", longest=1000),
        PageSetting("sweeps", "gallery_cells", False, {"listed": True, "apart": False}),
        PageSetting("replaced", "gallery_replaced", False, {"listed": True, "hidden": False}),
        PageSetting("sort", "gallery_sort", "newest", words(SORTS)),
    ),
)
