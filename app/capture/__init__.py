"""The Capture page."""
