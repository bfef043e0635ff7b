"""Runs: records, dumps, the run file and the store."""
