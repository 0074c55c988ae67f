"""Nobody may take more than a share of requests and submissions, and everybody is told when to come again."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from auditkit.registry.limits import REGISTRY_LIMITS
from auditkit.registry.runs import KnownRun
from tests.registry.inprocess import LINES, Options, Service, serving
from tests.registry.makers import Maker, key


@pytest.fixture
def tight(run: KnownRun, tmp_path: Path) -> Iterator[Any]:
    """Start a registry with other limits: tight(name=value, ..)."""
    running = []

    def start(**limits: object) -> Service:
        options = Options(limits=replace(REGISTRY_LIMITS, log_seconds=0.0, coverage_seconds=0.0, **limits))  # type: ignore[arg-type]
        context = serving(tmp_path / "registry", run, options)
        running.append(context)
        return context.__enter__()

    yield start
    for context in running:
        context.__exit__(None, None, None)


def test_requests_of_an_address(tight: Any) -> None:
    service = tight(requests_per_second=2.0, requests_burst=10)
    answers = [service.get("/v1/runs") for _ in range(12)]
    assert [answer.status_code for answer in answers] == [200] * 10 + [429] * 2
    assert answers[-1].headers["Retry-After"] == "1"
    assert answers[-1].json()["verdict"] == "UNAVAILABLE"
    service.clock.seconds += 1
    assert service.get("/v1/runs").status_code == 200


def test_submissions_of_an_address_whoever_signed_them(tight: Any, maker: Maker) -> None:
    service = tight(envelopes_per_second=1.0, envelopes_burst=5)
    answers = [service.post(maker.signed(step, key(1 + step % 4))) for step in range(7)]
    assert [answer.status_code for answer in answers] == [201] * 5 + [429] * 2
    lines = b"\n".join(maker.signed(step, key(1)) for step in range(20, 24))
    many = service.ask("POST", "/v1/attestations/batch", content=lines, headers=LINES)
    assert (many.status_code, many.headers["Retry-After"]) == (429, "4")
    service.clock.seconds += 4
    assert service.ask("POST", "/v1/attestations/batch", content=lines, headers=LINES).status_code == 200
    assert service.registry.database.size() == 9


def test_new_attestations_of_a_key(tight: Any, maker: Maker) -> None:
    service = tight(key_envelopes_per_second=1.0, key_envelopes_burst=3)
    mine = [maker.signed(step, key(1)) for step in range(5)]
    answers = [service.post(envelope) for envelope in mine]
    assert [answer.status_code for answer in answers] == [201] * 3 + [429] * 2
    # what is known costs nothing, and others have rates of their own
    assert service.post(mine[0]).status_code == 200
    assert service.post(maker.signed(0, key(2))).status_code == 201
    service.clock.seconds += 1
    assert service.post(mine[3]).status_code == 201
    batch = service.ask("POST", "/v1/attestations/batch", content=mine[0] + b"\n" + mine[4], headers=LINES)
    results = batch.json()["results"]
    assert [result["status"] for result in results] == ["known", "later"]
    assert (results[1]["verdict"], results[1]["seconds"]) == ("UNAVAILABLE", 1)


def test_nobody_can_use_up_the_rate_of_another(tight: Any, maker: Maker) -> None:
    """An envelope that names a key, but that the key did not sign, costs the key nothing."""
    service = tight(key_envelopes_per_second=1.0, key_envelopes_burst=2)
    good = maker.signed(1, key(1))
    for n in range(50):
        at = good.index(b'"sig":"') + 10 + n
        forged = good[:at] + (b"B" if good[at : at + 1] == b"A" else b"A") + good[at + 1 :]
        assert service.post(forged).status_code in (400, 403)
    assert service.post(good).status_code == 201


def test_a_queue_that_is_full(tight: Any, maker: Maker) -> None:
    service = tight(waiting_envelopes=3)
    lines = b"\n".join(maker.signed(step, key(1)) for step in range(4))
    answer = service.ask("POST", "/v1/attestations/batch", content=lines, headers=LINES)
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "2")
    assert service.registry.database.size() == 0
    assert service.post(maker.signed(1, key(1))).status_code == 201


def test_strangers_pay_more(run: KnownRun, maker: Maker, tmp_path: Path) -> None:
    """Anybody can make keys, so what comes with an unlisted one counts for many; listed keys may come along."""
    limits = replace(REGISTRY_LIMITS, envelopes_per_second=1.0, envelopes_burst=40, stranger_cost=20, log_seconds=0.0)

    def header(*numbers: int) -> str:
        return ",".join(base64.b64encode(key(n).public.raw).decode("ascii") for n in numbers)

    with serving(tmp_path / "registry", run, Options(limits=limits, is_open=True)) as service:
        assert service.post(maker.signed(1, key(50)), Auditkit_Key=header(50)).status_code == 201
        assert service.post(maker.signed(1, key(1)), Auditkit_Key=header(1)).status_code == 201
        assert service.post(maker.signed(2, key(51)), Auditkit_Key=header(1, 51)).status_code == 429
        assert service.post(maker.signed(2, key(1)), Auditkit_Key=header(1)).status_code == 201
        service.clock.seconds += 2
        assert service.post(maker.signed(2, key(51)), Auditkit_Key=header(51)).status_code == 201
