"""A side in a lower precision: those that engines offer, which of them a pair may be, and whether
one explains it.
"""
