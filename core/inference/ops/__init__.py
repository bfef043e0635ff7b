"""Torch operations on their own: what this machine's kernels keep bit for bit, from run to run, over batch sizes and
row positions.
"""
