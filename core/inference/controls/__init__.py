"""Controls of a verdict: the rounding floor, other orders of summation, lower precisions, remedies, and the judgement
they lead to.
"""
