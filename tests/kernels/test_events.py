"""Marks on a device's stream, and what is measured with them on a real card."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from auditkit.kernels.device import Device
from auditkit.kernels.events import EventClock
from tests.kernels import fake_cupy
from tests.kernels.fake_cuda import Cuda
from tests.kernels.on_devices import real_device

GPU = pytest.mark.optional("CI has no GPU; the emulated card runs the same code")


def test_marks_are_on_the_devices_own_stream(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cuda = Cuda(2)
    fake_cupy.install(monkeypatch, cuda)
    device = Device(1, cache=tmp_path)
    clock = EventClock(device)
    with device.use():
        begin = clock.mark()
        device.zeros((4,), np.float32)
        end = clock.mark()
    assert clock.seconds(begin, end) >= 0
    assert (cuda.counts["event record"], cuda.counts["synchronize event"]) == (2, 1)


@pytest.mark.gpu
@GPU
def test_a_card_tells_the_time_of_what_it_did_and_not_of_the_launch() -> None:
    device = real_device()
    clock = EventClock(device)
    with device.use():
        a, b = (device.zeros((1 << 28,), np.float32) for _ in range(2))
        device.copy(a, b)
        begin = clock.mark()
        device.copy(a, b)
        end = clock.mark()
        empty = clock.seconds(end, clock.mark())
        assert 0 <= empty < clock.seconds(begin, end)  # two gibibytes through memory take longer than nothing


@pytest.mark.gpu
@GPU
def test_a_card_is_measured_whole() -> None:
    from auditkit.measure.bench import Options, bench
    from auditkit.replay.backend import choose
    from auditkit.store.progress import Silent

    real_device()
    found = bench(Options("25m", micro_batch=2, torch=False, ops=True), choose("cuda"), Silent())
    assert min(found.times.micro_batch, found.times.update, found.times.digest, found.rates.copy) > 0
    assert found.times.peak_bytes
    assert found.times.joules is None or found.times.joules > 0
    assert "embedding_backward" in {line.name.split(" ")[0] for line in found.lines}
