"""Before a card is believed, each kernel that a step may choose has given the right words, whatever the shapes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from auditkit.errors import MachineFault
from auditkit.kernels import wide_check
from auditkit.kernels.ahead import OPS, OPS_SM90
from auditkit.kernels.backend import CudaOps
from auditkit.kernels.source import source_folder
from auditkit.numerics import reference, self_test, wide_answers
from auditkit.replay.backend import CudaBackend
from tests.kernels.emulator import EmulatedDevice
from tests.kernels.on_devices import EMULATOR_MARKS

# What no step launches: ops that only tests have on a card, and the plain kernels.
NO_STEP = {
    *(f"{name}_elements" for name in ("cos", "exp", "log", "sin")),
    *(f"row_sum_{kind}" for kind in (1, 2, 3, 4, 6, 8, "any")),
    "add_fixed",
    "exact_dot_plain_14",
    "exact_dot_plain_21",
    "f32_dot_plain",
    "normal",
    "philox",
}


def asked(architecture: str, sources: Path | None = None) -> tuple[Any, CudaBackend]:
    """An emulated device that is asked for wide answers, and its back end."""
    device: Any = EmulatedDevice(architecture=architecture, sources=sources or source_folder())
    device.asked_for_wide_answers = True
    return device, CudaBackend(CudaOps(device), 1, "emulated")


def test_the_reference_gives_all_wide_answers() -> None:
    for name in wide_answers.PROBES:
        self_test.check_wide_answer(name, reference)


class TestEmulated:
    pytestmark = EMULATOR_MARKS

    @pytest.mark.parametrize("architecture", ["75", "100"])
    def test_architectures(self, architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is multiplied, in which an architecture differs."""
        products = {name: wide_answers.PROBES[name] for name in ("attention", *wide_answers.DOTS)}
        monkeypatch.setattr(wide_answers, "PROBES", products)
        wide_check.check(asked(architecture)[1].ops)

    def test_every_kernel_of_a_step_passes_first(self) -> None:
        device, backend = asked("90")
        backend.self_test()
        there = {kernel for path in source_folder().glob("*.cu") for kernel in device.kernels(path.stem)}
        assert there - {kernel for _, kernel in device.launches} == NO_STEP
        assert {op for op, _ in device.launches} == {*OPS, *OPS_SM90}  # which are compiled ahead


# Faults that only larger shapes meet: architecture, file, what stands there, what shall, the wide answer that is wrong,
# and the op whose known answer is right all the same.
FAULTS = [
    (
        "80",
        "exact_dot_finish.cuh",
        "    bool tame = ",
        "    weight += T::BM == 128;\n    bool tame = ",
        "dot_14_320 by large64",
        "dot",
    ),
    ("90", "exact_dot_sums.cuh", "* 2 + (d >> 22)", "* 2 + 1 + (d >> 22)", "dot_14_384 by wgmma_short", "dot"),
    (
        "90",
        "attention_forward_sm90.cu",
        "sum_of[half] += (u64)(",
        "sum_of[half] += (u64)(1 + ",
        "attention",
        "attention_forward",
    ),
    ("80", "blake3.cu", "+ i / 8] = p[i];", "+ i / 8] = p[i] + 1;", "digests", "digests"),
    (
        "80",
        "quantise_tile.cuh",
        "source.load(in[r][h], p.of * m + first + 8 * r,",
        "source.load(in[r][h], p.of * m + first + (AHEAD == 4 && r == 1 ? 0 : 8 * r),",
        "largest",
        "quantise_both",
    ),
    (
        "80",
        "quantise_tile.cuh",
        "of_column[i][h][c] = larger(",
        "if (i == 0 || k != column + 128 * WIDE || (row & 8) == 0) of_column[i][h][c] = larger(",
        "swiglu",
        "swiglu_backward_both",
    ),
]


@pytest.mark.parametrize(("architecture", "file", "old", "new", "named", "op"), FAULTS, ids=[row[4] for row in FAULTS])
class TestFaults:
    pytestmark = EMULATOR_MARKS

    def test_is_found(
        self,
        architecture: str,
        file: str,
        old: str,
        new: str,
        named: str,
        op: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        sources = shutil.copytree(source_folder(), tmp_path / "cuda")
        text = (sources / file).read_text(encoding="utf-8")
        assert old in text
        (sources / file).write_text(text.replace(old, new), encoding="utf-8")
        _, backend = asked(architecture, sources)
        backend.known_answer(op)
        probe = named.split(" ")[0]
        monkeypatch.setattr(wide_answers, "PROBES", {probe: wide_answers.PROBES[probe]})
        monkeypatch.setattr(wide_answers, "DOTS", {n: made for n, made in wide_answers.DOTS.items() if n == probe})
        with pytest.raises(MachineFault, match=f"wide answer of {named}:"):
            wide_check.check(backend.ops)
