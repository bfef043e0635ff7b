"""The Compare runs page."""
