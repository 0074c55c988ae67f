"""Micro-batch leaves: forty bytes each, their tree, and the byte range of one step."""

from __future__ import annotations

import struct

import pytest

from auditkit.errors import BadArtifact
from auditkit.formats import merkle
from auditkit.formats.leaves import LEAF_BYTES, LeavesFile, MicroBatchLeaf, micro_root, parse_leaves, span
from tests.formats.samples import LEAVES, digest_of

LEAF = MicroBatchLeaf(-5, digest_of("x"))


def test_a_leaf_is_a_signed_sum_and_a_digest() -> None:
    assert LEAF.encode() == struct.pack("<q", -5) + bytes.fromhex(digest_of("x"))
    assert parse_leaves(LEAF.encode(), 1) == (LEAF,)


def test_the_root_is_an_rfc_6962_tree() -> None:
    hashes = [merkle.leaf_hash(leaf.encode()) for leaf in LEAVES.steps[0]]
    assert micro_root(LEAVES.steps[0]) == merkle.node_hash(*hashes).hex()
    assert micro_root(LEAVES.steps[0][:1]) == hashes[0].hex()
    assert micro_root(LEAVES.steps[0][::-1]) != micro_root(LEAVES.steps[0])


def test_the_span_of_a_step_holds_its_leaves() -> None:
    data = LEAVES.encode()
    for step, leaves in enumerate(LEAVES.steps):
        offset, length = span(step, 2)
        assert parse_leaves(data[offset : offset + length], 2) == leaves
    assert sum(span(2, 2)) == len(data)


def test_no_micro_batches_have_no_root() -> None:
    with pytest.raises(BadArtifact, match="micro-batch leaves: none"):
        micro_root([])


@pytest.mark.parametrize("length", [0, LEAF_BYTES - 1, LEAF_BYTES + 1, 2 * LEAF_BYTES])
def test_a_range_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(BadArtifact, match=f"{length} bytes, 1 leaves have 40"):
        parse_leaves(bytes(length), 1)


@pytest.mark.parametrize(
    "leaf", [MicroBatchLeaf(1 << 63, LEAF.gradient), MicroBatchLeaf(True, LEAF.gradient), MicroBatchLeaf(0, "A" * 64)]
)
def test_a_leaf_that_does_not_fit_is_refused_not_wrapped(leaf: MicroBatchLeaf) -> None:
    with pytest.raises(BadArtifact, match="^micro-batch leaf"):
        leaf.encode()


def test_every_step_has_the_same_number() -> None:
    with pytest.raises(BadArtifact, match="a step does not have 2 leaves"):
        LeavesFile(2, ((LEAF, LEAF), (LEAF,))).encode()
    with pytest.raises(BadArtifact, match="0 micro-batches a step"):
        LeavesFile.parse(LEAVES.encode(), micro_batches=0)
    with pytest.raises(BadArtifact, match="after the last whole step"):
        LeavesFile.parse(LEAVES.encode(), micro_batches=4)
