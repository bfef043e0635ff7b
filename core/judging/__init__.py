"""Verdicts of uploaded dumps: what can be said of them without rerunning anything, and what controls of one's own add
to it.
"""
