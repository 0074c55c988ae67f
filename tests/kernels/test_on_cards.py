"""A real card, or two, in hard circumstances: it breaks, it is full, others use it, devices and streams at once.

What is verified is the bundled run, so MATCH says that every bit was right.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auditkit
from auditkit.errors import Unsupported
from auditkit.kernels.device import Device
from auditkit.replay.backend import CudaBackend, choose
from auditkit.verdict import Verdict
from tests.kernels.card_backends import Narrowed
from tests.kernels.on_devices import GPU_MARKS, real_device

pytestmark = [pytest.mark.gpu, *GPU_MARKS]

ROOT = Path(__file__).resolve().parent.parent.parent
RUN, STEPS = "sotu-tiny", "0:5"  # from the third step on launches are recorded
SLACK = 64 << 20  # bytes of a context's own that come and go
# Launches of the command: the self-test has 352, a step some 500; the third is recorded, those after it have few.
PLACES = {"in the self-test": 100, "in a step": 700, "in a recording": 1600}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kernels are compiled once for all of these tests."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def card(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The first card. Skips without one; what a test leaves is collected."""
    monkeypatch.setenv("AUDITKIT_CACHE", str(cache))
    yield real_device()
    gc.collect()


def started(*command: str, **environment: str) -> subprocess.Popen[str]:
    """A process of this Python from the project's folder."""
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def finished(*command: str, **environment: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one."""
    process = started(*command, **environment)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


VERIFY = ("verify", "--run", RUN, "--steps", STEPS, "--offline", "--json")


def roots(report: dict[str, Any]) -> list[str]:
    """The computed state roots of a JSON report."""
    return [step["computed"] for step in report["steps"]]


def verified(device: str = "cuda", **options: Any) -> list[str]:
    """The computed roots of a verification here, which matches."""
    report = auditkit.verify(RUN, steps=STEPS, device=device, offline=True, **options)
    assert report.verdict is Verdict.MATCH, report.message or [step.message for step in report.steps]
    return [step.computed for step in report.steps]


@pytest.fixture(scope="module")
def expected() -> list[str]:
    """The roots that the processor computes."""
    return verified("cpu")


def free(card: Any) -> int:
    """Free bytes as the driver says."""
    with card.use():
        return int(card.cupy.cuda.runtime.memGetInfo()[0])


class TestItBreaks:
    @pytest.mark.parametrize("place", PLACES)
    @pytest.mark.parametrize("kind", ["beyond", "trap"])
    def test_in_a_verification(self, kind: str, place: str) -> None:
        """Exit code 7, one JSON object, the reason, and nothing that CuPy prints when it cannot free."""
        at = str(PLACES[place])
        code, out, err = finished("-m", "tests.kernels.crash", kind, at, *VERIFY, "--device", "cuda")
        assert code == 7, err
        report = json.loads(out)
        assert report["verdict"] == "MACHINE_FAULT"
        text = json.dumps(report)
        assert "CUDA device 0 failed (" in text
        assert ("illegal memory access" in text) or kind == "trap"
        assert "Traceback" not in err and "Exception ignored" not in err and "CUDARuntimeError" not in err, err
        assert "MISMATCH" not in {step["verdict"] for step in report["steps"]}

    def test_and_stays_broken_in_that_process(self) -> None:
        """Every later call says so, also of another Device; `auto` goes on with the processor and says why."""
        code, out, err = finished("-c", AFTERWARDS)
        assert code == 0, err
        assert out.split("\n")[:3] == ["MachineFault MachineFault", "MachineFault", "cpu"], out
        assert "Exception ignored" not in err, err


AFTERWARDS = """
import numpy as np
from auditkit.errors import AuditkitError
from auditkit.kernels.device import Device
from auditkit.replay.backend import choose, kernel_cache
from tests.kernels.crash import crash
def name(call):
    try:
        call()
    except AuditkitError as error:
        return type(error).__name__
    return "nothing"
device = Device(cache=kernel_cache())
array = device.upload(np.arange(5))
crash(device, "beyond")
print(name(device.synchronize), name(lambda: device.download(array)))
print(name(lambda: choose("cuda").self_test()))
backend = choose("auto", 1)
print(backend.device)
print(backend.chosen)
"""


class TestMemory:
    def test_another_program_fills_the_card(self, card: Any) -> None:
        """Needed and free bytes are named; when the other program ends, there is room."""
        need = 4 << 30
        if free(card) < 3 * need:
            pytest.skip("needs 12 GiB of free device memory")
        card.release()
        with filled(1 << 30):
            with pytest.raises(Unsupported, match=rf"{need} bytes more needed, \d+ of \d+ bytes free") as caught:
                card.empty((need,), np.uint8)
            assert int(caught.value.message.split(" needed, ")[1].split()[0]) < 2 << 30
            verified()  # a tiny model still fits
        card.empty((need,), np.uint8)

    def test_another_program_leaves_no_room_for_a_context(self) -> None:
        """Then not even the first call succeeds: UNSUPPORTED asked for, the processor by itself."""
        with filled(0):
            code, out, err = finished("-m", "auditkit", *VERIFY, "--device", "cuda")
            assert code == 6, err
            assert json.loads(out)["hint"], out
            code, out, err = finished("-m", "auditkit", *VERIFY)
            report = json.loads(out)
            assert code == 0 and report["machine"]["device"] == "cpu", out
        code, out, err = finished("-m", "auditkit", *VERIFY, "--device", "cuda")
        assert code == 0, err

    def test_a_limit_of_the_pool_is_met_in_mid_step(self, card: Any) -> None:
        """All is given back, and without the limit the same device gives the right bits."""
        backend = choose("cuda")
        assert isinstance(backend, CudaBackend)
        device = backend.ops.device
        backend.self_test()
        gc.collect()
        device.release()
        before = free(card)
        report = auditkit.verify(RUN, steps=STEPS, backend=Narrowed(backend.ops, 1, "cuda"), offline=True)
        assert report.verdict is Verdict.UNSUPPORTED
        first = report.steps[0]
        assert "bytes more needed" in first.message and "--device cpu" in first.hint
        assert [check.status.value for check in first.checks if check.number in (4, 6)] == ["ok", "failed"]
        with device.use():
            device.pool.set_limit(0)
        device.release()
        assert free(card) >= before - SLACK
        verified(backend=backend)

    def test_a_limit_of_the_environment(self) -> None:
        code, out, err = finished("-m", "auditkit", *VERIFY, "--device", "cuda", CUPY_GPU_MEMORY_LIMIT=str(3 << 20))
        assert code == 6, err
        assert "bytes more needed" in out
        code, out, err = finished("-m", "auditkit", *VERIFY, "--device", "cuda", CUPY_GPU_MEMORY_LIMIT="4 GB")
        assert code == 2 and "CUPY_GPU_MEMORY_LIMIT" in out + err

    def test_a_verification_gives_all_its_memory_back(self, card: Any) -> None:
        """In a process that lives on. A pool that CuPy keeps would cost two MiB or more each time."""
        for _ in range(3):
            verified()
        gc.collect()
        before = free(card)
        for _ in range(8):
            verified()
        gc.collect()
        assert before - free(card) < 16 << 20

    def test_a_device_gives_back_what_it_had(self, card: Any) -> None:
        """With the last of its arrays, if they outlive it."""
        before = free(card)
        device = Device()
        arrays = [device.empty((256 << 20,), np.uint8) for _ in range(3)]
        part = arrays[1][: 1 << 20]
        assert free(card) <= before - (768 << 20)
        del arrays[0]
        del device
        assert free(card) <= before - (256 << 20)
        del arrays, part
        assert free(card) >= before - SLACK

    def test_the_hosts_allocator_is_not_ours(self, card: Any, expected: list[str]) -> None:
        """What else the program does with CuPy's memory changes nothing here."""
        cuda = card.cupy.cuda

        def refuse(size: int) -> Any:
            raise AssertionError(f"{size} bytes of the host's allocator")

        before = cuda.get_allocator()
        try:
            for allocator in (refuse, None, cuda.MemoryPool(cuda.malloc_managed).malloc):
                cuda.set_allocator(allocator)
                assert verified() == expected
        finally:
            cuda.set_allocator(before)


@contextmanager
def filled(left: int) -> Iterator[None]:
    """Another process holds the card's memory but for so many bytes."""
    process = started("-m", "tests.kernels.fill_card", str(left))
    assert process.stdout and process.stdin
    try:
        assert process.stdout.readline().strip().isdigit()
        yield
    finally:
        _, err = process.communicate("\n", timeout=120)
    assert process.returncode == 0, err


class TestStreams:
    def test_a_stream_of_the_caller(self, card: Any, expected: list[str]) -> None:
        """Of either kind, and another one at each call: nothing of ours runs on it."""
        cuda = card.cupy.cuda
        for options in ({"non_blocking": True}, {}):
            with cuda.Stream(**options):
                assert verified() == expected
        backend = choose("cuda")
        for stream in (cuda.Stream(), cuda.Stream(non_blocking=True), cuda.Stream.null):
            with stream:
                assert verified(backend=backend) == expected

    def test_the_default_stream_is_busy(self, card: Any, expected: list[str]) -> None:
        """Work of the host's on it is neither waited for nor in the way of a recording."""
        cuda = card.cupy.cuda
        other = cuda.MemoryPool().malloc(1 << 28)
        for _ in range(2000):
            other.memset_async(1, 1 << 28, cuda.Stream.null)
        assert verified() == expected
        cuda.Stream.null.synchronize()

    def test_a_default_stream_for_each_thread(self, expected: list[str]) -> None:
        code, out, err = finished(
            "-m", "auditkit", *VERIFY, "--device", "cuda", CUPY_CUDA_PER_THREAD_DEFAULT_STREAM="1"
        )
        assert code == 0 and roots(json.loads(out)) == expected, err

    def test_two_devices_on_one_card_in_two_threads(self, expected: list[str]) -> None:
        assert at_once([lambda: verified() for _ in range(2)]) == [expected, expected]

    def test_and_while_another_thread_uses_the_default_stream(self, card: Any, expected: list[str]) -> None:
        cuda, done = card.cupy.cuda, threading.Event()

        def busy() -> int:
            block, count = cuda.MemoryPool().malloc(1 << 20), 0
            while not done.is_set():
                block.memset_async(count % 256, 1 << 20, cuda.Stream.null)
                cuda.Stream.null.synchronize()
                count += 1
            return count

        def work() -> list[list[str]]:
            try:
                return [verified() for _ in range(2)]
            finally:
                done.set()

        count, found = at_once([busy, work])
        assert found == [expected, expected] and count > 10


def at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    """What calls return that run in threads of their own at the same time."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [waiting.result(timeout=300) for waiting in [pool.submit(call) for call in calls]]


ENVIRONMENTS: dict[str, dict[str, str]] = {
    "CUPY_TF32": {"CUPY_TF32": "1", "NVIDIA_TF32_OVERRIDE": "1"},
    "CUPY_ACCELERATORS": {"CUPY_ACCELERATORS": "cub,cutensor"},
    "CUBLAS_WORKSPACE_CONFIG": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
    "CUPY_ENABLE_UMP": {"CUPY_ENABLE_UMP": "1"},
    "CUDA_LAUNCH_BLOCKING": {"CUDA_LAUNCH_BLOCKING": "1", "CUDA_MODULE_LOADING": "EAGER"},
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_no_environment_variable_changes_a_bit(name: str, expected: list[str]) -> None:
    """Those that choose another arithmetic, library or order for CuPy and CUDA's libraries."""
    code, out, err = finished("-m", "auditkit", *VERIFY, "--device", "cuda", **ENVIRONMENTS[name])
    assert code == 0 and roots(json.loads(out)) == expected, err


class TestTwoCards:
    @pytest.fixture(autouse=True)
    def second(self, card: Any) -> Any:
        """The second card."""
        return real_device(1)

    def test_the_same_bits_whichever_is_current(self, card: Any, expected: list[str]) -> None:
        """The caller's current device is another, with a current stream of its own there, and stays so."""
        cuda = card.cupy.cuda
        for current, used in ((0, 1), (1, 0), (1, 1)):
            with cuda.Device(current), cuda.Stream(non_blocking=True):
                assert verified(f"cuda:{used}") == expected
                assert cuda.runtime.getDevice() == current

    def test_both_at_once(self, expected: list[str]) -> None:
        assert at_once([lambda: verified("cuda:0"), lambda: verified("cuda:1")]) == [expected, expected]

    def test_memory_of_the_second_is_its_own(self, card: Any, second: Any) -> None:
        """Also what is said of it and given back, while the first one is current."""
        cuda = card.cupy.cuda
        with cuda.Device(0):
            there, total = second.memory()
            here = free(card)
            array = second.empty((1 << 29,), np.uint8)
            assert array.device.id == 1
            assert second.memory() == (pytest.approx(there - (1 << 29), abs=SLACK), total)
            assert abs(free(card) - here) < SLACK
            second.clear(array)
            assert not second.download(array[:5]).any()
            del array
            second.release()
            assert second.memory()[0] >= there - SLACK
            assert cuda.runtime.getDevice() == 0

    def test_one_breaks_and_the_other_accuses_nobody(self) -> None:
        """CUDA may refuse the process its other cards too; a new process may use them."""
        code, out, err = finished("-c", ONE_BREAKS)
        assert code == 0 and out.split()[0] == "MachineFault", out + err
        assert out.split()[1] in ("MATCH", "MACHINE_FAULT"), out + err
        assert "Exception ignored" not in err, err
        assert finished("-c", OTHER)[1].split() == ["MATCH"]


OTHER = """
import auditkit
print(auditkit.verify("sotu-tiny", steps="0:3", device="cuda:0", offline=True).verdict.name)
"""
ONE_BREAKS = f"""
from auditkit.errors import MachineFault
from auditkit.kernels.device import Device
from tests.kernels.crash import crash
device = Device(1)
with device.use():
    crash(device, "trap")
try:
    device.synchronize()
except MachineFault as error:
    print(type(error).__name__)
{OTHER}"""
