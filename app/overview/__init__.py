"""The Overview page."""

from app.page import Page, PageSetting, words

COLOURS = {  # of the strip of tokens, and the figure each shows
    "largest difference": "max_abs",
    "max ULPs": "max_ulps",
    "mean ULPs": "mean_ulps",
    "max row ULPs": "max_row_ulps",
    "differing logits": "neq",
    "KL": "kl",
    "near ties": "margin",
    "flips": "is_flip",
}
PAGE = Page(
    "overview", "Overview", "run", (PageSetting("colour", "strip_colour", "largest difference", words(COLOURS)),)
)
