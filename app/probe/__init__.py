"""The Probe page."""

from app.page import Page

PAGE = Page("probe", "Probe", "store")
