"""Arrays of more than 2^31 elements on a card: with an index of 32 bits their ends would stay untouched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from auditkit.kernels import adamw, cross_entropy, embedding, exact_sum, global_norm, layout, normal, rms_norm, rope
from auditkit.kernels.exp import exp
from auditkit.numerics import adamw as reference_adamw
from auditkit.numerics import cross_entropy as reference_cross_entropy
from auditkit.numerics import exact_sum as reference_exact_sum
from auditkit.numerics import global_norm as reference_global_norm
from auditkit.numerics import rms_norm as reference_rms_norm
from auditkit.numerics.exp import exp as reference_exp
from auditkit.numerics.normal import normal_slice
from tests.kernels.on_devices import real_device
from tests.ops.cases import normals
from tests.same_bits import assert_same_bits

pytestmark = [pytest.mark.gpu, pytest.mark.optional("CI has no GPU; the emulator runs the same source on small arrays")]

MANY = (1 << 31) + 5
NEEDED = 60 << 30  # bytes of free memory
STD = np.float32(0.5)
SEED, NAME = 7, "large"


@pytest.fixture
def card() -> Iterator[Any]:
    device = real_device()
    if device.cupy.cuda.runtime.memGetInfo()[0] < NEEDED:
        pytest.skip("needs 60 GiB of free device memory")
    with device.use():
        yield device
        device.pool.free_all_blocks()


def tail(array: Any, count: int) -> Any:
    """The last elements, on the host."""
    return array.reshape(-1)[-count:].get()


def zeros_with_tail(device: Any, values: Any) -> Any:
    """MANY zeros that end in these values."""
    array = device.zeros((MANY,), values.dtype)
    array[-values.size :].set(values)
    return array


def made(device: Any, *shape: int) -> Any:
    """Values whose last ones the reference can make alone."""
    return normal.normal(device, SEED, NAME, shape, STD)


def expected(size: int, count: int) -> Any:
    """The last `count` of `size` such values."""
    return normal_slice(SEED, NAME, size - count, size, STD)


def test_elementwise(card: Any) -> None:
    x, want = made(card, MANY), expected(MANY, 11)
    assert_same_bits(tail(x, 11), want)
    assert_same_bits(tail(exp(card, x), 11), reference_exp(want))
    assert_same_bits(tail(layout.add(card, x, x), 11), want + want)


def test_exact_sums(card: Any) -> None:
    status, values = card.zeros((1,), np.uint32), normals(1, 9)
    terms = reference_exact_sum.to_fixed(values, 56)
    fixed = exact_sum.to_fixed(card, status, zeros_with_tail(card, values), 56)
    assert_same_bits(tail(fixed, 9), terms)
    exact_sum.add_sums(card, status, [fixed], [fixed], out=[fixed])
    assert_same_bits(tail(fixed, 9), terms + terms)
    rounded = exact_sum.from_fixed(card, status, [fixed], 56)[0]
    assert_same_bits(tail(rounded, 9), reference_exact_sum.from_fixed(terms + terms, 56))
    total = global_norm.squares(card, status, [rounded])
    assert global_norm.squares_value(card.download(total)) == reference_global_norm.squares(tail(rounded, 9))
    assert not card.download(status)[0]


def test_adamw(card: Any) -> None:
    status, values = card.zeros((1,), np.uint32), [normals(i, 7) for i in range(4)]
    values[2] = abs(values[2])
    s = reference_adamw.adamw_scalars(lr=np.float32(1e-3), beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, update=2)
    fields = [[zeros_with_tail(card, value)] for value in values]
    call: dict[str, Any] = {"clip": np.float32(1), "scalars": s}
    adamw.adamw(card, status, *fields, **call, decayed=[True], out=(fields[0], fields[1], fields[2]))
    want = reference_adamw.adamw(*values, **call, decayed=True)
    for field, new in zip(fields, want, strict=False):
        assert_same_bits(tail(field[0], 7), new)
    assert not card.download(status)[0]


def test_rows(card: Any) -> None:
    rows, width = (1 << 20) + 3, 2048
    status, weight = card.zeros((1,), np.uint32), normals(3, width)
    x, last = made(card, rows, width), expected(rows * width, 2 * width).reshape(2, width)
    y, cache = rms_norm.rms_norm_forward(card, x, card.upload(weight), np.float32(1e-5))
    want, want_cache = reference_rms_norm.rms_norm_forward(last, weight, np.float32(1e-5))
    assert_same_bits(tail(y, 2 * width).reshape(2, width), want)
    dx, _ = rms_norm.rms_norm_backward(card, status, y, card.upload(weight), cache)
    want_dx, _ = reference_rms_norm.rms_norm_backward(want, weight, want_cache)
    assert_same_bits(tail(dx, 2 * width).reshape(2, width), want_dx)


def test_heads(card: Any) -> None:
    """More than 2^32 elements: places are divided in 64 bits from there on."""
    rows, heads, dim = (1 << 21) + 2, 16, 128
    x, want = made(card, rows, heads * dim), expected(rows * heads * dim, dim)
    split = layout.split_heads(card, x, 2, heads)
    del x
    assert_same_bits(tail(split, dim), want)
    assert_same_bits(tail(layout.merge_heads(card, split), dim), want)
    table = rope.RopeTable(made(card, rows // 2, dim // 2), made(card, rows // 2, dim // 2))  # any numbers will do
    low, high = np.split(want, 2)
    cos, sin = tail(table.cos, dim // 2), tail(table.sin, dim // 2)
    rotated = np.concatenate([low * cos - high * sin, high * cos + low * sin])
    assert_same_bits(tail(rope.rope_forward(card, split, table), dim), rotated)


def test_logits(card: Any) -> None:
    rows = vocab = (1 << 16) + 1
    status, targets = card.zeros((1,), np.uint32), np.arange(rows, dtype=np.uint32) * 7 % vocab
    logits, last = made(card, rows, vocab), expected(rows * vocab, 2 * vocab).reshape(2, vocab)
    _, gradient = cross_entropy.cross_entropy(card, status, logits, card.upload(targets), np.float32(1e-4), rows)
    _, want = reference_cross_entropy.cross_entropy(last, targets[-2:], np.float32(1e-4), rows)
    assert_same_bits(tail(gradient, 2 * vocab).reshape(2, vocab), want)
    assert not card.download(status)[0]


def test_vocabulary(card: Any) -> None:
    vocab, width = (1 << 20) + 1, 2049
    status, tokens = card.zeros((1,), np.uint32), card.upload(np.array([vocab - 1, 3, vocab - 1], np.uint32))
    table, want = made(card, vocab, width), expected(vocab * width, width)
    x = embedding.embedding_forward(card, status, tokens, table)
    assert_same_bits(tail(x, width), want)
    del table
    grad = embedding.embedding_backward(card, status, x, tokens, vocab)
    assert_same_bits(tail(grad, width), 2 * reference_exact_sum.to_fixed(want, 56))
    assert not card.download(status)[0]
