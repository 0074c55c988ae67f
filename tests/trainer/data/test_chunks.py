"""Files piece by piece: what zstd holds, in any frames, and nothing where a file ends too early."""

from __future__ import annotations

from pathlib import Path

import pytest
import zstandard

from auditkit.errors import BadArtifact, Unavailable
from trainer.data import chunks
from trainer.data.inputs import find

SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip"
TEXT = b"some text, and more of it. " * 3000


def packed(data: bytes, **options: object) -> bytes:
    """One frame."""
    return zstandard.ZstdCompressor(**options).compress(data)  # type: ignore[arg-type]


def read(folder: Path, data: bytes, name: str = "a.txt.zst") -> tuple[bytes, int]:
    """The contents of a file with these bytes, and how many bytes of the disk were told to be read."""
    (folder / name).write_bytes(data)
    (file,) = find(folder / name, "s").files
    seen: list[int] = []
    return b"".join(chunks.chunks(file, seen.append)), sum(seen)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (packed(TEXT), TEXT),
        (packed(TEXT, write_checksum=True, write_content_size=False), TEXT),
        (packed(b"one") + packed(b"two"), b"onetwo"),
        (SKIPPABLE + packed(b"one") + SKIPPABLE + packed(b"") + packed(b"two") + SKIPPABLE, b"onetwo"),
        (packed(b""), b""),
    ],
)
@pytest.mark.parametrize("feed", [1, 3, 4096])
def test_frames_of_any_kind(
    data: bytes, text: bytes, feed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "_FEED", feed)
    assert read(tmp_path, data) == (text, len(data))


def test_a_file_that_is_not_compressed_is_read_as_it_is(tmp_path: Path) -> None:
    assert read(tmp_path, TEXT, "a.txt") == (TEXT, len(TEXT))


@pytest.mark.parametrize("cut", [1, 3, 5, 40, len(packed(TEXT)) - 1])
def test_a_truncated_file_is_noticed(cut: int, tmp_path: Path) -> None:
    with pytest.raises(BadArtifact, match=r"a\.txt\.zst: ends within a zstd frame"):
        read(tmp_path, packed(TEXT)[:cut])
    with pytest.raises(BadArtifact, match=r"a\.txt\.zst: ends within a zstd frame"):
        read(tmp_path, packed(TEXT) + packed(TEXT)[:cut])


def test_an_empty_file_is_no_zstd(tmp_path: Path) -> None:
    with pytest.raises(BadArtifact, match="ends within"):
        read(tmp_path, b"")


@pytest.mark.parametrize("data", [b"plain text", packed(TEXT) + b"junk", packed(TEXT, write_checksum=True)[:-1] + b"?"])
def test_what_is_not_zstd_is_refused(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(BadArtifact, match="not zstd"):
        read(tmp_path, data)


def test_a_window_above_the_limit_is_refused(tmp_path: Path) -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=False)
    frame = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    with pytest.raises(BadArtifact, match="a window of 134217728 bytes"):
        read(tmp_path, frame.compress(TEXT) + frame.flush())


@pytest.mark.parametrize("name", ["a.txt", "a.txt.zst"])
@pytest.mark.parametrize("change", [b"", packed(b"more")])
def test_a_file_that_changes_while_it_is_read_is_refused(name: str, change: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(packed(TEXT))
    (file,) = find(tmp_path, "s").files
    (tmp_path / name).write_bytes((packed(TEXT) if change else packed(b"x")) + change)
    with pytest.raises(BadArtifact, match="its size has changed while it was read"):
        list(chunks.chunks(file, lambda count: None))


def test_what_cannot_be_opened_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"")
    (file,) = find(tmp_path, "s").files
    (tmp_path / "a.txt").unlink()
    with pytest.raises(Unavailable):
        list(chunks.chunks(file, lambda count: None))
