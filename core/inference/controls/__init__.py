"""Controls of a verdict: the noise floor, other orders of summation, lower precisions, remedies,
and the judgement they lead to.
"""
