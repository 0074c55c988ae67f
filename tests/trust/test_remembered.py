"""Remembered checkpoints: a log that only grows, old mirrors, two histories and their evidence, races, bad disks."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from auditkit.errors import BadArtifact, Unavailable, Unsupported, Untrusted
from auditkit.formats import merkle
from auditkit.formats.checkpoint import Checkpoint
from auditkit.formats.note import SignedNote, decode_base64
from auditkit.trust import disk, notes, remembered
from auditkit.trust.log_reader import LogReader
from auditkit.trust.remembered import KEPT, Remembered, Split, data_dir
from tests.trust.logs import KEY, ORIGIN, OTHER, PRIVATE, Place, entries, files, reader, root_of, write


class Memory:
    """A data folder and what was said about it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said = folder, list[str]()

    def check(self, log: LogReader) -> str:
        """Compare a log with what was seen of it before."""
        return Remembered(KEY, ORIGIN, self.folder, self.said.append).check(log)

    def sizes(self) -> list[int]:
        """Sizes of the checkpoints kept."""
        return sorted(int(p.name.partition("-")[0]) for p in (self.folder / "checkpoints").glob("*/*-*"))


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    """A data folder that does not exist yet."""
    return Memory(tmp_path / "data")


@pytest.fixture
def log(tmp_path: Path) -> Callable[..., LogReader]:
    """Makes logs of a size, honest or forked at an entry."""

    def make(size: int, *, fork_at: int | None = None) -> LogReader:
        folder = tmp_path / f"{size}-{fork_at}"
        if not folder.exists():
            write(folder, entries(size, fork_at=fork_at))
        return reader(folder)

    return make


Make = Callable[..., LogReader]


def test_a_log_that_grows(memory: Memory, log: Make) -> None:
    assert memory.check(log(5)) == "not seen before on this machine"
    assert memory.check(log(5)) == "seen before on this machine"
    for before, size in ((5, 8), (8, 256), (256, 300), (300, 700)):
        assert memory.check(log(size)) == f"continues the {before} entries seen before on this machine"
    assert memory.sizes() == [5, 8, 256, 300, 700]
    assert memory.said == []


def test_an_old_mirror_that_was_seen_before_is_told(memory: Memory, log: Make) -> None:
    for size in (5, 300):
        memory.check(log(size))
    assert memory.check(log(5)) == "seen before on this machine; 300 entries were seen as well"
    assert memory.check(log(700)) == "continues the 300 entries seen before on this machine"


def test_an_older_state_must_be_shown_to_be_the_same_log(memory: Memory, log: Make, tmp_path: Path) -> None:
    memory.check(log(300))
    with pytest.raises(Unavailable, match="an older state of the log, 44 entries where 300 were seen before") as caught:
        memory.check(log(44))
    assert "--artifacts" in caught.value.hint
    # a place that has the tiles of the larger log, and an old checkpoint
    log(44)
    place = Place(tmp_path / "300-None")
    place.files["checkpoint"] = (tmp_path / "44-None" / "checkpoint").read_bytes()
    place.files |= {k: v for k, v in files(tmp_path / "44-None").items() if k != "checkpoint"}
    told = memory.check(LogReader(place, KEY))
    assert told == "an older state: the begin of the 300 entries seen before on this machine"
    assert memory.sizes() == [44, 300]
    assert memory.check(log(44)) == "seen before on this machine; 300 entries were seen as well"


def evidence_of(error: Split) -> dict[str, bytes]:
    """The files of the folder that a message names."""
    folder = Path(error.message.rpartition(" kept in ")[2])
    return files(folder)


def test_two_roots_of_one_size(memory: Memory, log: Make) -> None:
    memory.check(log(300))
    with pytest.raises(Split, match="has two histories") as caught:
        memory.check(log(300, fork_at=7))
    found = evidence_of(caught.value)
    assert set(found) == {"README.txt", "smaller.txt", "larger.txt"}
    roots = {notes.verify_checkpoint(SignedNote.parse(found[name]), KEY).root for name in ("smaller.txt", "larger.txt")}
    assert roots == {root_of(entries(300)), root_of(entries(300, fork_at=7))}
    assert all(root.hex() in caught.value.message for root in roots)
    assert memory.sizes() == [300]


@pytest.mark.parametrize(("old", "new", "fork_at"), [(300, 700, 7), (256, 300, 255), (5, 8, 0), (300, 301, 299)])
def test_a_rewritten_log_that_grew(memory: Memory, log: Make, old: int, new: int, fork_at: int) -> None:
    memory.check(log(old))
    with pytest.raises(Split, match="has two histories") as caught:
        memory.check(log(new, fork_at=fork_at))
    found = evidence_of(caught.value)
    assert set(found) == {"README.txt", "smaller.txt", "larger.txt", "consistency.txt"}
    check_evidence(found, old, new, root_of(entries(new, fork_at=fork_at)[:old]))


def check_evidence(found: dict[str, bytes], old: int, new: int, root: bytes) -> None:
    """What the evidence claims, by itself: signatures, and a proof from another root than the smaller one's."""
    small, large = (
        notes.verify_checkpoint(SignedNote.parse(found[name]), KEY) for name in ("smaller.txt", "larger.txt")
    )
    assert (small.size, large.size) == (old, new)
    head, _, note = found["consistency.txt"].partition(b"\n\n")
    first, *lines = head.decode().split("\n")
    assert (first, note) == (f"old {old}", found["larger.txt"])
    proof = [decode_base64(line, "proof") for line in lines]
    merkle.verify_consistency(old, new, proof, root, large.root)
    assert root != small.root
    assert root.hex() in found["README.txt"].decode()
    with pytest.raises(Untrusted):
        merkle.verify_consistency(old, new, proof, small.root, large.root)


def test_a_shorter_history_that_is_not_the_begin(memory: Memory, log: Make, tmp_path: Path) -> None:
    memory.check(log(300))
    log(44, fork_at=3)
    place = Place(tmp_path / "300-None")
    place.files |= files(tmp_path / "44-3")
    with pytest.raises(Split) as caught:
        memory.check(LogReader(place, KEY))
    check_evidence(evidence_of(caught.value), 44, 300, root_of(entries(44)))


def test_a_log_that_was_caught_stays_caught(memory: Memory, log: Make) -> None:
    memory.check(log(300))
    for _ in range(2):
        with pytest.raises(Split):
            memory.check(log(300, fork_at=7))
    with pytest.raises(Split, match="showed two histories before: see") as caught:
        memory.check(log(300))
    assert len(list((memory.folder / "evidence").glob("*/*"))) == 1
    assert Path(caught.value.message.rpartition("see ")[2]).is_dir()


def test_tiles_that_are_wrong_or_missing_accuse_nobody_of_a_fork(memory: Memory, log: Make, tmp_path: Path) -> None:
    memory.check(log(300))
    log(700)
    place = Place(tmp_path / "700-None")
    place.change("tile/0/001", lambda data: bytes(len(data)))
    with pytest.raises(BadArtifact):
        memory.check(LogReader(place, KEY))
    del place.files["tile/0/001"]
    with pytest.raises(Unavailable):
        memory.check(LogReader(place, KEY))
    assert memory.sizes() == [300]
    assert memory.check(log(700)).startswith("continues")


def test_logs_of_other_keys_and_origins_are_other_logs(memory: Memory, log: Make, tmp_path: Path) -> None:
    memory.check(log(300))
    write(tmp_path / "other", entries(300, fork_at=7), private=OTHER)
    key = notes.note_key(ORIGIN, OTHER.public)
    told = Remembered(key, ORIGIN, memory.folder, memory.said.append).check(reader(tmp_path / "other", key))
    assert told == "not seen before on this machine"
    assert len(list((memory.folder / "checkpoints").iterdir())) == 2


def test_a_damaged_memory_is_told_and_mended(memory: Memory, log: Make) -> None:
    memory.check(log(5))
    (kept,) = (memory.folder / "checkpoints").glob("*/*")
    whole = kept.read_bytes()
    for damage in (b"", whole[:-9], whole.replace(b"\n5\n", b"\n6\n"), b"x" * 300_000):
        kept.write_bytes(damage)
        assert memory.check(log(5)) == "not seen before on this machine"
        assert "damaged and not used" in memory.said[-1]
        assert kept.read_bytes() == whole
    other = kept.with_name(f"6-{'0' * 64}")
    other.write_bytes(whole)
    assert memory.check(log(5)) == "seen before on this machine"
    assert "another checkpoint than its name says" in memory.said[-1]
    other.unlink()
    other.mkdir()
    memory.check(log(5))
    assert "not a regular file" in memory.said[-1]
    for stranger in (".tmp-x", "notes.txt", "5-short"):
        kept.with_name(stranger).write_bytes(b"")
    memory.said.clear()
    other.rmdir()
    assert memory.check(log(5)) == "seen before on this machine"
    assert memory.said == []


def refuse_writes(monkeypatch: pytest.MonkeyPatch, below: Path) -> None:
    """A read-only file system below a folder, for root too."""
    real_open, real_mkdir = Path.open, Path.mkdir

    def opens(path: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
        if path.is_relative_to(below) and set(mode) & set("wxa+"):
            raise OSError(30, "Read-only file system", str(path))
        return real_open(path, mode, *args, **options)

    def mkdir(path: Path, *args: Any, **options: Any) -> None:
        if path.is_relative_to(below) and not path.is_dir():
            raise OSError(30, "Read-only file system", str(path))
        real_mkdir(path, *args, **options)

    monkeypatch.setattr(Path, "open", opens)
    monkeypatch.setattr(Path, "mkdir", mkdir)


@pytest.mark.parametrize("warm", [False, True])
def test_a_read_only_data_folder(
    memory: Memory, log: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, warm: bool
) -> None:
    log(5), log(8), log(8, fork_at=3)
    if warm:
        memory.check(log(5))
    refuse_writes(monkeypatch, memory.folder)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    assert memory.check(log(8)) == (
        "continues the 5 entries seen before on this machine" if warm else "not seen before on this machine"
    )
    assert "cannot be remembered for later" in memory.said[-1]
    assert "read-only" in memory.said[-1]
    if warm:
        with pytest.raises(Split) as caught:
            memory.check(log(8, fork_at=3))
        assert (tmp_path / "tmp").as_posix() in caught.value.message
        check_evidence(evidence_of(caught.value), 5, 8, root_of(entries(8, fork_at=3)[:5]))


def test_evidence_that_cannot_be_kept_anywhere_is_still_told(
    memory: Memory, log: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    memory.check(log(5))
    log(5, fork_at=3)
    refuse_writes(monkeypatch, memory.folder)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nothing"))
    with pytest.raises(Split, match="they could not be kept") as caught:
        memory.check(log(5, fork_at=3))
    assert root_of(entries(5)).hex() in caught.value.message


def test_two_histories_seen_at_the_same_moment(memory: Memory, log: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both processes looked before either wrote: the one that lists last finds the other's checkpoint."""
    forked, real_write = log(8, fork_at=3), disk.write

    def write_after_the_other(path: Path, data: bytes, **options: Any) -> None:
        monkeypatch.setattr(disk, "write", real_write)
        memory.check(forked)
        real_write(path, data, **options)

    monkeypatch.setattr(disk, "write", write_after_the_other)
    with pytest.raises(Split):
        memory.check(log(300))


def _look(data: Path, folder: Path, start: Any, found: Any) -> None:
    log = reader(folder)
    log.checkpoint()
    start.wait()
    try:
        found.put(Remembered(KEY, ORIGIN, data, lambda text: None).check(log))
    except Split:
        found.put("split")


def test_many_processes_at_once(memory: Memory, log: Make, tmp_path: Path) -> None:
    sizes = [5, 8, 8, 300, 300, 700]
    for size in sizes:
        log(size)
    memory.check(log(5))
    context = multiprocessing.get_context("spawn")
    start, found = context.Barrier(len(sizes)), context.Queue()
    workers = [
        context.Process(target=_look, args=(memory.folder, tmp_path / f"{size}-None", start, found)) for size in sizes
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        # 1: an older state without the tiles of the newer one, when another process was faster
        assert worker.exitcode in (0, 1)
    told = [found.get() for worker in workers if worker.exitcode == 0]
    assert "split" not in told
    assert not (memory.folder / "evidence").exists()
    assert not list(memory.folder.rglob(".tmp-*"))
    assert memory.sizes()[0] == 5


def test_a_split_between_processes_is_found_by_one_of_them(memory: Memory, log: Make, tmp_path: Path) -> None:
    log(300), log(300, fork_at=7)
    context = multiprocessing.get_context("spawn")
    start, found = context.Barrier(2), context.Queue()
    folders = [tmp_path / "300-None", tmp_path / "300-7"]
    workers = [context.Process(target=_look, args=(memory.folder, folder, start, found)) for folder in folders]
    for worker in workers:
        worker.start()
    told = [found.get() for _ in workers]
    for worker in workers:
        worker.join()
    assert "split" in told
    with pytest.raises(Split):
        memory.check(log(300))


def test_the_number_of_kept_checkpoints_is_bounded(memory: Memory, monkeypatch: pytest.MonkeyPatch, log: Make) -> None:
    monkeypatch.setattr(remembered, "KEPT", 3)
    for size in (1, 2, 3, 4, 5, 6):
        memory.check(log(size))
    assert memory.sizes() == [4, 5, 6]
    assert KEPT == 64


def test_the_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUDITKIT_DATA", str(tmp_path / "x"))
    assert data_dir() == tmp_path / "x"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUDITKIT_DATA", "x")
    assert data_dir() == tmp_path / "x"
    monkeypatch.delenv("AUDITKIT_DATA")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    assert os.name == "nt" or "auditkit" in str(data_dir())
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.setenv("AUDITKIT_DATA", "~/x")
    with pytest.raises(Unsupported, match="no home folder"):
        data_dir()
    monkeypatch.delenv("AUDITKIT_DATA")

    def refuse(*names: str, **options: object) -> str:
        raise RuntimeError("could not determine the home directory")

    monkeypatch.setattr("platformdirs.user_data_dir", refuse)
    with pytest.raises(Unsupported, match="no home folder"):
        data_dir()


def test_a_checkpoint_without_entries_is_the_begin_of_every_log(memory: Memory, log: Make) -> None:
    empty = notes.sign(Checkpoint(ORIGIN, 0, merkle.EMPTY_ROOT).text(), ORIGIN, PRIVATE)
    memory.check(log(5).at(empty))
    assert memory.check(log(5)) == "continues the 0 entries seen before on this machine"
