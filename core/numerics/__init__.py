"""Arrays in, arrays out: ordinals, margins, divergence kernels, the heatmap pyramid.

No runs, no files, no torch.
"""
