"""The Flips page."""
