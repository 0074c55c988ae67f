"""Digests of tensors that ranks hold in ranges, and the roots of gradient and state that follow from them.

A tensor that one rank holds is hashed there as anywhere else. One that several hold is hashed in nodes of 128 KiB
blocks, which any rank can join (`auditkit.formats.blake3_tree`): the digest is that of the whole tensor.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from auditkit.formats.blake3_tree import NODE_BYTES, join_nodes
from auditkit.formats.digest import Digest
from auditkit.model.ops import Ops
from trainer.parallel.group import Array
from trainer.parallel.layout import Layout, Piece

Key: TypeAlias = tuple[str, str]  # role and name
Found: TypeAlias = Mapping[Key, Digest]


def own_digests(ops: Ops, pieces: Sequence[Piece], roles: Sequence[Sequence[Array]]) -> bytes:
    """What this rank has to say of its pieces: of each role's arrays in turn, a digest or the nodes of each."""
    arrays = [(piece, array) for role in roles for piece, array in zip(pieces, role, strict=True)]
    whole = iter(ops.digests([array for piece, array in arrays if piece.whole]))
    cut = [(piece, array) for piece, array in arrays if not piece.whole]
    sizes = [4 * piece.slot.elements for piece, _ in cut]
    nodes = iter(ops.block_nodes([array for _, array in cut], [piece.block for piece, _ in cut], sizes))
    return b"".join(bytes.fromhex(next(whole)) if piece.whole else next(nodes) for piece, _ in arrays)


def text_bytes(pieces: Sequence[Piece]) -> int:
    """How many bytes `own_digests` says of one role."""
    return sum(map(_length, pieces))


def piece_texts(pieces: Sequence[Piece], text: bytes, roles: int) -> list[bytes]:
    """What was said of each piece, role by role."""
    ends = list(itertools.accumulate([_length(piece) for piece in pieces] * roles, initial=0))
    return [text[begin:end] for begin, end in itertools.pairwise(ends)]


def _length(piece: Piece) -> int:
    return NODE_BYTES * (1 if piece.whole else piece.blocks)


def joined_digests(layout: Layout, said: Sequence[bytes], roles: Sequence[str]) -> dict[Key, Digest]:
    """The digest of every tensor in every role, from what each rank has said with `own_digests`."""
    found: dict[Key, Digest] = {}
    nodes: dict[Key, bytes] = {}
    for pieces, text in zip(layout.pieces, said, strict=True):
        at = 0
        for role in roles:
            for piece in pieces:
                length = _length(piece)
                key, part = (role, piece.slot.name), text[at : at + length]
                at += length
                if piece.whole:
                    found[key] = part.hex()
                else:
                    nodes[key] = nodes.get(key, b"") + part
    return found | {key: join_nodes(joined) for key, joined in nodes.items()}
