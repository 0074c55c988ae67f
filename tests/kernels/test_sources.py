"""Every kernel for every architecture: it compiles, without a warning or a spill, to arithmetic that SPEC.md knows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from auditkit.kernels.compile import ARCHITECTURES, target
from auditkit.kernels.source import source_folder
from tests.kernels import scan
from tests.kernels.compiled import NVRTC_MARKS, SOURCES, compiled
from tests.plugins.required import in_ci

KERNELS = sorted(source_folder().glob("*.cu"))
# Kernels that may keep something in local memory, with the reason.
MAY_USE_LOCAL_MEMORY: dict[str, str] = {}

# Sources that fuse a multiplication and an addition where it is one rounding anyway (attention_cells.cuh).
FUSED_BY_DESIGN = {"attention_forward_sm90", "attention_backward_sm90"}

# ptxas need not call it a warning when it lets asynchronous products wait for each other (C7510, C7512) or ignores
# setmaxnreg (C7508).
COMPLAINTS = re.compile(r"warning|error|\(C75\d\d\)|Performance Loss|setmaxnreg", re.IGNORECASE)

# Sources with asynchronous products: definitions, and the registers of their kernels. Of exact_dot_sm90, beside the
# shipped one, which the tests with NVRTC look at, that furthest from it: each takes a minute to compile.
ASYNCHRONOUS: list[tuple[str, tuple[str, ...], set[str]]] = [
    ("exact_dot_sm90", (), {"168"}),  # 65536 by 384 threads, in steps of 8
    ("exact_dot_sm90", ("DOT_STAGED=1", "DOT_STAGES=3"), {"168"}),
    ("attention_forward_sm90", (), {"128", "32"}),
    ("attention_forward_sm90", ("ATTENTION_CLUSTER=2",), {"128", "32"}),
    ("attention_backward_sm90", (), {"128", "32"}),
    ("attention_backward_sm90", ("ATTENTION_CLUSTER=2",), {"128", "32"}),
]

nvrtc = [pytest.mark.parametrize("architecture", ARCHITECTURES), *NVRTC_MARKS]


def by_kernel(texts: list[str]) -> dict[str, str]:
    """The findings of each kernel, joined."""
    kernels = {text.split(":")[0] for text in texts}
    return {kernel: "; ".join(t for t in texts if t.split(":")[0] == kernel) for kernel in kernels}


def with_nvrtc(test: object) -> object:
    for mark in nvrtc:
        test = mark(test)
    return test


# Each source for the architectures that have its instructions; for the others it is empty.
PAIRS = [(path, name) for path in KERNELS for name in ARCHITECTURES if target(path.stem, name) == name]


@pytest.mark.parametrize(("path", "architecture"), PAIRS, ids=[f"{path.stem}-{name}" for path, name in PAIRS])
class TestEachKernel:
    pytestmark = NVRTC_MARKS

    @staticmethod
    def allowed(path: Path) -> frozenset[str]:
        return frozenset({"fma.rn.f32"} if path.stem in FUSED_BY_DESIGN else ())

    def test_it_compiles_without_a_warning_or_a_spill(self, path: Path, architecture: str) -> None:
        done = compiled(path, architecture)
        assert not COMPLAINTS.search(done.log)
        spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", done.log)
        assert spills and all(pair == ("0", "0") for pair in spills)
        local = [text for text in scan.local_memory(done.cubin) if text.split(":")[0] not in MAY_USE_LOCAL_MEMORY]
        assert not local

    def test_its_ptx_holds_nothing_flushed_fused_or_approximate(self, path: Path, architecture: str) -> None:
        ptx = compiled(path, architecture).ptx
        assert sum(counts.total() for counts in scan.opcodes(ptx).values()) > 20
        assert not scan.complaints(ptx, self.allowed(path))

    def test_its_machine_code_fuses_nothing(self, path: Path, architecture: str) -> None:
        done = compiled(path, architecture)
        assert scan.instructions(done.cubin).keys() <= scan.opcodes(done.ptx).keys()
        assert not scan.fused(done.cubin, done.ptx, self.allowed(path))


@with_nvrtc
def test_the_scan_finds_what_it_looks_for(architecture: str) -> None:
    done = compiled(SOURCES / "scan.cu", architecture, ("--fmad=true", "--ftz=true"))
    found = by_kernel(scan.complaints(done.ptx))
    assert found.keys() == scan.opcodes(done.ptx).keys() - {"local_array"}  # even `plain` flushes with these options
    for kernel, problem in [
        ("contracted", "is fused"),
        ("contracted_double", "is fused"),
        ("fused_with_constant", "is fused"),
        ("approximate", "is an approximation"),
        ("fast_division", "is an approximation"),
        ("towards_zero", "not rounded to nearest"),
    ]:
        assert problem in found[kernel], found[kernel]
    fused = by_kernel(scan.fused(done.cubin, done.ptx))
    assert "FFMA" in fused["contracted"] and "FFMA" in fused["fused_with_constant"]
    assert "DFMA" in fused["contracted_double"]
    assert by_kernel(scan.local_memory(done.cubin)).keys() == {"local_array"}


@with_nvrtc
def test_the_scan_lets_the_products_options_pass(architecture: str) -> None:
    done = compiled(SOURCES / "scan.cu", architecture)
    found = by_kernel(scan.complaints(done.ptx))
    assert not found.keys() & {"contracted", "contracted_double", "plain", "division", "local_array"}
    assert "float atomic" in found["float_atomic"]
    fused = by_kernel(scan.fused(done.cubin, done.ptx))
    assert not fused.keys() & {"contracted", "contracted_double", "plain", "division"}
    assert scan.instructions(done.cubin)["division"][0x023] > 0  # inside the division, as NVIDIA rounds it


@pytest.mark.skipif(shutil.which("nvcc") is None or not in_ci(), reason="only in CI, with nvcc")
@pytest.mark.optional("nvcc and NVRTC are one compiler, and the tests above use NVRTC; nvcc is not on every CI machine")
@pytest.mark.parametrize("path", KERNELS, ids=[path.stem for path in KERNELS])
def test_nvcc_compiles_it_for_all_architectures(path: Path, tmp_path: Path) -> None:
    # Each takes most of a minute for its own architecture: compiled once, by the test below.
    below = {(name, "90a") for name, choice, _ in ASYNCHRONOUS if not choice}
    names = [name for name in ARCHITECTURES if (path.stem, name) not in below]
    targets = [f"--generate-code=arch=compute_{name},code=sm_{name}" for name in names]
    command = ["nvcc", "-std=c++17", "-fmad=false", "-Werror=all-warnings", "-Wno-deprecated-gpu-targets", *targets]
    command += [f"--threads={os.cpu_count() or 1}", "-fatbin", "-o", str(tmp_path / "out.fatbin"), str(path)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.optional(
    "nvcc is not on every CI machine; with NVRTC the tests above look at the kernels that are shipped"
)
@pytest.mark.parametrize(
    ("name", "choice", "registers"), ASYNCHRONOUS, ids=[" ".join((name, *choice)) for name, choice, _ in ASYNCHRONOUS]
)
def test_the_asynchronous_products_keep_their_sums_in_registers(
    name: str, choice: tuple[str, ...], registers: set[str], tmp_path: Path
) -> None:
    """No spill, nothing serialised, and as many registers as setmaxnreg shares out."""
    out, source = tmp_path / "out.cubin", source_folder() / f"{name}.cu"
    command = ["nvcc", "-std=c++17", "-fmad=false", "-Werror=all-warnings", "-Wno-deprecated-gpu-targets", "-cubin"]
    command += ["-gencode=arch=compute_90a,code=sm_90a", "-Xptxas", "-v"]
    done = subprocess.run(
        [*command, *(f"-D{define}" for define in choice), "-o", str(out), str(source)],
        capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert done.returncode == 0 and not COMPLAINTS.search(done.stderr), done.stderr
    spills = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
    assert len(spills) == done.stderr.count("Compiling entry function") > 0 and set(spills) == {("0", "0", "0")}
    assert set(re.findall(r"Used (\d+) registers", done.stderr)) == registers
    assert not scan.local_memory(out.read_bytes())
