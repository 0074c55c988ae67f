"""auditkit.kernels.device.Device over a CuPy on the emulator: one device among several, its memory, a training.

The same on cards: test_on_cards.py.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auditkit
from auditkit.errors import Unsupported, UsageError
from auditkit.kernels.backend import CudaOps
from auditkit.kernels.device import Device
from auditkit.kernels.driver import versions
from auditkit.kernels.recording import Recording
from auditkit.model.state import document, initial_state
from auditkit.model.step import step
from auditkit.numerics import reference
from auditkit.replay.backend import CudaBackend, choose
from auditkit.verdict import Verdict
from tests.golden.make_training import RECIPES, tokens_of
from tests.kernels import fake_cupy
from tests.kernels.fake_cuda import Cuda
from tests.kernels.on_devices import EMULATOR_MARKS
from tests.replay import make_run
from tests.trainer import tiny
from trainer import cli as trainer

pytestmark = EMULATOR_MARKS

RECIPE = RECIPES[max(RECIPES)]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cuda:
    """Two cards, whose kernels run on the emulator; without the self-test, which takes seconds there."""
    made = Cuda(2)
    fake_cupy.install(monkeypatch, made)
    monkeypatch.setenv("AUDITKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(CudaBackend, "self_test", lambda self: None)
    return made


def test_the_second_device_while_another_is_current(cuda: Cuda, tmp_path: Path) -> None:
    """Nothing of one device is used on the other: the stand-in looks at every array, stream and kernel."""
    published = make_run.publish(make_run.train(), tmp_path / "run")
    report = auditkit.verify(published, step=0, device="cuda:1")
    assert report.verdict is Verdict.MATCH
    assert report.machine["device"] == "cuda:1 (Fake 9000)"
    assert cuda.current == 0 and not cuda.used[0]


def test_devices_are_used_inside_each_other(cuda: Cuda) -> None:
    """A device that is the current one already is not made so again with each call."""
    one, two = Device(0), Device(1)
    with one.use():
        with two.use():
            calls = cuda.counts["set device"]
            arrays = [two.zeros((3,), np.int64) for _ in range(5)]
            assert cuda.counts["set device"] == calls
            assert one.download(one.upload(np.arange(3))).tolist() == [0, 1, 2]
            assert [two.download(array).tolist() for array in arrays] == [[0, 0, 0]] * 5
        assert one.download(one.zeros((1,), np.int64)).tolist() == [0]
    assert two.download(two.zeros((1,), np.int64)).tolist() == [0]
    assert cuda.current == 0


def test_an_index_that_is_not_there(cuda: Cuda) -> None:
    with pytest.raises(UsageError, match="no CUDA device 2: 2 visible"):
        choose("cuda:2")


def test_recorded_steps_are_those_of_the_reference(cuda: Cuda) -> None:
    backend = choose("cuda:1")
    assert isinstance(backend, CudaBackend)
    here = initial_state(RECIPE)
    there = backend.place(here)
    for number in range(3):
        tokens = tokens_of(RECIPE, number)
        here, expected = step(here, tokens, RECIPE, reference)
        there, found = backend.step(there, tokens, RECIPE)
        assert dataclasses.asdict(found) == dataclasses.asdict(expected)
        assert document(there, RECIPE, backend.ops) == document(here, RECIPE)
    assert backend.recorder.recording and cuda.counts["graph launch"] == RECIPE.batch.micro_batches


def test_a_step_after_one_without_room(cuda: Cuda) -> None:
    """It gives the bits it would have given before."""
    backend = choose("cuda")
    tokens = tokens_of(RECIPE, 0)
    state = backend.place(initial_state(RECIPE))
    calls = cuda.counts["malloc"]
    cuda.fails = lambda called, number: 2 if called == "malloc" and number == calls + 150 else 0
    with pytest.raises(auditkit.errors.Unsupported, match="bytes more needed"):
        backend.step(state, tokens, RECIPE)
    after, found = backend.step(state, tokens, RECIPE)
    want, expected = step(initial_state(RECIPE), tokens, RECIPE, reference)
    assert dataclasses.asdict(found) == dataclasses.asdict(expected)
    assert document(after, RECIPE, backend.ops) == document(want, RECIPE)


def test_every_device_has_a_stream_of_its_own(cuda: Cuda) -> None:
    """None waits for the default stream, which others use; all that a device does is in the order of its own."""
    one, other, same = Device(0), Device(1), Device(0)
    assert len({device.stream.ptr for device in (one, other, same)}) == 3
    assert one.stream.non_blocking and (one.stream.index, other.stream.index) == (0, 1)
    array = other.upload(np.arange(3, dtype=np.uint8))
    other.clear(array)
    assert other.download(array).tolist() == [0, 0, 0]


def test_free_memory_heeds_what_is_used_and_the_limit(cuda: Cuda) -> None:
    device = Device()
    assert device.memory() == (cuda.total, cuda.total)
    held = device.empty((1000,), np.uint8)
    assert device.memory() == (cuda.total - 1000, cuda.total)
    device.pool.limit = 5000
    assert device.memory() == (4000, cuda.total)
    del held


def test_zeros_that_nobody_holds_do_not_keep_the_block_of_a_limit_before(cuda: Cuda) -> None:
    device = Device(0)
    device.limit(256 << 20, at_once=True)
    held = device.empty((64 << 20,), np.uint8), device.zero_words(1000)
    assert device.pool.total_bytes() > 128 << 20
    del held
    device.limit(512 << 20)
    assert not device.pool.used_bytes() and device.pool.total_bytes() < 64 << 20
    with device.use():
        kept = device.zero_words(1000)
        with device.own_memory():
            other = device.zero_words(1000)
        assert device.address(device.zero_words(1)) not in (device.address(kept), device.address(other))


def test_a_recording_stays_within_the_limit(cuda: Cuda) -> None:
    """Its pool and the device's share one; what the device has kept is given back for it."""
    device = Device(0)
    device.limit(4 << 20)
    held = device.zeros((3 << 20,), np.uint8)
    with pytest.raises(Unsupported):
        Recording(device, lambda: device.zeros((2 << 20,), np.uint8))
    assert cuda.used[0] <= 4 << 20 and held.size
    del held
    made = Recording(device, lambda: device.zeros((2 << 20,), np.uint8))
    assert cuda.used[0] == 2 << 20 and device.memory()[0] == 2 << 20
    with pytest.raises(Unsupported):
        device.zeros((3 << 20,), np.uint8)
    device.limit(6 << 20)
    held = device.zeros((3 << 20,), np.uint8)
    del made
    assert cuda.used[0] == 3 << 20 and device.memory()[0] == 3 << 20 == held.size


def test_what_a_report_says_of_it_calls_nothing(cuda: Cuda) -> None:
    """A report must be possible after the device is lost."""
    device = Device(1)
    calls = len(cuda.calls)
    assert versions(device) | {"driver": ""} == {"architecture": "sm_90", "driver": "", "cupy": "14.2.0"}
    assert len(cuda.calls) == calls
    assert "Fake 9000, sm_90" in device.describe() and "driver for CUDA 13.0" in device.describe()


def test_memory_of_a_verification_goes_back(cuda: Cuda, tmp_path: Path) -> None:
    cuda.dry = True
    published = make_run.publish(make_run.train(), tmp_path / "run")
    for _ in range(2):
        auditkit.verify(published, step=0, device="cuda:1")
        assert not cuda.used[1]


def test_a_fault_in_mid_training(
    cuda: Cuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The trainer stops with the reason; what was complete is kept, and goes on to the same bits on the processor."""
    folders = [tiny.prepare(tmp_path / name) for name in ("a", "b")]
    work, other = folders
    options = ["--steps", "3", "--state-every", "1"]
    done = work / "states" / "00000002"
    cuda.fails = lambda called, _number: 719 if called == "download" and done.exists() else 0
    capsys.readouterr()
    assert trainer.main(["run", str(work / "recipe.toml"), str(work), *options, "--device", "cuda"]) == 7
    story = capsys.readouterr().err
    assert "CUDA device 0 failed (" in story and "unspecified launch failure" in story
    assert "what was complete is kept; python -m trainer resume" in story and "Traceback" not in story
    assert sorted(path.name for path in (work / "states").iterdir()) == ["00000000", "00000001", "00000002"]
    assert trainer.main(["resume", str(work), "--device", "cpu"]) == 0
    assert trainer.main(["run", str(other / "recipe.toml"), str(other), *options]) == 0
    tiny.assert_same_run(work, other)


def test_a_device_that_is_not_there_starts_no_training(cuda: Cuda, tmp_path: Path) -> None:
    work = tiny.prepare(tmp_path)
    command = ["run", str(work / "recipe.toml"), str(work), "--steps", "1"]
    assert trainer.main([*command, "--device", "cuda:7"]) == 2
    assert trainer.main(command) == 0


def test_verifications_of_one_back_end_under_a_limit(
    cuda: Cuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept from step to step goes with the limit: a recording reads tables, whose memory others have then."""
    forget = CudaOps.forget

    def overwritten(ops: CudaOps) -> None:
        dropped = list(ops._ropes.values())
        forget(ops)
        for table in dropped:
            for array in (table.cos, table.sin):
                array.view(np.ndarray)[...] = 7

    monkeypatch.setattr(CudaOps, "forget", overwritten)
    recipe = replace(make_run.RECIPE, batch=replace(make_run.RECIPE.batch, sequences=4))
    run = make_run.publish(replace(make_run.train(4, recipe), published=(0, 4)), tmp_path / "run")
    backend = choose("cuda:1")
    for memory in (None, 1 << 30, 1 << 30, 1 << 29, None):
        assert auditkit.verify(run, steps="0:4", backend=backend, memory=memory).verdict is Verdict.MATCH, memory
        assert backend.recorder.recording  # type: ignore[attr-defined]  # a card's


def test_an_audit_of_single_micro_batches_has_no_limit_of_an_earlier_one(cuda: Cuda, tmp_path: Path) -> None:
    run = make_run.publish(replace(make_run.train(2), published=(0, 2)), tmp_path / "run")
    backend: Any = choose("cuda:1")
    backend.ops.device.limit(50_000)
    report = auditkit.verify(run, step=0, micro_batches="0", backend=backend)
    assert report.verdict is Verdict.MATCH, report.steps[0].message
