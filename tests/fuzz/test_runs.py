"""Commands on runs of a hostile publisher: a code of the table, and nothing written or reached but what is declared."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz import runs, servers
from tests.fuzz.runs import Place, try_command
from tests.fuzz.watch import watched
from tests.replay.conftest import compact, honest, parts, segmented, stretches
from tests.store import servers as behaviours
from tests.store.servers import Server, serve

__all__ = ["compact", "honest", "parts", "segmented", "stretches"]

LOCAL, REMOTE = 30, 12  # trials; `python -m tests.fuzz.runs` makes as many as wanted

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="a hostile folder holds pipes, devices and links, which Windows lacks"),
    pytest.mark.optional("Windows has no such folders"),
]


def test_hostile_folders(honest: Path, compact: Path, segmented: Path, tmp_path: Path) -> None:
    tried = [runs.trial(seed, [honest, compact, segmented], tmp_path) for seed in range(LOCAL)]
    assert len(set(tried)) > LOCAL // 2


def test_hostile_servers(honest: Path, compact: Path, tmp_path: Path) -> None:
    tried = [servers.trial(seed, [honest, compact], tmp_path) for seed in range(REMOTE)]
    assert len(set(tried)) > REMOTE // 2


def served(run: Path) -> dict[str, bytes]:
    """The files of a run by their path."""
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def with_manifest(files: dict[str, bytes], change: Callable[[dict[str, Any]], None]) -> dict[str, bytes]:
    """The same files under a changed manifest."""
    value = json.loads(files["run.json"])
    change(value)
    return files | {"run.json": json.dumps(value, sort_keys=True, separators=(",", ":")).encode()}


@pytest.fixture
def elsewhere(honest: Path) -> Iterator[Server]:
    """A server with the run's files that nobody declares."""
    with serve(behaviours.honest, served(honest)) as server:
        yield server


def test_only_the_run_and_its_mirrors_are_asked(honest: Path, elsewhere: Server, tmp_path: Path) -> None:
    """Whatever paths a manifest names: a whole address, an address without scheme, one that climbs, one with a port."""
    port = elsewhere.server_address[1]
    paths = [elsewhere.url + "records.bin", f"//127.0.0.1:{port}/records.bin", "../records.bin", "a/../../records.bin"]
    paths += [f"@127.0.0.1:{port}/x", "/etc/passwd", "\\\\127.0.0.1\\x", "records.bin?x=1", "records.bin#x", "%2e%2e/x"]
    for number, path in enumerate(paths):

        def rename(manifest: dict[str, Any], path: str = path) -> None:
            for artifact in manifest["artifacts"]:
                if artifact["path"] == "records.bin":
                    artifact["path"] = path
            manifest["artifacts"].sort(key=lambda artifact: artifact["path"])

        files = with_manifest(served(honest), rename)
        with runs.without_waiting(), serve(behaviours.honest, files) as server:
            code, seen, _ = try_command(("verify", "--step", "4"), server.url, Place(tmp_path / str(number)))
            assert code == 4
            assert seen.reached <= {servers.address(server)}
            assert {asked.path for asked in server.asked} <= {"run.json"}
    assert not elsewhere.asked


def test_a_mirror_is_asked_because_it_is_declared(honest: Path, elsewhere: Server, tmp_path: Path) -> None:
    def declare(manifest: dict[str, Any]) -> None:
        manifest["mirrors"] = [elsewhere.url.rstrip("/")]

    files = {"run.json": with_manifest(served(honest), declare)["run.json"]}
    with runs.without_waiting(), serve(behaviours.honest, files) as server:
        code, seen, _ = try_command(("verify", "--step", "4"), server.url, Place(tmp_path))
        assert code == 0
        assert seen.reached == {servers.address(server), servers.address(elsewhere)}


def test_a_local_run_reaches_nothing_whatever_its_mirrors(honest: Path, elsewhere: Server, tmp_path: Path) -> None:
    run = shutil.copytree(honest, tmp_path / "run")
    files = with_manifest(served(run), lambda manifest: manifest.update(mirrors=[elsewhere.url.rstrip("/")]))
    (run / "run.json").write_bytes(files["run.json"])
    for command in runs.COMMANDS:
        _, seen, _ = try_command(command, str(run), Place(tmp_path))
        assert not seen.reached, command
    (run / "records.bin").unlink()  # then it is fetched, and from there only
    code, seen, _ = try_command(("verify", "--step", "4"), str(run), Place(tmp_path))
    assert (code, seen.reached) == (0, {servers.address(elsewhere)})
    shutil.rmtree(tmp_path / "cache")
    code, seen, _ = try_command(("verify", "--step", "4"), str(run), Place(tmp_path), extra=("--offline",))
    assert (code, seen.reached) == (5, set())


@pytest.mark.parametrize("left", ["/etc/passwd", "../outside", "/dev/zero", "/"])
def test_a_link_out_of_the_run_gives_nothing_away_and_is_no_trap(honest: Path, tmp_path: Path, left: str) -> None:
    (tmp_path / "outside").write_bytes(b"a-secret-of-mine")
    run = shutil.copytree(honest, tmp_path / "run")
    for name in ("records.bin", "states/00000004/state.json", "run.json"):
        (run / name).rename(run / "kept")
        (run / name).symlink_to(left if name != "states/00000004/state.json" else left.replace("..", "../../.."))
        code, _, said = try_command(("verify", "--step", "4"), str(run), Place(tmp_path / "place"))
        assert code in (4, 5)
        assert "a-secret-of-mine" not in said and "root:x:" not in said
        (run / name).unlink()
        (run / "kept").rename(run / name)


def test_what_is_written_and_reached_is_seen(tmp_path: Path) -> None:
    """The watch itself: a folder, a file by each way, a link, a connection."""
    with watched() as seen, contextlib.suppress(OSError), socket.socket() as connection:
        (tmp_path / "folder").mkdir()
        (tmp_path / "a").write_bytes(b"x")
        os.close(os.open(tmp_path / "b", os.O_CREAT | os.O_WRONLY))
        (tmp_path / "a").rename(tmp_path / "c")
        (tmp_path / "c").read_bytes()
        connection.connect(("127.0.0.1", 1))
    real = Path(os.path.realpath(tmp_path))
    assert seen.written == {real / name for name in ("folder", "a", "b", "c")}
    assert seen.outside(tmp_path / "folder") == {real / name for name in ("a", "b", "c")}
    assert seen.outside(tmp_path) == set()
    assert seen.reached == {"127.0.0.1:1"}
    with watched() as seen:
        assert sys.version
    assert not seen.written and not seen.reached
