"""Copies beside a device's work, and the shelf in main memory that is made of them."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from auditkit.errors import MachineFault
from auditkit.kernels.device import Device
from auditkit.kernels.host_shelf import HostShelf
from auditkit.kernels.zero_pages import PAGE
from tests.kernels import fake_cupy
from tests.kernels.fake_cuda import Cuda
from tests.kernels.fake_streams import FakeStream
from tests.kernels.on_devices import DEVICES, EMULATOR_MARKS, real_device

pytestmark = EMULATOR_MARKS


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda(2)
    fake_cupy.install(monkeypatch, made)
    return made


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Any:
    return request.param()


def numbers(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).integers(-9, 9, shape)


def test_arrays_come_back_as_they_went(device: Any) -> None:
    shelf = HostShelf(device, 0)
    first, second, other = numbers(1, 1000, 33), numbers(2, 0, 4), numbers(3, 1000, 33)
    shelf.put("a", [device.upload(first), device.upload(second)])
    shelf.put("b", [device.upload(other)])
    shelf.expect("a")
    shelf.expect("nothing")
    for want, got in ((first, second), shelf.get("a")), ((other,), shelf.get("b")):
        assert got is not None
        for array, found in zip(want, got, strict=True):
            assert np.array_equal(device.download(found), array) and found.shape == array.shape
    assert shelf.get("nothing") is None
    shelf.drop("a")
    shelf.drop("a")
    assert shelf.get("a") is None


def test_a_key_that_is_put_again_has_the_new_arrays_also_if_the_old_ones_were_expected(device: Any) -> None:
    shelf = HostShelf(device, 1 << 30)
    for turn in range(6):
        want = numbers(turn, 500, 41)
        shelf.put("a", [device.upload(want)])
        shelf.put("b", [device.upload(want + 1)])
        shelf.expect("a")
        if turn % 2:
            (found,) = shelf.get("a") or [None]
            assert np.array_equal(device.download(found), want)
        if turn % 3 == 0:
            shelf.drop("b")


@pytest.mark.gpu
@pytest.mark.optional("CI has no GPU; the emulator makes copies as late as it may")
def test_a_card_copies_beside_its_work_and_mixes_nothing_up() -> None:
    """Arrays are dropped, and their memory used again, while they are still on their way."""
    device = real_device()
    device.limit(400 << 20)
    shelf = HostShelf(device, 64 << 20)
    with device.use():
        for turn in range(40):
            for part in range(4):
                made = device.empty((8 << 20,), np.uint8)
                made.data.memset_async((turn * 4 + part) % 251, made.nbytes, device.stream)
                shelf.put(str(part), [made])
                del made
                noise = device.empty((8 << 20,), np.uint8)  # most likely the memory of one that leaves
                noise.data.memset_async(255, noise.nbytes, device.stream)
                del noise
            for part in range(4):
                shelf.expect(str(part))
                noise = device.empty((8 << 20,), np.uint8)
                noise.data.memset_async(254, noise.nbytes, device.stream)
                del noise
                (found,) = shelf.get(str(part)) or [None]
                values = device.download(found)
                assert (values == (turn * 4 + part) % 251).all(), (turn, part)


def test_copies_of_one_host_array_wait_for_each_other(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each direction has its own stream; what is brought must have been sent before, and the other way round."""
    device, noted = Device(0), []
    monkeypatch.setattr(fake_cupy.FakeEvent, "done", False)
    record, wait = FakeStream.record, FakeStream.wait_event
    ends: dict[int, FakeStream] = {}

    def recorded(stream: FakeStream) -> Any:
        event = record(stream)
        ends[id(event)] = stream
        events.append(event)
        return event

    def waited(stream: FakeStream, event: Any) -> None:
        noted.append((stream, ends[id(event)]))
        wait(stream, event)

    events: list[Any] = []  # alive, or an id would be another's
    monkeypatch.setattr(FakeStream, "record", recorded)
    monkeypatch.setattr(FakeStream, "wait_event", waited)
    moved, values, others = device.transfers, np.zeros(5), np.zeros(5)
    moved.send(device.upload(np.ones(5)), values, 1 << 20)
    moved.bring(others)
    to_host, to_device = noted[0][0], noted[1][0]
    assert noted == [(to_host, device.stream), (to_device, device.stream)] and to_host is not to_device
    noted.clear()
    moved.bring(values)
    assert noted == [(to_device, device.stream), (to_device, to_host)]
    noted.clear()
    moved.send(device.upload(np.ones(5)), values, 1 << 20)
    assert (to_host, to_device) in noted
    noted.clear()
    moved.send(device.upload(np.ones(5)), others, 0, sender=1)
    assert [pair for pair in noted if pair[0] is device.stream] == [(device.stream, to_host)]  # its own, no other's


@pytest.mark.parametrize("most", [0, 900, 1 << 20])
def test_late_copies_in_both_directions_mix_nothing_up(cuda: Cuda, most: int) -> None:
    """Copies that are made only when somebody waits for them; host arrays and the device's memory are used again."""
    device, drawn = Device(0), np.random.default_rng(11)
    cuda.late = True  # from here on, so of the copies' streams
    shelf, held = HostShelf(device, most), dict[str, Any]()
    for turn in range(300):
        key = "abcd"[int(drawn.integers(4))]
        what = ("put", "put", "expect", "get", "drop")[int(drawn.integers(5))]
        if what == "put":
            held[key] = numbers(turn, 10 + turn % 3)
            shelf.put(key, [device.upload(held[key]), device.upload(held[key] + 1)])
        elif what == "expect":
            shelf.expect(key)
        elif what == "drop":
            shelf.drop(key)
            held.pop(key, None)
        elif key in held:
            first, second = shelf.get(key) or [None, None]
            assert np.array_equal(device.download(first), held[key]), turn
            assert np.array_equal(device.download(second), held[key] + 1), turn
        else:
            assert shelf.get(key) is None


def test_no_page_locked_memory_is_no_error(cuda: Cuda) -> None:
    device = Device(1)
    cuda.fails = lambda called, _number: 2 if called == "host malloc" else 0
    shelf = HostShelf(device, 0)
    want = numbers(4, 7, 5)
    shelf.put("a", [device.upload(want)])
    (found,) = shelf.get("a") or [None]
    assert np.array_equal(device.download(found), want)


def test_memory_of_arrays_that_left_is_given_back(cuda: Cuda) -> None:
    device = Device(0)
    shelf = HostShelf(device, 0)
    shelf.put("a", [device.upload(numbers(5, 100))])
    device.transfers.finish()
    gc.collect()
    assert cuda.used[0] == 4 * PAGE, "the page with the sums of what left"
    shelf.drop("a")
    device.release()
    assert not cuda.used[0]


def test_memory_that_is_being_written_is_not_given_back(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may ask for what was expected: an error has ended the step. The copy goes on."""
    device = Device(0)
    monkeypatch.setattr(fake_cupy.FakeEvent, "done", False)
    values = numbers(7, 100)
    device.transfers.bring(values)
    gc.collect()
    assert cuda.used[0] == values.nbytes
    monkeypatch.setattr(fake_cupy.FakeEvent, "done", True)
    device.transfers.bring(values)()
    gc.collect()
    assert not cuda.used[0]


@pytest.mark.parametrize("begun", [1, 2, 5, 9])
def test_an_array_comes_in_parts(cuda: Cuda, begun: int) -> None:
    """However many of them have begun before it is asked for; other copies may begin in between."""
    device, values, other = Device(0), numbers(9, 1000, 7), numbers(10, 50)
    cuda.late = True
    coming = device.transfers.bring(values, 5)
    between = device.transfers.bring(other)
    for _ in range(begun - 1):
        coming.begin()
    assert np.array_equal(device.download(coming()), values)
    assert np.array_equal(device.download(between()), other)
    device.transfers.finish()
    assert np.array_equal(device.download(device.transfers.bring(values[:0], 5)()), values[:0])


def test_a_device_goes_with_its_last_reference(cuda: Cuda) -> None:
    device = Device(0)
    HostShelf(device, 0).put("a", [device.upload(numbers(8, 100))])
    gone = weakref.ref(device)
    gc.disable()
    try:
        del device
        assert gone() is None
    finally:
        gc.enable()


def test_a_broken_card_is_a_machine_fault(cuda: Cuda) -> None:
    device = Device(0)
    shelf = HostShelf(device, 0)
    shelf.put("a", [device.upload(numbers(6, 100))])
    cuda.fails = lambda called, _number: 700 if called == "upload" else 0
    with pytest.raises(MachineFault):
        shelf.get("a")
