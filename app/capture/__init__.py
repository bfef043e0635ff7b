"""The Capture tab of New run."""

from app.page import Page

PAGE = Page("capture", "Capture", "store")
