"""Controls of a verdict: the noise floor, other orders of summation, lower precisions, mitigations,
and the judgement they lead to.
"""
