"""The Overview page."""

from app.page import Page, PageSetting, words
from core.runs.queries.heat import COLOURS

OF_ROLLOUTS = {"largest difference": "|r|, nats", "KL": "KL (k3), nats"}  # and their legends
PARTS = ("Figures", "Distribution", "Depends on", "Sequences", "Steps")  # of trainer vs. rollout
PAGE = Page(
    "overview",
    "Overview",
    "run",
    (
        PageSetting("colour", "strip_colour", "largest difference", words(COLOURS)),
        PageSetting("part", "mismatch_part", PARTS[0], words(PARTS)),
        PageSetting("framework", "framework", "ulpscope"),
        PageSetting("by", "mismatch_by_quantity", ""),
    ),
)
