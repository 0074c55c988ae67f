"""Hardware families, and what a CUDA device's driver is called."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import auditkit
from auditkit.audit.family import family
from auditkit.errors import Unsupported
from auditkit.kernels.driver import driver_text, module_version, versions
from auditkit.replay.report import Report
from tests.kernels.on_devices import GPU_MARKS

# First lines of /proc/driver/nvidia/version: of the closed module, of the open one, and of one that says less.
MODULES = {
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May  2 14:37:44 UTC 2024": "470.256.02",
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (root@builder)": "580.95.05",
    "NVRM version: NVIDIA UNIX aarch64 Kernel Module  570.86  Wed Jan": "570.86",
    "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)": "",
    "": "",
}


@pytest.mark.parametrize(
    ("processor", "name"),
    [
        ("x86_64", "cpu-x86_64"),
        ("AMD64", "cpu-x86_64"),
        ("arm64", "cpu-arm64"),
        ("aarch64", "cpu-arm64"),
        ("ARM64", "cpu-arm64"),
        ("ppc64le", "cpu-ppc64le"),
        ("riscv64", "cpu-riscv64"),
    ],
)
def test_one_processor_has_one_name_on_every_system(processor: str, name: str) -> None:
    assert family({"processor": processor}) == name


def test_a_card_counts_and_not_its_host() -> None:
    assert family({"processor": "x86_64", "architecture": "sm_90"}) == "cuda-sm_90"
    assert family({"processor": "arm64", "architecture": "sm_120"}) == "cuda-sm_120"


@pytest.mark.parametrize("machine", [{}, {"processor": ""}, {"processor": "a b"}, {"processor": "x" * 33}])
def test_a_machine_without_a_name_has_no_family(machine: dict[str, str]) -> None:
    with pytest.raises(Unsupported, match="no hardware family"):
        family(machine)


def test_the_family_of_a_replay_on_this_machine(honest: Path) -> None:
    report: Report = auditkit.verify(str(honest), step=0, device="cpu")
    assert family(report.machine) in ("cpu-x86_64", "cpu-arm64")


@pytest.mark.parametrize(("line", "version"), MODULES.items())
def test_the_version_of_the_kernel_module(tmp_path: Path, line: str, version: str) -> None:
    place = tmp_path / "version"
    place.write_text(f"{line}\nGCC version:  gcc version 999.99.99\n", encoding="utf-8")
    assert module_version(place) == version


def test_a_system_that_does_not_say_has_no_module_version(tmp_path: Path) -> None:
    assert module_version(tmp_path / "version") == ""
    assert module_version(tmp_path) == ""


def test_the_driver_in_words() -> None:
    assert driver_text(13020, "580.95.05") == "580.95.05 (CUDA 13.2)"
    assert driver_text(12080, "") == "CUDA 12.8"


def test_what_a_card_says(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = SimpleNamespace(__version__="14.2.0")
    monkeypatch.setattr("auditkit.kernels.driver.module_version", lambda: "580.95.05")
    device: Any = SimpleNamespace(cupy=cupy, architecture="90", driver=13000)
    found = versions(device)
    assert found == {"architecture": "sm_90", "driver": "580.95.05 (CUDA 13.0)", "cupy": "14.2.0"}
    assert family({"processor": "x86_64", **found}) == "cuda-sm_90"


class TestOnACard:
    pytestmark = GPU_MARKS

    def test_the_report_of_a_replay_names_it(self, honest: Path) -> None:
        report = auditkit.verify(str(honest), step=0, device="cuda")
        if report.verdict is auditkit.Verdict.UNSUPPORTED:
            pytest.skip(report.message)
        assert family(report.machine).startswith("cuda-sm_")
        assert report.machine["driver"] and report.machine["cupy"]
