"""Readers of what engines send: `formats.read_responses` recognizes their format by content."""
