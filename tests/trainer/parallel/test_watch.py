"""The watch over other ranks, with a store in memory: who is missed, who tells, and that all end alike."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from trainer.parallel import watch as module
from trainer.parallel.group import AlreadyTold, RankLost
from trainer.parallel.watch import Times, Watch

TIMES = Times(start=5.0, beat=0.01, silence=0.3, suspicion=0.1, wait=0.3, leave=60.0)


class MemoryStore:
    """What `Watch` uses of torch's stores; `gone` is what a lost one raises."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.gone = False
        self._lock = threading.Lock()

    def set(self, key: str, value: str) -> None:
        self._check()
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        self._check()
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        self._check()
        return all(key in self.values for key in keys)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        self._check()
        with self._lock:
            if self.values.get(key, b"") == expected.encode():
                self.values[key] = desired.encode()
            return self.values[key]

    def _check(self) -> None:
        if self.gone:
            raise RuntimeError("Broken pipe\nframe #0: somewhere")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def watches(store: MemoryStore) -> Iterator[list[Watch]]:
    """Three ranks that have met."""
    made = [Watch(store, rank, 3, TIMES) for rank in range(3)]
    threads = [threading.Thread(target=watch.meet) for watch in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    yield made
    for watch in made:
        watch.close()


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that must come."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def ended(watch: Watch) -> bool:
    """Whether a rank knows of a verdict."""
    try:
        watch.check()
    except (RankLost, AlreadyTold):
        return True
    return False


def test_ranks_that_live_are_left_alone(watches: list[Watch]) -> None:
    time.sleep(3 * TIMES.silence)
    for watch in watches:
        watch.check()


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_silent_rank_is_named_by_one_and_ends_all(watches: list[Watch], lost: int) -> None:
    watches[0].doing("step 7")
    watches[2].doing("step 7")
    watches[lost].close()
    others = [watch for rank, watch in enumerate(watches) if rank != lost]
    until(lambda: all(map(ended, others)))
    told = []
    for watch in others:
        try:
            watch.check()
        except RankLost as error:
            told.append((error.message, error.hint))
        except AlreadyTold as error:
            assert error.code == 5
    ((message, hint),) = told
    assert message.startswith(f"rank {lost} gave no sign of life for 0.3 s, at ") and hint == module.RESUME
    assert all(watch.code == 5 for watch in others)


def test_a_rank_s_own_end_is_every_rank_s(watches: list[Watch]) -> None:
    assert watches[1].end("rank 1: the disk is full", "make room", 6)
    assert not watches[2].end("rank 2: something that followed from it", "", 5)
    until(lambda: ended(watches[0]))
    with pytest.raises(AlreadyTold) as found:
        watches[0].check()
    assert found.value.code == 6 and [watch.code for watch in watches] == [6] * 3


def test_a_rank_that_lives_and_does_not_come_is_named(watches: list[Watch]) -> None:
    for watch in watches[:2]:
        watch.waiting(True)
        watch.doing("step 3")
    until(lambda: ended(watches[0]) and ended(watches[1]))
    messages = []
    for watch in watches[:2]:
        with pytest.raises((RankLost, AlreadyTold)) as found:
            watch.check()
        messages += [found.value.message] if isinstance(found.value, RankLost) else []
    assert messages == ["rank 2 did not come within 0.3 s, at step 3"]


def test_waiting_again_and_again_is_no_fault(watches: list[Watch]) -> None:
    end = time.monotonic() + 3 * TIMES.wait
    while time.monotonic() < end:
        watches[0].waiting(True)
        time.sleep(TIMES.wait / 10)
        watches[0].waiting(False)
    watches[0].check()


def test_a_failed_collective_speeds_up_the_search(watches: list[Watch]) -> None:
    watches[2].close()
    with pytest.raises(RankLost, match="^rank 2 gave no sign of life for 0.1 s"):
        watches[0].suspect(RuntimeError("Connection closed by peer"))


def test_a_failed_collective_among_ranks_that_live_ends_them_with_its_words(watches: list[Watch]) -> None:
    watches[1].doing("step 9")
    with pytest.raises(RankLost, match="^a rank was lost at step 9: Connection reset$"):
        watches[1].suspect(RuntimeError("Connection reset\nframe #0"))
    until(lambda: ended(watches[0]) and ended(watches[2]))


def test_a_lost_store_ends_the_rank_that_uses_it(watches: list[Watch], store: MemoryStore) -> None:
    store.gone = True
    until(lambda: all(map(ended, watches)))
    for watch in watches:
        with pytest.raises(RankLost, match="^rank 0 or the launcher is gone: Broken pipe$"):
            watch.check()


def test_a_store_that_does_not_answer_ends_the_rank_that_waits_for_it(
    watches: list[Watch], store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that holds it stands still, or its machine is cut off: a request waits for ever."""
    monkeypatch.setattr(module, "leave", lambda code: None)
    watches[1].doing("step 5")
    goes_on = threading.Event()
    monkeypatch.setattr(store, "set", lambda *more: goes_on.wait(60))
    until(lambda: all(map(ended, watches)))
    with pytest.raises(RankLost, match=r"^rank 0 or the launcher did not answer within 0\.3 s, at step 5$"):
        watches[1].check()
    goes_on.set()


def test_a_rank_that_was_stopped_itself_misses_nobody(store: MemoryStore) -> None:
    """Its clock has gone on for an hour between two signs of life; then it counts anew."""
    stopped, goes = [0.0], threading.Event()

    class Closing(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            found = super().wait(timeout)
            if threading.current_thread().name == "watch" and not stopped[0] and goes.is_set():
                stopped[0] = 3600.0
            return found

    watch = Watch(store, 0, 2, TIMES, clock=lambda: time.monotonic() + stopped[0])
    watch._closing = Closing()
    with contextlib.closing(watch):  # or its guard ends this process
        store.set("beat/1", "1 0")
        watch.meet()
        watch.waiting(True)
        goes.set()
        until(lambda: stopped[0] > 0)
        time.sleep(2 * TIMES.beat)
        watch.check()
        watch.waiting(False)
        until(lambda: ended(watch))  # the other rank is silent all the same
        with pytest.raises(RankLost, match="^rank 1 gave no sign of life for 0.3 s"):
            watch.check()


def test_a_rank_that_cannot_leave_is_ended_and_says_why(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its main thread waits in something that does not end."""
    left: list[int] = []
    monkeypatch.setattr(module, "leave", left.append)
    watch = Watch(store, 0, 2, Times(beat=0.01, silence=0.05, leave=0.1, start=5))
    store.set("beat/1", "1 0")
    watch.meet()
    until(lambda: bool(left))
    assert left == [5]
    assert capsys.readouterr().err.startswith("error: rank 1 gave no sign of life for 0.05 s, at the start\nhint: ")


def test_ranks_that_never_come_are_named_to_all_that_wait(store: MemoryStore) -> None:
    times = Times(start=0.1, beat=0.01, leave=60)
    watches = [Watch(store, rank, 4, times) for rank in (0, 2)]
    found: list[BaseException] = []

    def meet(watch: Watch) -> None:
        try:
            watch.meet()
        except (RankLost, AlreadyTold) as error:
            found.append(error)
        watch.close()

    threads = [threading.Thread(target=meet, args=(watch,)) for watch in watches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(type(error).__name__ for error in found) == ["AlreadyTold", "RankLost"]
    (told,) = [error for error in found if isinstance(error, RankLost)]
    assert told.message == "ranks 1, 3 did not come within 0.1 s, at the start"


@pytest.mark.parametrize("silent", [False, True])
def test_a_store_that_is_lost_while_ranks_come_ends_them(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    """Gone, or there and silent."""
    left: list[int] = []
    monkeypatch.setattr(module, "leave", left.append)
    watch = Watch(store, 1, 3, Times(start=60.0, beat=0.01, silence=0.3, leave=0.1))
    goes_on = threading.Event()
    if silent:
        monkeypatch.setattr(store, "check", lambda keys: not goes_on.wait(60))
    else:
        store.gone = True
    if silent:
        thread = threading.Thread(target=lambda: pytest.raises(RankLost, watch.meet))
        thread.start()
        until(lambda: left == [5])
        goes_on.set()
        thread.join()
    else:
        with pytest.raises(RankLost, match="^rank 0 or the launcher is gone: Broken pipe$"):
            watch.meet()
    watch.close()
