"""A folder of text files as a sequence of documents, byte for byte."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from auditkit.errors import BadArtifact, Unavailable, UsageError
from auditkit.formats.fields import check_text
from trainer.data.document import Limit
from trainer.disk import read_bytes

SUFFIX = ".txt"
_RENAME = "documents are called by the names of their files: rename it"


@dataclass(frozen=True)
class TextFolder:
    """The documents of a folder: every `*.txt` file directly in it, in the order of the UTF-8 bytes of the NFC names.

    Names are normalised since macOS may hand out decomposed ones: the same files give the same corpus everywhere.
    `ignored` counts the other entries; names that begin with a dot are not even counted (macOS leaves `._x.txt`).
    """

    documents: tuple[tuple[str, Path], ...]
    ignored: int

    @property
    def size(self) -> int:
        """Bytes of all texts."""
        return sum(path.stat().st_size for _, path in self.documents)

    def read(self) -> Iterator[tuple[str, bytes, str]]:
        """Name, bytes and text of each document; raises `BadArtifact` with file and offset where it is not UTF-8."""
        for name, path in self.documents:
            data = read_bytes(path)
            yield name, data, _decode(path, data)


def open_folder(folder: Path, limit: Limit | None = None) -> TextFolder:
    """A folder's documents; raises `Unavailable`, `UsageError` if there is none, `BadArtifact` naming a bad one.

    A text beyond `limit` is refused as well.
    """
    if not folder.is_dir():
        raise Unavailable(f"{folder}: not a folder")
    entries = [path for path in folder.iterdir() if not path.name.startswith(".")]
    texts = [path for path in entries if path.suffix == SUFFIX and path.is_file()]
    for path in sorted(entries):
        if path.suffix == SUFFIX and not path.is_file() and not path.is_dir():
            what = "a link that leads to no file" if path.is_symlink() else "not a regular file"
            raise BadArtifact(f"{path}: {what}", hint="put the file there, or leave the name out")
    if not texts:
        raise UsageError(
            f"{folder}: no {SUFFIX} file in it",
            hint=f"a document is one UTF-8 file named *{SUFFIX}; --source reads *.jsonl, *.parquet and *.zst as well",
        )
    documents = sorted(((_name(path), path) for path in texts), key=lambda pair: pair[0].encode("utf-8"))
    for (name, path), (other, twin) in zip(documents, documents[1:], strict=False):
        if name == other:
            raise BadArtifact(f"{path.name!r} and {twin.name!r} are one name in Unicode form NFC")
    for _, path in documents if limit is not None else ():
        assert limit is not None
        limit.check(path.stat().st_size, str(path))
    return TextFolder(tuple(documents), len(entries) - len(texts))


def _name(path: Path) -> str:
    """The document's name. BadArtifact where a corpus cannot have such a one: now, and not when all is tokenised."""
    name = unicodedata.normalize("NFC", path.name)
    try:
        name.encode("utf-8")
        return check_text(name, f"{str(path)!r}: name")
    except UnicodeEncodeError as error:
        raise BadArtifact(f"{path.name!r}: the file name is not valid Unicode", hint=_RENAME) from error
    except BadArtifact as error:
        error.hint = _RENAME
        raise


def _decode(path: Path, data: bytes) -> str:
    # Strict, and no newline translation or BOM removal: the tokens must give back exactly these bytes.
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadArtifact(
            f"{path}: not UTF-8 at byte {error.start} (0x{data[error.start]:02x}: {error.reason})",
            hint="convert the file to UTF-8, or leave it out",
        ) from error
