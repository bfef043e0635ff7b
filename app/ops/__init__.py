"""The Ops page."""
