"""Limits: one frozen object, units in the names, and sums that stay exact in every reader of JSON."""

from __future__ import annotations

import dataclasses

import pytest

from auditkit.formats.canonical import MAX_INT
from auditkit.formats.limits import LIMITS

UNITS = (
    "artifacts auditors blocks bytes characters dimensions documents entries levels micro_batches_per_step mirrors "
    "ops properties segments shards shards_per_state signatures sources states steps subjects tensors_per_state values "
    "weights witnesses"
).split()


def test_every_limit_ends_in_its_unit_and_is_positive() -> None:
    for field in dataclasses.fields(LIMITS):
        assert any(field.name == unit or field.name.endswith(f"_{unit}") for unit in UNITS), field.name
        assert getattr(LIMITS, field.name) > 0


def test_limits_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        LIMITS.steps = 5  # type: ignore[misc]


def test_sizes_stay_within_what_json_readers_hold_exactly() -> None:
    assert LIMITS.file_bytes <= MAX_INT
    assert LIMITS.steps * (1 << 24) <= MAX_INT  # the data cursor: steps times the most sequences a step
