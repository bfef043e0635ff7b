"""The Ops page."""

from app.page import Page, PageSetting, words
from core.numerics.formats import LOGIT_FORMATS

PAGE = Page(
    "ops",
    "Ops",
    "store",
    (
        PageSetting("machines", "ops_runs", "", longest=1000),
        PageSetting("op", "ops_op", ""),
        PageSetting("dtype", "ops_dtype", "any", words(["any", *LOGIT_FORMATS])),
        PageSetting(
            "show", "ops_shown", "all", {"all": "all", "no": "with a no", "disagree": "where machines disagree"}
        ),
        PageSetting("row", "ops_row", "", longest=200),
    ),
)
