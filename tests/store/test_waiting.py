"""Waits and rates (case 27)."""

from __future__ import annotations

import dataclasses
import math
from email.utils import formatdate

import pytest

from auditkit.errors import Unavailable
from auditkit.store.limits import STORE_LIMITS
from auditkit.store.waiting import Rate, Tries, retry_after
from tests.store import servers
from tests.store.conftest import Shop
from tests.store.servers import Busy, serve
from tests.store.tools import FakeClock, blob, named

NOW = 1_800_000_000.0
DATA = blob(100_000)
SIZE, DIGEST = named(DATA)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("2", 2.0),
        ("0", 0.0),
        (" 7 ", 7.0),
        ("999999999", 999999999.0),
        ("9" * 400, math.inf),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        ("²", None),
        (formatdate(NOW + 30, usegmt=True), 30.0),
        (formatdate(NOW - 30, usegmt=True), 0.0),
        ("Fri, 15 Jan 2027 08:00:30 -0000", 30.0),
        ("Fri, 99 Jan 2027 08:00:30 GMT", None),
        ("Fri, 15 Jan 99999 08:00:30 GMT", None),
    ],
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert retry_after(value, now=NOW) == seconds


def test_backoff_doubles_up_to_its_bound_and_ends() -> None:
    tries = Tries(STORE_LIMITS)
    waits = [tries.failed(gained=0, answered=True, asked=None) for _ in range(8)]
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, None]


def test_a_place_that_never_answers_is_given_up_sooner() -> None:
    tries = Tries(STORE_LIMITS)
    assert [tries.failed(gained=0, answered=False, asked=None) for _ in range(4)] == [0.5, 1, 2, None]


def test_a_gain_starts_the_count_anew() -> None:
    tries = Tries(STORE_LIMITS)
    for _ in range(100):
        assert tries.failed(gained=STORE_LIMITS.gain_bytes, answered=True, asked=None) == 0.5


def test_rate_looks_at_whole_windows() -> None:
    clock = FakeClock()
    rate = Rate(STORE_LIMITS, clock)
    for _ in range(100):  # 1000 bytes a second and a little more, in pieces far apart
        clock.time += 15
        assert not rate.stalled(15_001)
    clock.time += 29
    assert not rate.stalled(1)
    clock.time += 1
    assert rate.stalled(1)


@pytest.mark.parametrize(
    ("asked", "wait"),
    [
        ("2", 2.0),
        ("0", 0.5),
        ("999999999", 60.0),
        ("-1", 0.5),
        ("soon", 0.5),
        (formatdate(NOW + 9, usegmt=True), 9.0),
        (formatdate(NOW - 9, usegmt=True), 0.5),
    ],
)
def test_case_27_the_wait_a_server_asks_for_is_bounded_and_shown(shop: Shop, asked: str, wait: float) -> None:
    shop.clock.start = NOW
    with serve(Busy([503], asked), {"run.json": b"{}", "x.bin": DATA}) as server:
        assert shop.store(server.url).file("x.bin", SIZE, DIGEST).read_bytes() == DATA
    assert shop.clock.waits == [wait]
    assert shop.story.notes == [
        f"{server.url}x.bin: the server answered 503 service unavailable; trying again in {wait:.3g} s"
    ]


def test_case_27_a_trickle_ends_by_the_minimum_rate(shop: Shop) -> None:
    shop.clock.tick = 5.0  # each look at the clock is 5 s later: the server sends 20 bytes in 5 to 10 s
    with (
        serve(servers.slow(20, 0.0005), {"run.json": b"{}", "x.bin": DATA}) as server,
        pytest.raises(Unavailable) as error,
    ):
        shop.store(server.url).file("x.bin", SIZE, DIGEST)
    assert "slower than 1,000 bytes a second at byte" in error.value.message
    assert len(server.asked) == shop.limits.tries
    assert server.asked[1].range  # what came is not fetched twice


def test_case_27_a_slow_honest_server_finishes(shop: Shop) -> None:
    # 2,000 bytes at a time, a second apart, as the clock sees it: twice the floor, for longer than several windows.
    shop.clock.tick = 0.5
    data = blob(200_000)
    with serve(servers.slow(2000, 0.001), {"run.json": b"{}", "x.bin": data}) as server:
        assert shop.store(server.url).file("x.bin", *named(data)).read_bytes() == data
    assert len(server.asked) == 1


def test_case_27_silence_ends_and_is_resumed(shop: Shop) -> None:
    limits = dataclasses.replace(shop.limits, silence_seconds=0.2)
    answers = iter([servers.slow(1000, 30.0), servers.honest])
    with serve(lambda handler, data: next(answers)(handler, data), {"run.json": b"{}", "x.bin": DATA}) as server:
        assert shop.store(server.url, limits=limits).file("x.bin", SIZE, DIGEST).read_bytes() == DATA
    assert server.asked[1].range == f"bytes=1000-{SIZE - 1}"
    assert "the server fell silent at byte 1,000 of 100,000" in shop.story.notes[0]
