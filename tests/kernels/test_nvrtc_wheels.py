"""Where NVIDIA's wheels put NVRTC, and that it is found there: the layouts of CUDA 12 and 13, on Linux and on Windows.

CuPy asks `cuda.pathfinder` for the library. Nothing else of the wheels is needed: no kernel includes a header of CUDA.
Layouts: nvidia-cuda-nvrtc-cu12 12.9.86 and nvidia-cuda-nvrtc 13.5.37.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from auditkit.kernels.source import headers, source, source_folder
from tests.kernels.compiled import NVRTC_MARKS
from tests.kernels.emulator.build import compiler

ROOT = Path(__file__).resolve().parent.parent.parent
LINUX = {"12": "nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "13": "nvidia/cu13/lib/libnvrtc.so.13"}
WINDOWS = {
    "12": "nvidia/cuda_nvrtc/bin/nvrtc64_120_0.dll",
    "13": "nvidia/cu13/bin/x86_64/nvrtc64_130_0.dll",
}

# A library that answers one question, to be found and called through CuPy's binding.
LIBRARY = "int nvrtcVersion(int* major, int* minor) { *major = MAJOR; *minor = 77; return 0; }\n"

# Site-packages that hold only the fake tree, once CuPy is imported from the real ones.
ASK = """
import site, sys
import cupy
site.getsitepackages = lambda: [sys.argv[1]]
site.ENABLE_USER_SITE = False
from auditkit.kernels.compile import Nvrtc
print(Nvrtc.load().version)
"""


def test_the_kernels_include_no_header_of_cuda() -> None:
    own = {name for name, _ in headers()}
    texts = [source(path.stem) for path in source_folder().glob("*.cu")] + [text for _, text in headers()]
    included = {name.decode() for text in texts for name in re.findall(rb'#\s*include\s*["<]([^">]+)[">]', text)}
    assert included <= own


class TestLookup:
    pytestmark = NVRTC_MARKS

    @pytest.mark.skipif(compiler() is None, reason="needs a C compiler on Linux, x86-64")
    @pytest.mark.parametrize("major", LINUX)
    def test_on_linux(self, major: str, tmp_path: Path) -> None:
        """The library of the wheel is loaded and called."""
        place = tmp_path / LINUX[major]
        place.parent.mkdir(parents=True)
        command = [str(compiler()), "-x", "c", f"-DMAJOR={major}", "-shared", "-fPIC", "-o", str(place), "-"]
        subprocess.run(command, input=LIBRARY, check=True, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-c", ASK, str(tmp_path)], cwd=ROOT, capture_output=True, encoding="utf-8", check=False
        )
        assert done.stdout.strip() == f"{major}.77", done.stderr

    @pytest.mark.parametrize("major", WINDOWS)
    def test_on_windows(self, major: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What pathfinder would load there."""
        module = "cuda.pathfinder._dynamic_libs."
        platforms: Any = pytest.importorskip(f"{module}search_platform", reason="inner parts of pathfinder have moved")
        libraries: Any = pytest.importorskip(f"{module}lib_descriptor", reason="inner parts of pathfinder have moved")

        def folders(parts: Any) -> list[str]:
            found = tmp_path.joinpath(*parts)
            return [str(found)] if found.is_dir() else []

        monkeypatch.setattr(platforms, "find_sub_dirs_all_sitepackages", folders)
        windows, nvrtc = platforms.WindowsSearchPlatform("x64"), libraries.LIB_DESCRIPTORS["nvrtc"]
        places = windows.site_packages_rel_dirs(nvrtc)
        assert windows.find_in_site_packages(places, nvrtc, [], []) is None
        place = tmp_path / WINDOWS[major]
        place.parent.mkdir(parents=True)
        place.write_bytes(b"MZ")
        assert Path(windows.find_in_site_packages(places, nvrtc, [], [])) == place
