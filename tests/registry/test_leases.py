"""Leases keep auditors from repeating each other, run out, are capped, cannot be replayed, and block nobody."""

from __future__ import annotations

import base64
import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from auditkit.audit.submit import signed_request
from auditkit.formats.dsse import Envelope
from auditkit.formats.lease import LeaseRequest, Leases
from auditkit.registry.leases import with_leases
from auditkit.registry.limits import REGISTRY_LIMITS
from auditkit.registry.runs import KnownRun
from auditkit.trust.assignment import NEVER, OPEN, SETTLED
from auditkit.trust.coverage import cover
from auditkit.trust.envelope import sign_payload
from auditkit.trust.keys import PrivateKey
from auditkit.trust.policy import Trust
from auditkit.trust.rows import Entry, Rows
from auditkit.verdict import Verdict
from tests.registry.inprocess import ADDRESS, JSON, Options, Service, policy, serving
from tests.registry.makers import NOW, Maker, key


def request(run: KnownRun, count: int = 5, **changes: object) -> LeaseRequest:
    """A request as an honest client makes it; `changes` replace fields."""
    return replace(LeaseRequest(ADDRESS, run.run_id, count, NOW, secrets.token_hex(32)), **changes)  # type: ignore[arg-type]


def ask(service: Service, data: bytes) -> httpx.Response:
    """Send it."""
    return service.ask("POST", "/v1/leases", content=data, headers=JSON)


def lease(service: Service, run: KnownRun, by: PrivateKey, count: int = 5) -> list[int]:
    """The steps that somebody gets."""
    answer = ask(service, signed_request(request(run, count, time=int(service.clock.wall())), by))
    assert answer.status_code == 201, answer.text
    return [given.step for given in Leases.parse(answer.content).leases]


def test_auditors_get_different_steps(service: Service, run: KnownRun) -> None:
    found = [lease(service, run, key(1 + n % 4), 50) for n in range(16)]
    steps = [step for part in found for step in part]
    assert len(steps) == 800
    assert len(set(steps)) == 800


def test_requests_at_the_same_time_get_different_steps(service: Service, run: KnownRun) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: lease(service, run, key(1 + n % 4), 20), range(24)))
    assert len({step for part in found for step in part}) == 24 * 20


def test_a_lease_runs_out(service: Service, run: KnownRun) -> None:
    first = lease(service, run, key(1), 64)
    assert not set(first) & set(lease(service, run, key(1), 64))
    service.clock.seconds += REGISTRY_LIMITS.lease_seconds - 1
    held = Leases.parse(ask(service, signed_request(request(run, 1, time=int(service.clock.wall())), key(1))).content)
    assert held.held == 129
    service.clock.seconds += 2
    # the beacon orders the steps anew for nobody: the same key begins again where it began
    assert lease(service, run, key(1), 64)[:63] == first[:63]


def test_an_attestation_ends_the_lease_and_the_step_does_not_come_back(
    service: Service, run: KnownRun, maker: Maker
) -> None:
    steps = lease(service, run, key(1), 64)
    for step in steps[:10]:
        assert service.post(maker.signed(step, key(1))).status_code == 201
    held = Leases.parse(ask(service, signed_request(request(run, 1), key(1))).content).held
    assert held == 64 - 10 + 1
    service.clock.seconds += REGISTRY_LIMITS.lease_seconds + 1
    again = [step for _ in range(4) for step in lease(service, run, key(1), 64)]
    assert not set(again) & set(steps[:10])
    assert set(steps[10:]) <= set(again)


def test_nobody_is_held_back_from_attesting(service: Service, run: KnownRun, maker: Maker) -> None:
    (step,) = lease(service, run, key(1), 1)
    assert service.post(maker.signed(step, key(2))).status_code == 201


def test_when_every_step_is_leased_there_are_steps_all_the_same(run: KnownRun, tmp_path: Path) -> None:
    limits = replace(REGISTRY_LIMITS, coverage_seconds=0.0, lease_steps=1000, lease_steps_per_key=1000)
    with serving(tmp_path / "registry", run, Options(limits=limits)) as service:
        assert len(lease(service, run, key(1), 1000)) == 1000
        assert len(lease(service, run, key(2), 1000)) == 1000
        assert len(lease(service, run, key(3), 7)) == 7


def test_a_key_holds_only_so_many(service: Service, run: KnownRun) -> None:
    most, at_once = REGISTRY_LIMITS.lease_steps_per_key, REGISTRY_LIMITS.lease_steps
    for _ in range(most // at_once):
        lease(service, run, key(1), at_once)
    full = ask(service, signed_request(request(run, 1), key(1)))
    assert (full.status_code, full.json()["verdict"]) == (429, "UNAVAILABLE")
    assert int(full.headers["Retry-After"]) == REGISTRY_LIMITS.lease_seconds
    assert len(lease(service, run, key(2), 5)) == 5  # only that key has to wait


def test_leases_of_keys_that_do_not_count_hold_nobody_back(run: KnownRun, tmp_path: Path) -> None:
    """Else a publisher with many keys could keep auditors away from the steps that it tampered with."""
    limits = replace(REGISTRY_LIMITS, coverage_seconds=0.0, lease_steps=1000, lease_steps_per_key=1000)
    with serving(tmp_path / "alone", run, Options(limits=limits)) as service:
        undisturbed = lease(service, run, key(1), 20)
    with serving(tmp_path / "registry", run, Options(limits=limits, is_open=True)) as service:
        for number in (60, 61, 62):
            found = stranger(service, run, number, 900)
            assert (len(found.leases), found.held) == (900, 0)
        assert lease(service, run, key(1), 20) == undisturbed
        # a stranger is told what others do not have, and leaves nothing behind
        assert not {given.step for given in stranger(service, run, 60, 900).leases} & set(undisturbed)
        assert service.registry.database.keys().keys() == {0}


def stranger(service: Service, run: KnownRun, number: int, count: int) -> Leases:
    """What a key gets that the policy does not list."""
    headers = {**JSON, "Auditkit-Key": base64.b64encode(key(number).public.raw).decode("ascii")}
    answer = service.ask(
        "POST", "/v1/leases", content=signed_request(request(run, count), key(number)), headers=headers
    )
    assert answer.status_code == 201
    return Leases.parse(answer.content)


def test_a_request_is_used_once(service: Service, run: KnownRun) -> None:
    data = signed_request(request(run), key(1))
    assert ask(service, data).status_code == 201
    again = ask(service, data)
    assert (again.status_code, again.json()["message"]) == (403, "this lease request was used before")
    # also at the very end of the time in which it would be believed
    service.clock.seconds += REGISTRY_LIMITS.clock_seconds
    assert ask(service, data).status_code == 403


def test_a_nonce_is_kept_as_long_as_the_request_could_be_believed(service: Service, run: KnownRun) -> None:
    data = signed_request(request(run, time=NOW + REGISTRY_LIMITS.clock_seconds), key(1))
    assert ask(service, data).status_code == 201
    service.clock.seconds += 2 * REGISTRY_LIMITS.clock_seconds
    lease(service, run, key(2), 1)  # cleans up
    assert ask(service, data).json()["message"] == "this lease request was used before"
    service.clock.seconds += 1
    assert "of another time" in ask(service, data).json()["message"]


BAD = {
    "another registry": ({"audience": "https://other.example"}, 403, "UNTRUSTED"),
    "the registry's name with a slash": ({"audience": f"{ADDRESS}/"}, 403, "UNTRUSTED"),
    "long ago": ({"time": NOW - REGISTRY_LIMITS.clock_seconds - 1}, 403, "UNTRUSTED"),
    "far ahead": ({"time": NOW + REGISTRY_LIMITS.clock_seconds + 1}, 403, "UNTRUSTED"),
    "a run that is not served": ({"run_id": "11" * 32}, 400, "USAGE"),
    "too many steps": ({"count": REGISTRY_LIMITS.lease_steps + 1}, 400, "USAGE"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused(service: Service, run: KnownRun, name: str) -> None:
    changes, status, verdict = BAD[name]
    answer = ask(service, signed_request(request(run, **changes), key(1)))  # type: ignore[arg-type]
    assert (answer.status_code, answer.json()["verdict"]) == (status, verdict)
    assert service.registry.database.keys() == {}


def test_who_is_refused(service: Service, run: KnownRun, maker: Maker) -> None:
    data = request(run).encode()
    stranger = signed_request(request(run), key(77))
    attestation = maker.signed(5, key(1))
    as_statement = sign_payload(data, "application/vnd.in-toto+json", key(1)).encode()
    good = Envelope.parse(signed_request(request(run), key(1)))
    changed = replace(good, payload=good.payload.replace(b'"count":5', b'"count":6')).encode()
    for bad in (stranger, attestation, as_statement, changed):
        answer = ask(service, bad)
        assert (answer.status_code, answer.json()["verdict"]) == (403, "UNTRUSTED")
    # nor is a lease request an attestation
    assert service.post(signed_request(request(run), key(1))).json()["verdict"] == "UNTRUSTED"
    assert service.registry.database.size() == 0


def test_a_lease_counts_as_a_match_to_come() -> None:
    a, b, mine = (key(n).public.keyid for n in (1, 2, 3))
    entries = [Entry(step, keyid, Verdict.MATCH, "cpu-x86_64", 0) for step, keyid in ((1, a), (2, a), (2, b))]
    entries.append(Entry(3, a, Verdict.MISMATCH, "cpu-x86_64", 0, outcome="x"))
    coverage = cover(Rows.of(entries), Trust(policy(Options(threshold=2))), 8)
    levels = with_leases(coverage, mine, {0: 1, 1: 1, 2: 1, 3: 1, 4: 2, 5: 9, 99: 1})
    # 0 open, leased once; 1 one match and a lease: enough; 2 covered; 3 disputed, leased; 4, 5 leased enough; 6, 7 open
    assert levels.tolist() == [OPEN + 1, SETTLED - 1, SETTLED, 1, SETTLED - 1, SETTLED - 1, OPEN, OPEN]
    assert with_leases(coverage, a, {}).tolist()[1:4] == [NEVER, NEVER, NEVER]
