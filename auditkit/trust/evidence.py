"""Keep what proves that a key signed two histories of one log: both checkpoints, and the proof that they differ."""

from __future__ import annotations

import base64
import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from auditkit.errors import Unsupported
from auditkit.formats.checkpoint import Checkpoint
from auditkit.formats.note import NoteKey, SignedNote
from auditkit.trust import disk

FOLDER = "evidence"
SMALLER, LARGER, PROOF, README = "smaller.txt", "larger.txt", "consistency.txt", "README.txt"

_HEAD = """\
Two checkpoints of one log, both signed by the key
{key}
They are of two histories: a log that only grows could not have signed both.

{smaller}: {small}
{larger}: {large}

"""
_SAME_SIZE = "Both have the same number of entries and different roots. Nothing more is needed to see it.\n"
_CONTINUED = """\
{proof} is a consistency proof of RFC 6962, section 2.1.2, in the layout of a request of C2SP tlog-witness. It leads
to the root of the larger checkpoint, and shows that the first {size} entries of that log have the root
{root}
which is not the root that the smaller checkpoint signs.
"""


@dataclass(frozen=True)
class Seen:
    """A checkpoint and the note that it was in."""

    note: SignedNote
    checkpoint: Checkpoint

    @property
    def name(self) -> str:
        """Size and root, as the name of a file."""
        return f"{self.checkpoint.size}-{self.checkpoint.root.hex()}"


@dataclass(frozen=True)
class Conflict:
    """Two checkpoints of two histories, the smaller one first.

    `proof` leads from the root that the larger log had at the smaller size, `root`, to the larger root; empty for equal
    sizes.
    """

    key: NoteKey
    smaller: Seen
    larger: Seen
    proof: tuple[bytes, ...] = ()
    root: bytes = b""

    def files(self) -> dict[str, bytes]:
        """The files of the evidence."""
        small, large = self.smaller.checkpoint, self.larger.checkpoint
        told = _HEAD.format(
            key=self.key.text, smaller=SMALLER, small=small.describe(), larger=LARGER, large=large.describe()
        )
        made = {SMALLER: self.smaller.note.encode(), LARGER: self.larger.note.encode()}
        if small.size == large.size:
            return {**made, README: (told + _SAME_SIZE).encode()}
        told += _CONTINUED.format(proof=PROOF, size=small.size, root=self.root.hex())
        return {**made, PROOF: request(small.size, self.proof, self.larger.note), README: told.encode()}


def request(old: int, proof: Sequence[bytes], note: SignedNote) -> bytes:
    """The body of a request to a witness (C2SP tlog-witness, add-checkpoint): old size, proof, checkpoint."""
    lines = [f"old {old}", *(base64.b64encode(found).decode("ascii") for found in proof)]
    return "".join(f"{line}\n" for line in lines).encode("ascii") + b"\n" + note.encode()


def keep(folder: Path, conflict: Conflict) -> Path:
    """Write the evidence into a folder of its own below `folder`, or of the system's temporary one, and return it.

    Unsupported: neither can be written.
    """
    name = f"{conflict.smaller.name[:24]}-{conflict.larger.name[:24]}"
    try:
        return _write(folder / name, conflict)
    except Unsupported:
        # the user's data may be read-only, and this must not get lost
        with disk.writing(Path(tempfile.gettempdir())):
            made = Path(tempfile.mkdtemp(prefix="auditkit-evidence-"))
        return _write(made, conflict)


def kept(folder: Path) -> Path | None:
    """Evidence that was kept below `folder` before, if any."""
    with contextlib.suppress(OSError):
        return min((path for path in folder.iterdir() if (path / README).is_file()), default=None)
    return None


def _write(folder: Path, conflict: Conflict) -> Path:
    with disk.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, data in conflict.files().items():  # README last: with it the evidence is complete
        disk.write(folder / name, data)
    return folder
