"""zstd: every valid file of any writer is read, nothing asks for more memory than the size that was published."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from auditkit.errors import BadArtifact
from auditkit.formats.zstd import compress, decompress
from tests.vectors.bad_bytes import MAGIC, RLE, SKIPPABLE

DATA = b"".join(i.to_bytes(4, "little") for i in range(100_000))
NOISE = np.random.default_rng(5).bytes(300_000)


@given(st.binary(max_size=300))
def test_what_is_compressed_is_decompressed(data: bytes) -> None:
    assert decompress(compress(data), size=len(data), what="x") == data


def streamed(data: bytes, **options: bool | int) -> bytes:
    """One frame without a content size, as `cat FILE | zstd` makes it."""
    compressor = zstandard.ZstdCompressor(**options).compressobj()  # type: ignore[arg-type]
    return (
        compressor.compress(data[:1000])
        + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        + (compressor.compress(data[1000:]) + compressor.flush())
    )


@pytest.mark.parametrize(
    "data", [DATA, NOISE, b"", b"x", b"\0" * 1_000_000], ids=["counts", "noise", "none", "x", "zeros"]
)
def test_every_way_to_write_it_gives_the_same_bytes(data: bytes) -> None:
    half = len(data) // 2
    writers = {
        "levels": [zstandard.ZstdCompressor(level=level).compress(data) for level in (-5, 1, 3, 19)],
        "threads": [zstandard.ZstdCompressor(threads=threads).compress(data) for threads in (0, 1, 2)],
        "no size": [streamed(data), streamed(data, write_checksum=True)],
        "two frames": [compress(data[:half]) + compress(data[half:]), streamed(data[:half]) + compress(data[half:])],
        "skippable": [
            SKIPPABLE + compress(data),
            compress(data) + SKIPPABLE,
            SKIPPABLE + compress(data) + SKIPPABLE * 2,
        ],
        "no checksum": [zstandard.ZstdCompressor(write_checksum=False).compress(data)],
    }
    for name, files in writers.items():
        for file in files:
            assert decompress(file, size=len(data), what=name) == data


def test_a_view_is_as_good_as_bytes() -> None:
    file = compress(np.arange(6, dtype=np.uint16).reshape(2, 3))
    assert decompress(memoryview(b"xx" + file)[2:], size=12, what="x") == np.arange(6, dtype=np.uint16).tobytes()


@pytest.mark.parametrize("size", [0, 1, len(DATA) - 1, len(DATA) + 1])
def test_any_other_size_is_refused(size: int) -> None:
    for file in (compress(DATA), streamed(DATA)):
        with pytest.raises(BadArtifact, match="^x: "):
            decompress(file, size=size, what="x")


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 5, 100])
def test_a_truncated_file_is_refused(cut: int) -> None:
    for file in (compress(DATA), streamed(DATA), streamed(DATA, write_checksum=True)):
        with pytest.raises(BadArtifact, match="truncated zstd frame"):
            decompress(file[:-cut], size=len(DATA), what="x")


def test_garbage_after_the_frame_is_refused() -> None:
    for garbage in (b"\0", b"0123456789abcdef", b"\n", MAGIC, MAGIC + b"\x20"):
        with pytest.raises(BadArtifact):
            decompress(compress(DATA) + garbage, size=len(DATA), what="x")


@pytest.mark.parametrize("position", range(0, 400, 7))
def test_a_changed_byte_is_found_by_the_checksum(position: int) -> None:
    file = bytearray(compress(NOISE[:400]))
    file[position] ^= 1
    with pytest.raises(BadArtifact):
        decompress(bytes(file), size=400, what="x")


def test_a_large_window_is_read_up_to_the_limit_and_named_beyond() -> None:
    def windowed(log: int) -> bytes:
        parameters = zstandard.ZstdCompressionParameters(window_log=log, write_content_size=False)
        writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        return writer.compress(b"x" * 1000) + writer.flush()

    assert decompress(windowed(27), size=1000, what="x") == b"x" * 1000
    with pytest.raises(BadArtifact, match="zstd window of 268435456 bytes, at most 134217728 are allowed") as caught:
        decompress(windowed(28), size=1000, what="x")
    assert "--long" in caught.value.hint


BOMBS = {
    "claims 2^40": bytes.fromhex("28b52ffde00000000000010000") + b"\x01\0\0",
    "claims 2^63": MAGIC + b"\xe0" + (1 << 63).to_bytes(8, "little") + b"\x01\0\0",
    "run lengths": MAGIC + b"\x00\x38" + RLE * 30_000 + b"\x01\0\0",
    "empty blocks": MAGIC + b"\x00\x38" + b"\0\0\0" * 50_000,
    "empty frames": (MAGIC + b"\x20\x00\x01\0\0") * 10_000,
    "zeros": compress(bytes(50_000_000)),
    "zeros without a size": streamed(bytes(50_000_000)),
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("size", [16, 1_000_000])
def test_bombs_end_in_an_error_soon_and_in_bounded_memory(name: str, size: int) -> None:
    tracemalloc.start()
    began = time.process_time()
    with pytest.raises(BadArtifact):
        decompress(BOMBS[name], size=size, what="x")
    seconds, peak = time.process_time() - began, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds < 5
    assert peak < 20_000_000


def test_compressed_bytes_name_their_size_and_end_in_a_checksum() -> None:
    parameters = zstandard.get_frame_parameters(compress(DATA))
    assert parameters.content_size == len(DATA)
    assert parameters.has_checksum
