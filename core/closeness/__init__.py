"""Any three tensors: the error of one compared with that of a trusted one, both against an exact
result. NumPy alone; `operation` needs torch.
"""
