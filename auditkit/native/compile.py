"""C sources -> a shared library by the machine's own compiler, kept in a checked disk cache.

Not needed: without a compiler, or on another processor than x86-64 with AVX2, the NumPy reference computes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from auditkit.errors import Unsupported
from auditkit.formats.digest import Hasher, content_digest
from auditkit.store.disk import reason
from auditkit.store.owner import is_own

# Nothing here lets a compiler change a result: no fast-math, no contraction, and with AVX2 alone no fused operation to
# contract to. The last two only say that nobody reads errno or the floating-point exceptions.
OPTIONS = (
    "-std=gnu11", "-O2", "-ftree-vectorize", "-mavx2", "-mno-fma", "-ffp-contract=off", "-fno-strict-aliasing",
    "-fno-math-errno", "-fno-trapping-math", "-fPIC",
)  # fmt: skip
COMPILERS = ("cc", "gcc", "clang")
FOLDER = "native"  # of the cache, for code of this machine
SECONDS = 120  # that a compiler may take
_SOURCE = Path(__file__).resolve().parent / "source"


@functools.cache
def sources() -> tuple[tuple[str, bytes], ...]:
    """(name, text) of every source and header, sorted by name."""
    found = sorted([*_SOURCE.glob("*.c"), *_SOURCE.glob("*.h")])
    return tuple((path.name, path.read_bytes().replace(b"\r\n", b"\n")) for path in found)


def compiler() -> str:
    """The path of the C compiler. Raises Unsupported where there is none."""
    found = next((path for path in map(shutil.which, COMPILERS) if path is not None), None)
    if found is None:
        raise Unsupported("there is no C compiler", hint="install gcc or clang")
    return found


def find(cache: Path) -> Path | None:
    """The library that was compiled from these sources before, if its bytes have the digest in its name.

    Its code runs here: so only one that nobody but this user, or root, could have put there.
    """
    folder = cache / FOLDER
    return _find(folder, _key()) if _is_known() and is_own(folder) else None


def make(cache: Path | None) -> Path:
    """The library compiled now, into the cache; into temporary files where there is none that takes it, or where others
    can write there.

    Raises Unsupported on another kind of machine, without a compiler, where it refuses, or nothing can be written.
    """
    if not _is_known():
        raise Unsupported("the C ops are for Linux and macOS on x86-64", hint="--device cpu")
    try:
        folder = None if cache is None else _own(cache / FOLDER)
        return _compile(compiler(), _key(), folder or Path(tempfile.mkdtemp(prefix="auditkit-")))
    except OSError as error:
        raise Unsupported(f"the C ops cannot be compiled: {reason(error)}") from error


def _own(folder: Path) -> Path | None:
    """The folder, made where it is missing; None where it cannot be written, or by others as well."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if is_own(folder) and os.access(folder, os.W_OK) else None


def _is_known() -> bool:
    return platform.machine() in ("x86_64", "AMD64") and os.name == "posix"


def _key() -> str:
    """Digest over sources, options and kind of system. Lengths keep parts apart. The compiler is left out: known
    answers judge it.
    """
    hasher = Hasher()
    for name, text in sources():
        for part in (name.encode(), text):
            hasher.update(len(part).to_bytes(8, "little"))
            hasher.update(part)
    here = (sys.platform, platform.machine(), *platform.libc_ver())
    hasher.update("\n".join((*OPTIONS, *here)).encode())
    return hasher.hexdigest()[:32]


def _find(cache: Path, key: str) -> Path | None:
    for path in sorted(cache.glob(f"{key}-*.so")):
        with contextlib.suppress(OSError):
            if is_own(path) and path.name == f"{key}-{content_digest(path.read_bytes())}.so":
                return path
    return None


def _compile(path: str, key: str, folder: Path) -> Path:
    """Each file at the same time, under names of their own first: another process sees the whole entry or none."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=f"{key[:16]}.") as work, ThreadPoolExecutor() as pool:
        for name, text in sources():
            (Path(work) / name).write_bytes(text)
        files = [name for name, _ in sources() if name.endswith(".c")]
        list(pool.map(lambda name: _run([path, *OPTIONS, "-c", name, "-o", f"{name}.o"], work), files))
        made = Path(work) / "library.so"
        _run([path, "-shared", "-o", str(made), *(f"{name}.o" for name in files)], work)
        made.chmod(0o700)
        entry = folder / f"{key}-{content_digest(made.read_bytes())}.so"
        os.replace(made, entry)
    return entry


def _run(command: list[str], folder: str) -> None:
    """Run a program. Raises Unsupported with its first complaint."""
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, encoding="utf-8", errors="replace", timeout=SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Unsupported(f"{command[0]} does not run: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["failed"]
        raise Unsupported(f"{command[0]} cannot compile the C ops: {lines[0]}")
