"""Page-locked memory: whole blocks that are kept, CUDA's own way where registering does not work; on a card too."""

from __future__ import annotations

import gc
import mmap
import os
import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from auditkit.kernels.page_locked import LARGE, PageLocked
from tests.kernels.on_devices import real_device

MIB = 1 << 20


class Failed(RuntimeError):
    """CUDARuntimeError."""


class Cuda:
    """cupy.cuda: what is registered by address, what was asked of the pool of CuPy's."""

    def __init__(self) -> None:
        self.locked: dict[int, int] = {}
        self.asked: list[int] = []
        self.fails = False
        self.runtime = SimpleNamespace(
            CUDARuntimeError=Failed, hostRegister=self._register, hostUnregister=self._unregister
        )

    def _register(self, address: int, size: int, flags: int) -> None:
        if self.fails:
            raise Failed
        assert flags == 1 and address % mmap.PAGESIZE == 0
        self.locked[address] = size

    def _unregister(self, address: int) -> None:
        if self.fails:
            raise Failed
        del self.locked[address]

    def PinnedMemoryPool(self) -> Any:  # noqa: N802 - CuPy's name
        return SimpleNamespace(malloc=self._malloc, free_all_blocks=lambda: None)

    def _malloc(self, size: int) -> Any:
        self.asked.append(size)
        return bytearray(size)


linux = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="huge pages are Linux's")


def array(buffer: Any) -> Any:
    return np.frombuffer(buffer, np.uint8)


@linux
def test_large_blocks_are_as_large_as_asked_for_and_used_again() -> None:
    cuda = Cuda()
    pool = PageLocked(cuda)
    first = array(pool.malloc(3 * MIB + 5))
    assert list(cuda.locked) == [first.ctypes.data] and list(cuda.locked.values()) == [3 * MIB + mmap.PAGESIZE]
    first[:] = 7
    address, second = first.ctypes.data, array(pool.malloc(3 * MIB + 5))
    assert second.ctypes.data != address and len(cuda.locked) == 2
    view = first[100:200]
    del first
    gc.collect()
    assert array(pool.malloc(3 * MIB + 5)).ctypes.data not in (address, second.ctypes.data), "a part of it is used"
    del view
    gc.collect()
    assert array(pool.malloc(3 * MIB + 5)).ctypes.data == address
    assert not cuda.asked


@linux
def test_what_nobody_uses_is_given_back() -> None:
    cuda = Cuda()
    pool = PageLocked(cuda)
    held = array(pool.malloc(LARGE))
    array(pool.malloc(LARGE + 1))
    gc.collect()
    pool.free_all_blocks()
    assert list(cuda.locked) == [held.ctypes.data]
    held[:] = 1
    del pool
    gc.collect()
    assert list(cuda.locked) == [held.ctypes.data], "also by one that outlives the pool"
    del held
    gc.collect()
    assert not cuda.locked


def test_small_ones_are_cupys() -> None:
    cuda = Cuda()
    assert len(PageLocked(cuda).malloc(LARGE - 1)) == LARGE - 1
    assert cuda.asked == [LARGE - 1] and not cuda.locked


@pytest.mark.parametrize("why", ["CUDA refuses", "the system has none", "no Linux"])
def test_where_it_cannot_be_registered_cuda_makes_it(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda()
    cuda.fails = why == "CUDA refuses"
    if why == "no Linux":
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    elif why == "the system has none":

        def refuse(*_: Any, **__: Any) -> Any:
            raise OSError(12, "Cannot allocate memory")

        monkeypatch.setattr(mmap, "mmap", refuse)
    pool = PageLocked(cuda)
    assert [len(pool.malloc(LARGE)) for _ in range(2)] == [LARGE, LARGE]
    assert cuda.asked == [LARGE, LARGE] and not cuda.locked


@linux
def test_a_lost_device_does_not_let_its_end_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", noted.append)
    cuda = Cuda()
    pool = PageLocked(cuda)
    array(pool.malloc(LARGE))
    gc.collect()
    cuda.fails = True
    del pool
    gc.collect()
    assert cuda.locked and not noted


@linux
def test_a_child_does_not_have_it() -> None:
    """Or the system would give one of the two a copy, and the device may write to the other's."""
    buffer = PageLocked(Cuda()).malloc(LARGE)
    array(buffer)[:] = 1
    child = os.fork()
    if not child:
        os._exit(0 if _is_mapped(buffer) else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert _is_mapped(buffer)


def _is_mapped(buffer: Any) -> bool:
    address = array(buffer).ctypes.data
    with open("/proc/self/maps", encoding="ascii") as lines:
        ranges = [[int(end, 16) for end in line.split(" ", 1)[0].split("-")] for line in lines]
    return any(begin <= address < end for begin, end in ranges)


@linux
def test_one_thread_does_where_no_other_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    cuda = Cuda()
    assert len(PageLocked(cuda).malloc(LARGE)) == LARGE and cuda.locked


@pytest.mark.gpu
@pytest.mark.optional("CI has no GPU; a model of CuPy's runtime runs the same lines")
def test_on_a_card() -> None:
    device = real_device()
    values = device.transfers.page_locked((9 * MIB,), np.uint8)
    assert values is not None and values.base is not None
    values[:] = np.arange(values.size, dtype=np.uint32).view(np.uint8)[: values.size]
    arrived = device.transfers.bring(values)
    assert np.array_equal(device.download(arrived()), values)
    attributes = device.cupy.cuda.runtime.pointerGetAttributes(values.ctypes.data)
    assert attributes.hostPointer == values.ctypes.data
    del values, arrived
    device.release()
