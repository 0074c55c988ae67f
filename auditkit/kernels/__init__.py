"""The CUDA back end: one launcher for each op of the specification, named as in `auditkit.numerics`.

CuPy arrays serve as memory and CuPy as loader and launcher; no CuPy ufunc, reduction or library product is used, for
CuPy compiles its own kernels with flush-to-zero.
"""
