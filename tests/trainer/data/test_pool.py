"""Work in several processes: results in order, few jobs taken ahead, and an end to all of them whatever happens."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Iterator

import pytest

from auditkit.errors import BadArtifact, MachineFault
from tests.trainer.data import work
from trainer.data.pool import ordered


def jobs(count: int) -> Iterator[tuple[bytes, int]]:
    """Jobs of different lengths with their numbers."""
    return ((b"x" * (number * 7 % 11) + str(number).encode(), number) for number in range(count))


@pytest.mark.parametrize("processes", [1, 2, 5])
def test_results_come_in_the_order_of_the_jobs(processes: int) -> None:
    found = list(ordered(work.double, b"s", jobs(60), processes))
    assert found == [(b"s" + job + job, number) for job, number in jobs(60)]
    assert multiprocessing.active_children() == []


def test_every_process_works() -> None:
    pids = {pid for pid, _ in ordered(work.process_ids, b"", jobs(300), 3)}
    assert 2 <= len(pids) <= 3
    assert len({pid for pid, _ in ordered(work.process_ids, b"", jobs(3), 1)}) == 1


def test_large_jobs_and_results_do_not_block_each_other() -> None:
    """More than a pipe holds in both directions at once."""
    big = b"y" * (1 << 20)
    found = ordered(work.double, b"", ((big, number) for number in range(12)), 2)
    assert [(len(result), number) for result, number in found] == [(2 << 20, number) for number in range(12)]


def test_only_a_few_jobs_are_taken_ahead() -> None:
    taken = 0

    def counted() -> Iterator[tuple[bytes, int]]:
        nonlocal taken
        for job in jobs(100):
            taken += 1
            yield job

    with contextlib.closing(ordered(work.double, b"", counted(), 2)) as results:
        for done, _ in enumerate(results, start=1):
            assert taken <= done + 5
            if done == 30:
                break
    assert multiprocessing.active_children() == []


def test_no_jobs_give_no_results() -> None:
    assert list(ordered(work.double, b"", iter(()), 2)) == []


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_of_the_work_is_that_of_the_call(processes: int) -> None:
    results = ordered(work.refusing, b"7", ((str(n).encode(), n) for n in range(40)), processes)
    found = []
    with pytest.raises(BadArtifact, match="^job 7 is bad$") as caught:
        found.extend(number for _, number in results)
    assert (found, caught.value.hint) == (list(range(7)), "naïve café")
    assert multiprocessing.active_children() == []


def test_a_killed_process_is_a_machine_fault_and_ends_the_others() -> None:
    results = ordered(work.dying, b"7", ((str(n).encode(), n) for n in range(40)), 3)
    with pytest.raises(MachineFault, match=r"worker \d ended by signal \d+ before its work was done") as caught:
        list(results)
    assert "fewer --processes" in caught.value.hint
    assert multiprocessing.active_children() == []


def test_a_bug_in_the_work_ends_the_pool(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MachineFault, match="ended with exit code 1"):
        list(ordered(work.raising, b"", jobs(9), 2))
    assert "KeyError: 'a bug'" in capfd.readouterr().err
    assert multiprocessing.active_children() == []


def test_an_error_of_the_jobs_ends_the_pool() -> None:
    def broken() -> Iterator[tuple[bytes, int]]:
        yield from jobs(9)
        raise BadArtifact("line 9 is bad")

    with pytest.raises(BadArtifact, match="line 9"):
        list(ordered(work.double, b"", broken(), 2))
    assert multiprocessing.active_children() == []
