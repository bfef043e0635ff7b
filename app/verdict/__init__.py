"""The verdict at the head of the Overview page."""
