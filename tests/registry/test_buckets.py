"""Rates are kept by name, in bounded memory, and the wait that is told is the wait that is needed."""

from __future__ import annotations

import pytest

from auditkit.registry.buckets import Buckets, address_name


class Time:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_a_burst_then_the_rate() -> None:
    time = Time()
    buckets = Buckets(2.0, 5, 10, time)
    assert [buckets.take("a") for _ in range(5)] == [0.0] * 5
    assert buckets.take("a") == pytest.approx(0.5)
    assert buckets.take("b") == 0.0  # another name, another bucket
    time.seconds += 0.49
    assert buckets.take("a") > 0
    time.seconds += 0.02
    assert buckets.take("a") == 0.0
    assert buckets.take("a") > 0


def test_the_wait_that_is_told_suffices_and_no_token_is_lost_by_asking() -> None:
    time = Time()
    buckets = Buckets(4.0, 8, 10, time)
    assert buckets.take("a", 8) == 0.0
    for _ in range(100):
        wait = buckets.take("a", 6)
        assert wait == pytest.approx(1.5)
    time.seconds += wait
    assert buckets.take("a", 6) == 0.0


def test_more_than_a_bucket_holds_is_owed() -> None:
    time = Time()
    buckets = Buckets(1.0, 4, 10, time)
    assert buckets.take("a", 10) == 0.0
    assert buckets.take("a") == pytest.approx(7.0)  # 6 owed, one more
    time.seconds += 7
    assert buckets.take("a") == 0.0


def test_a_clock_that_goes_back_gives_nothing() -> None:
    time = Time()
    buckets = Buckets(1.0, 2, 10, time)
    assert buckets.take("a", 2) == 0.0
    time.seconds -= 50
    assert buckets.take("a") > 0


def test_memory_is_bounded() -> None:
    buckets = Buckets(1.0, 3, 100, Time())
    for n in range(1000):
        buckets.take(str(n))
    assert len(buckets._levels) == 100
    assert "999" in buckets._levels


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1%eth0", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("testclient", "testclient"),
    ],
)
def test_one_customer_is_one_name(host: str, name: str) -> None:
    assert address_name(host) == name
