"""The CUDA sources: `cuda/<op>.cu` of a checkout, or the copies inside an installed wheel."""

from __future__ import annotations

import functools
from pathlib import Path

from auditkit.errors import Unsupported

COMMON = "common.cuh"
_PACKAGE = Path(__file__).resolve().parent


@functools.cache
def source_folder() -> Path:
    """Where the sources lie. Raises Unsupported when an installation lost them."""
    for folder in (_PACKAGE / "cuda_source", _PACKAGE.parent.parent / "cuda"):
        if (folder / COMMON).is_file():
            return folder
    raise Unsupported("the CUDA sources are missing from this installation", hint="reinstall auditkit-verifier")


@functools.cache
def headers() -> tuple[tuple[str, bytes], ...]:
    """(name, text) of every header, sorted by name."""
    found = sorted(source_folder().glob("*.cuh"))
    return tuple((path.name, path.read_bytes().replace(b"\r\n", b"\n")) for path in found)


@functools.cache
def source(op: str) -> bytes:
    """The text of cuda/<op>.cu. Raises Unsupported when it is missing."""
    path = source_folder() / f"{op}.cu"
    try:
        return path.read_bytes().replace(b"\r\n", b"\n")
    except OSError as error:
        raise Unsupported(f"cannot read the CUDA source {path}", hint="reinstall auditkit-verifier") from error
