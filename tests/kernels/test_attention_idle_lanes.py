"""The copying warp of the fused attention: a lane that copies nothing may be late (no order of lanes is promised)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from auditkit.kernels.source import source_folder
from tests.kernels.emulator import EmulatedDevice
from tests.kernels.on_devices import EMULATOR_MARKS
from tests.kernels.test_attention import inputs
from tests.kernels.test_attention_forward_sm90 import check

pytestmark = EMULATOR_MARKS
PLACE = "    u32 round = 0, passed = 0;\n#pragma unroll 1\n"
LATE = (
    "    if (!copies && lane != 31)\n        for (u32 n = 0; n < 4; n++) mbarrier_wait(ring + P::COLUMN_FULL, n & 1);\n"
)


def test_lanes_that_copy_nothing_may_be_late(tmp_path: Path) -> None:
    sources = shutil.copytree(source_folder(), tmp_path / "cuda")
    header = sources / "attention_sm90.cuh"
    text = header.read_text(encoding="utf-8")
    assert text.count(PLACE) >= 1
    header.write_text(text.replace(PLACE, LATE + PLACE, 1), encoding="utf-8")
    device: Any = EmulatedDevice(sources=sources)
    device.multiprocessors = 1
    q, k, v, _ = inputs((1, 1, 1, 600, 128, 0), "normal", 1)
    check(device, q, k, v, 0)
