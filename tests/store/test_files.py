"""Local files in pieces."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from auditkit.errors import BadArtifact, Unavailable
from auditkit.store.files import chunks, digest_of, read_range, read_small, regular_size, require_size
from tests.store.tools import blob, named

DATA = blob(100_000)
SIZE, DIGEST = named(DATA)


@pytest.mark.parametrize("chunk", [1, 999, 65536, 100_000, 1 << 20])
def test_chunks_and_digest(tmp_path: Path, chunk: int) -> None:
    (tmp_path / "x").write_bytes(DATA[:5000] if chunk == 1 else DATA)
    wanted = named((tmp_path / "x").read_bytes())
    seen: list[int] = []
    assert digest_of(tmp_path / "x", chunk, seen.append) == wanted[1]
    assert sum(seen) == wanted[0] and max(seen) <= chunk


@pytest.mark.parametrize("limit", [0, 1, 10, 4999, 99_999_999])
def test_chunks_up_to_a_limit(limit: int) -> None:
    found = b"".join(bytes(c) for c in chunks(io.BytesIO(DATA), 777, limit))
    assert found == DATA[:limit]


def test_ranges(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(DATA)
    assert read_range(tmp_path / "x", 10, 20) == DATA[10:30]
    assert read_range(tmp_path / "x", SIZE, 0) == b""
    with pytest.raises(BadArtifact, match="ends at byte 100,000"):
        read_range(tmp_path / "x", SIZE - 5, 6)
    with pytest.raises(Unavailable, match="cannot read"):
        read_range(tmp_path / "none", 0, 1)


def test_sizes(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(DATA)
    assert regular_size(tmp_path / "x") == SIZE and require_size(tmp_path / "x", SIZE)
    assert regular_size(tmp_path / "none") is None and not require_size(tmp_path / "none", SIZE)
    assert regular_size(tmp_path / "x" / "y") is None  # below a file
    with pytest.raises(BadArtifact, match="100,000 bytes, but the manifest declares 7"):
        require_size(tmp_path / "x", 7)
    with pytest.raises(Unavailable, match="not a regular file"):
        regular_size(tmp_path)


def test_small_files(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(DATA)
    assert read_small(tmp_path / "x", SIZE) == DATA
    assert read_small(tmp_path / "none", 1) is None
    assert read_small(tmp_path / "x" / "y", 1) is None  # below a file
    with pytest.raises(BadArtifact, match="more than 99,999 bytes"):
        read_small(tmp_path / "x", SIZE - 1)
    with pytest.raises(Unavailable):
        read_small(tmp_path, 1)


@pytest.mark.optional("Windows has no named pipes in folders")
@pytest.mark.skipif(os.name == "nt", reason="Windows has no named pipes in folders")
def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Unavailable, match="not a regular file"):
        regular_size(tmp_path / "pipe")
    with pytest.raises(Unavailable, match="not a regular file"):
        read_small(tmp_path / "pipe", 1)
