"""Ids on the disk: any window can be read, only what it needs is checked, and a changed byte is noticed."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from auditkit.errors import BadArtifact
from auditkit.formats.digest import content_digest
from trainer.data import ids
from trainer.data.ids import IdsWriter, StoredIds

CHUNK = 64


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 64 bytes."""
    monkeypatch.setattr(ids, "CHUNK", CHUNK)


def written(folder: Path, count: int, dtype: str = "<u2", pieces: int = 3) -> tuple[np.ndarray, str]:
    """Files of so many ids, written in some pieces; the ids and the digest of the digests."""
    values = (np.arange(count) * 7 % 60000).astype(dtype)
    with (folder / "ids.bin").open("wb") as file, (folder / "ids.chk").open("wb") as chunks:
        writer = IdsWriter(file, chunks)
        for piece in np.array_split(values, pieces):
            writer.write(piece)
        digest, listed = writer.finish()
    assert writer.count == count
    assert digest == content_digest(values.tobytes())
    return values, listed


def opened(folder: Path, values: np.ndarray, digest: str) -> StoredIds:
    """The ids as a step reads them."""
    return StoredIds(folder / "ids.bin", folder / "ids.chk", dtype=values.dtype, tokens=values.size, digest=digest)


@pytest.mark.parametrize("count", [1, 31, 32, 33, 64, 65, 200])
@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
def test_every_window_is_read(count: int, dtype: str, tmp_path: Path) -> None:
    values, digest = written(tmp_path, count, dtype)
    stored = opened(tmp_path, values, digest)
    for width in {1, 5, min(count, 70)}:
        begins = np.arange(max(1, count - width + 1))
        index = begins[:, None] + np.arange(min(width, count))
        assert stored[index].tolist() == values[index].tolist()


def test_the_digests_are_those_of_the_chunks(tmp_path: Path) -> None:
    values, digest = written(tmp_path, 100, pieces=7)
    data, listed = values.tobytes(), (tmp_path / "ids.chk").read_bytes()
    assert digest == content_digest(listed)
    assert [listed[i : i + 32].hex() for i in range(0, len(listed), 32)] == [
        content_digest(data[i : i + CHUNK]) for i in range(0, len(data), CHUNK)
    ]


def test_pieces_do_not_matter() -> None:
    values = np.arange(1000, dtype="<u2")
    made = []
    for pieces in (1, 2, 31):
        file, chunks = io.BytesIO(), io.BytesIO()
        writer = IdsWriter(file, chunks)
        for piece in np.array_split(values, pieces):
            writer.write(piece)
        made.append((writer.finish(), file.getvalue(), chunks.getvalue()))
    assert made[0] == made[1] == made[2]


def test_a_changed_byte_is_noticed_by_those_who_read_it(tmp_path: Path) -> None:
    values, digest = written(tmp_path, 100)
    data = bytearray((tmp_path / "ids.bin").read_bytes())
    data[CHUNK + 5] ^= 1
    (tmp_path / "ids.bin").write_bytes(bytes(data))
    stored = opened(tmp_path, values, digest)
    assert stored[np.array([[0, 31], [64, 65]])].tolist() == [[0, 217], [448, 455]]
    for first in (31, 32, 63):
        with pytest.raises(BadArtifact, match=r"ids\.bin: changed since it was prepared, at bytes 64 to 127"):
            stored[np.array([[first, first + 1]])]


def test_no_rows_are_no_ids(tmp_path: Path) -> None:
    values, digest = written(tmp_path, 100)
    assert opened(tmp_path, values, digest)[np.empty((0, 5), np.int64)].shape == (0, 5)


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    values, digest = written(tmp_path, 100)
    with pytest.raises(BadArtifact, match="200 bytes, not 202"):
        opened(tmp_path, np.append(values, values[:1]), digest)
    with pytest.raises(BadArtifact, match=r"ids\.chk: changed"):
        opened(tmp_path, values, content_digest(b"x"))
    (tmp_path / "ids.bin").unlink()
    with pytest.raises(BadArtifact, match="0 bytes, not 200"):
        opened(tmp_path, values, digest)
