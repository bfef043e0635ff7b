"""Measured ratios against what a user would do instead. `python -m benchmarks` runs all, `python -m
benchmarks kernel` one.
"""
