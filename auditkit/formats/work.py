"""Proof of work: a digest of the step's gradient under a key of the auditor's own.

The gradient is not published, so nobody can make the digest from what is, and one auditor's digest is of no use to
another. Any later honest replay can make it, for the key follows from public things.
"""

from __future__ import annotations

from collections.abc import Sequence

from auditkit.errors import BadArtifact
from auditkit.formats.digest import KEY_BYTES, PART_WORK_KEY, WORK_KEY, Digest, check_digest, keyed_digest, root

PUBLIC_KEY_BYTES = 32  # Ed25519


def work_key(public_key: bytes, run_id: Digest, step: int) -> bytes:
    """The key (32 bytes) under which an auditor hashes the gradient of one step of one run: BLAKE3 derive-key, context
    WORK_KEY, of public key (32 bytes), run id (32 bytes), step (u64, little-endian).

    ValueError: a public key of another size, or a step that is no u64. BadArtifact: `run_id` is no digest.
    """
    if len(public_key) != PUBLIC_KEY_BYTES:
        raise ValueError(f"a public key has {PUBLIC_KEY_BYTES} bytes, not {len(public_key)}")
    if not 0 <= step < 1 << 64:
        raise ValueError(f"step {step} does not fit into 64 bits")
    material = public_key + bytes.fromhex(check_digest(run_id, "run id")) + step.to_bytes(8, "little")
    return bytes.fromhex(root(WORK_KEY, material))


def work_of(key: bytes, tensor_digests: Sequence[Digest]) -> Digest:
    """The work: keyed BLAKE3 of the tensors' own keyed digests (32 bytes each), joined in the order of the names.

    key (32 bytes); BadArtifact: no tensors, or something that is no digest.
    """
    if len(key) != KEY_BYTES:
        raise ValueError(f"a work key has {KEY_BYTES} bytes, not {len(key)}")
    if not tensor_digests:
        raise BadArtifact("work: no tensors")
    return keyed_digest(key, b"".join(bytes.fromhex(check_digest(digest, "work")) for digest in tensor_digests))


def part_work_key(step_key: bytes) -> bytes:
    """The key (32 bytes) for some micro-batches of a step: BLAKE3 derive-key, context PART_WORK_KEY, of the step's."""
    if len(step_key) != KEY_BYTES:
        raise ValueError(f"a work key has {KEY_BYTES} bytes, not {len(step_key)}")
    return bytes.fromhex(root(PART_WORK_KEY, step_key))


def part_work_of(key: bytes, works: Sequence[Digest]) -> Digest:
    """The work of several micro-batches: keyed BLAKE3 of those of each, joined in their order.

    That of one micro-batch is `work_of` its gradient sums (int64 tensors), which no leaf gives: it has their digest
    only.
    """
    return work_of(key, works)
