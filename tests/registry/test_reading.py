"""What a registry shows: runs, records, coverage, attestations, keys, the page; and JSON for everything else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from auditkit.formats.micro_batches import MicroBatches
from auditkit.formats.record import StepRecord
from auditkit.formats.step_audit import CHECKS, AuditedPart
from auditkit.registry.limits import REGISTRY_LIMITS
from auditkit.registry.runs import KnownRun
from auditkit.replay.run import Run
from auditkit.verdict import Verdict
from tests.registry.inprocess import ORIGIN, Service
from tests.registry.makers import Maker, key

NO_BODY_NEEDED = ["/v1/runs", "/v1/health", "/"]


def test_runs(service: Service, run: KnownRun) -> None:
    value = service.get("/v1/runs").json()
    assert value["runs"] == [{"run": run.run_id, "name": "sotu-tiny", "steps": 1000}]
    assert (value["format"], value["origin"], value["attestations"]) == ("auditkit/registry/v1", ORIGIN, 0)
    assert value["log_key"] == service.registry.vkey


def test_the_manifest_and_every_record_are_the_published_ones(service: Service, opened: Run) -> None:
    assert service.get(f"/v1/runs/{opened.run_id}").content == opened.manifest.encode()
    for step in (0, 1, 500, 999):
        answer = service.get(f"/v1/runs/{opened.run_id}/records/{step}")
        assert (answer.status_code, answer.content) == (200, opened.records[step].encode())
        assert "immutable" in answer.headers["Cache-Control"]


def test_coverage_follows_the_attestations(service: Service, run: KnownRun, maker: Maker) -> None:
    def coverage() -> dict[str, object]:
        return service.get(f"/v1/runs/{run.run_id}/coverage").json()  # type: ignore[no-any-return]

    empty = coverage()
    assert empty["totals"] == {"mismatch": 0, "disputed": 0, "open": 1000, "partial": 0, "covered": 0}
    assert (empty["verdict"], empty["attestations"]) == ("INCOMPLETE", 0)
    for step, by, verdict in ((3, 1, Verdict.MATCH), (3, 2, Verdict.MATCH), (4, 1, Verdict.MATCH)):
        service.post(maker.signed(step, key(by), verdict))
    for step, by in ((7, 1), (7, 2), (8, 3)):
        service.post(maker.signed(step, key(by), Verdict.MISMATCH))
    found = coverage()
    assert found["totals"] == {"mismatch": 1, "disputed": 1, "open": 996, "partial": 1, "covered": 1}
    assert found["ranges"] == {
        "mismatch": [[7, 8]],
        "disputed": [[8, 9]],
        "open": [[0, 3], [5, 7], [9, 1000]],
        "partial": [[4, 5]],
        "covered": [[3, 4]],
    }
    assert (found["verdict"], found["threshold"], found["attestations"], found["position"]) == ("MISMATCH", 2, 6, 6)


def test_who_said_what_about_a_step(service: Service, run: KnownRun, maker: Maker) -> None:
    envelopes = [maker.signed(3, key(1)), maker.signed(3, key(2), Verdict.MISMATCH)]
    for envelope in envelopes:
        service.post(envelope)
    listed = service.get(f"/v1/runs/{run.run_id}/steps/3").json()["attestations"]
    assert [(row["position"], row["verdict"], row["keyid"]) for row in listed] == [
        (0, "MATCH", key(1).public.keyid),
        (1, "MISMATCH", key(2).public.keyid),
    ]
    assert [service.get(f"/v1/attestations/{row['envelope']}").content for row in listed] == envelopes
    assert service.get(f"/v1/runs/{run.run_id}/steps/4").json()["attestations"] == []


def test_audits_of_micro_batches_are_taken_and_cover_no_step(service: Service, run: KnownRun, maker: Maker) -> None:
    record = StepRecord.parse(run.record(3))
    every = MicroBatches(((0, record.micro_batches),), record.micro_batches)
    part = AuditedPart(every, record.micro_root, record.micro_root, record.gradient)
    checks = {number: "skipped" if number == 7 else "ok" for number in CHECKS}
    for by in (1, 2):
        answer = service.post(maker.signed(3, key(by), computed=None, part=part, checks=checks))
        assert answer.status_code == 201
    found = service.get(f"/v1/runs/{run.run_id}/coverage").json()
    assert found["totals"] == {"mismatch": 0, "disputed": 0, "open": 999, "partial": 1, "covered": 0}
    assert (found["attestations"], found["of_parts"]) == (2, 2)
    listed = service.get(f"/v1/runs/{run.run_id}/steps/3").json()["attestations"]
    assert [row["part"] for row in listed] == [f"{every.text}/{every.count}"] * 2
    for by in (1, 2):
        service.post(maker.signed(3, key(by)))
    assert service.get(f"/v1/runs/{run.run_id}/coverage").json()["totals"]["covered"] == 1


def test_the_page_shows_the_coverage_and_is_made_again_when_it_changed(service: Service, maker: Maker) -> None:
    before = service.get("/")
    assert (before.status_code, before.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "sotu-tiny" in before.text
    assert service.get("/").content == before.content
    service.post(maker.signed(3, key(1)))
    after = service.get("/").text
    assert key(1).public.keyid in after
    assert service.get(f"/runs/{maker.run.run_id}").text == after


def test_a_page_that_took_long_is_not_made_again_at_once(
    service: Service, maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def slow(*_: object) -> bytes:
        made.append(service.clock.seconds)
        service.clock.seconds += 3
        return f"page {len(made)}".encode("ascii")

    monkeypatch.setattr("auditkit.registry.pages.page", slow)
    began = service.clock.seconds
    for step in range(80):
        service.post(maker.signed(step, key(1)))
        assert service.get("/").status_code == 200
        service.clock.seconds += 1
    # a page takes 3 s, so the next one begins 30 s after its end at the earliest
    assert len(made) == 3
    assert [at - began for at in made] == [0, 33, 66]


def test_a_key_is_shown_as_pem(service: Service) -> None:
    answer = service.get(f"/v1/keys/{key(1).public.keyid}")
    assert (answer.status_code, answer.content) == (200, key(1).public.pem())
    assert service.get(f"/v1/keys/{key(77).public.keyid}").status_code == 404


NOTHING = [
    "/nothing",
    "/v1",
    "/v1/",
    "/v1/runs/",
    "/v1/runs/11",
    f"/v1/runs/{'11' * 32}",
    f"/v1/runs/{'11' * 32}/coverage",
    f"/runs/{'11' * 32}",
    "/v1/runs/RUN/records/1000",
    "/v1/runs/RUN/records/-1",
    "/v1/runs/RUN/records/01",
    "/v1/runs/RUN/records/1e2",
    "/v1/runs/RUN/records/\u0661",
    "/v1/runs/RUN/records/99999999999999999999999",
    "/v1/runs/RUN/steps/x",
    "/v1/attestations/x",
    f"/v1/attestations/{'AB' * 32}",
    f"/v1/attestations/{'ab' * 32}",
    "/v1/attestations/batch",
    "/v1/keys/x",
    "/log/",
    "/log/checkpoint/",
    "/log/../log.key",
    "/log/%2e%2e/log.key",
    "/log/tile/0/000",
    "/log/tile/0/../../../log.key",
    "/log/tile/9/000",
    "/log/.lock",
    "/log//etc/passwd",
    "/log.key",
]


@pytest.mark.parametrize("path", NOTHING)
def test_there_is_nothing_else(service: Service, run: KnownRun, path: str) -> None:
    answer = service.get(path.replace("RUN", run.run_id))
    assert answer.status_code == 404
    assert answer.json()["verdict"] == "UNAVAILABLE"
    assert "PRIVATE" not in answer.text


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/leases", "POST"),
        ("DELETE", "/v1/attestations", "POST"),
        ("PUT", "/v1/runs", "GET"),
        ("POST", "/", "GET"),
        ("BREW", "/v1/runs", "GET"),
    ],
)
def test_methods(service: Service, method: str, path: str, allowed: str) -> None:
    answer = service.ask(method, path)
    assert (answer.status_code, answer.json()["verdict"]) == (405, "USAGE")
    assert allowed in answer.headers["Allow"]


@pytest.mark.parametrize("path", NO_BODY_NEEDED)
def test_head_and_headers(service: Service, path: str) -> None:
    head = service.ask("HEAD", path)
    assert head.status_code == 200
    assert head.headers["X-Content-Type-Options"] == "nosniff"
    assert head.headers["X-Frame-Options"] == "DENY"
    assert head.headers["Cache-Control"]


def test_a_head_that_is_too_long(service: Service) -> None:
    answer = service.get("/v1/runs", headers={"X-Long": "x" * REGISTRY_LIMITS.head_bytes})
    assert (answer.status_code, answer.json()["verdict"]) == (431, "USAGE")


def test_a_bug_shows_nothing_of_itself(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> int:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(service.registry.database, "size", broken)
    answer = service.get("/v1/health")
    assert (answer.status_code, answer.json()["verdict"], answer.json()["code"]) == (500, "INTERNAL", 70)
    assert not re.search("secret|Traceback|ZeroDivision", answer.text)
    monkeypatch.undo()


def test_a_database_that_is_away_is_unavailable(service: Service, maker: Maker, tmp_path: Path) -> None:
    service.registry.database.engine._path = tmp_path / "nowhere" / "registry.db"  # type: ignore[attr-defined]
    service.registry.database.engine._pool.close()  # type: ignore[attr-defined]
    answer = service.post(maker.signed(3, key(1)))
    assert (answer.status_code, answer.json()["verdict"]) == (503, "UNAVAILABLE")
    assert answer.headers["Retry-After"]
    assert service.get("/v1/health").status_code == 503
