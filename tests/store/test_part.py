"""Files in the making: what is on disk after writing, starting again, failing, and copying from leftovers."""

from __future__ import annotations

from pathlib import Path

import pytest

from auditkit.errors import Unsupported
from auditkit.store import STORE_LIMITS
from auditkit.store.cache import Cache
from auditkit.store.part import Part, Vanished
from tests.store.tools import FakeClock, blob, cached, leave_part, named, parts

DATA = blob(2_500_000)  # two pieces of a chunk and a half one
SIZE, DIGEST = named(DATA)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """An empty cache."""
    return Cache.at(tmp_path / "cache", STORE_LIMITS)


def new(cache: Cache) -> Part:
    return Part(cache, DIGEST, SIZE, FakeClock())


@pytest.mark.parametrize("piece", [1000, 65536, 1 << 20, SIZE])
def test_written_bytes_become_the_object(cache: Cache, piece: int) -> None:
    with new(cache) as part:
        for at in range(0, SIZE, piece):
            part.write(DATA[at : at + piece])
            assert part.have == min(at + piece, SIZE)
        assert part.digest() == DIGEST
        assert part.commit() == cache.object(DIGEST)
    assert cache.object(DIGEST).read_bytes() == DATA and parts(cache.folder) == []


def test_an_early_end_keeps_every_byte(cache: Cache) -> None:
    with pytest.raises(KeyboardInterrupt), new(cache) as part:
        part.write(DATA[:1_234_567])
        raise KeyboardInterrupt
    (left,) = parts(cache.folder)
    assert left.read_bytes() == DATA[:1_234_567]
    with new(cache) as part:
        assert (part.have, part.resumed) == (1_234_567, True)
        part.write(DATA[1_234_567:])
        assert part.digest() == DIGEST


def test_nothing_is_left_of_nothing(cache: Cache) -> None:
    with new(cache):
        pass
    with new(cache) as part:
        part.write(DATA)
        part.restart()
    assert parts(cache.folder) == []


def test_a_new_start_forgets_everything(cache: Cache) -> None:
    with new(cache) as part:
        part.write(bytes(2_000_000))
        part.restart()
        assert (part.have, part.resumed) == (0, False)
        part.write(DATA)
        assert part.digest() == DIGEST
        part.commit()
    assert cache.object(DIGEST).read_bytes() == DATA


def test_a_part_that_someone_removed(cache: Cache) -> None:
    with new(cache) as part:
        part.write(DATA)
        part.path.rename(part.path.with_name("away"))
        with pytest.raises(Vanished):
            part.commit()
    assert cached(cache.folder) == ["away"]


class Full:
    """A file on a disk that takes `room` bytes and no more."""

    closed = False

    def __init__(self, room: int) -> None:
        self.room, self.data = room, bytearray()

    def write(self, data: bytes) -> int:
        """As a raw file: a part of the bytes, then ENOSPC."""
        taken = min(self.room - len(self.data), len(data), 300_000)
        if not taken:
            raise OSError(28, "No space left on device")
        self.data += bytes(data[:taken])
        return taken

    def close(self) -> None:
        """Close."""


def test_short_writes_are_completed_and_a_full_disk_is_unsupported(cache: Cache) -> None:
    with pytest.raises(Unsupported) as error, new(cache) as part:
        real, full = part._file, Full(1_700_000)
        part._file = full  # type: ignore[assignment]
        real.close()
        part.write(DATA)
        part.digest()
    assert f"cannot write {part.path}: the disk is full (" in error.value.message
    assert "bytes free)" in error.value.message
    assert full.data == DATA[:1_700_000]  # nothing twice, nothing after the gap


@pytest.mark.parametrize("wrong", [b"", DATA + b"!", DATA[:-1] + b"!"], ids=["empty", "too long", "full and wrong"])
def test_leftovers_of_no_use(cache: Cache, wrong: bytes) -> None:
    leave_part(cache.folder, DIGEST, wrong)
    with new(cache) as part:
        assert (part.have, part.resumed) == (0, False)


def test_the_longest_leftover_is_copied_and_left_to_its_owner(cache: Cache) -> None:
    short = leave_part(cache.folder, DIGEST, DATA[:100], "0badc0de-1-000000000000")
    long = leave_part(cache.folder, DIGEST, DATA[:2_000_000], "0badc0de-2-000000000000")
    with new(cache) as part:
        assert part.have == 2_000_000
        part.write(DATA[2_000_000:])
        part.commit()
    assert parts(cache.folder) == sorted([short, long])
    assert long.read_bytes() == DATA[:2_000_000]
