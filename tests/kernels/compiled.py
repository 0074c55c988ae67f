"""Kernels compiled by NVRTC as the product does, with the PTX on the way and ptxas's words; kept in build/compiled."""

from __future__ import annotations

import functools
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from auditkit.errors import Unsupported
from auditkit.formats.digest import Hasher
from auditkit.kernels.compile import OPTIONS, Nvrtc, afresh
from auditkit.kernels.source import source_folder

ROOT = Path(__file__).resolve().parent.parent.parent
KEPT = ROOT / "build" / "compiled"
SOURCES = Path(__file__).resolve().parent / "sources"
_INCLUDE = re.compile(rb'^\s*#include "([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Compiled:
    """One source for one architecture."""

    cubin: bytes
    ptx: str
    log: str


@functools.cache
def _version() -> str:
    try:
        return Nvrtc.load().version
    except Unsupported:
        return ""


# `pytestmark = NVRTC_MARKS`: cupy with its NVRTC can be installed and compiles without a card.
NVRTC_MARKS = [
    pytest.mark.skipif(not _version(), reason="needs CuPy and NVRTC"),
    pytest.mark.optional("CuPy has wheels for Linux and Windows only; a CI job on Linux installs it"),
]


def texts(source: Path) -> dict[str, bytes]:
    """A source and the headers it includes, directly or not: name -> text."""
    found = {source.name: source.read_bytes()}
    waiting = [source.name]
    while waiting:
        for name in _INCLUDE.findall(found[waiting.pop()]):
            if (header := name.decode()) not in found:
                found[header] = (source_folder() / header).read_bytes()
                waiting.append(header)
    return found


def compiled(source: Path, architecture: str, extra: tuple[str, ...] = ()) -> Compiled:
    """The product's compilation of a .cu file, with `extra` options after its own."""
    own = (*OPTIONS, *afresh(_version()), *extra)
    options = (f"--gpu-architecture=sm_{architecture}", *own, "--ptxas-options=-v")
    known = texts(source)
    hasher = Hasher()
    for part in [
        _version().encode(),
        *(o.encode() for o in options),
        *(p for pair in known.items() for p in _bytes(pair)),
    ]:
        hasher.update(len(part).to_bytes(8, "little") + part)
    folder = KEPT / f"{source.stem}-{architecture}-{hasher.hexdigest()[:24]}"
    if not folder.exists():
        _compile(known, source.name, options, folder)
    return Compiled(
        (folder / "cubin").read_bytes(),
        (folder / "ptx").read_text(encoding="utf-8"),
        (folder / "log").read_text(encoding="utf-8"),
    )


def _bytes(pair: tuple[str, bytes]) -> tuple[bytes, bytes]:
    return pair[0].encode(), pair[1]


def _compile(known: dict[str, bytes], name: str, options: tuple[str, ...], folder: Path) -> None:
    from cupy.cuda import nvrtc

    headers = [header for header in known if header != name]
    program = nvrtc.createProgram(
        known[name].decode(), name, [known[header] for header in headers], [header.encode() for header in headers]
    )
    try:
        nvrtc.compileProgram(program, list(options))
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT) as made:
            part = Path(made) / "entry"
            part.mkdir()
            (part / "cubin").write_bytes(nvrtc.getCUBIN(program))
            ptx = nvrtc.getPTX(program)
            (part / "ptx").write_text(ptx.decode() if isinstance(ptx, bytes) else ptx, encoding="utf-8")
            (part / "log").write_text(nvrtc.getProgramLog(program), encoding="utf-8")
            if not folder.exists():
                os.replace(part, folder)
    except nvrtc.NVRTCError as error:
        raise AssertionError(f"{name}, {options[0]}:\n{nvrtc.getProgramLog(program)}") from error
    finally:
        nvrtc.destroyProgram(program)
