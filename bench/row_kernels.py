"""Row and elementwise kernels on a CUDA card: useful bytes a second, next to a plain copy in the same run.

    python -m bench.row_kernels

Useful bytes are each array read once and written once, of tables the rows that are touched; what a kernel reads again
is its own affair, so no array is handed to it twice. Gradients are small, as those of a mean over tokens, so that sums
stay in range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from auditkit.kernels import (
    adamw,
    cross_entropy,
    embedding,
    exact_sum,
    global_norm,
    layout,
    rms_norm,
    rope,
    row_sum,
    swiglu,
)
from auditkit.kernels import exp as exp_kernel
from auditkit.kernels.device import Device
from auditkit.numerics.adamw import adamw_scalars
from bench.rows import Row

TOKENS = 16_384
WIDTHS = (2048, 5632)
VOCAB = 32_768
EMBEDDING_WIDTH = 2048
UNIT, GRADIENT = np.float32(1), np.float32(1e-4)  # standard deviations of values
BAR = 0.6  # of the bandwidth of a copy
REPEATS = 20

Case = tuple[str, int, Callable[[], Any]]  # name, useful bytes, one call


def rows() -> list[Row]:
    """Measure every kernel."""
    device = Device()
    with device.use():
        copy = rate(device, *copy_case(device))
        status = device.zeros((1,), np.uint32)
        found = [Row("copy on the device", copy, "GB/s")]
        for width in WIDTHS:
            found += [judged(device, case, copy) for case in row_cases(device, status, width)]
        found += [judged(device, case, copy) for case in table_cases(device, status)]
        if bits := int(device.download(status)[0]):
            raise RuntimeError(f"a kernel left status {bits}: what was measured is not what a step does")
    return found


def judged(device: Device, case: Case, copy: float) -> Row:
    """One kernel against the copy."""
    name, size, call = case
    reached = rate(device, size, call)
    share = reached / copy
    return Row(name, reached, "GB/s", f"{share:.0%} of a copy", f"at least {BAR:.0%} of a copy", share >= BAR)


def rate(device: Device, size: int, call: Callable[[], Any]) -> float:
    """Useful gigabytes a second of the fastest of some calls, after two that warm up."""
    events = [device.cupy.cuda.Event() for _ in range(REPEATS + 1)]
    for _ in range(2):
        call()
    for event in events[:-1]:
        event.record()
        call()
    events[-1].record()
    events[-1].synchronize()
    elapsed = device.cupy.cuda.get_elapsed_time
    milliseconds = min(elapsed(a, b) for a, b in zip(events, events[1:], strict=False))
    return float(size / milliseconds / 1e6)


def copy_case(device: Device) -> tuple[int, Callable[[], Any]]:
    """A gigabyte from one buffer to another."""
    size = 1 << 30
    a, b = device.zeros((size,), np.uint8), device.zeros((size,), np.uint8)
    return 2 * size, lambda: b.data.copy_from_device_async(a.data, size)


def normals(device: Device, *shape: int, scale: np.float32 = UNIT) -> Any:
    """Normal values of this shape, `scale` times."""
    return device.upload(np.random.default_rng(1).standard_normal(shape, np.float32) * scale)


def row_cases(device: Device, status: Any, width: int) -> Iterator[Case]:
    """What works on rows of one width."""
    x, up, weight = normals(device, TOKENS, width), normals(device, TOKENS, width), normals(device, width)
    dy = normals(device, TOKENS, width, scale=GRADIENT)
    n = 4 * TOKENS * width
    where = f", width {width}"
    _, norm = rms_norm.rms_norm_forward(device, x, weight, np.float32(1e-5))
    backward = rms_norm.rms_norm_backward
    yield "row_sum" + where, n, lambda: row_sum.row_sum(device, x)
    yield "rms_norm forward" + where, 2 * n, lambda: rms_norm.rms_norm_forward(device, x, weight, np.float32(1e-5))
    yield "rms_norm backward" + where, 3 * n, lambda: backward(device, status, dy, weight, norm)
    yield from added_cases(device, status, (dy, weight, norm), width)
    cache = swiglu.SwigluCache(x, up)
    yield "exp" + where, 2 * n, lambda: exp_kernel.exp(device, x)
    yield "swiglu forward" + where, 3 * n, lambda: swiglu.swiglu_forward(device, x, up)
    yield "swiglu backward" + where, 5 * n, lambda: swiglu.swiglu_backward(device, dy, cache)
    yield "add" + where, 3 * n, lambda: layout.add(device, x, up)
    heads = width // 128
    split = layout.split_heads(device, x, 8, heads)
    table = rope.rope_table(device, TOKENS // 8, 128, 10000.0)
    yield "split_heads" + where, 2 * n, lambda: layout.split_heads(device, x, 8, heads)
    yield "merge_heads" + where, 2 * n, lambda: layout.merge_heads(device, split)
    yield "rope" + where, 2 * n, lambda: rope.rope_forward(device, split, table)


def added_cases(device: Device, status: Any, operands: tuple[Any, Any, Any], width: int) -> Iterator[Case]:
    """RMSNorm's backward pass as a layer has it: of two or three gradients, onto the residual."""
    dy, weight, norm = operands
    n = dy.nbytes
    dys = [dy, *(normals(device, *dy.shape, scale=GRADIENT) for _ in range(2))]
    residual = normals(device, *dy.shape, scale=GRADIENT)
    for count in (2, 3):
        call = partial(rms_norm.rms_norm_backward_add, device, status, dys[:count], weight, norm, residual)
        yield f"rms_norm backward of {count} gradients, added, width {width}", (count + 3) * n, call


def table_cases(device: Device, status: Any) -> Iterator[Case]:
    """Vocabulary and parameters."""
    rng = np.random.default_rng(2)
    rows_of_logits = TOKENS // 4
    logits = normals(device, rows_of_logits, VOCAB)
    targets = device.upload(rng.integers(0, VOCAB, rows_of_logits, np.uint32))
    loss = partial(cross_entropy.cross_entropy, device, status, logits, targets, np.float32(1e-4), TOKENS)
    yield "cross_entropy", 2 * logits.nbytes, loss
    table, dx = normals(device, VOCAB, EMBEDDING_WIDTH), normals(device, TOKENS, EMBEDDING_WIDTH, scale=GRADIENT)
    total = device.zeros(table.shape, np.int64)
    for name, tokens in (("random", rng.integers(0, VOCAB, TOKENS, np.uint32)), ("one", np.zeros(TOKENS, np.uint32))):
        ids, touched = device.upload(tokens), EMBEDDING_WIDTH * len(set(tokens.tolist()))  # elements
        forward = partial(embedding.embedding_forward, device, status, ids, table)
        yield f"embedding forward, {name} tokens", dx.nbytes + 4 * touched, forward
        backward = partial(embedding.embedding_backward, device, status, dx, ids, VOCAB, total=total)
        yield f"embedding backward, {name} tokens", dx.nbytes + 2 * 8 * touched, backward
    yield from parameter_cases(device, status, table)


def parameter_cases(device: Device, status: Any, first: Any) -> Iterator[Case]:
    """Many tensors at once: one of the size of the table, and smaller ones."""
    shapes = [first.shape, *[(2048, 2048)] * 4, *[(2048,)] * 9]
    params, ms, grads = ([normals(device, *shape) for shape in shapes] for _ in range(3))
    vs = [exp_kernel.exp(device, m) for m in ms]  # positive, as squares are
    size = sum(p.nbytes for p in params)
    sums, more = ([exact_sum.to_fixed(device, status, p, 30) for p in params] for _ in range(2))
    yield "to_fixed", 3 * first.nbytes, lambda: exact_sum.to_fixed(device, status, first, 30)
    yield "from_fixed, 14 tensors", 3 * size, lambda: exact_sum.from_fixed(device, status, sums, 30)
    yield "add_sums, 14 tensors", 6 * size, lambda: exact_sum.add_sums(device, status, sums, more, out=sums)
    add = partial(exact_sum.add_terms, device, status, sums)
    yield "add_terms of products, 14 tensors", 5 * size, lambda: add(params, 30, out=sums)
    yield "add_terms of sums, 14 tensors", 6 * size, lambda: add(more, 30, out=sums)
    yield "squares, 14 tensors", size, lambda: global_norm.squares(device, status, params)
    s = adamw_scalars(lr=np.float32(1e-3), beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, update=3)
    call: dict[str, Any] = {"clip": np.float32(1), "scalars": s, "decayed": [True] * len(params)}
    update = adamw.adamw
    yield "adamw, 14 tensors", 7 * size, lambda: update(device, status, params, ms, vs, grads, **call)


if __name__ == "__main__":
    for row in rows():
        print(f"{row.name:60} {row.value:8.0f} {row.unit}  {row.note}")
