"""Readers of what engines send: one module a format; `recognise.read_responses` tells them apart by content."""
