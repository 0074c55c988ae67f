"""The log writer: files of the specification, appends in any cut, crashes at every write, refusals, size, memory."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from auditkit.errors import AuditkitError, BadArtifact, Unavailable, Unsupported, Untrusted, UsageError
from auditkit.formats import tiles
from auditkit.store import lock
from auditkit.trust import notes
from auditkit.trust.log_writer import LogWriter
from tests.trust.logs import KEY, ORIGIN, OTHER, PRIVATE, entries, files, reader, root_of, write


def expected_files(size: int) -> set[str]:
    """The paths of a log of this size that was written at once, by the formulas of tlog-tiles."""
    found, level = {"checkpoint"}, 0
    while size >> 8 * level:
        count = size >> 8 * level
        widths = [256] * (count // 256) + ([count % 256] if count % 256 else [])
        for index, width in enumerate(widths):
            found.add(tiles.tile_path(level, index, width))
            if level == 0:
                found.add(tiles.entries_path(index, width))
        level += 1
    return found


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 512, 700])
def test_the_files_are_those_of_the_specification(tmp_path: Path, size: int) -> None:
    made = entries(size)
    found = write(tmp_path / "log", made)
    assert (found.origin, found.size, found.root) == (ORIGIN, size, root_of(made))
    assert set(files(tmp_path / "log")) == expected_files(size)
    assert reader(tmp_path / "log").entries(0, size) == made
    assert (tmp_path / "log" / "checkpoint").read_bytes().startswith(f"{ORIGIN}\n{size}\n".encode())


def test_a_log_of_three_levels(tmp_path: Path) -> None:
    """The example of tlog-tiles: 70,000 entries fill 273 tiles and 112 hashes, 1 tile and 17, and 1."""
    made = entries(70_000)
    assert write(tmp_path / "log", iter(made)).root == root_of(made)
    found = files(tmp_path / "log")
    assert len(found) == 1 + 2 * 274 + 2 + 1
    assert {"tile/0/273.p/112", "tile/1/000", "tile/1/001.p/17", "tile/2/000.p/1", "tile/entries/272"} <= set(found)
    log = reader(tmp_path / "log")
    assert [log.entry(i) for i in (0, 65_535, 65_536, 69_999)] == [made[i] for i in (0, 65_535, 65_536, 69_999)]


@pytest.mark.parametrize("cuts", [(1, 2, 3), (255, 256, 257), (100, 300, 511, 512), (256, 512, 700)])
def test_a_log_that_grew_is_the_log_written_at_once(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    made, before = entries(cuts[-1]), 0
    for cut in cuts:
        found = write(tmp_path / "log", made[before:cut])
        assert (found.size, found.root) == (cut, root_of(made[:cut]))
        assert reader(tmp_path / "log").entries(0, cut) == made[:cut]
        before = cut
    write(tmp_path / "whole", made)
    grown, whole = files(tmp_path / "log"), files(tmp_path / "whole")
    assert whole.items() <= grown.items()
    # what is left besides are partial tiles of sizes that had a checkpoint, of tiles that are not full yet
    left = set(grown) - set(whole)
    assert all(".p/" in name and name.partition(".p/")[0] not in grown for name in left)


def test_the_same_entries_again_change_nothing(tmp_path: Path) -> None:
    made, writer = entries(300), LogWriter(tmp_path / "log", ORIGIN, PRIVATE)
    writer.append(made)
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "log").rglob("*")}
    for given, at in ((made, 0), (made[:7], 0), (made[200:], 200), ([], 0), ([], None), (made[3:9], 3)):
        assert writer.append(given, at=at) == writer.checkpoint()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "log").rglob("*")} == stamps


def test_a_whole_list_may_be_given_again_with_more(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "log", ORIGIN, PRIVATE)
    for size in (5, 5, 260, 300):
        assert writer.append(entries(size), at=0).size == size
    assert reader(tmp_path / "log").entries(0, 300) == entries(300)
    assert writer.append([b"x", b"y"], at=300).size == 302
    assert writer.append([b"y", b"z"], at=301).size == 303


@pytest.mark.parametrize("fork_at", [0, 5, 255, 256, 299])
def test_another_history_is_refused_and_nothing_is_signed(tmp_path: Path, fork_at: int) -> None:
    writer = LogWriter(tmp_path / "log", ORIGIN, PRIVATE)
    writer.append(entries(300))
    before = files(tmp_path / "log")
    with pytest.raises(UsageError, match=f"entry {fork_at} of the log is another one"):
        writer.append(entries(400, fork_at=fork_at), at=0)
    with pytest.raises(UsageError, match="hole"):
        writer.append([b"x"], at=301)
    assert files(tmp_path / "log") == before


def test_another_key_or_origin_does_not_continue_a_log(tmp_path: Path) -> None:
    write(tmp_path / "log", entries(3))
    with pytest.raises(Untrusted):
        write(tmp_path / "log", [b"x"], private=OTHER)
    with pytest.raises(Untrusted):
        write(tmp_path / "log", [b"x"], origin="log.example/two")
    with pytest.raises(BadArtifact):
        LogWriter(tmp_path / "log", "two words", PRIVATE)


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("tile/0/001.p/44", lambda data: data[:-1] + b"\0"),
        ("tile/0/001.p/44", lambda data: data[:-1]),
        ("tile/0/001.p/44", None),
        ("tile/1/000.p/1", lambda data: bytes(32)),
        ("tile/entries/001.p/44", lambda data: data[:-1] + b"\0"),
        ("tile/entries/001.p/44", None),
        ("checkpoint", lambda data: data.replace(b"\n300\n", b"\n299\n")),
        ("checkpoint", lambda data: data[:-1]),
        ("checkpoint", lambda data: b"x" * 300_000),
    ],
)
def test_a_damaged_log_is_not_continued(tmp_path: Path, name: str, edit: Callable[[bytes], bytes] | None) -> None:
    write(tmp_path / "log", entries(300))
    place = tmp_path / "log" / name
    if edit is None:
        place.unlink()
    else:
        place.write_bytes(edit(place.read_bytes()))
    before = files(tmp_path / "log")
    with pytest.raises((BadArtifact, Unavailable, Untrusted)):
        write(tmp_path / "log", [b"x"])
    assert files(tmp_path / "log") == before


class Killed(BaseException):
    """The end of the process, as a test can play it."""


class Death:
    """Kills at the n-th write, rename or removal, before or in the middle of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: int, *, torn: bool) -> None:
        self.left, self.torn = after, torn
        write_bytes, rename, remove = Path.write_bytes, os.replace, shutil.rmtree

        def writes(path: Path, data: bytes) -> int:
            if self.dies():
                if self.torn:
                    write_bytes(path, data[: len(data) // 2])
                raise Killed
            return write_bytes(path, data)

        def renames(source: Any, target: Any) -> None:
            if self.dies():
                if self.torn:
                    rename(source, target)
                raise Killed
            rename(source, target)

        def removes(path: Path, **options: Any) -> None:
            if self.dies():
                if self.torn:
                    next(Path(path).iterdir()).unlink()
                raise Killed
            remove(path, **options)

        monkeypatch.setattr(Path, "write_bytes", writes)
        monkeypatch.setattr(os, "replace", renames)
        monkeypatch.setattr(shutil, "rmtree", removes)

    def dies(self) -> bool:
        """Whether this is the moment."""
        self.left -= 1
        return self.left == 0


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("before", [0, 200])
def test_a_crash_at_any_write_leaves_a_log_that_the_next_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, torn: bool
) -> None:
    made = entries(600)
    write(tmp_path / "whole", made)
    whole = files(tmp_path / "whole")
    for after in range(1, 30):
        log = tmp_path / f"{after}"
        if before:
            write(log, made[:before])
        with monkeypatch.context() as patch:
            Death(patch, after, torn=torn)
            try:
                write(log, made[before:])
            except Killed:
                pass
            else:
                break  # it has fewer writes than that
        size = LogWriter(log, ORIGIN, PRIVATE).checkpoint()
        assert size is None or size.size in (before, 600)
        if size is not None:  # whoever reads now has a whole log, old or new
            assert reader(log).entries(0, size.size) == made[: size.size]
        LogWriter(log, ORIGIN, PRIVATE).append(made, at=0)
        assert whole.items() <= files(log).items()
        assert reader(log).entries(0, 600) == made
        assert not list(log.rglob(".tmp-*"))
    else:
        raise AssertionError("it never came to its end")
    assert after > 8


def test_a_crash_and_other_entries_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no checkpoint leads to binds nobody: other entries may come in its place."""
    write(tmp_path / "log", entries(200))
    with monkeypatch.context() as patch:
        Death(patch, 5, torn=True)
        with pytest.raises(Killed):
            write(tmp_path / "log", entries(600, fork_at=200)[200:])
    assert write(tmp_path / "log", entries(600)[200:]).root == root_of(entries(600))
    assert reader(tmp_path / "log").entries(0, 600) == entries(600)


def test_everything_is_flushed_before_the_checkpoint_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(descriptor: int) -> None:
        flushed.append(os.fstat(descriptor).st_ino)
        real_sync(descriptor)

    def replace(source: Path, target: Path) -> None:
        needed = {p.stat().st_ino for p in (tmp_path / "log").rglob("*")}
        assert needed <= set(flushed), "a file, or the name of one, was not on the disk yet"
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    write(tmp_path / "log", entries(300))
    assert (tmp_path / "log" / "checkpoint").is_file()


def test_entries_have_at_most_65535_bytes(tmp_path: Path) -> None:
    made = [b"", b"a", bytes(65_535)]
    write(tmp_path / "log", made)
    assert reader(tmp_path / "log").entries(0, 3) == made
    with pytest.raises(UsageError, match="65536 bytes, at most 65535"):
        write(tmp_path / "log", [bytes(65_536)])
    assert reader(tmp_path / "log").checkpoint().size == 3


def test_a_failing_source_of_entries_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    write(tmp_path / "log", entries(5))

    def source() -> Iterator[bytes]:
        yield from entries(600)
        raise Unavailable("the source broke")

    with pytest.raises(Unavailable, match="the source broke"):
        LogWriter(tmp_path / "log", ORIGIN, PRIVATE).append(source(), at=0)
    assert reader(tmp_path / "log").entries(0, 5) == entries(5)
    assert LogWriter(tmp_path / "log", ORIGIN, PRIVATE).append(entries(600), at=0).size == 600


def test_100_000_entries_are_not_held_in_memory(tmp_path: Path) -> None:
    def source() -> Iterator[bytes]:
        return ((b"%08d" % i) * 100 for i in range(100_000))  # 80 MB in all

    tracemalloc.start()
    try:
        found = LogWriter(tmp_path / "log", ORIGIN, PRIVATE).append(source())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.size == 100_000
    assert peak < 8_000_000
    assert reader(tmp_path / "log").entry(77_777) == b"00077777" * 100


def test_two_writers_at_once_are_one_too_many(tmp_path: Path) -> None:
    write(tmp_path / "log", entries(3))
    with lock.only_writer(tmp_path / "log"), pytest.raises(Unavailable, match="another process is writing"):
        write(tmp_path / "log", [b"x"])
    assert write(tmp_path / "log", [b"x"]).size == 4


def _append(folder: Path, name: str, start: Any) -> None:
    start.wait()
    for i in range(60):
        try:
            write(folder, [f"{name} {i}".encode()])
        except Unavailable:
            continue


def test_processes_that_append_at_once_never_sign_two_histories(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(3)
    workers = [context.Process(target=_append, args=(tmp_path / "log", name, start)) for name in ("a", "b")]
    for worker in workers:
        worker.start()
    start.wait()
    sizes: dict[int, bytes] = {}
    while any(worker.is_alive() for worker in workers):
        try:
            found = LogWriter(tmp_path / "log", ORIGIN, PRIVATE).checkpoint()
        except AuditkitError as error:
            raise AssertionError(error.message) from error
        if found is not None:
            assert sizes.setdefault(found.size, found.root) == found.root
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    log = reader(tmp_path / "log")
    log.entries(0, log.checkpoint().size)
    assert max(sizes) <= log.checkpoint().size
    for size, root in sizes.items():
        assert log.root_at(size) == root


def test_without_locks_a_change_meanwhile_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Network file systems may have locks that hold nobody out."""
    monkeypatch.setattr(lock, "_lock", lambda folder: os.open(os.devnull, os.O_RDONLY))
    write(tmp_path / "log", entries(3))

    def source() -> Iterator[bytes]:
        yield b"x"
        write(tmp_path / "log", [b"y"])

    with pytest.raises(Unavailable, match="another process wrote the log meanwhile"):
        LogWriter(tmp_path / "log", ORIGIN, PRIVATE).append(source())
    assert reader(tmp_path / "log").entries(3, 4) == [b"y"]


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Unsupported, match="cannot write"):
        write(tmp_path / "file" / "log", entries(3))
    with pytest.raises(Unsupported, match="cannot write"):
        write(tmp_path / "file", entries(3))


def test_the_checkpoint_is_a_note_that_others_read(tmp_path: Path) -> None:
    write(tmp_path / "log", entries(3))
    assert notes.verify_checkpoint(reader(tmp_path / "log").note, KEY).size == 3
    assert LogWriter(tmp_path / "nothing", ORIGIN, PRIVATE).checkpoint() is None
    assert LogWriter(tmp_path / "log", ORIGIN, PRIVATE).key == KEY
