"""Digests of tensors in ranges: those of the whole tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.numerics import reference
from tests.trainer.parallel.states import CUT
from tests.trainer.parallel.test_layout import SMALL
from trainer.parallel.digests import joined_digests, own_digests
from trainer.parallel.layout import Layout

ROLES = ("grad", "param")


def tensors(layout: Layout) -> list[dict[str, np.ndarray]]:
    """Random tensors of each role."""
    rng = np.random.default_rng(6)
    return [{slot.name: rng.standard_normal(slot.elements).astype(np.float32) for slot in layout.slots} for _ in ROLES]


def said(layout: Layout, roles: list[dict[str, np.ndarray]], rank: int) -> bytes:
    """What a rank says of its pieces."""
    pieces = layout.pieces[rank]
    held = [[role[piece.slot.name][piece.first : piece.stop] for piece in pieces] for role in roles]
    return own_digests(reference, pieces, held)


@pytest.mark.parametrize("model", [CUT.model, SMALL], ids=["cut", "small"])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 9, 33])
def test_every_rank_joins_the_digests_of_whole_tensors(model: Any, size: int) -> None:
    layout = Layout(model, size)
    roles = tensors(layout)
    found = joined_digests(layout, [said(layout, roles, rank) for rank in range(size)], ROLES)
    names = list(layout.slot)
    assert len(found) == len(ROLES) * len(names)
    for role, arrays in zip(ROLES, roles, strict=True):
        assert [found[role, name] for name in names] == reference.digests([arrays[name] for name in names])


def test_one_bit_on_one_rank_changes_the_digest_of_its_tensor_alone() -> None:
    layout = Layout(CUT.model, 4)
    roles = tensors(layout)
    before = [said(layout, roles, rank) for rank in range(4)]
    piece = next(piece for piece in layout.pieces[2] if not piece.whole)
    roles[1][piece.slot.name].view(np.uint32)[piece.stop - 1] ^= 1
    after = [*before[:2], said(layout, roles, 2), before[3]]
    found, changed = (joined_digests(layout, texts, ROLES) for texts in (before, after))
    assert {key for key in found if found[key] != changed[key]} == {("param", piece.slot.name)}
