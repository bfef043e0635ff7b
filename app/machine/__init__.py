"""The Machine page."""

from app.page import Page, PageSetting, words
from core.numerics.formats import LOGIT_FORMATS

PAGE = Page(
    "machine",
    "Machine",
    "store",
    (
        PageSetting("probes", "ops_run", ""),
        PageSetting("op", "ops_op", ""),
        PageSetting("dtype", "ops_dtype", "any", words(["any", *LOGIT_FORMATS])),
        PageSetting("show", "ops_shown", "all", words(["all", "differing"])),
    ),
)
