"""Recordings beside the logits of a forward: module outputs and kernels."""
