"""Limits of the verdict, each with what it was measured on (docs/explanation/calibration.md).

Those of noise ratios are in noise floors: rms over rms.
"""

from __future__ import annotations

from ..numerics.statistic import Limits

# float32 and float64: 1,076 pairs of the same function reach 1.09 over all; the smallest fault of
# the trial is 13.
WIDE = Limits(over_all=4.0, at_a_place=4.0, uses_own_spread=True)
# 16 bits, each side's error over that of randomized rounding: engines that round more often
# (partial sums of ranks, unfused kernels) reach 1.5; a place stands out from twice on, whatever the
# draws say.
DRAWN = Limits(over_all=2.0, at_a_place=2.0)
# 16 bits, the pair over reorderings of sums: kernels round more often than the model, which
# reordering does not show, and single positions jump by orders of magnitude in rounding too, so
# they are not tested.
OWN = Limits(over_all=10.0, at_a_place=float("inf"))
# The same if an engine computes in the other 16-bit dtype: bfloat16 is 8 times coarser than
# float16.
OTHER_16_BITS = Limits(over_all=80.0, at_a_place=float("inf"))
# Lists over a model's reorderings: of twenty tokens a mean square varies more than of a vocabulary,
# so one position may be further. Beyond the limits a list is undecided: a cache or activations of
# fewer bits are no bug.
LISTS = Limits(over_all=4.0, at_a_place=10.0)
# a side further than this from the model's own logits is not what the model computes
FOREIGN = 10.0
# The arrays alone, rms in row ULPs: (largest of harmless paths, of a bug, least that one position
# is compared with). Harmless paths of dense models reach 1.7 in 16 bits and 9.3 in float32,
# mixtures of experts 10 in bfloat16.
ROW_ULPS = {"bfloat16": (2, 24, 0.25), "float16": (2, 24, 0.25), "float32": (32, 1000, 1)}
# one position over the median one: 15 in dense models, 50 with experts
STANDS_OUT_MOST, STANDS_OUT = 20, 100
