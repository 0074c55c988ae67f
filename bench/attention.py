"""Attention on a CUDA card, forward and backward: time, memory, and torch's fused bfloat16 attention beside it.

    python -m bench.attention [--batch 4] [--heads 16] [--keys 4] [--tokens 4096] [--dim 128] [--window 0 1024]
                              [--bits 14] [--rows 16384] [--chunks] [--profile]

Times are the least of some calls, by the device's own events, and hold the launches from Python. Useful arithmetic is
that of the pairs which see each other, two products forward and five backward. --profile says where the time goes, a
launch at a time. --chunks measures the kernels with scores in memory too, where others are chosen; --rows tries other
chunks: so many rows of queries, half as many of keys.
Torch is measured where it is installed; a window is a mask there.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from auditkit.kernels import attention_chunks
from auditkit.kernels.attention import attention_backward, attention_forward
from auditkit.kernels.attention_chunks import Sizes, key_chunks, query_chunks
from auditkit.kernels.device import Device

REPEATS = 5
PRODUCTS = {"forward": 2, "backward": 5}  # for each pair of query and key


class Times:
    """Milliseconds by name, of a device's events."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def least(self, call: Callable[[], Any]) -> float:
        """Milliseconds of the fastest of some calls, after one that warms up."""
        call()
        return min(self.one(call) for _ in range(REPEATS))

    def one(self, call: Callable[[], Any]) -> float:
        """Milliseconds of one call."""
        begin, end = (self._device.cupy.cuda.Event() for _ in range(2))
        begin.record(self._device.stream)
        call()
        end.record(self._device.stream)
        end.synchronize()
        return float(self._device.cupy.cuda.get_elapsed_time(begin, end))


def main() -> None:
    """Measure what was asked for, and print it."""
    asked = _arguments()
    if asked.rows:
        attention_chunks.QUERY_ROWS, attention_chunks.KEY_ROWS = asked.rows, asked.rows // 2
    device = Device()
    print(device.describe())
    for window in asked.window:
        with device.use():
            for way in ("chosen", "chunks") if asked.chunks else ("chosen",):
                _ours(device, asked, window, way)
                if asked.profile:
                    _profile(device, asked, window, way)
        device.release()
        _torch(asked, window)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.attention", description=__doc__)
    for name, value in (("batch", 4), ("heads", 16), ("keys", 4), ("tokens", 4096), ("dim", 128), ("bits", 14)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--window", type=int, nargs="+", default=[0, 1024])
    parser.add_argument("--rows", type=int, default=0, help="rows of queries of a chunk's result")
    for name in ("chunks", "profile"):
        parser.add_argument(f"--{name}", action="store_true")
    return parser.parse_args()


def _inputs(asked: argparse.Namespace) -> list[Any]:
    """q, k, v and dO, normal values."""
    rng = np.random.default_rng(1)
    shapes = [
        (asked.batch, heads, asked.tokens, asked.dim) for heads in (asked.heads, asked.keys, asked.keys, asked.heads)
    ]
    return [rng.standard_normal(shape, np.float32) for shape in shapes]


def _pairs(asked: argparse.Namespace, window: int) -> int:
    """Pairs of query and key that see each other, of all heads."""
    return int(asked.batch * asked.heads * sum(min(i + 1, window or asked.tokens) for i in range(asked.tokens)))


def _ours(device: Device, asked: argparse.Namespace, window: int, way: str) -> None:
    """Both passes, and the most memory that they held besides their inputs."""
    status = device.zeros((1,), np.uint32)
    q, k, v, dout = map(device.upload, _inputs(asked))
    times, options, found = Times(device), _options(asked, window, way), {"chunks": way == "chunks"}
    _, cache = attention_forward(device, status, q, k, v, **options)
    passes: dict[str, Callable[[], Any]] = {
        "forward": lambda: attention_forward(device, status, q, k, v, **options),
        "backward": lambda: attention_backward(device, status, dout, cache, **found),
    }
    sizes, pairs = (
        Sizes(asked.batch * asked.keys, asked.heads // asked.keys, asked.tokens, window),
        _pairs(asked, window),
    )
    for name, call in passes.items():
        milliseconds = times.least(call)
        rate = 2 * PRODUCTS[name] * pairs * asked.dim / milliseconds / 1e9
        print(f"window {window}, fx{asked.bits}, {way}, {name:8}: {milliseconds:8.2f} ms, {rate:6.1f} useful TFLOP/s")
    cut = f"{len(query_chunks(sizes))} chunks of queries, {len(key_chunks(sizes))} of keys, where these are used"
    print(f"window {window}: {cut}; the pool holds {device.pool.total_bytes():,} bytes")
    if bits := int(device.download(status)[0]):
        raise RuntimeError(f"status {bits}: what was measured is not what a step does")


def _options(asked: argparse.Namespace, window: int, way: str) -> dict[str, Any]:
    """What a forward pass is told."""
    return {"window": window, "bits": asked.bits, "chunks": way == "chunks"}


def _profile(device: Device, asked: argparse.Namespace, window: int, way: str) -> None:
    """Milliseconds of each kernel in one call of both passes, waiting after each launch."""
    status = device.zeros((1,), np.uint32)
    q, k, v, dout = map(device.upload, _inputs(asked))
    times, spent, launch = Times(device), defaultdict[str, list[float]](list), device.launch

    def timed(op: str, kernel: str, grid: Any, block: int, args: Any, *, shared: int = 0) -> None:
        spent[kernel].append(times.one(lambda: launch(op, kernel, grid, block, args, shared=shared)))

    for timing in (False, True):
        if timing:
            device.launch = timed  # type: ignore[method-assign]
        _, cache = attention_forward(device, status, q, k, v, **_options(asked, window, way))
        forward = {name: sum(found) for name, found in spent.items()}
        attention_backward(device, status, dout, cache, chunks=way == "chunks")
    device.launch = launch  # type: ignore[method-assign]
    for name, found in sorted(spent.items(), key=lambda item: -sum(item[1])):
        print(
            f"  {name:36} {len(found):4} launches {sum(found):8.2f} ms, {forward.get(name, 0.0):8.2f} of them forward"
        )


def _torch(asked: argparse.Namespace, window: int) -> None:
    """torch's scaled_dot_product_attention in bfloat16 on the same shapes."""
    try:
        import torch
        from torch.nn.functional import scaled_dot_product_attention
    except ModuleNotFoundError:
        print("torch is not installed")
        return
    q, k, v, dout = (torch.from_numpy(x).to("cuda", torch.bfloat16) for x in _inputs(asked))
    mask = None
    if window:
        at = torch.arange(asked.tokens, device="cuda")
        far = at[:, None] - at[None, :]
        mask = (far >= 0) & (far < window)
    for x in (q, k, v):
        x.requires_grad_()

    def forward() -> Any:
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)

    def least(call: Callable[[], Any]) -> float:
        call()
        found = []
        for _ in range(REPEATS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            end.synchronize()
            found.append(float(begin.elapsed_time(end)))
        return min(found)

    both = least(lambda: forward().backward(dout))
    print(f"window {window}, torch bfloat16: forward {least(forward):.2f} ms, forward and backward {both:.2f} ms")


if __name__ == "__main__":
    main()
