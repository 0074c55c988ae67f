"""What CUDA raises ends as a verdict about this machine, wherever it is raised, never as one about the publisher."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auditkit
from auditkit.cli import main as cli
from auditkit.errors import MachineFault, Unsupported, UsageError
from auditkit.kernels import faults
from auditkit.kernels.backend import CudaOps
from auditkit.kernels.compile import Nvrtc
from auditkit.kernels.device import Device, device_count
from auditkit.kernels.recording import Recording
from auditkit.model.state import initial_state
from auditkit.replay.backend import CudaBackend, choose
from auditkit.replay.report import Report
from auditkit.verdict import Verdict
from tests.golden.make_training import RECIPES, tokens_of
from tests.kernels import fake_cupy
from tests.kernels.fake_cuda import KEPT, NAMES, Cuda, CUDADriverError, CUDARuntimeError, OutOfMemoryError
from tests.kernels.on_devices import EMULATOR_MARKS
from tests.replay import make_run

pytestmark = EMULATOR_MARKS

FATAL = (700, 719, 214, 702, 999, 1, 701)  # the last two are no longer there at the next call
QUIET = {"free", "set device"}  # what may still be called on a lost device: none of it computes


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few steps; do not write into it."""
    return make_run.publish(make_run.train(), tmp_path_factory.mktemp("published") / "tiny")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cuda:
    """A card whose kernels compute nothing but digests: a verification without a fault ends in MISMATCH."""
    made = Cuda(dry=True)
    fake_cupy.install(monkeypatch, made)
    monkeypatch.setenv("AUDITKIT_CACHE", str(tmp_path / "cache"))
    return made


class Believing(CudaBackend):
    """A back end that believes in itself, for a card that computes zeros."""

    def self_test(self) -> None:
        """Nothing."""

    def known_answer(self, name: str) -> None:
        """Nothing."""


def believing() -> Believing:
    """On the first card."""
    found = choose("cuda")
    assert isinstance(found, CudaBackend)
    return Believing(found.ops, 1, found.device)


def verified(published: Path, backend: CudaBackend) -> Report:
    """One step, which the card gets wrong."""
    return auditkit.verify(published, step=0, backend=backend)


def at(index: int, status: int) -> Callable[[str, int], int]:
    """Fails the call number `index` from now on."""
    left = iter([*[0] * index, status])
    return lambda _name, _number: next(left, 0)


@pytest.mark.parametrize(
    ("error", "verdict", "words"),
    [
        (CUDARuntimeError(2), Verdict.UNSUPPORTED, "too little memory"),
        (CUDADriverError(2), Verdict.UNSUPPORTED, "too little memory"),
        (OutOfMemoryError(512, 0), Verdict.UNSUPPORTED, "Out of memory allocating 512 bytes"),
        (CUDARuntimeError(46), Verdict.UNSUPPORTED, "busy or unavailable"),
        (CUDADriverError(209), Verdict.UNSUPPORTED, "no kernel image"),
        (CUDARuntimeError(700), Verdict.MACHINE_FAULT, "cudaErrorIllegalAddress: an illegal memory access"),
        (CUDADriverError(719), Verdict.MACHINE_FAULT, "unspecified launch failure"),
        (CUDARuntimeError(214), Verdict.MACHINE_FAULT, "uncorrectable ECC error"),
        (CUDARuntimeError(702), Verdict.MACHINE_FAULT, "timed out"),
        (CUDARuntimeError(1), Verdict.MACHINE_FAULT, "invalid argument"),
    ],
)
def test_verdict_of(error: Exception, verdict: Verdict, words: str) -> None:
    found = faults.verdict_of(error, "CUDA device 3")
    assert found.verdict is verdict and found.hint
    assert found.message.startswith("CUDA device 3 ") and words in found.message and "\n" not in found.message


def test_first_line() -> None:
    assert faults.first_line(ImportError("\n====\n  CuPy failed to load libcuda.so.1\nmore")) == (
        "CuPy failed to load libcuda.so.1"
    )
    assert faults.first_line(ValueError()) == "ValueError"


def test_a_fault_at_any_call_of_a_verification_is_a_fault_of_the_machine(published: Path, cuda: Cuda) -> None:
    """Uploads, launches, downloads, in the replay, in its repetition before a mismatch, in the search for the cause."""
    assert verified(published, believing()).verdict is Verdict.MISMATCH
    believing()
    before = len(cuda.calls)
    backend = believing()
    opened = len(cuda.calls) - before
    verified(published, backend)
    count = len(cuda.calls) - before - opened
    assert count > 500
    for number, index in enumerate([*range(0, count, count // 40), count - 1]):
        cuda.kept, cuda.fails = 0, lambda name, number: 0
        backend = believing()
        status = FATAL[number % len(FATAL)]
        cuda.fails, cuda.after_loss = at(index, status), []
        report = verified(published, backend)
        assert report.verdict is Verdict.MACHINE_FAULT, f"call {index}, {status}: {report.verdict}"
        first = report.steps[0]
        assert NAMES[status].split(": ")[1] in first.message and first.hint
        assert set(cuda.after_loss) <= QUIET


@pytest.mark.parametrize("name", ["malloc", "launch", "memset", "upload", "download", "module load", "get function"])
def test_each_kind_of_call(published: Path, cuda: Cuda, name: str) -> None:
    """The first and a later one of each; afterwards nothing reaches the device, and every step has the same fault."""
    for number in (0, 7):
        cuda.kept, cuda.counts = 0, type(cuda.counts)()
        cuda.fails = lambda _name, _number: 0
        backend = believing()
        cuda.counts.clear()
        cuda.fails = lambda called, before, number=number: 700 if (called, before) == (name, number) else 0
        report = verified(published, backend)
        assert report.verdict is Verdict.MACHINE_FAULT
        calls = len(cuda.calls)
        again = verified(published, backend)
        assert again.verdict is Verdict.MACHINE_FAULT and again.steps[0].message == report.steps[0].message
        assert set(cuda.calls[calls:]) <= QUIET


@pytest.mark.parametrize(
    ("name", "status", "verdict"),
    [
        ("device count", 3, Verdict.UNSUPPORTED),
        ("device count", 35, Verdict.UNSUPPORTED),
        ("device count", 100, Verdict.UNSUPPORTED),
        ("device count", 700, Verdict.MACHINE_FAULT),
        ("context", 46, Verdict.UNSUPPORTED),
        ("context", 2, Verdict.UNSUPPORTED),
        ("context", 999, Verdict.MACHINE_FAULT),
        ("driver version", 1, Verdict.MACHINE_FAULT),
        ("stream create", 2, Verdict.UNSUPPORTED),
        ("stream create", 214, Verdict.MACHINE_FAULT),
        ("properties", 700, Verdict.MACHINE_FAULT),
        ("malloc", 700, Verdict.MACHINE_FAULT),
        ("memset", 719, Verdict.MACHINE_FAULT),
    ],
)
def test_a_device_that_does_not_open(cuda: Cuda, name: str, status: int, verdict: Verdict, published: Path) -> None:
    """Asked for it is the verdict; `auto` takes the processor and says why."""
    cuda.fails = lambda called, _number: status if called == name else 0
    report = auditkit.verify(published, step=3, device="cuda")
    assert report.verdict is verdict
    assert NAMES[status].split(": ")[1] in report.message and report.hint
    cuda.kept = 0
    backend = choose("auto", 1)
    assert backend.device == "cpu" and NAMES[status].split(": ")[1] in backend.chosen


def test_no_device_is_visible(cuda: Cuda) -> None:
    for status in (3, 700):
        cuda.fails = lambda called, _number, status=status: status if called == "device count" else 0
        assert device_count() == 0
    cuda.kept, cuda.count, cuda.fails = 0, 0, lambda _name, _number: 0
    assert device_count() == 0
    with pytest.raises(Unsupported, match="no CUDA device is visible"):
        Device()


def test_a_memory_limit_that_is_none(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cupy.install(monkeypatch, cuda, limit="4 GB")
    with pytest.raises(UsageError, match="CUPY_GPU_MEMORY_LIMIT"):
        Device()


@pytest.mark.parametrize(
    ("status", "log", "kind", "hint"),
    [
        (6, "exp.cu(3): error: no such thing\n1 error", Unsupported, "newer compiler"),
        (5, "", Unsupported, "newer compiler"),
        (1, "", Unsupported, "free memory"),
        (7, "nvrtc: error: failed to open libnvrtc-builtins.so.13.0.\n", Unsupported, "force-reinstall"),
        (11, "", MachineFault, "publisher"),
        (2, "", MachineFault, "publisher"),
    ],
)
def test_what_the_compiler_says(
    monkeypatch: pytest.MonkeyPatch, cuda: Cuda, status: int, log: str, kind: type[Exception], hint: str
) -> None:
    nvrtc = fake_cupy.install(monkeypatch, cuda).cuda.nvrtc
    nvrtc.status, nvrtc.log = status, log
    with pytest.raises(kind, match=r"NVRTC 0\.1 cannot compile exp\.cu with --gpu-architecture=sm_90: ") as caught:
        Nvrtc.load()(b"", "exp.cu", ("--gpu-architecture=sm_90",))
    assert hint in caught.value.hint  # type: ignore[attr-defined]
    assert (log.splitlines()[0] if log else f"({status})") in str(caught.value)


def test_a_compiler_that_breaks_in_mid_run(published: Path, cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = believing()
    nvrtc = __import__("sys").modules["cupy.cuda.nvrtc"]
    monkeypatch.setattr(nvrtc, "status", 11)
    assert verified(published, backend).verdict is Verdict.MACHINE_FAULT


def recorded_steps(backend: CudaBackend, steps: int) -> Iterator[int]:
    """Steps of a recipe whose gradients are recorded from the third step on."""
    recipe = RECIPES[max(RECIPES)]
    state = backend.place(initial_state(recipe))
    for number in range(steps):
        state, _ = backend.step(state, tokens_of(recipe, number), recipe)
        yield number


@pytest.mark.parametrize("name", ["begin capture", "end capture", "graph launch", "synchronize"])
def test_a_fault_while_launches_are_recorded_or_played(cuda: Cuda, name: str) -> None:
    backend = believing()
    cuda.fails = lambda called, _number: 719 if called == name else 0
    done = []
    with pytest.raises(MachineFault, match="unspecified launch failure"):
        done.extend(recorded_steps(backend, 4))
    assert len(done) <= 2
    with pytest.raises(MachineFault, match="unspecified launch failure"):
        next(recorded_steps(backend, 1))


def test_a_recording_without_room_is_done_without(cuda: Cuda) -> None:
    """The step has fitted without one."""
    backend = believing()
    list(recorded_steps(backend, 2))
    cuda.fails = lambda called, _number: 2 if called == "malloc" and recording() else 0

    def recording() -> bool:
        return backend.ops.device.recording

    assert list(recorded_steps(backend, 4)) == [0, 1, 2, 3]
    assert not backend.recorder.recording and not backend.ops.device.recording


def test_a_step_that_does_not_fit_beside_its_recording_is_done_without(cuda: Cuda) -> None:
    """It has fitted before there was one. Micro-batches are told of once."""
    backend, told, recipe = believing(), list[int](), RECIPES[max(RECIPES)]
    state = backend.place(initial_state(recipe))
    cuda.fails = lambda called, _number: 2 if called == "malloc" and backend.recorder.recording and told else 0
    for number in range(4):
        told.clear()
        state, _ = backend.step(state, tokens_of(recipe, number), recipe, on_micro_batch=told.append)
        assert told == sorted(set(told)) and told
    assert not backend.recorder.recording


def test_a_failed_capture_ends_it_and_keeps_the_first_error(cuda: Cuda) -> None:
    device = Device()

    def calls() -> None:
        if device.recording:
            raise KeyError("first")

    cuda.fails = lambda called, _number: 1 if called == "end capture" else 0
    with pytest.raises(KeyError, match="first"):
        Recording(device, calls)
    assert not device.recording and device.stream.captured is None


def test_too_little_memory_in_mid_step(published: Path, cuda: Cuda) -> None:
    """Needed and free bytes are named, all is given back, and the device goes on."""
    backend = believing()
    verified(published, backend)  # leaves the table of rotations and tables of addresses
    used, calls = cuda.used[0], cuda.counts["malloc"]
    late = (calls + 300, calls + 301)  # it is asked for once more when all copies are done
    cuda.fails = lambda called, number: 2 if called == "malloc" and number in late else 0
    report = verified(published, backend)
    assert report.verdict is Verdict.UNSUPPORTED
    first = report.steps[0]
    assert "bytes more needed" in first.message and f"of {cuda.total} bytes free" in first.message
    assert "--device cpu" in first.hint
    assert cuda.used[0] < used + 20_000  # some more of these tables
    assert verified(published, backend).verdict is Verdict.MISMATCH  # zeros, as ever: the device works


def test_an_error_that_is_held_holds_no_arrays(cuda: Cuda) -> None:
    backend = believing()
    used, calls = cuda.used[0], cuda.counts["malloc"]
    cuda.fails = lambda called, number: 2 if called == "malloc" and number == calls + 200 else 0
    with pytest.raises(Unsupported) as caught:
        list(recorded_steps(backend, 1))
    placed = sum(array.nbytes for _, _, array in initial_state(RECIPES[max(RECIPES)]).tensors())
    assert caught.value is not None
    assert cuda.used[0] - used <= placed + (1 << 16)  # what the test itself put there, tables of addresses


def test_memory_goes_back_with_the_last_array(cuda: Cuda) -> None:
    """Also where arrays outlive their device."""
    device = Device()
    pool, array = device.pool, device.upload(np.arange(5))
    device.release()
    assert pool.released == 1
    del device
    assert pool.released == 1
    del array
    assert pool.released == 2 and cuda.used[0] == 0


def test_a_lost_device_gives_nothing_back(cuda: Cuda) -> None:
    device = Device()
    pool, array = device.pool, device.upload(np.arange(5))
    cuda.fails = at(0, 700)
    with pytest.raises(MachineFault):
        device.synchronize()
    device.release()
    del device, array
    assert pool.released == 0 and set(cuda.after_loss) <= QUIET


def test_every_call_of_a_lost_device_says_so(cuda: Cuda) -> None:
    device = Device()
    ops = CudaOps(device)
    cuda.fails = at(0, 700)
    with pytest.raises(MachineFault):
        ops.check_finite({})
    array = np.zeros(3, np.float32)
    calls: list[Callable[[], Any]] = [
        lambda: ops.place(array),
        lambda: ops.host(ops.status),
        lambda: ops.digests([ops.status]),
        lambda: ops.squares([ops.status]),
        lambda: device.empty((1,), np.int8),
        device.memory,
        device.describe,
        device.synchronize,
        lambda: device.use().__enter__(),
        lambda: device.launch("exp", "exp", 1, 32, ()),
        lambda: device.clear(ops.status),
        lambda: device.copy(ops.status, ops.status),
        lambda: Recording(device, lambda: None),
    ]
    for call in calls:
        with pytest.raises(MachineFault, match="an illegal memory access"):
            call()
    assert not cuda.after_loss


def test_the_command(
    published: Path, cuda: Cuda, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the real self-test and kernels that compute: exit code 7, the message and what to do."""
    cuda.dry = False
    cuda.emulators = Cuda().emulators
    cuda.fails = lambda called, number: 700 if called == "launch" and number == 500 else 0
    with pytest.raises(SystemExit) as ended:
        cli.main(["verify", "--run", str(published), "--step", "3", "--device", "cuda"])
    assert ended.value.code == 7
    out = capsys.readouterr()
    assert "MACHINE_FAULT" in out.out and "CUDA device 0 failed" in out.out + out.err
    assert "Traceback" not in out.out + out.err and "try again in a new process" in out.out + out.err


def test_the_kept_errors_are_those_that_cuda_keeps() -> None:
    assert KEPT <= NAMES.keys()
