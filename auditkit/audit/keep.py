"""The files that attestations are kept in: step-7.1a2b3c4d.json, and step-7.1a2b3c4d.svr.json beside a match.

No file is ever replaced. A further attestation of the same step by the same key (it names another time, perhaps another
machine) becomes step-7.1a2b3c4d.2.json, then .3, each pair under one number.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from pathlib import Path

from auditkit.audit.attest import Signed
from auditkit.errors import Unsupported, UsageError
from auditkit.store.disk import reason
from auditkit.trust import key_files

HINT = "choose another folder, or make room"


def prepare(folder: Path) -> None:
    """Make the folder where it is missing, and see that it takes files. Unsupported: it does not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Unsupported(f"cannot write into {folder}: {reason(error)}", hint=HINT) from error


def keep(signed: Signed, folder: Path) -> list[Path]:
    """Write the files of one step under the first names that are free, and say which; files that are there already with
    these very bytes are those.

    Each file gets its name when it is complete. Unsupported: the disk refuses.
    """
    for number in itertools.count(1):
        files = [(folder / name, data) for name, data in signed.files(number)]
        if any(_holds_other(path, data) for path, data in files):
            continue
        if all(_kept(path, data) for path, data in files):
            return [path for path, _ in files]
    raise AssertionError("there is always another number")


def _kept(path: Path, data: bytes) -> bool:
    """Write the file, or see that it is there; False: another process was faster with something else of that name."""
    try:
        key_files.write_new(path, data, mode=0o644)
    except UsageError:
        if not path.parent.is_dir():
            raise Unsupported(f"cannot write into {path.parent}: the folder is gone", hint=HINT) from None
        return not _holds_other(path, data)
    return True


def _holds_other(path: Path, data: bytes) -> bool:
    """Whether something else than `data` is at `path`."""
    if not os.path.lexists(path):
        return False
    try:
        return path.is_symlink() or path.stat().st_size != len(data) or path.read_bytes() != data
    except OSError:
        return True
