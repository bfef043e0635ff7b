"""The Probe tab of New run."""

from app.page import Page

PAGE = Page("probe", "Probe", "store")
