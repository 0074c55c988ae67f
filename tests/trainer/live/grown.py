"""The tiny run, published while it is trained."""

from __future__ import annotations

from pathlib import Path

import auditkit
from auditkit.formats.run import RunManifest
from auditkit.trust.keys import PrivateKey, save_private
from auditkit.verdict import Verdict
from tests.trainer import tiny
from trainer import cli

KEY = PrivateKey(b"publisher of the growing run!!!!")


def options(folder: Path, *more: str) -> list[str]:
    """The options of a signed publication into `folder`/out."""
    key = folder / "key.pem"
    if not key.exists():
        save_private(key, KEY)
    return ["--publish", str(folder / "out"), "--name", "tiny", "--log-key", str(key), *more]


def published(work: Path, folder: Path, *more: str) -> Path:
    """What `publish` makes of a work folder, in `folder`/reference."""
    words = options(folder, *more)[2:]
    assert cli.main(["publish", str(work), str(folder / "reference"), *words]) == 0
    return folder / "reference"


def files(folder: Path) -> dict[str, bytes]:
    """All files of a folder by path."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_same(out: Path, reference: Path) -> None:
    """The same files to the byte, but for tiles that the log has had when it was shorter."""
    found, expected = files(out), files(reference)
    assert [path for path in expected if found.get(path) != expected[path]] == []
    more = sorted(set(found) - set(expected))
    assert all(path.startswith("log/tile/") and ".p/" in path for path in more), more


def manifest(out: Path) -> RunManifest:
    """What run.json says now."""
    return RunManifest.parse((out / "run.json").read_bytes())


def assert_verifies(run: Path | str, folder: Path, *, random: int = 1, seed: int = 0) -> None:
    """Random steps match, and the log continues the one that was seen before with the same `folder`."""
    report = auditkit.verify(
        str(run),
        random=random,
        seed=seed,
        device="cpu",
        threads=1,
        cache_dir=folder / "cache",
        data_dir=folder / "seen",
    )
    assert report.verdict is Verdict.MATCH, report.to_json()


def train(work: Path, folder: Path, *more: str) -> int:
    """The tiny run, published."""
    return tiny.run(work, *options(folder), *more)
