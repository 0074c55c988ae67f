"""Rounds of drand: a true one is read; whatever else a relay sends leads to the next relay or to a clear end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from auditkit.audit import drand
from auditkit.audit.drand import QUICKNET, latest, parse_round
from auditkit.errors import BadArtifact, Unavailable
from auditkit.trust.beacon import Origin
from tests.store import servers
from tests.store.tools import FakeClock, Story

# Round 42 of quicknet, as the documentation of drand's HTTP interface shows it.
NUMBER = 42
SIGNATURE = (
    "95a9f9f5b231b7714de1553105d8ffdf3dcda24cfdb1e689319bccf79a9c8ce430a91b811fbfaf763900bc998b5d686a"
)  # fmt: skip
RANDOMNESS = hashlib.sha256(bytes.fromhex(SIGNATURE)).hexdigest()
PATH = f"{QUICKNET.hash}/public/latest"


def answer(**changed: Any) -> bytes:
    """A relay's answer; a key that is None is left out."""
    fields = {"round": NUMBER, "randomness": RANDOMNESS, "signature": SIGNATURE, **changed}
    return json.dumps({key: value for key, value in fields.items() if value is not None}).encode()


@pytest.fixture
def clock() -> FakeClock:
    """A clock at the moment of the round."""
    made = FakeClock()
    made.start = QUICKNET.time_of(NUMBER)
    return made


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The relays are on this machine."""
    for kind in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{kind}_proxy", raising=False)
        monkeypatch.delenv(f"{kind}_proxy".upper(), raising=False)


Relay = Callable[[bytes], str]


@pytest.fixture
def relay() -> Iterator[Relay]:
    """Starts relays that give one answer each."""
    with servers.serve(servers.honest, {}) as server:

        def start(data: bytes) -> str:
            name = f"relay-{len(server.files)}"
            server.files[f"{name}/{PATH}"] = data
            return f"{server.url}{name}/"

        yield start


def test_a_true_round_is_a_beacon_and_keeps_what_verifying_it_takes(relay: Relay, clock: FakeClock) -> None:
    address = relay(answer(previous_signature="ab" * 48))
    found = latest(Story(), clock, relays=[address])
    assert found.beacon.text == RANDOMNESS
    assert (found.beacon.origin, found.beacon.detail) == (Origin.DRAND, "quicknet round 42")
    assert found.beacon.caveat == ""
    assert found.to_dict() == {
        "chain": QUICKNET.hash,
        "name": "quicknet",
        "round": 42,
        "randomness": RANDOMNESS,
        "signature": SIGNATURE,
        "signature_verified": False,
        "relay": address,
    }


def test_the_time_of_a_round_is_that_of_the_network() -> None:
    # 2026-04-20 00:00:00 UTC, from the documentation of another client
    assert QUICKNET.time_of(27946612) == 1776643200


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"<html>",
        answer(round=None),
        answer(round=0),
        answer(round="42"),
        answer(round=42.0),
        answer(randomness=None),
        answer(randomness=RANDOMNESS[:-2]),
        answer(randomness="00" * 32),
        answer(randomness=RANDOMNESS.upper()),
        answer(signature="00"),
        answer(signature="zz"),
        answer(signature=5),
        answer(signature=SIGNATURE * 5),
        b'{"round": 42, "round": 43}',
        b" " * (drand.DOCUMENT_BYTES + 1),
    ],
)
def test_what_is_no_round_is_refused_in_words(data: bytes) -> None:
    with pytest.raises(BadArtifact, match="drand round"):
        parse_round(data, QUICKNET, "relay")


def test_a_relay_that_is_of_no_use_leads_to_the_next(relay: Relay, clock: FakeClock) -> None:
    story = Story()
    bad, good = relay(answer(randomness="00" * 32)), relay(answer())
    absent = bad.replace("relay-0", "nothing")
    found = latest(story, clock, relays=[absent, bad, good])
    assert found.relay == good
    assert len(story.notes) == 2
    assert "404" in story.notes[0]
    assert "SHA-256" in story.notes[1]


@pytest.mark.parametrize("away", [-drand.FRESH_SECONDS - 2, drand.FRESH_SECONDS + 2])
def test_an_old_or_a_future_round_is_refused(relay: Relay, clock: FakeClock, away: int) -> None:
    clock.time = away
    with pytest.raises(Unavailable, match="lies 3602 s in the " + ("past" if away > 0 else "future")):
        latest(Story(), clock, relays=[relay(answer())])


@pytest.mark.parametrize("away", [-drand.FRESH_SECONDS + 2, drand.FRESH_SECONDS - 2])
def test_a_round_of_this_hour_is_taken(relay: Relay, clock: FakeClock, away: int) -> None:
    clock.time = away
    assert latest(Story(), clock, relays=[relay(answer())]).number == NUMBER


def test_busy_relays_are_asked_a_few_times_and_then_named(clock: FakeClock) -> None:
    with servers.serve(lambda handler, data: handler.whole(b"busy", 503), {}) as server:
        with pytest.raises(Unavailable, match="503") as caught:
            latest(Story(), clock, relays=[server.url, server.url + "other/"])
        assert len(server.asked) == 2 * drand.LIMITS.tries
    assert "other" in caught.value.message


def test_without_relays_there_is_no_round(clock: FakeClock) -> None:
    with pytest.raises(Unavailable, match="no relay is named"):
        latest(Story(), clock, relays=[])
