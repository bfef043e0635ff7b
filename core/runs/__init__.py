"""Runs and where they live: records, dumps, the run file and the store."""
