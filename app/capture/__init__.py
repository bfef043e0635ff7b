"""The Capture page."""

from app.page import Page

PAGE = Page("capture", "Capture", "store")
