"""The Remedies page."""
