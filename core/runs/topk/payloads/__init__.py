"""Readers of what engines send: one module per format; `recognise.read_responses` recognizes them by content."""
