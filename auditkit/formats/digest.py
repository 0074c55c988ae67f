"""BLAKE3 digests: plain for contents (what `b3sum` prints), keyed for proofs of work, and under a derive-key context
for the roots of documents.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from auditkit.errors import BadArtifact

Digest = str  # 64 lower-case hexadecimal digits; raw 32 bytes appear only inside the binary files and in merkle.py
BytesLike = bytes | bytearray | memoryview | NDArray[Any]

STATE_ROOT = "auditkit state root v1"
GRADIENT_ROOT = "auditkit gradient root v1"
BATCH_ROOT = "auditkit batch root v1"
RUN_ID = "auditkit run id v1"
RECIPE_ROOT = "auditkit recipe root v1"
DATA_ROOT = "auditkit data root v1"
WORK_KEY = "auditkit work key v1"
PART_WORK_KEY = "auditkit part work key v1"
SHARD_ROOT = "auditkit shard root v1"

KEY_BYTES = 32  # of keyed BLAKE3

ZERO_DIGEST: Digest = "0" * 64

# Below this many bytes one thread takes a millisecond, and no thread pool is started (a pool does not survive a fork).
# The pool is one for the process: who asks it for a little waits for all that others have begun there.
THREADS_FROM_BYTES = 1 << 22

_DIGEST = re.compile(r"[0-9a-f]{64}")


def check_digest(text: object, what: str) -> Digest:
    """`text` itself when it is a digest; BadArtifact naming `what` otherwise (upper case is refused, not folded)."""
    if not isinstance(text, str) or _DIGEST.fullmatch(text) is None:
        raise BadArtifact(f"{what}: not a digest (64 lower-case hexadecimal digits)")
    return text


def content_digest(data: BytesLike, *, threads: int | None = None) -> Digest:
    """Plain BLAKE3 of the bytes, as `b3sum` prints it; an array counts as its C-order bytes as they lie in memory.

    threads: None for as many as pay; 1 in work beside other work.
    """
    return _hash(data, None, threads)


def keyed_digest(key: bytes, data: BytesLike) -> Digest:
    """BLAKE3 of the bytes in keyed mode, key (32 bytes); an array counts as in `content_digest`."""
    flat = flat_bytes(data)
    return blake3(flat, key=key, max_threads=_threads(flat)).hexdigest()


def root(context: str, data: BytesLike) -> Digest:
    """BLAKE3 of the bytes in derive-key mode under `context` (one of the constants above): 32 bytes as hex."""
    return _hash(data, context, None)


class Hasher:
    """Streaming BLAKE3, plain or with a key of 32 bytes; neither the cut into updates nor the number of threads changes
    the digest.
    """

    def __init__(self, key: bytes | None = None, *, threads: int | None = None) -> None:
        """threads: None for all; 1 in work beside other work."""
        most = threads or blake3.AUTO
        self._blake3 = blake3(max_threads=most) if key is None else blake3(key=key, max_threads=most)
        self.size = 0  # bytes so far

    def update(self, data: BytesLike) -> None:
        """Append bytes; updates of 128 KiB and more keep all threads busy."""
        flat = flat_bytes(data)
        self.size += len(flat)
        self._blake3.update(flat)

    def hexdigest(self) -> Digest:
        """The digest of all bytes so far; more may follow."""
        return self._blake3.hexdigest()


def flat_bytes(data: BytesLike) -> bytes | bytearray | memoryview:
    """The bytes of `data` as a one-dimensional buffer, without a copy where the storage is contiguous."""
    if isinstance(data, (bytes, bytearray)):
        return data
    array = np.ascontiguousarray(data).reshape(-1)  # strided and Fortran-order views become C order here
    return array.view(np.uint8).data


def _hash(data: BytesLike, context: str | None, threads: int | None) -> Digest:
    flat = flat_bytes(data)
    threads = threads or _threads(flat)
    if context is None:
        return blake3(flat, max_threads=threads).hexdigest()
    return blake3(flat, derive_key_context=context, max_threads=threads).hexdigest()


def _threads(flat: bytes | bytearray | memoryview) -> int:
    return blake3.AUTO if len(flat) >= THREADS_FROM_BYTES else 1
