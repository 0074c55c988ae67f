"""CUDA source -> cubin by NVRTC, for one architecture and with the one list of options; kept in a checked disk cache.

CuPy's own compiler entry points append -ftz=true after the caller's options (cupy issue 9576), so NVRTC is called
directly and CuPy only loads the finished cubin: nothing is compiled or linked after this point, so no later stage can
contract a multiplication and an addition or flush a subnormal.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from auditkit.errors import MachineFault, Unsupported
from auditkit.formats.digest import Hasher, content_digest
from auditkit.kernels import faults
from auditkit.kernels.source import headers, source
from auditkit.store.owner import is_own

OPTIONS = (
    "--std=c++17",
    "--fmad=false",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "-default-device",
)
ARCHITECTURES = ("75", "80", "86", "89", "90", "90a", "100", "120")  # what CI compiles; NVRTC decides about others
OLDEST = 75
_KEEPS = (12, 9)  # the first NVRTC that has a cache of its own, in the home folder, and that can be told to do without

# What is no fault of the machine (nvrtcResult): too little memory, an option or a source that this version does not
# know, a library that it opens and that is not there.
_REFUSED = {
    1: "free memory, or use --device cpu",
    5: "a newer card needs a newer compiler: update CuPy and its CUDA wheels",
    6: "a newer card needs a newer compiler: update CuPy and its CUDA wheels",
    7: "install NVRTC again: pip install --force-reinstall nvidia-cuda-nvrtc (or nvidia-cuda-nvrtc-cu12)",
}

_MARK = b"AUDITKIT-CUBIN1\n"


class Compiler(Protocol):
    """What turns source into a cubin: NVRTC, or a test's stand-in that counts calls."""

    @property
    def version(self) -> str: ...

    def __call__(self, text: bytes, name: str, options: tuple[str, ...]) -> bytes: ...


@dataclass(frozen=True)
class Nvrtc:
    """NVRTC through CuPy's binding. Raises Unsupported when the library is missing or refuses the source."""

    version: str

    @classmethod
    def load(cls) -> Nvrtc:
        """Find the library. Raises Unsupported with the remedy."""
        nvrtc = _binding()
        try:
            major, minor = nvrtc.getVersion()
        except (RuntimeError, ImportError, OSError) as error:
            raise Unsupported(
                f"NVRTC, CUDA's run-time compiler, could not be loaded ({faults.first_line(error)})",
                hint="install auditkit-verifier[cuda13], or [cuda12] for a driver of the 12 series",
            ) from error
        return cls(f"{major}.{minor}")

    def __call__(self, text: bytes, name: str, options: tuple[str, ...]) -> bytes:
        """The cubin of one source file.

        Raises Unsupported with the compiler's first complaint, or for too little memory; MachineFault where the
        compiler itself breaks.
        """
        nvrtc, known, program = _binding(), headers(), 0
        try:
            program = nvrtc.createProgram(
                text.decode("utf-8"), name, [body for _, body in known], [header.encode() for header, _ in known]
            )
            nvrtc.compileProgram(program, list(options))
            cubin: bytes = nvrtc.getCUBIN(program)
        except nvrtc.NVRTCError as error:
            what = f"NVRTC {self.version} cannot compile {name} with {options[0]}: {_log(nvrtc, program, error)}"
            if error.status in _REFUSED:
                raise Unsupported(what, hint=_REFUSED[error.status]) from error
            raise MachineFault(what, hint=faults.HINT) from error
        finally:
            with contextlib.suppress(nvrtc.NVRTCError):
                if program:
                    nvrtc.destroyProgram(program)
        return cubin


def _log(nvrtc: Any, program: int, error: Exception) -> str:
    """The compiler's first complaint, or what the error says."""
    log = ""
    with contextlib.suppress(nvrtc.NVRTCError):
        log = nvrtc.getProgramLog(program).strip() if program else ""
    return _complaint(log) if log else faults.first_line(error)


def _binding() -> Any:
    try:
        from cupy.cuda import nvrtc
    except ImportError as error:
        raise Unsupported(
            f"CuPy is not installed or does not load ({faults.first_line(error)})",
            hint="install auditkit-verifier[cuda13] (driver 580 or newer) or [cuda12]",
        ) from error
    return nvrtc


def target(op: str, architecture: str) -> str:
    """The architecture to compile cuda/<op>.cu for: a name with `_sm90` has instructions that only sm_90a knows."""
    return "90a" if op.endswith("_sm90") else architecture


def cubin(op: str, architecture: str, compiler: Compiler, cache: Path | None) -> bytes:
    """The cubin of cuda/<op>.cu for `sm_<architecture>` or its `target`, from the cache or compiled and cached.

    A cache entry is used only if its own digest fits; one that cannot be read or written is done without.
    Raises Unsupported when the compiler refuses.
    """
    options, text = _options(op, architecture, compiler.version), source(op)
    if cache is None:
        return compiler(text, f"{op}.cu", options)
    key = _key(text, options, compiler.version)
    path = _entry(cache, key)
    if (kept := _read(path, key)) is not None:
        return kept
    made = compiler(text, f"{op}.cu", options)
    with contextlib.suppress(OSError):  # a read-only or full cache costs time, never correctness
        _write(path, key, made)
    return made


def is_kept(op: str, architecture: str, version: str, cache: Path) -> bool:
    """Whether a cache has an entry for what `cubin` gives, whatever it holds. version: the compiler's."""
    path = _entry(cache, _key(source(op), _options(op, architecture, version), version))
    return os.path.exists(path)  # also where the folder may not be searched, and Path.exists raises


def _options(op: str, architecture: str, version: str) -> tuple[str, ...]:
    return f"--gpu-architecture=sm_{target(op, architecture)}", *OPTIONS, *afresh(version)


def afresh(version: str) -> tuple[str, ...]:
    """What makes a compiler of this version compile: what lies in its own cache nobody has checked."""
    return ("--no-cache",) if tuple(int(number) for number in version.split(".")) >= _KEEPS else ()


def _entry(cache: Path, key: str) -> Path:
    return cache / f"{key}.cubin"


def _key(text: bytes, options: tuple[str, ...], version: str) -> str:
    """Digest over everything that decides the cubin: source, headers, options, compiler. Lengths keep parts apart."""
    hasher = Hasher()
    for part in _parts(text, options, version):
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.hexdigest()


def _parts(text: bytes, options: tuple[str, ...], version: str) -> Iterator[bytes]:
    yield text
    for name, body in headers():
        yield name.encode()
        yield body
    yield from (option.encode() for option in options)
    yield version.encode()


def _head(key: str, body: bytes) -> bytes:
    """What an entry begins with: magic, then the digest of key and cubin, so that none passes under another's name."""
    return _MARK + content_digest(key.encode() + body).encode()


def _read(path: Path, key: str) -> bytes | None:
    """The cubin of a cache entry; None when it is not there, others can write it, or anything is amiss."""
    if not is_own(path):
        return None
    try:
        data = path.read_bytes()
    except OSError:
        return None
    body = data[len(_MARK) + 64 :]
    return body if body and data == _head(key, body) + body else None


def _write(path: Path, key: str, body: bytes) -> None:
    """Write under a name of its own, then rename: another process sees the whole entry or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem[:16], suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_head(key, body) + body)
        os.replace(name, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _complaint(log: str) -> str:
    """The first line of a compiler log that names an error, else its first line."""
    lines = log.splitlines()
    return next((line for line in lines if "error" in line), lines[0] if lines else "no message")
