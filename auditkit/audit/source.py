"""The digest of the verifier's own source: which program made an attestation, to anyone who has the same sources.

It is a statement and no proof, for a changed program may say what it likes. A checkout and an installed wheel of the
same sources have the same digest.
"""

from __future__ import annotations

import functools
from pathlib import Path

from auditkit.formats import canonical
from auditkit.formats.digest import Digest, content_digest, root
from auditkit.kernels.source import source_folder
from auditkit.store.disk import reading

SOURCE_ROOT = "auditkit source root v1"
FORMAT = "auditkit/source/v1"
# The program, the specification and its known answers, the page, the kernels. What else lies in a folder is no source.
SUFFIXES = frozenset({".c", ".css", ".cu", ".cuh", ".h", ".html", ".js", ".json", ".md", ".py"})

_PACKAGE = Path(__file__).resolve().parent.parent


@functools.cache
def source_digest() -> Digest:
    """BLAKE3, context SOURCE_ROOT, of the canonical document that lists every file by path and content digest.

    Unsupported: files are missing or cannot be read.
    """
    files: list[canonical.Value] = [{"digest": digest, "path": path} for path, digest in sorted(source_files().items())]
    return root(SOURCE_ROOT, canonical.dumps({"files": files, "format": FORMAT}, what="source"))


def source_files() -> dict[str, Digest]:
    """The content digest of each file by its path in the repository, `auditkit/cli/main.py` or `cuda/common.cuh`.

    Line ends count as LF, for a checkout may have made them CRLF. Unsupported: as `source_digest`.
    """
    kernels = source_folder()
    return _listed(_PACKAGE, "auditkit", apart=kernels) | _listed(kernels, "cuda")


def _listed(folder: Path, name: str, apart: Path | None = None) -> dict[str, Digest]:
    """The sources below a folder, but for those below `apart`."""
    found = {}
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        if path.suffix not in SUFFIXES or any(part.startswith(".") for part in parts) or not path.is_file():
            continue
        if apart is None or apart not in path.parents:
            found["/".join((name, *parts))] = content_digest(_read(path))
    return found


def _read(path: Path) -> bytes:
    with reading(path):
        return path.read_bytes().replace(b"\r\n", b"\n")
