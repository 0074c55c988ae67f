"""`ids.bin` of any size: written in one go, read window by window, and every byte that is read is checked.

A file beside it holds the BLAKE3 of each chunk, so that a step reads its own chunks and not all of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from auditkit.errors import BadArtifact
from auditkit.formats.digest import Digest, Hasher, content_digest
from trainer.disk import read_bytes

CHUNK = 1 << 17  # bytes: a window of 2 KB costs one chunk, the digests of 1 TB take 256 MB
_DIGEST_BYTES = 32


class IdsWriter:
    """Writes ids and the digests of their chunks; `digest` is that of all ids, `count` their number."""

    def __init__(self, ids: BinaryIO, chunks: BinaryIO) -> None:
        self._ids, self._chunks = ids, chunks
        self._all, self._listed, self._part = Hasher(), Hasher(), Hasher()
        self.count = 0

    def write(self, ids: NDArray[Any]) -> None:
        """Append ids (n,) of the dtype as stored."""
        self.count += ids.size
        data = memoryview(ids.tobytes())
        self._all.update(data)
        self._ids.write(data)
        while data.nbytes:
            room = CHUNK - self._part.size
            self._part.update(data[:room])
            data = data[room:]
            if self._part.size == CHUNK:
                self._end_chunk()

    def finish(self) -> tuple[Digest, Digest]:
        """The digest of all ids and that of the file of digests."""
        if self._part.size:
            self._end_chunk()
        return self._all.hexdigest(), self._listed.hexdigest()

    def _end_chunk(self) -> None:
        digest = bytes.fromhex(self._part.hexdigest())
        self._chunks.write(digest)
        self._listed.update(digest)
        self._part = Hasher()


class StoredIds:
    """The ids (tokens,) of a file on the disk; each chunk is checked when something in it is first read."""

    def __init__(self, path: Path, chunks: Path, *, dtype: np.dtype[Any], tokens: int, digest: Digest) -> None:
        """`digest` is that of the file `chunks`. Raises Unavailable, BadArtifact naming what has changed."""
        size = path.stat().st_size if path.is_file() else 0
        self._path, self._size = path, tokens * dtype.itemsize
        if size != self._size:
            raise BadArtifact(f"{path}: {size} bytes, not {self._size}")
        listed = read_bytes(chunks)
        if content_digest(listed) != digest or len(listed) != -(-size // CHUNK) * _DIGEST_BYTES:
            raise BadArtifact(f"{chunks}: changed since it was prepared", hint="prepare again in another folder")
        self._listed = listed
        self._ids = np.memmap(path, dtype=dtype, mode="r")
        self._bytes = np.memmap(path, dtype=np.uint8, mode="r")
        self._checked = np.zeros(-(-size // CHUNK), np.bool_)

    def __getitem__(self, index: NDArray[np.int64]) -> NDArray[Any]:
        """The ids at `index` (rows, width), each row rising by one from place to place."""
        if index.size:
            first, last = (index[:, place] * self._ids.itemsize // CHUNK for place in (0, -1))
            for chunk in sorted({chunk for a, b in zip(first, last, strict=True) for chunk in range(a, b + 1)}):
                self._check(chunk)
        found: NDArray[Any] = self._ids[index]
        return found

    def _check(self, chunk: int) -> None:
        if self._checked[chunk]:
            return
        found = content_digest(self._bytes[chunk * CHUNK : (chunk + 1) * CHUNK])
        if found != self._listed[chunk * _DIGEST_BYTES : (chunk + 1) * _DIGEST_BYTES].hex():
            raise BadArtifact(
                f"{self._path}: changed since it was prepared, at bytes {chunk * CHUNK} to {(chunk + 1) * CHUNK - 1}",
                hint="prepare again in another folder",
            )
        self._checked[chunk] = True
