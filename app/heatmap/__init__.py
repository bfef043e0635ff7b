"""The Heatmap page: its canvas and the routes that serve it."""

from app.page import Page, PageSetting, words

PAGE = Page(
    "heatmap",
    "Heatmap",
    "run",
    (
        PageSetting("by", "worst_by", "difference", {"difference": "difference", "ulps": "ULPs"}),
        # auto: linear in row ULPs, which are of one size, log in the others, which spread over
        # decades
        PageSetting("colours", "heatmap_colours", "auto", words(["auto", "log", "linear"])),
        PageSetting("rows", "heatmap_rows", ""),  # `12:40`, as tokens; nothing: all of them
        # columns, token ids or ranks from 0; nothing: the first look
        PageSetting("tokens", "heatmap_tokens", ""),
        PageSetting("order", "heatmap_order", "", words(["id", "rank"])),
        PageSetting(
            "cells",
            "heatmap_cells",
            "row_ulps",
            words(["row_ulps", "ulps", "difference"]),
        ),
        PageSetting("token", "heatmap_token", ""),  # an id or a text
    ),
    absent=lambda _, pair: "empty" if pair.summary.bit_identical else "",
)
