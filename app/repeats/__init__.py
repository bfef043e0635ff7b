"""The Repeats page."""
