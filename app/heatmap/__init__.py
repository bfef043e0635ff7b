"""The Heatmap page: its canvas and the routes that serve it."""

from app.page import Page, PageSetting, words

PAGE = Page(
    "heatmap",
    "Heatmap",
    "run",
    (
        PageSetting("by", "worst_by", "difference", {"difference": "difference", "ulps": "ULPs"}),
        # auto: linear in row ULPs, which are of one size, log in the others, which spread over decades
        PageSetting("colours", "heatmap_colours", "auto", words(["auto", "log", "linear"])),
        PageSetting("scale", "heatmap_scale", "pair", words(["pair", "view"])),
    ),
    absent=lambda _, pair: "empty" if pair.summary.bit_identical else "",
)
