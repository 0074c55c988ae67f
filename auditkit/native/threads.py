"""Threads for one product: as many as the BLAS may use, so that one limit (auditkit/model/step.py) serves both."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor

from threadpoolctl import ThreadpoolController


@functools.cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


def product_threads() -> int:
    """How many threads the BLAS may use now; 1 where there is none that can be asked."""
    return max((found.num_threads or 1 for found in _blas().lib_controllers), default=1)


@functools.cache
def pool(threads: int) -> ThreadPoolExecutor:
    """Workers that parts of products are handed to."""
    return ThreadPoolExecutor(threads, thread_name_prefix="product")
