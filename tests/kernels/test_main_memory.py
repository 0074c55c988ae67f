"""Main memory beside a card that holds other bits than were put there."""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import auditkit
from auditkit.errors import MachineFault
from auditkit.kernels.backend import CudaOps
from auditkit.kernels.device import Device
from auditkit.kernels.host_shelf import HostShelf
from auditkit.kernels.returned import Returned
from auditkit.kernels.transfers import Transfers
from auditkit.model.plan import Plan
from auditkit.replay import hints, interval, machine, placing
from auditkit.replay.backend import CudaBackend
from auditkit.replay.layout import Layout
from auditkit.replay.memory import piece_bytes, plain_bytes
from auditkit.replay.report import Report
from auditkit.store.progress import Silent
from auditkit.verdict import Verdict
from tests.kernels import fake_cupy
from tests.kernels.fake_cuda import Cuda
from tests.kernels.on_devices import EMULATOR_MARKS
from tests.kernels.test_faults import believing
from tests.replay import make_run

pytestmark = EMULATOR_MARKS

PLAN = Plan(True, recompute=True, params="host", inputs="host", sums="host")
TABLE_SUMS = 8 * make_run.RECIPE.model.vocab_size * make_run.RECIPE.model.hidden_size  # bytes


class Pool:
    """cupy.cuda.PinnedMemoryPool: what was given back is given out again, by its size, the last one first."""

    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda
        self.given: list[int] = []  # bytes of each block
        self.free: dict[int, list[Any]] = defaultdict(list)
        self.made: dict[int, list[Any]] = defaultdict(list)

    def malloc(self, size: int) -> Any:
        """A block, kept by its size."""
        self.cuda.call("host malloc")
        self.given.append(size)
        if not self.free[size]:
            block = np.full(size, 0xA5, np.uint8)
            self.made[size].append(block)
            self.free[size].append(block)
        block = self.free[size].pop()
        given = (ctypes.c_uint8 * size).from_address(block.ctypes.data)
        weakref.finalize(given, lambda: self.free[size].append(block))
        return given

    def free_all_blocks(self) -> None:
        """Forgets what is free."""
        for size, blocks in self.free.items():
            self.made[size] = [b for b in self.made[size] if not any(b is other for other in blocks)]
        self.free.clear()

    @property
    def held(self) -> int:
        """Bytes that are used or kept."""
        return sum(size * len(blocks) for size, blocks in self.made.items())


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[Pool]:
    """The pools that are made, in their order."""
    made: list[Pool] = []

    def pool(cuda: Cuda) -> Pool:
        made.append(Pool(cuda))
        return made[-1]

    monkeypatch.setattr(fake_cupy, "_pinned_pool", pool)
    return made


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Where main memory was written by copies from the device: (address, bytes)."""
    send, found = fake_cupy.FakePointer.copy_to_host_async, list[tuple[int, int]]()

    def noted(self: Any, mem: int, count: int, stream: Any) -> None:
        send(self, mem, count, stream)
        found.append((mem, count))

    monkeypatch.setattr(fake_cupy.FakePointer, "copy_to_host_async", noted)
    return found


def verified(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cuda: Cuda,
    memory: int | None = None,
    *,
    later: Any = None,
    steps: int = 1,
) -> Report:
    """The report of the first step of an honest run under PLAN; later: what chooses any other layout."""
    fake_cupy.install(monkeypatch, cuda)
    monkeypatch.setenv("AUDITKIT_CACHE", str(tmp_path / "cache"))
    run = make_run.publish(replace(make_run.train(steps), published=(0, 1)), tmp_path / "run")
    layout = Layout(PLAN, piece_bytes(make_run.RECIPE, PLAN, True))
    given = [layout]

    def choose(*arguments: Any, **options: Any) -> Layout:
        return given.pop() if given or later is None else later(*arguments, **options)

    monkeypatch.setattr(placing, "choose_layout", choose if later else lambda *_, **__: layout)
    return auditkit.verify(run, step=0, backend=believing(), cache_dir=tmp_path / "c", memory=memory)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """The first card."""
    fake_cupy.install(monkeypatch, Cuda())
    return Device(0)


@pytest.mark.parametrize("key", ["a", "b"])
@pytest.mark.parametrize("read", ["what came back", "something else"])
def test_a_bit_that_flips_in_main_memory_is_told_before_anything_is_read(device: Device, key: str, read: str) -> None:
    shelf, want = HostShelf(device, 0), np.arange(1000, dtype=np.float32)
    shelf.put("none", [])
    shelf.put("a", [device.upload(want)])
    shelf.put("b", [device.upload(want[:0]), device.upload(want)])
    shelf._held[key][-1].view(np.uint32)[123] ^= 1 << 20
    assert shelf.get("none") == []
    found, other = [shelf.get("b") or [], shelf.get("a") or []], device.upload(want)
    number = len(shelf._held[key]) - 1
    with pytest.raises(MachineFault, match=f"^array {number} of {key} changed in main memory$"):
        device.download(other if read == "something else" else found[0][0])
    assert np.array_equal(device.download(other), want), "it is told once"


def test_what_came_back_as_it_went_may_be_overwritten_at_once(device: Device) -> None:
    shelf, want = HostShelf(device, 0), np.arange(40, dtype=np.float32)
    for turn in range(3):
        shelf.put("a", [device.upload(want + turn), device.upload(want)])
        first, second = shelf.get("a") or [None, None]
        device.clear(first)
        shelf.drop("a")
        assert np.array_equal(device.download(second), want)


def test_an_error_ends_what_was_to_be_compared(device: Device) -> None:
    shelf, want = HostShelf(device, 0), np.arange(40, dtype=np.float32)
    shelf.put("a", [device.upload(want)])
    shelf._held["a"][0][7] += 1
    shelf.get("a")
    device.release()
    assert np.array_equal(device.download(device.upload(want)), want)


@pytest.mark.parametrize("often", [False, True])
def test_a_bit_of_a_sum_that_waits_is_told_before_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pools: list[Pool], often: bool
) -> None:
    """Once, or in every block for the sums of the embedding, in the second replay too; named by what it is of."""
    send, seen = fake_cupy.FakePointer.copy_to_host_async, list[int]()

    def flipping(self: Any, mem: int, count: int, stream: Any) -> None:
        send(self, mem, count, stream)
        if count == TABLE_SUMS and (often or not seen):
            ctypes.c_uint8.from_address(mem + 4).value ^= 1 << 6
            seen.append(mem)

    monkeypatch.setattr(fake_cupy.FakePointer, "copy_to_host_async", flipping)
    report = verified(tmp_path, monkeypatch, Cuda())
    assert report.verdict is Verdict.MACHINE_FAULT and seen
    assert "array 0 of model.embed_tokens.weight.0 changed in main memory" in report.steps[0].message


def test_a_stuck_bit_in_page_locked_memory_accuses_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pools: list[Pool]
) -> None:
    """The first block for the sums of the embedding, which is the only one of its size; were nothing compared."""
    send, seen = fake_cupy.FakePointer.copy_to_host_async, list[int]()

    def stuck(self: Any, mem: int, count: int, stream: Any) -> None:
        send(self, mem, count, stream)
        if count == TABLE_SUMS and (not seen or mem == seen[0]):
            ctypes.c_uint8.from_address(mem + 4).value |= 1 << 6  # a cell of this block that always reads 1
            seen.append(mem)

    monkeypatch.setattr(fake_cupy.FakePointer, "copy_to_host_async", stuck)
    monkeypatch.setattr(Returned, "add", lambda *_: None)
    assert verified(tmp_path, monkeypatch, Cuda()).verdict is Verdict.MACHINE_FAULT
    assert seen


def test_the_replay_before_a_mismatch_has_other_main_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pools: list[Pool], sent: list[tuple[int, int]]
) -> None:
    """On a card that computes nothing; afterwards it is given back."""
    aside, before = Transfers.set_aside, []

    def noted(transfers: Transfers, *free: Any) -> None:
        before.append(len(sent))
        aside(transfers, *free)

    monkeypatch.setattr(Transfers, "set_aside", noted)
    assert verified(tmp_path, monkeypatch, Cuda(dry=True)).verdict is Verdict.MISMATCH
    first, second = ({mem for mem, size in some if size} for some in (sent[: before[0]], sent[before[0] :]))
    assert first and second and not first & second
    assert sorted(pools[0].given) == sorted(pools[1].given), "parameters, too"
    assert [pool.held for pool in pools] == [0, 0]


def test_too_little_main_memory_for_another_replay_is_unsupported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pools: list[Pool]
) -> None:
    free = [1 << 40]
    aside = Transfers.set_aside

    def less(transfers: Transfers, now: Any) -> None:
        free[0] = TABLE_SUMS - 1
        aside(transfers, now)

    monkeypatch.setattr(Transfers, "set_aside", less)
    monkeypatch.setattr(machine, "free_memory", lambda: free[0])
    report = verified(tmp_path, monkeypatch, Cuda(dry=True))
    assert report.verdict is Verdict.UNSUPPORTED
    assert f"{TABLE_SUMS} bytes more needed, {free[0]} free" in report.steps[0].message
    assert [pool.held for pool in pools] == [0, 0]


def test_a_replay_before_a_mismatch_takes_what_main_memory_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pools: list[Pool]
) -> None:
    """Beside that of the first, for which another plan is as good: without it nobody could be accused."""
    aside, choose, left, told = Transfers.set_aside, placing.choose_layout, list[int](), list[str]()

    def less(transfers: Transfers, now: Any) -> None:
        left.append(piece_bytes(make_run.RECIPE, PLAN, True).host - 1)
        aside(transfers, now)

    def free() -> int:
        return left[0] - pools[1].held if left else 1 << 40

    monkeypatch.setattr(Transfers, "set_aside", less)
    monkeypatch.setattr(machine, "free_memory", free)
    monkeypatch.setattr(Silent, "note", lambda _, text: told.append(text))
    monkeypatch.setattr(placing, "MARGIN", 1.0)
    memory = plain_bytes(make_run.RECIPE, 1, True).memory - 1
    report = verified(tmp_path, monkeypatch, Cuda(dry=True), memory=memory, later=choose)
    assert report.verdict is Verdict.MISMATCH
    assert 0 < sum(pools[1].given) < sum(pools[0].given)
    assert [line for line in told if line.startswith("less main memory is left for the second replay: one layer at")]
    assert [pool.held for pool in pools] == [0, 0]
    assert not list((tmp_path / "c" / "spill").iterdir())


@pytest.mark.parametrize(("module", "looks"), [(interval, "tensor_difference"), (hints, "replay")])
def test_a_card_lost_while_a_difference_is_looked_for_accuses_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, looks: str
) -> None:
    """Under a plan the tensors after a step are made when they are read."""
    cuda, look, lost = Cuda(dry=True), getattr(module, looks), list[bool]()

    def losing(*arguments: Any, **options: Any) -> Any:
        cuda.fails = lambda *_: 700
        lost.append(True)
        return look(*arguments, **options)

    monkeypatch.setattr(module, looks, losing)
    assert verified(tmp_path, monkeypatch, cuda, steps=2).verdict is Verdict.MACHINE_FAULT
    assert lost


@pytest.mark.parametrize("status", [1, 2, 801])
def test_a_system_that_locks_no_pages_has_ordinary_ones(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    """Whatever it says; the device is not lost by that."""
    cuda = Cuda()
    fake_cupy.install(monkeypatch, cuda)
    device = Device(0)
    cuda.fails = lambda called, _number: status if called == "host malloc" else 0
    assert device.transfers.page_locked((3,), np.int32) is None
    assert device.transfers.host_array((3,), np.int32).shape == (3,)
    assert device.download(device.upload(np.arange(3))).tolist() == [0, 1, 2]


def test_an_error_of_page_locking_that_cuda_keeps_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda()
    fake_cupy.install(monkeypatch, cuda)
    device = Device(0)
    cuda.fails = lambda called, _number: 214 if called == "host malloc" else 0
    assert device.transfers.page_locked((3,), np.int32) is None
    with pytest.raises(MachineFault):
        device.synchronize()


@pytest.mark.parametrize("pieces", [False, True])
def test_only_a_plan_in_pieces_takes_its_memory_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pools: list[Pool], pieces: bool
) -> None:
    limit, noted = Device.limit, list[bool]()

    def told(device: Device, size: int, *, at_once: bool = False) -> None:
        noted.append(at_once)
        limit(device, size, at_once=at_once)

    monkeypatch.setattr(Device, "limit", told)
    monkeypatch.setattr(sys.modules[__name__], "PLAN", PLAN if pieces else Plan())
    assert verified(tmp_path, monkeypatch, Cuda(dry=True), memory=1 << 30).verdict is Verdict.MISMATCH
    assert set(noted) == {pieces}


def test_the_limit_of_an_earlier_verification_is_not_that_of_the_next(device: Device) -> None:
    """What is free is what the card has, and the environment allows; tables of the earlier one go before the limit."""
    backend = CudaBackend(CudaOps(device), 1, "cuda:0")
    free = placing._free_on(device)
    backend.ops.rope_table(64, 8, 1e4)
    placing.limit_card(backend, 1 << 20, wanted=True, at_once=True)
    for size in (1 << 19, 1 << 18):
        placing.limit_card(backend, size, wanted=True, at_once=True)
        assert not backend.ops._ropes and device.memory()[0] <= size
        assert free - 10_000 < (placing._free_on(device) or 0) <= free
        backend.ops.rope_table(64, 8, 1e4)
    placing.limit_card(backend, 1 << 30, wanted=False)
    assert device.memory()[0] > 1 << 29
    other = Device(0)
    placing.limit_card(CudaBackend(CudaOps(other), 1, "cuda:0"), 1 << 20, wanted=False)
    assert not other.is_limited
