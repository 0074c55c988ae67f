"""`auditkit registry serve` and its clients, each a process of its own, over either database."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from auditkit.formats.lease import Leases
from auditkit.registry.folder import Folder, init, open_database
from auditkit.registry.runs import KnownRun
from auditkit.registry.schema import VERSION
from auditkit.trust.keys import save_private, save_public
from auditkit.verdict import Verdict
from tests import forked
from tests.conftest import ROOT
from tests.registry.conftest import POSTGRES
from tests.registry.inprocess import ORIGIN
from tests.registry.makers import Maker, key
from tests.registry.server import Connection, running, write_policy
from tests.registry.test_crash import settled

posix = pytest.mark.optional("signals are POSIX's")


def auditkit(*words: object, **variables: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "PYTHONUTF8": "1", **variables}
    done = forked.run(forked.AUDITKIT, list(map(str, words)), env=env)
    return done.returncode, done.stdout, done.stderr


def test_from_init_to_restore(maker: Maker, address: str, tmp_path: Path) -> None:
    folder, place = tmp_path / "registry", ("--database", address)
    code, out, err = auditkit("registry", "init", folder, "--origin", ORIGIN, *place, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["log_key"].startswith(f"{ORIGIN}+")
    envelopes = tmp_path / "attestations"
    envelopes.mkdir()
    for step in range(30):
        (envelopes / f"step-{step}.json").write_bytes(maker.signed(step, key(1)))
    with running(folder, *place) as server:
        code, out, err = auditkit("submit", envelopes, "--registry", server.url)
        assert (code, err) == (0, "")
        assert "30 taken, 0 known before, 0 refused, 0 not taken yet" in out
        (envelopes / "step-77.json").write_bytes(maker.signed(77, key(77)))
        code, out, _ = auditkit("submit", envelopes, "--registry", server.url + "/", "--json")
        assert code == 8
        assert json.loads(out)["counts"] == {"taken": 0, "known": 30, "refused": 1, "later": 0}
        code, out, _ = auditkit("registry", "backup", folder, tmp_path / "backup", *place)
        assert (code, out.splitlines()[0]) == (0, f"30 attestations in {tmp_path / 'backup'}")
        assert server.stop() == 0
    assert [line.split()[0] for line in server.told] == ["serving", "stopped"][: len(server.told)]
    code, out, _ = auditkit("registry", "init", tmp_path / "twin", "--origin", ORIGIN, "--log-key", folder / "log.key")
    assert code == 0
    code, out, err = auditkit("registry", "restore", tmp_path / "twin", tmp_path / "backup", "--json")
    assert (code, json.loads(out)["attestations"]) == (0, 30), err
    with running(tmp_path / "twin") as server:
        code, out, _ = auditkit("submit", envelopes / "step-3.json", "--registry", server.url)
        assert "0 taken, 1 known before" in out


def test_readers_compute_the_same_coverage_from_the_log(run: KnownRun, maker: Maker, tmp_path: Path) -> None:
    """`auditkit coverage` reads the log over HTTP, verifies everything itself, and remembers the checkpoint."""
    public = init(tmp_path / "registry", ORIGIN)
    policy = write_policy(tmp_path / "policy.toml")
    envelopes = [maker.signed(step, key(by)) for step in range(200) for by in (1, 2)]
    envelopes += [maker.signed(300, key(3)), maker.signed(400, key(1), Verdict.MISMATCH)]
    (tmp_path / "all.jsonl").write_bytes(b"\n".join(envelopes) + b"\n")
    with running(tmp_path / "registry", policy=policy) as server:
        assert auditkit("submit", tmp_path / "all.jsonl", "--registry", server.url)[0] == 0
        assert settled(server, len(envelopes)).checkpoint().size == len(envelopes)
        said = json.loads(Connection(server.url).get(f"/v1/runs/{run.run_id}/coverage"))
        where = {"AUDITKIT_DATA": str(tmp_path / "data"), "AUDITKIT_CACHE": str(tmp_path / "cache")}
        coverage = ("coverage", f"{server.url}/log", "--log-key", public.text, "--run", "sotu-tiny", "--policy", policy)
        code, out, err = auditkit(*coverage, "--json", **where)
        assert code == 9, err
        found = json.loads(out)
        totals = {status: found["totals"][status] for status in said["totals"]}
        assert totals == said["totals"] == {"mismatch": 0, "disputed": 1, "open": 798, "partial": 1, "covered": 200}
        assert server.stop() == 0
    assert any((tmp_path / "data").rglob("*"))


def test_claims(run: KnownRun, maker: Maker, tmp_path: Path) -> None:
    init(tmp_path / "registry", ORIGIN)
    for number in (1, 77):
        save_private(tmp_path / f"{number}.key", key(number))
    with running(tmp_path / "registry") as server:
        claim = ("claim", "--registry", server.url, "--key", tmp_path / "1.key")
        code, out, err = auditkit(*claim, "--count", 5, "--json")
        assert (code, err) == (0, "")
        first = json.loads(out)
        assert (first["run"], first["run_id"], len(first["leases"])) == ("sotu-tiny", run.run_id, 5)
        code, out, _ = auditkit(*claim, "--run", "sotu-tiny")
        (step,) = [int(line.split()[1].rstrip(",")) for line in out.splitlines() if line.startswith("step ")]
        assert code == 0
        assert step not in [lease["step"] for lease in first["leases"]]
        assert f"auditkit verify --run sotu-tiny --step {step} --attest {tmp_path / '1.key'} --attest-dir " in out
        assert auditkit(*claim, "--run", "another")[0] == 2
        assert auditkit(*claim, "--count", 65)[0] == 8
        assert auditkit("claim", "--registry", server.url, "--key", tmp_path / "77.key")[0] == 8
        # what the registry is called is part of what is signed
        other = server.url.replace("127.0.0.1", "localhost")
        assert auditkit("claim", "--registry", other, "--key", tmp_path / "1.key")[0] == 0


def test_an_open_registry_takes_keys_beside_the_files(maker: Maker, tmp_path: Path) -> None:
    init(tmp_path / "registry", ORIGIN)
    files = tmp_path / "mine"
    files.mkdir()
    (files / "step-3.json").write_bytes(maker.signed(3, key(50)))
    with running(tmp_path / "registry", "--open") as server:
        assert auditkit("submit", files, "--registry", server.url)[0] == 8
        save_public(files / "auditor.pem", key(50).public)
        assert auditkit("submit", files, "--registry", server.url)[0] == 0


def test_a_public_address_of_its_own(run: KnownRun, tmp_path: Path) -> None:
    """Behind a proxy: a request signed for the address inside is refused, one for the address outside is taken."""
    from auditkit.audit.submit import signed_request
    from tests.registry.test_leases import request

    init(tmp_path / "registry", ORIGIN)
    with running(tmp_path / "registry", "--url", "https://Registry.Example/", "--proxy", "127.0.0.1") as server:
        import time

        connection, now = Connection(server.url), int(time.time())
        for audience, expected in ((server.url, 403), ("https://registry.example", 201)):
            data = signed_request(request(run, audience=audience, time=now), key(1))
            status, body = connection.ask("POST", "/v1/leases", data)
            assert status == expected, body
        assert len(Leases.parse(body).leases) == 5


@pytest.mark.parametrize("is_believed", [False, True])
def test_a_proxy_names_the_client_only_if_it_is_to_be_believed(tmp_path: Path, is_believed: bool) -> None:
    init(tmp_path / "registry", ORIGIN)
    options = ["--address-rate", "1", *(["--proxy", "127.0.0.1"] if is_believed else [])]
    with running(tmp_path / "registry", *options) as server:
        answers = []
        for n in range(3):
            headers = {"X-Forwarded-For": f"192.0.2.{n}", "Content-Type": "application/x-ndjson"}
            status, _ = Connection(server.url).ask("POST", "/v1/attestations/batch", b"{}\n" * 40, headers)
            answers.append(status)
    # each batch uses up the burst of one address
    assert answers == ([200] * 3 if is_believed else [200, 429, 429])


@posix
@pytest.mark.skipif(sys.platform == "win32", reason="no signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_under_load_ends_it_in_order(maker: Maker, address: str, tmp_path: Path, number: int) -> None:
    init(tmp_path / "registry", ORIGIN, address=address)
    envelopes = [maker.signed(step, key(1)) for step in range(600)]
    taken: list[str] = []
    with running(tmp_path / "registry", "--database", address) as server:

        def submit(part: list[bytes]) -> None:
            connection = Connection(server.url)
            for envelope in part:
                try:
                    status, said = connection.submit(envelope)
                except (OSError, ValueError):
                    return
                assert status == 201
                taken.append(said["envelope"])

        threads = [threading.Thread(target=submit, args=(envelopes[n::4],)) for n in range(4)]
        for thread in threads:
            thread.start()
        while len(taken) < 40 and any(thread.is_alive() for thread in threads):
            threads[0].join(0.001)
        server.process.send_signal(number)
        assert server.process.wait(60) == 0
        for thread in threads:
            thread.join(60)
    assert server.told[-1] == "stopped"
    database = open_database(Folder(tmp_path / "registry"), address)
    stored = database.positions([bytes.fromhex(name) for name in taken])
    assert len(stored) == len(taken) >= 40
    origin, private = Folder(tmp_path / "registry").key()
    from auditkit.trust.log_writer import LogWriter

    checkpoint = LogWriter(Folder(tmp_path / "registry").log, origin, private).checkpoint()
    assert checkpoint is not None
    assert checkpoint.size == database.size()  # it caught up before it ended
    database.close()


@pytest.mark.parametrize("address", [POSTGRES], indirect=True)
def test_two_processes_share_one_postgresql(maker: Maker, address: str, tmp_path: Path) -> None:
    """Both take, the positions are dense, and one log comes of it."""
    init(tmp_path / "registry", ORIGIN, address=address)
    policy, place = write_policy(tmp_path / "policy.toml"), ("--database", address)
    with running(tmp_path / "registry", *place, policy=policy) as a:
        with running(tmp_path / "registry", *place, policy=policy) as b:
            found = []
            for step in range(60):
                connection = Connection((a, b)[step % 2].url)
                status, said = connection.submit(maker.signed(step // 2, key(1 + step % 4 // 2)))
                found.append((status, said["position"]))
                connection.close()
            assert b.stop() == 0
        assert a.stop() == 0
    taken = sorted(position for status, position in found if status == 201)
    assert taken == list(range(len(taken)))
    origin, private = Folder(tmp_path / "registry").key()
    from auditkit.trust.log_writer import LogWriter

    checkpoint = LogWriter(Folder(tmp_path / "registry").log, origin, private).checkpoint()
    assert checkpoint is not None
    assert checkpoint.size == len(taken)


def test_what_cannot_be_served(tmp_path: Path) -> None:
    init(tmp_path / "registry", ORIGIN)
    policy = write_policy(tmp_path / "policy.toml")
    serve = ("registry", "serve", tmp_path / "registry", "--policy", policy, "--port", 0)
    assert auditkit(*serve)[0] == 2  # no run
    assert auditkit(*serve, "--run", tmp_path / "nowhere")[0] == 2
    assert auditkit("registry", "serve", tmp_path, "--run", "sotu-tiny", "--policy", policy, "--port", 0)[0] == 5
    code, _, err = auditkit(*serve, "--run", "sotu-tiny", "--run", "sotu-tiny")
    assert (code, "given twice" in err) == (2, True)
    with running(tmp_path / "registry") as server:
        taken = server.url.rpartition(":")[2]
        code, _, err = auditkit(*serve[:-1], taken, "--run", "sotu-tiny")
        assert (code, "cannot listen" in err) == (5, True)


def test_a_newer_database_is_refused(tmp_path: Path) -> None:
    init(tmp_path / "registry", ORIGIN)
    database = open_database(Folder(tmp_path / "registry"))
    with database.engine.writing() as session:
        session.run("UPDATE meta SET value = ? WHERE name = 'schema'", (str(VERSION + 1),))
    database.close()
    policy = write_policy(tmp_path / "policy.toml")
    code, out, err = auditkit(
        "registry", "serve", tmp_path / "registry", "--run", "sotu-tiny", "--policy", policy, "--port", 0
    )
    assert (code, out) == (Verdict.UNSUPPORTED.code, "")
    assert f"tables of version {VERSION + 1}" in err
    assert auditkit("registry", "backup", tmp_path / "registry", tmp_path / "b")[0] == 6


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_without_the_libraries_the_extra_is_named(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from auditkit.cli.interrupt import Signals
    from auditkit.cli.main import run as main

    monkeypatch.setitem(sys.modules, missing, None)
    words = ["registry", "serve", str(tmp_path), "--run", "sotu-tiny", "--policy", str(tmp_path / "policy.toml")]
    assert main(words, Signals()) == Verdict.UNSUPPORTED.code
    out, err = capsys.readouterr()
    assert (out, missing in err) == ("", True)
    assert "pip install 'auditkit-verifier[registry]'" in err


@pytest.mark.parametrize("address", [POSTGRES], indirect=True)
def test_a_database_server_that_crashes_and_comes_back(maker: Maker, address: str, tmp_path: Path) -> None:
    """What was answered survives its crash; meanwhile submissions are told to come again; then all goes on."""
    from tests.registry import cluster

    programs = cluster.programs()
    assert programs is not None
    with cluster.started(programs) as own:
        place = own.new_database()
        init(tmp_path / "registry", ORIGIN, address=place)
        with running(tmp_path / "registry", "--database", place) as server:
            connection = Connection(server.url)
            taken = [connection.submit(maker.signed(step, key(1)))[1] for step in range(20)]
            own.crash()
            status, said = connection.submit(maker.signed(50, key(1)))
            assert (status, said["verdict"]) == (503, "UNAVAILABLE")
            assert connection.ask("GET", "/v1/health")[0] == 503
            own.restart(programs)
            status, said = connection.submit(maker.signed(50, key(1)))
            while status == 503:  # connections that the crash broke are found out one by one
                status, said = connection.submit(maker.signed(50, key(1)))
            assert (status, said["position"]) == (201, 20)
            for step, receipt in enumerate(taken):
                status, said = connection.submit(maker.signed(step, key(1)))
                assert (status, said["position"], said["envelope"]) == (200, step, receipt["envelope"])
            assert server.stop() == 0
