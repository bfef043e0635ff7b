"""Verdicts on trial: planted faults, legitimate differences and lowered precisions on small
models.
"""
