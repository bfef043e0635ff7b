"""The Upload tab of New run."""

from app.page import Page

PAGE = Page("upload", "Upload", "store")
