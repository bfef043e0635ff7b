"""The Overview page."""

from app.page import Page, PageSetting, words
from core.runs.queries.heat import COLOURS

PAGE = Page(
    "overview", "Overview", "run", (PageSetting("colour", "strip_colour", "largest difference", words(COLOURS)),)
)
