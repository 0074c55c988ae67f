"""cuda/<op>.cu -> a shared library for this CPU, by the system's C++ compiler; kept in build/emulator by digest."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
BUILD = ROOT / "build" / "emulator"
RUNTIME = ("scheduler.cpp", "collective.cpp", "access.cpp", "clocks.cpp", "asynchronous.cpp", "product.cpp")

# IEEE binary32 and binary64 exactly as written: no contraction, no extra precision; integers wrap as on the device.
STRICT = (
    "-std=c++17",
    "-U_FORTIFY_SOURCE",  # its longjmp refuses stacks of our own; Ubuntu sets it by default
    "-O1",
    "-ffp-contract=off",
    "-fno-fast-math",
    "-fwrapv",
    "-fPIC",
    "-fvisibility=hidden",
    "-g1",
    "-msse2",
    "-mfpmath=sse",
)
# The emulator itself computes on integers only; SSE4.1, which all of these processors have, knows their maximum.
FAST = ("-O3", "-msse4.1")
# The calls these insert go to access.cpp; the sanitizers' own libraries are not linked.
CHECKS = (
    "-fsanitize=thread",
    "-fsanitize=shift-exponent,integer-divide-by-zero,bounds,float-cast-overflow,alignment",
)
WARNINGS = ("-Wall", "-Wextra", "-Wno-unused-function", "-Wno-unused-variable", "-Wno-unknown-pragmas", "-Wno-psabi")

_INSIDE = r"\((?:[^()]|\([^()]*\))*\)"
_ATTRIBUTE = rf"__(launch_bounds|cluster_dims)__\s*({_INSIDE})"
_ATTRIBUTES = rf"((?:__(?:launch_bounds|cluster_dims)__\s*{_INSIDE}\s*)*)"
_KERNEL = re.compile(rf"__emu_global__\s+{_ATTRIBUTES}void\s+{_ATTRIBUTES}(\w+)\s*\(")
_DYNAMIC = re.compile(r"\bextern\s+__emu_shared__\s+(?:__attribute__\s*\(\(.*?\)\)\s*)?(\w+)\s+(\w+)\s*\[\s*\]\s*;")

_STATIC = re.compile(r"__emu_shared__\s+([^;]*);")
_INCLUDE = re.compile(rb'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


class BuildError(AssertionError):
    """The C++ compiler refused a kernel source or is missing."""


@functools.cache
def compiler() -> str | None:
    """The C++ compiler to use; None without one, and elsewhere than on Linux on x86-64, the only stacks it knows."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    return next((found for name in ("g++", "c++", "clang++") if (found := shutil.which(name))), None)


@functools.cache
def _version() -> str:
    return _run([str(compiler()), "--version"])


def _run(command: list[str], text: str | None = None) -> str:
    done = subprocess.run(command, input=text, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stderr[:8000]}")
    return done.stdout


def _cached(name: str, parts: list[bytes], suffix: str, make: Callable[[Path], object]) -> Path:
    hasher = hashlib.sha256()
    for part in [_version().encode(), repr((STRICT, CHECKS, FAST)).encode(), *parts]:
        hasher.update(len(part).to_bytes(8, "little") + part)
    path = BUILD / f"{name}-{hasher.hexdigest()[:24]}{suffix}"
    if not path.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        handle, part_name = tempfile.mkstemp(dir=BUILD, suffix=suffix)
        os.close(handle)
        try:
            make(Path(part_name))
            os.replace(part_name, path)
        finally:
            Path(part_name).unlink(missing_ok=True)
    return path


@functools.cache
def _runtime(name: str) -> Path:
    command = [str(compiler()), *STRICT, *FAST, *WARNINGS, "-c", str(HERE / name), "-o"]
    parts = [path.read_bytes() for path in (HERE / name, HERE / "runtime.hpp", HERE / "scheduler.hpp")]
    return _cached(name.removesuffix(".cpp"), parts, ".o", lambda out: _run([*command, str(out)]))


@functools.cache
def _mark(symbol: str) -> Path:
    """An object file of one byte: linked before and after a kernel's, it shows where the kernel's static data lies."""
    text = f'extern "C" {{ char {symbol}[1]; }}'
    command = [str(compiler()), *STRICT, "-c", "-x", "c++", "-", "-o"]
    return _cached(symbol, [text.encode()], ".o", lambda out: _run([*command, str(out)], text))


def _headers(source: Path) -> list[bytes]:
    """Names and texts of all that a source includes, directly or not, whichever of both folders it comes from."""
    found: list[bytes] = []
    waiting, seen = [source.read_bytes()], set[bytes]()
    while waiting:
        for name in _INCLUDE.findall(waiting.pop()):
            if name not in seen:
                seen.add(name)
                places = dict.fromkeys(folder / name.decode() for folder in (source.parent, ROOT / "cuda"))
                texts = [path.read_bytes() for path in places if path.is_file()]
                found += [name, *texts]
                waiting += texts
    return found


def library(source: Path, architecture: str) -> Path:
    """The library of one .cu file for the `__CUDA_ARCH__` of an architecture. Raises BuildError."""
    own = (*sorted(path.name for path in HERE.glob("*.hpp")), *RUNTIME, "build.py")
    parts = [*_headers(source), *((HERE / name).read_bytes() for name in own)]
    return _cached(
        f"{source.stem}-{architecture}",
        [architecture.encode(), source.read_bytes(), *parts],
        ".so",
        lambda out: _make(source, architecture, out),
    )


def _make(source: Path, architecture: str, out: Path) -> None:
    command = [str(compiler()), *STRICT, f"-I{HERE}", f"-I{source.parent}", f"-I{ROOT / 'cuda'}"]
    number = re.match(r"\d+", architecture)
    assert number is not None
    defines = [f"-D__CUDA_ARCH__={number[0]}0", "-D__global__=__emu_global__", "-D__shared__=__emu_shared__"]
    if architecture.endswith("a"):
        defines.append(f"-D__CUDA_ARCH_FEAT_SM{number[0]}_ALL")
    text = f'#include "cuda_host.hpp"\n#include "{source}"\n'
    text = _run([*command, *defines, "-E", "-x", "c++", "-"], text)
    with tempfile.TemporaryDirectory() as folder:
        unit, made = Path(folder) / f"{source.stem}.cpp", Path(folder) / "unit.o"
        unit.write_text(_rewritten(text), encoding="utf-8")
        _run([*command, *CHECKS, *WARNINGS, "-c", str(unit), "-o", str(made)])
        runtime = (str(_runtime(name)) for name in RUNTIME)
        begin, end = (str(_mark(f"emu_shared_{name}")) for name in ("begin", "end"))
        _run([str(compiler()), "-shared", "-o", str(out), begin, str(made), end, *runtime])


def _rewritten(text: str) -> str:
    """Preprocessed CUDA as C++: shared arrays get their place, and a table of the kernels is appended."""
    kernels = [(m[3], dict(re.findall(_ATTRIBUTE, m[1] + m[2]))) for m in _KERNEL.finditer(text)]
    text = re.sub(_ATTRIBUTE, "", text).replace("__emu_global__", "")
    text = _DYNAMIC.sub(r"\1* const \2 = (\1*)emu_dynamic_base();", text)
    text = _STATIC.sub(lambda m: f"static {m[1]}; {_escapes(m[1])}", text)
    rows = "".join(
        f'{{"{name}", emu_trampoline<&{name}>::kinds, &emu_trampoline<&{name}>::call, '
        f"emu_first{has.get('launch_bounds', '()')}, emu_first{has.get('cluster_dims', '()')}}},\n"
        for name, has in kernels
    )
    export = '__attribute__((visibility("default")))'
    return (
        f'{text}\nextern "C" {export} const emu_kernel emu_kernels[];\n'
        f'extern "C" {export} const int emu_kernel_count;\n'
        f"const emu_kernel emu_kernels[] = {{\n{rows}{{nullptr, nullptr, nullptr, 0, 0}}}};\n"
        f"const int emu_kernel_count = {len(kernels)};\n"
    )


def _escapes(declaration: str) -> str:
    """Statements that let the address of each shared variable escape: accesses to a static that only its function knows
    cannot be another thread's to the compiler, and are not checked.
    """
    declarators = re.sub(r"\[[^\]]*\]|<[^>]*>", "", declaration).split(",")
    names = [found[-1] for part in declarators if (found := re.findall(r"\w+", part))]
    return " ".join(f"emu_escape(&{name});" for name in names)


class Kernel(ctypes.Structure):
    """One row of the table of kernels (runtime.hpp)."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("kinds", ctypes.c_char_p),
        ("call", ctypes.c_void_p),
        ("bound", ctypes.c_int),
        ("cluster", ctypes.c_int),
    )


def place_of(library_path: Path, offset: str) -> str:
    """File and line of a code offset, "" when addr2line is not there."""
    tool = shutil.which("addr2line")
    if tool is None:
        return ""
    found = _run([tool, "-e", str(library_path), f"0x{int(offset, 16) - 1:x}"]).strip()
    return "" if found.startswith("??") else found.rsplit("/", 1)[-1]
