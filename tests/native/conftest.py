"""The C ops, compiled once for all tests and kept in build/compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from auditkit.errors import Unsupported
from auditkit.native.compile import find, make
from auditkit.native.ops import NativeOps

KEPT = Path(__file__).resolve().parent.parent.parent / "build" / "compiled"


@pytest.fixture(scope="session")
def compiled() -> Path:
    """The library of this machine."""
    try:
        return find(KEPT) or make(KEPT)
    except Unsupported as error:
        pytest.skip(str(error.message))


@pytest.fixture(scope="session")
def native(compiled: Path) -> NativeOps:
    """Its ops."""
    return NativeOps(compiled)
