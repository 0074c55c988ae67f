"""RFC 6962 trees against the definition, and against the answers published with Certificate Transparency."""

from __future__ import annotations

import pytest

from auditkit.errors import Untrusted
from auditkit.formats import merkle
from auditkit.formats.merkle import Frontier, inclusion_proof, leaf_hash, node_hash, tree_root, verify_inclusion

# The entries and roots that the test suite of certificate-transparency-go uses, for 1 to 8 entries.
ENTRIES = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
LEAVES = [leaf_hash(bytes([i])) for i in range(70)]


def defined_root(leaves: list[bytes]) -> bytes:
    """RFC 6962 section 2.1, as it is written there: split at the largest power of two below the size."""
    if not leaves:
        return merkle.EMPTY_ROOT
    if len(leaves) == 1:
        return leaves[0]
    split = 1 << (len(leaves) - 1).bit_length() - 1
    return node_hash(defined_root(leaves[:split]), defined_root(leaves[split:]))


def test_the_published_roots() -> None:
    leaves = [leaf_hash(bytes.fromhex(entry)) for entry in ENTRIES]
    assert [tree_root(leaves[: n + 1]).hex() for n in range(8)] == ROOTS
    assert tree_root([]).hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.parametrize("size", range(71))
def test_every_size_follows_the_definition(size: int) -> None:
    assert tree_root(LEAVES[:size]) == defined_root(LEAVES[:size])


def test_a_frontier_has_the_root_of_every_size() -> None:
    frontier = Frontier()
    for size in range(71):
        assert (frontier.size, frontier.root()) == (size, defined_root(LEAVES[:size]))
        if size < 70:
            frontier.append(LEAVES[size])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9, 31, 33])
def test_every_leaf_has_a_proof_and_no_other_place(size: int) -> None:
    root = defined_root(LEAVES[:size])
    for index in range(size):
        proof = inclusion_proof(LEAVES[:size], index)
        verify_inclusion(LEAVES[index], index, size, proof, root)
        for other in range(size):
            if other != index:
                with pytest.raises(Untrusted):
                    verify_inclusion(LEAVES[index], other, size, proof, root)


def test_a_proof_that_is_altered_in_any_way_is_refused() -> None:
    root, proof = tree_root(LEAVES[:7]), inclusion_proof(LEAVES[:7], 4)
    changed = [bytes([proof[0][0] ^ 1]) + proof[0][1:], *proof[1:]]
    for bad in (
        changed,
        proof[:-1],
        [*proof, proof[0]],
        proof[::-1],
        [b"", *proof[1:]],
        [proof[0] + b"x", *proof[1:]],
        [],
    ):
        with pytest.raises(Untrusted):
            verify_inclusion(LEAVES[4], 4, 7, bad, root)
    # Not for size 8: a path of the same shape leads to the same root, which is why a log signs root and size together.
    for index, size in ((4, 6), (4, 16), (-1, 7), (7, 7), (0, 0)):
        with pytest.raises(Untrusted):
            verify_inclusion(LEAVES[4], index, size, proof, root)


def test_an_inner_node_does_not_pass_for_an_entry() -> None:
    inner = LEAVES[0] + LEAVES[1]
    assert leaf_hash(inner) != node_hash(LEAVES[0], LEAVES[1])


def test_a_proof_of_no_leaf_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        inclusion_proof(LEAVES[:3], 3)
