"""Probes: runs of what live servers send over HTTP."""
