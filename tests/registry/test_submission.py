"""What is taken, what is known, what is refused and why; nothing that was not verified is stored."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest

from auditkit.registry.limits import REGISTRY_LIMITS
from auditkit.registry.runs import KnownRun
from auditkit.verdict import Verdict
from tests.registry.bad_envelopes import STATUS, bad_envelopes
from tests.registry.inprocess import LINES, Options, Service, serving
from tests.registry.makers import Maker, key


def test_new_then_known(service: Service, maker: Maker) -> None:
    envelope = maker.signed(5, key(1))
    name = hashlib.sha256(envelope).hexdigest()
    first, second = service.post(envelope), service.post(envelope)
    assert (first.status_code, second.status_code) == (201, 200)
    receipt = {"format": "auditkit/registry-receipt/v1", "status": "taken", "envelope": name, "position": 0}
    assert first.json() == receipt
    assert second.json() == {**receipt, "status": "known"}
    assert service.registry.database.size() == 1
    got = service.get(f"/v1/attestations/{name}")
    assert (got.status_code, got.content, got.headers["Auditkit-Position"]) == (200, envelope, "0")


@pytest.mark.parametrize("verdict", [Verdict.MATCH, Verdict.MISMATCH, Verdict.UNAVAILABLE])
def test_every_result_is_taken(service: Service, maker: Maker, verdict: Verdict) -> None:
    assert service.post(maker.signed(7, key(1), verdict)).status_code == 201
    assert [fact.verdict for fact in service.registry.database.facts(0)] == [verdict.code]


def test_the_same_envelope_many_times_at_once_is_stored_once(service: Service, maker: Maker) -> None:
    envelope = maker.signed(5, key(1))
    answers = service.post_many([envelope] * 60)
    assert sorted(answer.status_code for answer in answers) == [200] * 59 + [201]
    assert {answer.json()["position"] for answer in answers} == {0}
    assert service.registry.database.size() == 1


def test_many_at_once_get_a_position_each(service: Service, maker: Maker) -> None:
    envelopes = [maker.signed(step, key(1 + step % 4)) for step in range(120)]
    answers = service.post_many(envelopes)
    assert {answer.status_code for answer in answers} == {201}
    assert sorted(answer.json()["position"] for answer in answers) == list(range(120))
    by_position = {answer.json()["position"]: answer.json()["envelope"] for answer in answers}
    stored = [hashlib.sha256(body).hexdigest() for body in service.registry.database.bodies(0, most=200)]
    assert stored == [by_position[position] for position in range(120)]


def test_what_is_refused(service: Service, maker: Maker) -> None:
    assert service.post(maker.signed(5, key(1))).status_code == 201
    for name, (envelope, verdict) in bad_envelopes(maker).items():
        answer = service.post(envelope)
        said = answer.json()
        assert (answer.status_code, said["verdict"]) == (STATUS[verdict], verdict.name), f"{name}: {said}"
        assert said["format"] == "auditkit/error/v1"
        assert said["message"] and not said["message"].endswith("."), name
        assert set(said) == {"format", "verdict", "code", "message", "hint"}
        assert "Traceback" not in answer.text
    assert service.registry.database.size() == 1
    assert not service.told


def test_a_batch_has_a_result_for_each_line(service: Service, maker: Maker) -> None:
    good = [maker.signed(step, key(1)) for step in range(3)]
    service.post(good[1])
    lines = [good[0], good[1], maker.signed(9, key(77)), b"{}", good[2]]
    answer = service.ask("POST", "/v1/attestations/batch", content=b"\n".join(lines) + b"\n", headers=LINES)
    assert answer.status_code == 200
    results = answer.json()["results"]
    assert [result["status"] for result in results] == ["taken", "known", "refused", "refused", "taken"]
    assert [result.get("position") for result in results] == [1, 0, None, None, 2]
    assert [result.get("verdict") for result in results[2:4]] == ["UNTRUSTED", "BAD_ARTIFACT"]


@pytest.mark.parametrize("content", [b"", b"\n" * 129, b"\n".join([b"{}"] * 129)])
def test_a_batch_has_at_least_one_and_not_too_many(service: Service, content: bytes) -> None:
    answer = service.ask("POST", "/v1/attestations/batch", content=content, headers=LINES)
    assert (answer.status_code, answer.json()["verdict"]) == (400, "USAGE")


def test_the_same_line_twice_in_a_batch(service: Service, maker: Maker) -> None:
    good = maker.signed(1, key(1))
    answer = service.ask("POST", "/v1/attestations/batch", content=good + b"\n" + good, headers=LINES)
    assert [result["status"] for result in answer.json()["results"]] == ["taken", "known"]


def test_a_key_may_say_only_so_much_about_a_step(service: Service, maker: Maker) -> None:
    most = REGISTRY_LIMITS.envelopes_per_key_and_step
    envelopes = [maker.signed(5, key(1), milliseconds=n) for n in range(most + 1)]
    answers = [service.post(envelope) for envelope in envelopes]
    assert [answer.status_code for answer in answers] == [201] * most + [403]
    assert "no more are taken" in answers[-1].json()["message"]
    assert service.post(maker.signed(5, key(2))).status_code == 201
    assert service.post(envelopes[0]).status_code == 200


def test_an_open_registry_takes_keys_that_come_along(run: KnownRun, maker: Maker, tmp_path: Path) -> None:
    stranger = key(50)
    raw = base64.b64encode(stranger.public.raw).decode("ascii")
    with serving(tmp_path / "registry", run, Options(is_open=True)) as service:
        envelope = maker.signed(5, stranger)
        assert service.post(envelope).status_code == 403
        assert service.post(envelope, Auditkit_Key=raw).status_code == 201
        pem = service.get(f"/v1/keys/{stranger.public.keyid}")
        assert pem.content == stranger.public.pem()
        # it is known by now, but whether its word counts is the policy's business
        coverage = service.get(f"/v1/runs/{run.run_id}/coverage").json()
        assert (coverage["attestations"], coverage["totals"]["open"]) == (1, 1000)
        excluded = base64.b64encode(key(9).public.raw).decode("ascii")
        refused = service.post(maker.signed(5, key(9)), Auditkit_Key=excluded)
        assert (refused.status_code, "left the project" in refused.json()["message"]) == (403, True)
        for bad in ("!", "AAAA", base64.b64encode(bytes(32)).decode("ascii"), ",".join([raw] * 9)):
            assert service.post(maker.signed(6, stranger), Auditkit_Key=bad).json()["verdict"] == "USAGE"


def test_a_closed_registry_takes_no_key_along(service: Service, maker: Maker) -> None:
    raw = base64.b64encode(key(50).public.raw).decode("ascii")
    assert service.post(maker.signed(5, key(50)), Auditkit_Key=raw).status_code == 403
    assert service.registry.database.keys() == {}


def test_a_bug_that_one_envelope_finds_fails_it_alone(
    service: Service, maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = service.registry.intake._check

    def buggy(data: bytes, keys: object) -> object:
        if data == b"{}":
            raise ZeroDivisionError("secret detail")
        return check(data, keys)  # type: ignore[arg-type]

    monkeypatch.setattr(service.registry.intake, "_check", buggy)
    answers = service.post_many([maker.signed(1, key(1)), b"{}", maker.signed(2, key(1))])
    assert [answer.status_code for answer in answers] == [201, 500, 201]
    assert answers[1].json()["verdict"] == "INTERNAL"
    assert "secret detail" not in answers[1].text


def test_content_types(service: Service, maker: Maker) -> None:
    envelope = maker.signed(5, key(1))
    for kind in ("text/plain", "", "application/jsonx", "application/json; charset=latin-1"):
        answer = service.ask("POST", "/v1/attestations", content=envelope, headers={"Content-Type": kind})
        assert (answer.status_code, answer.json()["verdict"]) == (415, "USAGE")
    packed = service.post(envelope, Content_Encoding="gzip")
    assert packed.status_code == 415
    assert (
        service.ask(
            "POST", "/v1/attestations", content=envelope, headers={"Content-Type": "Application/JSON; charset=UTF-8"}
        ).status_code
        == 201
    )


def test_a_body_that_is_too_large_is_not_read(service: Service) -> None:
    answer = service.post(b"x" * (REGISTRY_LIMITS.envelope_bytes + 1))
    assert (answer.status_code, answer.json()["message"]) == (413, "a body of more than 65535 bytes")
    for length, status in (("9" * 30, 413), ("-1", 400), ("0x10", 400)):
        answer = service.post(b"{}", Content_Length=length)
        assert answer.status_code == status
