"""Sizes that the compiled loops share with what calls them.

No compiler has to be loaded to know them.
"""

# elements: float32 copies, distances and maxima of a block are 32 KB, about a first-level cache
BLOCK = 2048
GROUP = 32  # tokens per cell of the finest heatmap level
LANES = 64  # 4 vectors of 16 float32
TOP_K = 20
# distances below this are counted one by one, the others by powers of two
DENSE = 1 << 16
BINS = DENSE + 16  # of a histogram
