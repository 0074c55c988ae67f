"""Sets this thread's rounding mode and flush-to-zero, as a careless library would, and sets them back.

By the C library's fenv.h, whose structures and constants differ between systems; on Windows by _controlfp_s.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

X86 = platform.machine().lower() in ("x86_64", "amd64")
UP, DOWN, TOWARDS_ZERO = "up", "down", "towards zero"

# Bits that flush results and treat subnormal operands as zero: FTZ and DAZ of MXCSR on x86, FZ of FPCR on arm64.
_FLUSH = 0x8040 if X86 else 1 << 24
# Where that register lies in fenv_t.
_OFFSET = {("linux", True): 28, ("linux", False): 0, ("darwin", True): 4, ("darwin", False): 8}
_ROUNDING = (
    {UP: 0x800, DOWN: 0x400, TOWARDS_ZERO: 0xC00} if X86 else {UP: 1 << 22, DOWN: 2 << 22, TOWARDS_ZERO: 3 << 22}
)
_WINDOWS_ROUNDING = {UP: 0x200, DOWN: 0x100, TOWARDS_ZERO: 0x300}
_WINDOWS_ROUNDING_MASK = 0x300
_WINDOWS_FLUSH, _WINDOWS_FLUSH_MASK = 0x01000000, 0x03000000  # _DN_FLUSH, _MCW_DN


@contextmanager
def flush_to_zero() -> Iterator[None]:
    """Subnormal results and operands count as zero in this thread."""
    if sys.platform == "win32":
        with _windows(_WINDOWS_FLUSH, _WINDOWS_FLUSH_MASK):
            yield
        return
    offset = _OFFSET.get((sys.platform, X86))
    if offset is None:
        pytest.skip(f"no way known to flush to zero on {sys.platform} {platform.machine()}")
    saved = ctypes.create_string_buffer(64)
    assert _libm("fegetenv")(saved) == 0
    changed = ctypes.create_string_buffer(saved.raw, 64)
    register = ctypes.c_uint32.from_buffer(changed, offset)
    register.value |= _FLUSH
    with _restored(saved):
        assert _libm("fesetenv")(changed) == 0
        yield


@contextmanager
def rounding(mode: str) -> Iterator[None]:
    """Round upwards, downwards or towards zero in this thread."""
    if sys.platform == "win32":
        with _windows(_WINDOWS_ROUNDING[mode], _WINDOWS_ROUNDING_MASK):
            yield
        return
    saved = ctypes.create_string_buffer(64)
    assert _libm("fegetenv")(saved) == 0
    with _restored(saved):
        assert _libm("fesetround")(_ROUNDING[mode]) == 0
        yield


@contextmanager
def _restored(saved: ctypes.Array[ctypes.c_char]) -> Iterator[None]:
    try:
        yield
    finally:
        assert _libm("fesetenv")(saved) == 0


def _libm(name: str) -> Callable[..., int]:
    found: Callable[..., int] = getattr(ctypes.CDLL(ctypes.util.find_library("m")), name)
    return found


@contextmanager
def _windows(value: int, mask: int) -> Iterator[None]:
    control = ctypes.CDLL("ucrtbase")._controlfp_s
    before, ignored = ctypes.c_uint(), ctypes.c_uint()
    assert control(ctypes.byref(before), 0, 0) == 0
    assert control(ctypes.byref(ignored), value, mask) == 0
    try:
        yield
    finally:
        assert control(ctypes.byref(ignored), before.value & mask, mask) == 0
