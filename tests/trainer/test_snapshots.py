"""States copied beside a device's work: as they were, in memory that is used again, and held no longer than needed."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditkit.errors import MachineFault
from auditkit.kernels.backend import CudaOps
from auditkit.kernels.device import Device
from auditkit.model.state import State, document, initial_state
from auditkit.numerics import reference
from auditkit.replay.backend import Backend, CudaBackend
from tests.golden.make_training import RECIPES
from tests.kernels import fake_cupy
from tests.kernels.fake_cuda import Cuda
from tests.kernels.on_devices import EMULATOR_MARKS, GPU_MARKS, real_device
from trainer import runner, snapshots
from trainer.runner import OneProcess
from trainer.snapshots import OffDevice, OnHost, landing_of
from trainer.state_files import write_state

RECIPE = next(iter(RECIPES.values()))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """Streams made after the device's own do their work as late as may be."""
    made = Cuda(2)
    fake_cupy.install(monkeypatch, made)
    return made


@pytest.fixture
def device(cuda: Cuda) -> Device:
    made = Device(1)
    cuda.late = True
    return made


def numbers(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def in_another_thread(call: Callable[[], Any]) -> None:
    """As the writer of a state does."""
    found: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised where the test sees it
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if found:
        raise found[0]


class TestOffDevice:
    """Arrays of a device."""

    pytestmark = EMULATOR_MARKS

    def test_what_is_overwritten_or_dropped_at_once_is_there_as_it_was(self, device: Device) -> None:
        want = [numbers(1, 300, 7), numbers(2, 50), numbers(3, 0, 4), numbers(4, 20)]
        given, overwritten, empty, parts = (device.upload(array) for array in want)
        landing = OffDevice(device)
        landing.begin()
        found = [landing.take(given), landing.copy(overwritten), landing.copy(empty), landing.room((20,))]
        landing.fill(found[3][12:], parts[12:])
        landing.fill(found[3][:12], parts[:12])
        wait = landing.end()
        device.clear(overwritten)
        del given, parts  # what a fake device has given back is overwritten
        gc.collect()
        assert not any(np.array_equal(*pair) for pair in zip(want[:2], found[:2], strict=True)), "not beside the work"
        in_another_thread(wait)
        for array, values in zip(want, found, strict=True):
            assert values.shape == array.shape and values.tobytes() == array.tobytes()

    def test_page_locked_memory_is_used_again(self, device: Device, cuda: Cuda) -> None:
        landing, seen = OffDevice(device), set()
        for turn in range(4):
            landing.begin()
            arrays = [numbers(turn, 9, 5), numbers(turn + 10, 45), numbers(turn + 20, 8)]
            found = [landing.take(device.upload(array)) for array in arrays]
            landing.end()()
            assert all(map(np.array_equal, found, arrays))
            seen |= {array.ctypes.data for array in found}
        assert cuda.counts["host malloc"] == len(seen) == 3

    def test_device_memory_is_given_back_as_soon_as_it_is_copied(self, device: Device, cuda: Cuda) -> None:
        landing = OffDevice(device)
        landing.begin()
        landing.take(device.upload(numbers(1, 100)))
        wait = landing.end()
        landing.tidy()
        assert cuda.used[1] == 400
        current: list[int] = []
        in_another_thread(lambda: (wait(), current.append(cuda.current))[0])
        assert current == [1], "a way back to device 0 makes a context there"
        landing.tidy()
        gc.collect()
        assert cuda.used[1] == 0

    def test_copies_hold_no_more_of_the_device_than_they_may(
        self, device: Device, cuda: Cuda, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(snapshots, "BATCH_BYTES", 400)
        landing, most = OffDevice(device, copies=1000), 0
        landing.begin()
        want = [numbers(turn, 100) for turn in range(9)]
        found = []
        for array in want:
            found.append(landing.take(device.upload(array)))
            most = max(most, cuda.used[1])
        landing.end()()
        assert all(map(np.array_equal, found, want)) and most <= 1000

    @pytest.mark.parametrize("why", ["bound", "system"])
    def test_no_page_locked_memory_is_told_once_and_changes_no_bit(
        self, device: Device, cuda: Cuda, why: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        if why == "system":
            cuda.fails = lambda called, number: 2 if called == "host malloc" and number else 0
        landing = OffDevice(device, most=500 if why == "bound" else None)
        for turn in range(3):
            landing.begin()
            want = [numbers(turn, 100), numbers(turn + 1, 100), numbers(turn + 2, 80)]
            found = [landing.take(device.upload(array)) for array in want]
            landing.end()()
            assert all(map(np.array_equal, found, want))
        told = capsys.readouterr().err
        assert told.count("\n") == 1 and told.startswith("note: 400 bytes of page-locked memory are all that there is")

    def test_a_device_that_is_lost_meanwhile_is_a_machine_fault(self, device: Device, cuda: Cuda) -> None:
        landing = OffDevice(device)
        landing.begin()
        landing.take(device.upload(numbers(1, 100)))
        wait = landing.end()
        cuda.fails = lambda called, _number: 700 if called == "synchronize event" else 0
        with pytest.raises(MachineFault, match="CUDA device 1 failed"):
            in_another_thread(wait)


def test_the_host_s_arrays_are_taken_as_they_are_or_copied_at_once() -> None:
    landing, array, other = landing_of(reference), numbers(1, 8), numbers(2, 8)
    assert isinstance(landing, OnHost)
    landing.begin()
    taken, copied, part = landing.take(array), landing.copy(other), landing.room((8,))
    landing.fill(part[3:], other[3:])
    want = other.copy()
    other[...] = 0
    landing.end()()
    landing.tidy()
    assert taken is array and np.array_equal(copied, want) and np.array_equal(part[3:], want[3:])


def states() -> list[State]:
    """Two states whose tensors all differ."""
    start = initial_state(RECIPE)
    return [
        State(
            step,
            *(
                {name: numbers(9 * step + role, *array.shape) for name, array in start.params.items()}
                for role in range(3)
            ),
        )
        for step in range(2)
    ]


def held_up(goes_on: threading.Event) -> Callable[[], None]:
    """What the writer does first: wait."""

    def before() -> None:
        assert goes_on.wait(60)

    return before


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class TestOneProcess:
    """The runner of a device."""

    pytestmark = EMULATOR_MARKS

    def test_a_state_is_published_as_it_was_though_the_next_step_has_begun(
        self, device: Device, cuda: Cuda, tmp_path: Path
    ) -> None:
        backend = CudaBackend(CudaOps(device), 1, "cuda")
        training = OneProcess(backend, RECIPE)
        for number, state in enumerate(states()):
            write_state(tmp_path / "want", state, document(state, RECIPE))
            goes_on, held = threading.Event(), training.first(lambda state=state: state)
            training.write(held, tmp_path / "state", held_up(goes_on), lambda: None)
            copies = device.transfers.to_host
            assert copies.ended < copies.begun, "the training waits for its copies"
            training._made = None
            del held  # what is given back is overwritten at once
            gc.collect()
            goes_on.set()
            training.settle()
            assert files(tmp_path / "state") == files(tmp_path / "want")
            gc.collect()
            assert cuda.used[1] == backend.ops.status.nbytes, f"state {number} is still held"
        training.drop(finish=True)

    def test_a_device_that_is_lost_before_the_copies_are_done_leaves_no_state(
        self, device: Device, cuda: Cuda, tmp_path: Path
    ) -> None:
        training = OneProcess(CudaBackend(CudaOps(device), 1, "cuda"), RECIPE)
        goes_on, held = threading.Event(), training.first(lambda: states()[0])
        training.write(held, tmp_path / "state", held_up(goes_on), lambda: None)
        cuda.fails = lambda called, _number: 700 if called == "synchronize event" else 0
        goes_on.set()
        with pytest.raises(MachineFault):
            training.settle()
        training.drop(finish=True)
        assert list(tmp_path.iterdir()) == []


def test_a_state_of_the_host_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def noted(temporary: Path, groups: Any, arrays: Any, **options: Any) -> Any:
        seen.append(arrays)
        return write(temporary, groups, arrays, **options)

    write, state = runner.write_shards, states()[0]
    monkeypatch.setattr(runner, "write_shards", noted)
    training = OneProcess(Backend(reference, 1, "cpu"), RECIPE)
    training.write(training.first(lambda: state), tmp_path / "state", lambda: None, lambda: None)
    training.settle()
    training.drop(finish=True)
    assert all(seen[0][role, name] is array for name, role, array in state.tensors())


class TestOnACard:
    """Copies that really go on beside the work."""

    pytestmark = [pytest.mark.gpu, *GPU_MARKS]

    def test_arrays_that_are_overwritten_or_used_again_at_once(self) -> None:
        device = real_device()
        landing = OffDevice(device)
        for turn in range(20):
            landing.begin()
            found = []
            with device.use():
                for part in range(6):
                    made = device.empty((4 << 20,), np.float32)
                    made.data.memset_async(turn * 6 + part, made.nbytes, device.stream)
                    found.append(landing.copy(made) if part % 2 else landing.take(made))
                    if part % 2:
                        device.clear(made)
                    del made
                wait = landing.end()
                for _ in range(6):  # most likely the memory of those that leave
                    noise = device.empty((4 << 20,), np.float32)
                    noise.data.memset_async(255, noise.nbytes, device.stream)
                    del noise
            in_another_thread(wait)
            landing.tidy()
            for part, values in enumerate(found):
                assert (values.view(np.uint8) == turn * 6 + part).all(), (turn, part)
