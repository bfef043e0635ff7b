"""Probes: sparse runs captured from live servers over HTTP."""
