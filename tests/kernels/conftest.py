"""`device`: the emulated one and, where there is one, a real card."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kernels.on_devices import DEVICES


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Any:
    """A device with the methods of auditkit.kernels.device.Device."""
    return request.param()
