"""Sweeps: a plan of many captures, each a cell with a run file named by the digest of what
determines it.
"""
