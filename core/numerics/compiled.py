"""Compile every kernel that captures, comparisons and pages call, for `python -m
core.numerics.compiled`: a fresh environment does it once.
"""

import logging

import numpy as np

from . import divergence, pyramid
from .differences import differences
from .formats import BFLOAT16, FLOAT32

if __name__ == "__main__":
    # of kernels that are compiled: make has said so
    logging.disable()
    # one of each width: numba compiles for the carrier, not the format
    for fmt in (BFLOAT16, FLOAT32):
        bits = np.zeros((1, 2), fmt.carrier)
        divergence.prepare(fmt)
        differences(bits, bits, fmt)
        pyramid.prepare(fmt)
