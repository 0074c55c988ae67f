"""Runs every kernel once on the CUDA device here, for a checker of memory accesses and races to watch:

    compute-sanitizer --tool memcheck --error-exitcode 1 python -m tests.kernels.every_kernel

The known answers of every op, two steps of each golden recipe, and every variant of the exact products.
"""

from __future__ import annotations

import os

import numpy as np

from auditkit.formats.recipe import Recipe
from auditkit.kernels import (
    attention_chunks,
    exact_dot,
    exact_dot_choice,
    exact_dot_sm90,
    f32_dot,
    normal,
    philox,
    quantise,
    wide_check,
)
from auditkit.kernels.backend import CudaOps
from auditkit.kernels.cos import cos
from auditkit.kernels.device import Device
from auditkit.kernels.exp import exp
from auditkit.kernels.log import log
from auditkit.kernels.row_sum import row_sum
from auditkit.kernels.sin import sin
from auditkit.model.state import document, initial_state
from auditkit.numerics import reference, self_test
from auditkit.replay.backend import Backend, CudaBackend, kernel_cache
from auditkit.store.progress import Silent
from tests.golden.make_training import RECIPES, tokens_of


def main() -> None:
    """Run all; any difference from the reference ends with an error."""
    device = Device(cache=kernel_cache())  # or each run under a checker would compile all of them
    device.prepare(os.cpu_count() or 1, Silent())
    with device.use():
        _run(device, CudaOps(device))
    print("every kernel ran")


def _run(device: Device, ops: CudaOps) -> None:
    self_test.check_known_answers(ops, ops.place)
    wide_check.check(ops)
    for recipe in RECIPES.values():
        _steps(CudaBackend(ops, 1, "gpu"), recipe)
    x = device.upload(np.linspace(-9, 9, 70 * 200, dtype=np.float32).reshape(70, 200))
    for kernel in exact_dot_choice.compiled(device.architecture, 14):
        rows = exact_dot.quantise(device, ops.status, x, 14)
        exact_dot.dot(device, rows, rows, kernel=kernel)
        if kernel != "plain":
            exact_dot.dot(device, rows, rows, kernel=kernel, ranges=2)
    if device.architecture == exact_dot_sm90.ARCHITECTURE:
        for name, wide in exact_dot_sm90.KERNELS.items():
            for bits in wide.longest:
                rows = exact_dot.quantise(device, ops.status, x, bits)
                for ranges in (1, 2):
                    exact_dot.dot(device, rows, rows, kernel=name, ranges=ranges)
    for kernel in ("small", "large", "plain"):
        plain = f32_dot.rows(device, ops.status, x)
        f32_dot.dot(device, plain, plain, kernel=kernel)
    for function in (exp, log, sin, cos, row_sum):
        function(device, x)
    ops.largest([device.upload(np.arange(9_000, dtype=np.int64))])
    ops.block_nodes([device.upload(np.zeros(40_000, np.float32))], [1], [131_072 + 160_000])
    philox.philox(device, 1, 2, 3, 100)
    normal.normal(device, 1, "a", (10, 7), np.float32(1))
    _operands(ops)
    _attention(ops)
    device.synchronize()


def _attention(ops: CudaOps) -> None:
    """Rows of several warps, in one chunk and in many; a head dimension that the fused kernels take."""
    q, kv = (ops.place(np.ones((1, heads, 900, 16), np.float32)) for heads in (2, 1))
    for rows in (attention_chunks.QUERY_ROWS, 1):
        attention_chunks.QUERY_ROWS = attention_chunks.KEY_ROWS = rows
        for bits in (14, 21):
            _, cache = ops.attention_forward(q, kv, kv, window=500, bits=bits)
            ops.attention_backward(q, cache)
    q, kv = (ops.place(np.ones((2, heads, 300, 128), np.float32)) for heads in (6, 2))
    for window in (0, 70):
        _, cache = ops.attention_forward(q, kv, kv, window=window, bits=14)
        ops.attention_backward(q, cache)


def _operands(ops: CudaOps) -> None:
    """Rows of every number of cells that a thread holds, and longer ones; RMSNorm and SwiGLU with their operands."""
    for width in (64, 128, 256, 512, 1024, quantise.longest_row() + 4):
        x, weight = (ops.place(np.linspace(1, 2, size, dtype=np.float32)) for size in (66 * width, width))
        x = x.reshape((66, width))
        for bits in (14, 21):
            ops.quantise(x, bits)
            ops.quantise_t(x, bits)
            ops.quantise_both(x, bits)
            ops.rms_norm_keep(x, weight, np.float32(1e-5), bits)
            *_, cache = ops.swiglu_keep(x, x, bits)
            ops.rms_norm_rows(x, weight, np.float32(1e-5), bits)
            ops.swiglu_rows(x, x, bits)
            ops.swiglu_columns(x, x, bits)
            ops.merge_heads_rows(ops.split_heads(x, 2, 1), bits)
            ops.quantise_columns([x[:40], x[40:]], 4, width - 4, bits)
            ops.cross_entropy_operand(ops.add(x, x), np.zeros(66, np.uint32), np.float32(1e-4), 66, bits)
            ops.swiglu_backward_both(x, cache, bits)
    for width in (6144, 8192):
        x, weight = (ops.place(np.ones(size, np.float32)) for size in (66 * width, width))
        ops.rms_norm_keep(x.reshape((66, width)), weight, np.float32(1e-5), 14)
        ops.rms_norm_rows(x.reshape((66, width)), weight, np.float32(1e-5), 14)
    ops.check_finite({})


def _steps(backend: CudaBackend, recipe: Recipe) -> None:
    plain = Backend(reference, 1, "cpu")
    here, there = initial_state(recipe), backend.place(initial_state(recipe))
    for number in range(2):
        tokens = tokens_of(recipe, number)
        here, expected = plain.step(here, tokens, recipe, work_key=bytes(32))
        there, found = backend.step(there, tokens, recipe, work_key=bytes(32))
        assert found == expected
        assert document(there, recipe, backend.ops) == document(here, recipe)


if __name__ == "__main__":
    main()
