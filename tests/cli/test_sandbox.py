"""After `fetch`, a verification needs no network: none is used with --offline, and none has to be there at all."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import environment
from tests.fuzz.runs import Place, try_command
from tests.store import servers

COMMANDS = (
    ("verify", "--step", "4"),
    ("show", "run"),
    ("show", "step", "4"),
    ("plan", "--step", "4"),
    ("coverage", "."),
)


@pytest.fixture
def fetched(honest: Path, tmp_path: Path) -> str:
    """The address of a run of which step 4 was fetched, and whose server is gone."""
    files = {path.relative_to(honest).as_posix(): path.read_bytes() for path in honest.rglob("*") if path.is_file()}
    with servers.serve(servers.honest, files) as server:
        code, seen, _ = try_command(("fetch", "--step", "4"), server.url, Place(tmp_path))
        assert (code, bool(seen.reached)) == (0, True)
        return server.url


def test_offline_no_socket_is_opened(fetched: str, tmp_path: Path) -> None:
    for command in COMMANDS:
        code, seen, said = try_command(command, fetched, Place(tmp_path), extra=("--offline",))
        assert code in (0, 9) and not seen.reached, (command, said)
    code, seen, said = try_command(("verify", "--step", "0"), fetched, Place(tmp_path), extra=("--offline",))
    assert code == 5 and "offline" in said and not seen.reached


def no_network() -> list[str]:
    """The command that runs another one in a network of its own with nothing in it; skips where that is not allowed."""
    for command in (["unshare", "--net"], ["unshare", "--map-root-user", "--net"]):
        if (
            shutil.which("unshare")
            and subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
        ):
            return command
    pytest.skip("no network namespace can be made here")


@pytest.mark.optional(
    "Linux only, and some containers forbid namespaces; test_offline_no_socket_is_opened runs everywhere"
)
@pytest.mark.parametrize("extra", [["--offline"], []])
def test_a_verification_in_a_namespace_without_network(fetched: str, tmp_path: Path, extra: list[str]) -> None:
    """Without --offline as well, but then the manifest would have to be fetched: it says that it cannot be."""
    command = [*no_network(), sys.executable, "-m", "auditkit", "verify", "--step", "4", "--run", fetched, *extra]
    done = subprocess.run(
        command, capture_output=True, encoding="utf-8", cwd=tmp_path, env=environment(tmp_path / "cache"), check=False
    )
    assert done.returncode == (0 if extra else 5), done.stderr
    assert ("MATCH" in done.stdout) == bool(extra)


@pytest.mark.optional("as above")
def test_that_namespace_has_no_network(tmp_path: Path) -> None:
    with servers.serve(servers.honest, {"x": b"x"}) as server:
        ask = f"import urllib.request; urllib.request.urlopen({server.url + 'x'!r}, timeout=5)"
        assert subprocess.run([sys.executable, "-c", ask], check=False).returncode == 0
        inside = [*no_network(), sys.executable, "-c", ask]
        done = subprocess.run(inside, capture_output=True, encoding="utf-8", check=False)
        assert done.returncode != 0 and "unreachable" in done.stderr
