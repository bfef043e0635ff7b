"""The Near ties page."""
