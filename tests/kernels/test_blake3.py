"""BLAKE3 on the device against the `blake3` package, at every length where its tree or its blocks change shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from blake3 import blake3

from auditkit.formats import blake3_tree
from auditkit.formats.digest import content_digest, keyed_digest
from auditkit.kernels.blake3 import TensorDigest, _levels, block_nodes, digest_words, digests, read_digests
from auditkit.numerics import layout
from tests.kernels.emulator import EmulatedDevice
from tests.kernels.on_devices import EMULATOR_MARKS, GPU_MARKS, real_device

# The lengths of the official test vectors (BLAKE3-team/BLAKE3, test_vectors/test_vectors.json); inputs repeat 0..250.
OFFICIAL = [0, 1, 2, 3, 4, 5, 6, 7, 8, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025, 2048, 2049, 3072, 3073, 4096, 4097]
OFFICIAL += [5120, 5121, 6144, 6145, 7168, 7169, 8192, 8193, 16384, 31744, 102400]
# The hash of some of them as that file has it (the first 32 bytes), so that the package is not the only witness.
KNOWN = {
    0: "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
    1: "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
    1024: "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7",
    1025: "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444",
    102400: "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085",
}
# The keyed hash of some of them, under the key of that file.
KEY = b"whats the Elvish word for friend"
KNOWN_KEYED = {
    0: "92b2b75604ed3c761f9d6f62392c8a9227ad0ea3f09573e783f1498a4ed60d26",
    1: "6d7878dfff2f485635d39013278ae14f1454b8c0a3a2d34bc1ab38228a80c95b",
    1023: "c951ecdf03288d0fcc96ee3413563d8a6d3589547f2c2fb36d9786470f1b9d6e",
    1024: "75c46f6f3d9eb4f55ecaaee480db732e6c2105546f1e675003687c31719c7ba4",
    1025: "357dc55de0c7e382c900fd6e320acc04146be01db6a8ce7210b7189bd664ea69",
    2048: "879cf1fa2ea0e79126cb1063617a05b6ad9d0b696d0d757cf053439f60a99dd1",
    2049: "9f29700902f7c86e514ddc4df1e3049f258b2472b6dd5267f61bf13983b78dd5",
    3072: "044a0e7b172a312dc02a4c9a818c036ffa2776368d7f528268d2e6b5df191770",
    3073: "68dede9bef00ba89e43f31a6825f4cf433389fedae75c04ee9f0cf16a427c95a",
    4097: "00df940cd36bb9fa7cbbc3556744e0dbc8191401afe70520ba292ee3ca80abbc",
    8193: "954a2a75420c8d6547e3ba5b98d963e6fa6491addc8c023189cc519821b4a1f5",
    31744: "efa53b389ab67c593dba624d898d0f7353ab99e4ac9d42302ee64cbf9939a419",
    102400: "1c35d1a5811083fd7119f5d5d1ba027b4d01c0c6c49fb6ff2cf75393ea5db4a7",
}
MODES = pytest.mark.parametrize("key", [None, KEY], ids=["plain", "keyed"])
BLOCK = 128 * 1024  # bytes that one block of the first launch joins
LEVEL = 512 * BLOCK  # bytes that two launches join


def cycle(length: int) -> npt.NDArray[np.uint8]:
    return (np.arange(length) % 251).astype(np.uint8)


def package(x: npt.NDArray[Any], key: bytes | None = None) -> str:
    data = np.ascontiguousarray(x).reshape(-1).view(np.uint8).data
    return (blake3(data) if key is None else blake3(data, key=key)).hexdigest()


def test_official_lengths_in_one_batch(device: Any) -> None:
    inputs = [cycle(length) for length in OFFICIAL]
    got = digests(device, [device.upload(x) for x in inputs])
    assert got == [package(x) for x in inputs]
    assert {length: got[OFFICIAL.index(length)] for length in KNOWN} == KNOWN


def test_official_lengths_in_one_batch_keyed(device: Any) -> None:
    inputs = [cycle(length) for length in OFFICIAL]
    got = digests(device, [device.upload(x) for x in inputs], KEY)
    assert got == [package(x, KEY) for x in inputs]
    assert {length: got[OFFICIAL.index(length)] for length in KNOWN_KEYED} == KNOWN_KEYED


@MODES
def test_each_official_length_alone(device: Any, key: bytes | None) -> None:
    for length in OFFICIAL:
        assert digests(device, [device.upload(cycle(length))], key) == [package(cycle(length), key)], length


@pytest.mark.parametrize(
    "length", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 1, 5 * BLOCK - 64, 1_000_003, 3 * 1024 * 1024 + 65]
)
@MODES
def test_lengths_of_several_blocks(device: Any, key: bytes | None, length: int) -> None:
    x = np.random.default_rng(length).integers(0, 256, length).astype(np.uint8)
    assert digests(device, [device.upload(x)], key) == [package(x, key)]


@MODES
def test_a_step_of_tensors_in_one_batch(device: Any, key: bytes | None) -> None:
    rng = np.random.default_rng(5)
    shapes = [(64,), (0,), (1,), (3, 5), (257, 64), (64, 257), (1000, 33), (2, 3, 4, 5), (128, 256), (129, 256), (7,)]
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes * 6]
    arrays += [np.array(7, np.int64), np.arange(300_000, dtype=np.uint16)]
    held = [device.upload(x) for x in arrays]
    before = len(getattr(device, "launches", []))
    assert digests(device, held, key) == [package(x, key) for x in arrays]
    if isinstance(device, EmulatedDevice):
        mode = "" if key is None else "_keyed"
        assert device.launches[before:] == [("blake3", f"chunks{mode}"), ("blake3", f"parents{mode}")]


def test_a_bit_in_each_word_of_the_key_counts(device: Any) -> None:
    x = [device.upload(cycle(length)) for length in (0, 1, 1025, BLOCK + 1)]
    keys = [bytes(32), *((1 << bit).to_bytes(32, "little") for bit in range(0, 256, 31))]
    got = [digest for key in keys for digest in digests(device, x, key)]
    assert got == [package(cycle(length), key) for key in keys for length in (0, 1, 1025, BLOCK + 1)]
    assert len(set(got)) == len(got)


def test_keys_of_another_size_are_refused(device: Any) -> None:
    for size in (0, 31, 33):
        with pytest.raises(ValueError, match="32 bytes"):
            digests(device, [device.upload(cycle(1))], bytes(size))


def test_no_arrays_no_digests(device: Any) -> None:
    assert digests(device, []) == []


@pytest.mark.parametrize("offset", [1, 2, 3, 4, 8, 12, 15, 16])
def test_views_at_any_address(device: Any, offset: int) -> None:
    x = cycle(5000)
    held = device.upload(x)
    assert digests(device, [held[offset:], held[offset : offset + 100]]) == [
        package(x[offset:]),
        package(x[offset : offset + 100]),
    ]


def test_bits_that_look_alike_to_a_comparison_differ(device: Any) -> None:
    values = [np.array([0.0], np.float32), np.array([-0.0], np.float32)]
    values += [np.array([bits], np.uint32).view(np.float32) for bits in (0x7FC00000, 0xFFC00000)]
    got = digests(device, [device.upload(x) for x in values])
    assert got == [package(x) for x in values] and len(set(got)) == 4


def test_one_bit_anywhere_changes_the_digest(device: Any) -> None:
    x = cycle(3 * BLOCK + 700)
    want = digests(device, [device.upload(x)])
    for at in (0, 63, 64, 1023, 1024, BLOCK - 1, BLOCK, 2 * BLOCK + 5, len(x) - 1):
        y = x.copy()
        y[at] ^= 0x80
        assert digests(device, [device.upload(y)]) != want
    assert digests(device, [device.upload(np.append(x, np.uint8(0)))]) != want


def test_digests_can_stay_on_the_device(device: Any) -> None:
    inputs = [cycle(10), cycle(BLOCK + 10)]
    words = device.download(digest_words(device, [device.upload(x) for x in inputs]))
    assert words.dtype == np.uint32 and words.shape == (2, 8)
    assert [row.tobytes().hex() for row in words.astype("<u4")] == [package(x) for x in inputs]


def test_strided_views_are_refused(device: Any) -> None:
    x = device.upload(cycle(100).reshape(10, 10))
    with pytest.raises(ValueError, match="C-contiguous"):
        digests(device, [x[:, 1:]])


@pytest.mark.parametrize("length", [BLOCK + 4, 2 * BLOCK, 3 * BLOCK - 4, 5 * BLOCK + 3076, 1_000_004])
def test_nodes_of_parts_join_to_the_digest(device: Any, length: int) -> None:
    x = np.random.default_rng(length).integers(0, 256, length).astype(np.uint8)
    held, blocks = device.upload(x.view(np.float32)), blake3_tree.blocks_of(length)
    (whole,) = blake3_tree.block_nodes([x], [0], [length])
    assert block_nodes(device, [held], [0], [length]) == [whole]
    for cut in range(1, blocks):
        parts = [held[: cut * BLOCK // 4], held[cut * BLOCK // 4 :]]
        nodes = block_nodes(device, parts, [0, cut], [length, length])
        assert b"".join(nodes) == whole and len(nodes[0]) == 32 * cut
    assert blake3_tree.join_nodes(whole) == package(x)


def test_what_is_no_part_of_whole_blocks_is_refused(device: Any) -> None:
    x = device.upload(cycle(3 * BLOCK).reshape(3, BLOCK))
    for part, first, size in (
        (x[0], 0, BLOCK),
        (x[0, 1:], 0, 3 * BLOCK),
        (x[:2], 2, 3 * BLOCK),
        (x[:, 1:], 0, 9 * BLOCK),
    ):
        with pytest.raises(ValueError):
            block_nodes(device, [part], [first], [size])
    assert block_nodes(device, [], [], []) == []


@pytest.mark.parametrize("poison", [0xA5, 0x3C])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
@pytest.mark.parametrize("architecture", ["75", "90"])
class TestOnTheEmulator:
    pytestmark = EMULATOR_MARKS

    def test_no_order_and_no_old_byte_matters(self, architecture: str, seed: int, poison: int) -> None:
        emulated = EmulatedDevice(architecture=architecture, seed=seed, poison=poison)
        inputs = [cycle(length) for length in (0, 65, 1025, 5121, BLOCK + 1, 3 * BLOCK - 1)]
        held = [emulated.upload(x) for x in inputs]
        for key in (None, KEY):
            assert digests(emulated, held, key) == [package(x, key) for x in inputs]


class TestOnACard:
    pytestmark = GPU_MARKS

    def test_more_than_4_gib(self) -> None:
        card = real_device()
        length = (1 << 32) + 5
        held = card.zeros((length,), np.uint8)
        card.write(held[1 << 32 :], np.arange(1, 6, dtype=np.uint8))  # what a 32-bit offset would take from the begin
        hasher = blake3(max_threads=blake3.AUTO)
        zeros = bytes(1 << 26)
        for _ in range(1 << 6):
            hasher.update(zeros)
        hasher.update(bytes(range(1, 6)))
        assert digests(card, [held, held[3:], held[:0]])[::2] == [hasher.hexdigest(), package(np.zeros(0, np.uint8))]

    def test_fifty_times_the_same(self) -> None:
        card = real_device()
        arrays = [cycle(length) for length in (0, 1, 1025, 3 * BLOCK + 1, 50_000_000)]
        held = [card.upload(x) for x in arrays]
        want = [package(x) for x in arrays]
        assert all(digests(card, held) == want for _ in range(50))
        want = [package(x, KEY) for x in arrays]
        assert all(digests(card, held, KEY) == want for _ in range(50))


@pytest.mark.parametrize(
    ("length", "blocks"),
    [
        (0, [1]),
        (BLOCK, [1]),
        (BLOCK + 1, [2, 1]),
        (LEVEL, [512, 1]),
        (LEVEL + 1, [513, 2, 1]),
        (512 * LEVEL, [512 * 512, 512, 1]),
        (512 * LEVEL + 1, [512 * 512 + 1, 513, 2, 1]),
        (5 << 40, [5 << 23, 5 << 14, 5 << 5, 1]),
    ],
)
def test_launches_of_a_length(length: int, blocks: list[int]) -> None:
    assert [int(first[-1]) for first in _levels(np.array([length], np.uint64))] == blocks


def test_finished_buffers_take_no_part_in_later_launches() -> None:
    levels = _levels(np.array([5, LEVEL + 1, 0, BLOCK + 1], np.uint64))
    assert [list(map(int, first)) for first in levels] == [[0, 1, 514, 515, 517], [0, 0, 2, 2, 3], [0, 0, 1, 1, 1]]


@pytest.mark.parametrize("key", [None, bytes(range(32))])
@pytest.mark.parametrize(
    ("length", "cut"), [(5, 5), (131072, 131072), (131073, 131072), (400_000, 262144), (300_000, 999)]
)
def test_a_tensor_that_comes_in_pieces(device: Any, length: int, cut: int, key: bytes | None) -> None:
    """Pieces of whole blocks are hashed on the device, others on the host."""
    x = np.arange(length, dtype=np.uint32).view(np.uint8)[:length].copy()
    digest = TensorDigest(device, length, key)
    for at in range(0, length, cut):
        digest.add(device.upload(x[at : at + cut]))
    assert digest.digest() == (content_digest(x) if key is None else keyed_digest(key, x))


def test_tensors_are_read_together(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole ones, ones in pieces of whole blocks, and one that the host hashes; one copy for all of them."""
    given = [(5, 5), (400_000, 262_144), (131_072, 131_072), (300_000, 999), (0, 1), (262_145, 131_072)]
    made, want = [], []
    for seed, (length, cut) in enumerate(given):
        x = np.random.default_rng(seed).integers(0, 256, length, np.uint8)
        made.append(TensorDigest(device, length))
        for at in range(0, max(1, length), cut):
            made[-1].add(device.upload(x[at : at + cut]))
        want.append(content_digest(x))
    copies = []
    download = device.download
    monkeypatch.setattr(device, "download", lambda array: copies.append(1) or download(array))
    assert read_digests(device, made) == want
    assert len(copies) == 1
    assert read_digests(device, []) == []


@pytest.mark.parametrize("blocks", [2, 3, 512, 513, 1025, 1537])
def test_nodes_are_joined_on_the_device(device: Any, blocks: int) -> None:
    """Of tensors too large to hash here: made-up nodes, in parts, beside a tensor of one block."""
    drawn = np.random.default_rng(blocks)
    nodes = drawn.integers(0, 1 << 32, (blocks, 8), np.uint32)
    large, small = TensorDigest(device, blocks * BLOCK), TensorDigest(device, 3)
    for part in (nodes[: blocks // 2], nodes[blocks // 2 :]):
        large.go_on(device.upload(part), len(part) * BLOCK)
    small.add(device.upload(np.arange(3, dtype=np.uint8)))
    want = [blake3_tree.join_nodes(nodes.astype("<u4").tobytes()), content_digest(np.arange(3, dtype=np.uint8))]
    assert read_digests(device, [large, small]) == want
    assert read_digests(device, [small, large]) == want[::-1]


@pytest.mark.parametrize(("size", "added"), [(300_000, 0), (300_000, BLOCK), (5, 0), (BLOCK, 0), (300_000, 999)])
def test_a_tensor_of_which_a_part_is_missing_has_no_digest(device: Any, size: int, added: int) -> None:
    digest = TensorDigest(device, size)
    if added:
        digest.add(device.upload(np.zeros(added, np.uint8)))
    with pytest.raises(ValueError, match=f"{added} bytes came of {size}"):
        read_digests(device, [digest])
    host = layout.TensorDigest(300_000)
    host.add(np.zeros(32_768, np.float32))
    with pytest.raises(ValueError, match="168928 bytes are missing"):
        host.digest()
