"""Sizes that the compiled loops share with what calls them. No compiler has to be loaded to know them."""

BLOCK = (
    2048  # elements: two float32 copies, distances and folded maxima of a block are 32 KB, about a first-level cache
)
GROUP = 32  # tokens a cell of the finest heatmap level
LANES = 64  # 4 vectors of 16 float32
SUM_LANES = (
    256  # a row's float64 sums have so many partial sums: at 128, LLVM unrolls the loop and no longer vectorises it
)
TOP_K = 20
DENSE = 1 << 16  # distances below this are counted in a table, the others are collected
