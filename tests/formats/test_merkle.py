"""RFC 6962 trees against the definition, and against the answers published with Certificate Transparency."""

from __future__ import annotations

import pytest

from auditkit.errors import Untrusted
from auditkit.formats import merkle
from auditkit.formats.merkle import (
    Frontier,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    node_hash,
    tree_root,
    verify_consistency,
    verify_inclusion,
)
from tests.formats import published_logs as published

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
    leaves = [leaf_hash(entry) for entry in published.ENTRIES]
    assert [tree_root(leaves[: n + 1]) for n in range(8)] == published.ROOTS
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


SOME = bytes.fromhex("abacaba000000000000000000000000000000000000000000060061e00123456")
Proof = list[bytes]


def raw(proof: list[str]) -> Proof:
    """The hashes of a published proof."""
    return [bytes.fromhex(text) for text in proof]


def altered(proof: Proof, *roots: bytes) -> list[Proof]:
    """The alterations of transparency-dev/merkle: hashes added, removed, moved, and one bit of each flipped."""
    found = [[*proof, b""], [b"", *proof], proof[:-1], proof[1:] + proof[:1] if len(proof) > 1 else [SOME]]
    found += [added for root in (*roots, SOME) for added in ([*proof, root], [root, *proof])]
    for i, one in enumerate(proof):
        found.append([*proof[:i], bytes([one[0] ^ 16]) + one[1:], *proof[i + 1 :]])
    return [bad for bad in found if bad != proof]


@pytest.mark.parametrize(("index", "size", "hashes"), published.INCLUSION)
def test_the_published_inclusion_proofs(index: int, size: int, hashes: list[str]) -> None:
    leaves = [leaf_hash(entry) for entry in published.ENTRIES[:size]]
    proof, root = raw(hashes), published.ROOTS[size - 1]
    assert inclusion_proof(leaves, index) == proof
    verify_inclusion(leaves[index], index, size, proof, root)
    wrong = [
        (leaves[index], place, of, proof, root)
        for place, of in (
            (index - 1, size),
            (index + 1, size),
            (index ^ 2, size),
            (index, size * 2),
            (index, size // 2),
        )
    ]
    wrong += [(b"WrongLeaf", index, size, proof, root)]
    wrong += [(leaves[index], index, size, proof, other) for other in (merkle.EMPTY_ROOT, SOME, b"")]
    wrong += [(leaves[index], index, size, bad, root) for bad in altered(proof, root)]
    for case in wrong:
        with pytest.raises(Untrusted):
            verify_inclusion(*case)


@pytest.mark.parametrize(("old", "new", "hashes"), published.CONSISTENCY)
def test_the_published_consistency_proofs(old: int, new: int, hashes: list[str]) -> None:
    leaves = [leaf_hash(entry) for entry in published.ENTRIES[:new]]
    proof, before, after = raw(hashes), published.ROOTS[old - 1], published.ROOTS[new - 1]
    assert consistency_proof(leaves, old) == proof
    verify_consistency(old, new, proof, before, after)
    if old == new:
        return
    wrong = [
        (a, b, proof, before, after)
        for a, b in ((old - 1, new), (old + 1, new), (old ^ 2, new), (old, new * 2), (old, new // 2))
    ]
    wrong += [(old, new, proof, b"WrongRoot", after), (old, new, proof, before, b"WrongRoot")]
    wrong += [(old, new, proof, after, before), (old, new, [], before, after)]
    wrong += [(old, new, bad, before, after) for bad in altered(proof, before, after)]
    for case in wrong:
        with pytest.raises(Untrusted):
            verify_consistency(*case)


ROOT1, ROOT2 = b"do not care 1", b"do not care 2"


@pytest.mark.parametrize(
    ("old", "new", "root1", "root2", "proof", "holds"),
    [
        (0, 0, ROOT1, ROOT2, [], False),
        (1, 1, ROOT1, ROOT2, [], False),
        (0, 0, ROOT1, ROOT1, [], True),
        (0, 1, ROOT1, ROOT2, [], True),
        (1, 1, ROOT2, ROOT2, [], True),
        (1, 0, ROOT1, ROOT2, [], False),
        (2, 1, ROOT1, ROOT2, [], False),
        (-1, 1, ROOT1, ROOT2, [], False),
        (1, 2, ROOT1, ROOT2, [], False),
        (0, 0, SOME, ROOT2, [], False),
        (1, 1, SOME, ROOT2, [], False),
        (0, 0, SOME, SOME, [SOME], False),
        (0, 1, SOME, SOME, [SOME], False),
        (1, 1, SOME, SOME, [SOME], False),
    ],
)
def test_sizes_that_need_no_proof(old: int, new: int, root1: bytes, root2: bytes, proof: Proof, holds: bool) -> None:
    """The table of transparency-dev/merkle."""
    if holds:
        verify_consistency(old, new, proof, root1, root2)
    else:
        with pytest.raises(Untrusted):
            verify_consistency(old, new, proof, root1, root2)


@pytest.mark.parametrize("new", [1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 33, 70])
def test_every_older_tree_has_a_proof_and_no_other_tree_passes(new: int) -> None:
    root = tree_root(LEAVES[:new])
    for old in range(1, new + 1):
        proof = consistency_proof(LEAVES[:new], old)
        verify_consistency(old, new, proof, tree_root(LEAVES[:old]), root)
        forked = tree_root([*LEAVES[: old - 1], leaf_hash(b"another")])
        with pytest.raises(Untrusted):
            verify_consistency(old, new, proof, forked, root)
        for other in range(1, new + 1):
            if other != old:
                with pytest.raises(Untrusted):
                    verify_consistency(other, new, proof, tree_root(LEAVES[:other]), root)


def test_the_examples_of_rfc_6962() -> None:
    """Section 2.1.3: seven leaves a to j; the consistency proofs of the trees of 3, 4 and 6 leaves."""
    a, b, c, d, e, f, j = LEAVES[:7]
    g, h, i = node_hash(a, b), node_hash(c, d), node_hash(e, f)
    k = node_hash(g, h)
    l = node_hash(i, j)  # noqa: E741 - the names of the RFC
    assert consistency_proof(LEAVES[:7], 3) == [c, d, g, l]
    assert consistency_proof(LEAVES[:7], 4) == [l]
    assert consistency_proof(LEAVES[:7], 6) == [i, j, k]
    assert inclusion_proof(LEAVES[:7], 0) == [b, h, l]
    assert inclusion_proof(LEAVES[:7], 3) == [c, g, l]
    assert inclusion_proof(LEAVES[:7], 4) == [f, j, k]
    assert inclusion_proof(LEAVES[:7], 6) == [i, k]


@pytest.mark.parametrize("size", range(1, 71))
def test_proofs_are_the_hashes_of_the_named_subtrees(size: int) -> None:
    leaves = LEAVES[:size]
    for index in range(size):
        ranges = merkle.inclusion_ranges(index, size)
        assert [tree_root(leaves[a:b]) for a, b in ranges] == inclusion_proof(leaves, index)
        for first, stop in [*ranges, *merkle.consistency_ranges(index, size)]:
            parts = merkle.complete_ranges(first, stop)
            assert all(a % (b - a) == 0 for a, b in parts)
            assert merkle.chain([tree_root(leaves[a:b]) for a, b in parts]) == tree_root(leaves[first:stop])


def test_no_proof_of_an_older_tree_that_is_larger() -> None:
    for old in (-1, 4):
        with pytest.raises(IndexError):
            consistency_proof(LEAVES[:3], old)
