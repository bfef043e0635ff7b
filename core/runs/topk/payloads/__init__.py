"""Readers of what engines send: one module a format; `recognise.read_responses` recognizes them by content."""
