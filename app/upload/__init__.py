"""The Upload page."""
