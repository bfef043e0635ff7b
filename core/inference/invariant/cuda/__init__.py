"""The kernels of fixed order on CUDA, in Triton. Imported when a tensor on CUDA first needs one: nothing else here
needs triton.
"""
