"""Rates of a back end: all positive, and smaller arrays where there is no room."""

from __future__ import annotations

import pytest

from auditkit.errors import Unsupported
from auditkit.measure import rates
from auditkit.measure.rates import measure_rates, planes
from auditkit.replay.backend import Backend, CudaBackend


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "SIZES", {True: (1 << 14, 64), False: (1 << 14, 64)})
    monkeypatch.setattr(rates, "UNPACKED", 1 << 16)


def test_all_are_measured(backend: Backend) -> None:
    found = measure_rates(backend, isinstance(backend, CudaBackend))
    assert min(found.copy, found.operations, found.digest, found.unpack) > 0
    assert found.product == 64


def test_what_does_not_fit_is_halved() -> None:
    tried = []

    def measure(size: int) -> float:
        tried.append(size)
        if size > 300:
            raise Unsupported("too little memory")
        return 1.0

    assert rates._with_room(measure, 1024) == (256, 1.0)
    assert tried == [1024, 512, 256]


def test_no_room_at_all_is_unsupported() -> None:
    def measure(size: int) -> float:
        raise Unsupported("too little memory")

    with pytest.raises(Unsupported):
        rates._with_room(measure, 1024)


def test_a_product_of_more_bits_is_made_of_more() -> None:
    assert [planes(bits, cuda=True) for bits in (14, 21, 24)] == [3, 6, 1]
    assert planes(21, cuda=False) == 1
