"""The Upload page."""

from app.page import Page

PAGE = Page("upload", "Upload", "store")
