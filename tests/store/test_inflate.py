"""Streaming zstd: frames of every kind, bombs, large windows (cases 30 to 33)."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
import zstandard

from auditkit.errors import BadArtifact
from auditkit.store import STORE_LIMITS
from auditkit.store.inflate import inflate
from tests.store.tools import blob

A, B = blob(300_000, "a") + bytes(2_000_000), blob(70_000, "b")
SKIPPABLE = (0x184D2A50).to_bytes(4, "little") + (4).to_bytes(4, "little") + b"skip"
HUGE = bytes.fromhex("28b52ffde00000000000010000")  # 13 bytes that claim 1 TiB


def frame(data: bytes, **options: bool) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(data)


CHECKED = frame(A, write_checksum=True)


def streamed(data: bytes) -> bytes:
    """A frame as a pipe makes it: no size in the header."""
    out = io.BytesIO()
    with zstandard.ZstdCompressor().stream_writer(out, closefd=False) as writer:
        writer.write(data)
    assert not data or zstandard.frame_content_size(out.getvalue()) == -1
    return out.getvalue()


def windowed(data: bytes, log: int) -> bytes:
    """A frame that needs a window of 2^log bytes."""
    parameters = zstandard.ZstdCompressionParameters(window_log=log, enable_ldm=True)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return compressor.compress(data) + compressor.flush()


def read(tmp_path: Path, data: bytes, raw_length: int, *, room: int | None = None, before: bytes = b"") -> bytes:
    """What `inflate` yields, put together, with a buffer of `room` bytes."""
    path = tmp_path / "x.zst"
    path.write_bytes(before + data + b"what follows is not its business")
    out = memoryview(bytearray(raw_length if room is None else room))
    pieces = [bytes(p) for p in inflate(path, len(before), len(data), out, raw_length, "x.zst", STORE_LIMITS)]
    if len(out) >= raw_length:
        assert bytes(out[:raw_length]) == b"".join(pieces)
    return b"".join(pieces)


@pytest.mark.parametrize("room", [None, 1000, 1 << 20])
@pytest.mark.parametrize(
    ("data", "raw"),
    [
        (frame(A), A),
        (frame(A, write_checksum=True), A),
        (streamed(A), A),
        (streamed(b""), b""),
        (frame(b""), b""),
        (frame(A) + frame(B), A + B),
        (SKIPPABLE + frame(A), A),
        (frame(A) + SKIPPABLE, A),
        (SKIPPABLE + SKIPPABLE + frame(B) + SKIPPABLE + streamed(A) + frame(b""), B + A),
        (windowed(A, 24), A),
        (windowed(A, 27), A),
    ],
)
def test_cases_30_and_31_frames_of_every_kind(tmp_path: Path, data: bytes, raw: bytes, room: int | None) -> None:
    assert read(tmp_path, data, len(raw), room=room) == raw


def test_it_begins_where_it_should(tmp_path: Path) -> None:
    assert read(tmp_path, frame(B), len(B), before=b"before" * 1000) == B


@pytest.mark.parametrize(
    ("data", "raw_length", "words"),
    [
        (frame(A) + b"sixteen garbages", len(A), "zstd cannot read it"),
        (b"sixteen garbages", 5, "does not begin with a zstd frame"),
        (b"", 5, "does not begin with a zstd frame"),
        (frame(A)[:-10], len(A), "2,300,000 are expected"),
        (frame(A), len(A) + 1, "2,300,000 bytes when decompressed, 2,300,001 are expected"),
        (frame(A), len(A) - 1, "the zstd frame claims 2,300,000 bytes, 2,299,999 are expected"),
        (streamed(A), len(A) - 1, "more than the expected 2,299,999 bytes"),
        (frame(A) + frame(b"x"), len(A), "more than the expected 2,300,000 bytes"),
        (HUGE, 100, "the zstd frame claims 1,099,511,627,776 bytes, 100 are expected"),
        (HUGE, 1 << 40, "zstd window of 1,099,511,627,776 bytes, at most 134,217,728 are allowed"),
        (SKIPPABLE + windowed(b"abc" * 300, 28), 900, "within a window of 134,217,728 bytes"),
        (SKIPPABLE + HUGE, 100, "within a window of 134,217,728 bytes"),
        (windowed(b"abc" * 300, 28), 900, "zstd window of 268,435,456 bytes, at most 134,217,728 are allowed"),
        (windowed(b"abc" * 300, 31), 900, "zstd window of 2,147,483,648 bytes, at most 134,217,728 are allowed"),
        (CHECKED[:100] + b"\xff" * 100 + CHECKED[200:], len(A), "checksum"),
    ],
)
def test_cases_31_to_33_what_is_refused(tmp_path: Path, data: bytes, raw_length: int, words: str) -> None:
    with pytest.raises(BadArtifact) as error:
        read(tmp_path, data, raw_length, room=1000)
    assert error.value.message.startswith("x.zst: ") and words in error.value.message


def test_a_bomb_takes_neither_time_nor_memory(tmp_path: Path) -> None:
    bomb = frame(bytes(1 << 26)) * 40  # 2.5 GiB in some 80 kB
    started = time.perf_counter()
    with pytest.raises(BadArtifact, match="more than the expected"):
        read(tmp_path, bomb, 1 << 26, room=1 << 20)
    assert time.perf_counter() - started < 5
