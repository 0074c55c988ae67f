"""The line of all parameters: every element has one rank, cuts lie between blocks, and buckets cover the line."""

from __future__ import annotations

import dataclasses
import math

import pytest

from auditkit.formats.recipe import ModelConfig
from auditkit.model.params import parameter_count, parameter_table
from trainer.parallel.layout import BLOCK, Layout

TINY = ModelConfig(61, 12, 2, 4, 2, 4, 20, 9, 10_000.0, float.fromhex("0x1p-17"), True, True, 4)
SMALL = dataclasses.replace(TINY, vocab_size=9_001, hidden_size=68, ffn_size=1_500, tied_head=False)
LARGE = dataclasses.replace(SMALL, vocab_size=50_257, hidden_size=768, num_layers=12, ffn_size=3_072, head_dim=192)
MODELS = pytest.mark.parametrize("model", [TINY, SMALL, LARGE], ids=["tiny", "small", "large"])
SIZES = pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 8, 64, 200])


@MODELS
@SIZES
def test_every_element_has_one_rank(model: ModelConfig, size: int) -> None:
    layout = Layout(model, size)
    assert [held.start for held in layout.ranges] == [0, *(held.stop for held in layout.ranges[:-1])]
    assert layout.ranges[-1].stop == layout.elements
    found = {spec.name: 0 for spec in parameter_table(model)}
    for pieces, held in zip(layout.pieces, layout.ranges, strict=True):
        for piece in pieces:
            assert held.start <= piece.place.start < piece.place.stop <= held.stop
            assert piece.first == found[piece.slot.name] == piece.block * BLOCK
            assert piece.stop % BLOCK == 0 or piece.stop == piece.slot.elements
            assert piece.blocks == math.ceil((piece.stop - piece.first) / BLOCK)
            assert piece.whole == (piece.first == 0 and piece.stop == piece.slot.elements)
            found[piece.slot.name] = piece.stop
    assert found == {spec.name: math.prod(spec.shape) for spec in parameter_table(model)}


@MODELS
def test_tensors_lie_one_behind_the_other_where_vectors_do(model: ModelConfig) -> None:
    layout = Layout(model, 1)
    assert [(slot.name, slot.shape, slot.decayed) for slot in layout.slots] == [
        (spec.name, spec.shape, spec.decayed) for spec in parameter_table(model)
    ]
    for before, after in zip(layout.slots, layout.slots[1:], strict=False):
        assert after.begin % 64 == 0 and 0 <= after.begin - before.end < 64
    assert sum(slot.elements for slot in layout.slots) == parameter_count(model)


@pytest.mark.parametrize("size", [2, 3, 4, 6, 8, 64])
def test_ranks_have_about_the_same(size: int) -> None:
    layout = Layout(LARGE, size)
    share = layout.elements / size
    assert all(abs((held.stop - held.start) - share) <= share / 4 + BLOCK for held in layout.ranges)


def test_a_cut_moves_to_the_end_of_a_tensor_that_is_near() -> None:
    """One of two equal tensors each, though gaps and norms beside them shift the middle a little."""
    layout = Layout(dataclasses.replace(TINY, vocab_size=40_000, num_layers=1, tied_head=False), 2)
    assert all(piece.whole for pieces in layout.pieces for piece in pieces)


def test_more_ranks_than_blocks_leave_some_without() -> None:
    layout = Layout(TINY, 200)
    assert sum(map(len, layout.pieces)) == len(parameter_table(TINY))
    assert sum(not pieces for pieces in layout.pieces) > 100


@MODELS
@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize("most", [1, 1_000_000, 1 << 22, 1 << 30])
def test_buckets_cover_the_line_from_its_end(model: ModelConfig, size: int, most: int) -> None:
    layout = Layout(model, size)
    buckets = layout.buckets(most)
    assert [bucket.start for bucket in buckets] == [*(bucket.stop for bucket in buckets[1:]), 0]
    assert buckets[0].stop == layout.elements
    assert all(0 < bucket.stop - bucket.start <= max(most, BLOCK) for bucket in buckets)
    seen = set()
    for bucket in buckets:
        parts = layout.parts(bucket)
        assert sum(part.stop - part.start for part in parts) == bucket.stop - bucket.start
        for part, held in zip(parts, layout.ranges, strict=True):
            assert part.start == part.stop or (held.start <= part.start and part.stop <= held.stop)
        seen |= layout.names(bucket)
    assert seen == set(layout.slot)
