"""The copying warps of the fused attention: a lane that copies nothing may be late (no order of lanes is promised)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from auditkit.kernels.source import source_folder
from tests.kernels.emulator import EmulatedDevice
from tests.kernels.on_devices import EMULATOR_MARKS
from tests.kernels.test_attention import inputs
from tests.kernels.test_attention_forward_sm90 import check

pytestmark = EMULATOR_MARKS


@pytest.mark.parametrize(
    ("place", "idle", "full"),
    [
        ("    if (product >= C::PRODUCTS) return;", "product >= C::PRODUCTS", "COLUMN_FULL"),
        ("    if (lane >= 6 / C::CLUSTER) return;", "lane >= 6 / C::CLUSTER", "TURNED_FULL"),
    ],
)
def test_lanes_that_copy_nothing_may_be_late(place: str, idle: str, full: str, tmp_path: Path) -> None:
    wait = f"for (u32 n = 0; n < 4; n++) mbarrier_wait(ring + P::{full}, n & 1);"
    late = f"    if ({idle} && lane != 31) {{ {wait} }}\n"
    sources = shutil.copytree(source_folder(), tmp_path / "cuda")
    header = sources / "attention_loaders.cuh"
    text = header.read_text(encoding="utf-8")
    assert text.count(place) == 1
    header.write_text(text.replace(place, late + place), encoding="utf-8")
    device: Any = EmulatedDevice(sources=sources)
    device.multiprocessors = 1
    q, k, v, _ = inputs((1, 1, 1, 600, 128, 0), "normal", 1)
    check(device, q, k, v, 0)
