"""A PostgreSQL server of our own in a temporary folder, on a local socket: started for the tests, stopped by its id."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

USER = "auditkit"
_SECONDS = 60.0  # to start, and to stop
Account = dict[str, Any]  # keyword arguments of Popen: the user who runs the server

_PLACES = ("/usr/lib/postgresql", "/opt/homebrew/opt", "/usr/local/opt", "/usr/pgsql-*")


def programs() -> Path | None:
    """The folder with initdb and postgres, the newest where there are several; None when none is installed."""
    found = sorted(
        (place for root in _PLACES for place in Path("/").glob(f"{root.lstrip('/')}/**/bin/initdb")),
        key=lambda path: [int(part) for part in path.parts[-3].replace("@", "-").split("-") if part.isdigit()],
    )
    on_path = shutil.which("initdb")
    place = found[-1] if found else Path(on_path).resolve() if on_path else None
    return place.parent if place is not None and (place.parent / "postgres").exists() else None


@dataclass
class Cluster:
    """A running server."""

    folder: Path
    process: subprocess.Popen[bytes]
    account: Account
    made: int = 0

    def url(self, database: str) -> str:
        """The address of a database."""
        return f"postgresql://{USER}@/{database}?host={self.folder}"

    def new_database(self) -> str:
        """The address of a fresh, empty database."""
        self.made += 1
        name = f"test{self.made}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode("ascii"))
        return self.url(name)

    def crash(self) -> None:
        """End it as the loss of power would: SIGQUIT makes every process of it exit at once, with nothing written."""
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(_SECONDS)

    def restart(self, bin_folder: Path) -> None:
        """Start it again over what is on the disk."""
        self.process = start(bin_folder, self.folder, self.account, {})
        _wait(self)


@contextlib.contextmanager
def started(bin_folder: Path, **settings: str) -> Iterator[Cluster]:
    """A fresh server for the block; `settings` as in postgresql.conf. It is durable as any: fsync stays on."""
    folder = Path(tempfile.mkdtemp(prefix="auditkit-pg-"))
    try:
        account = _account(folder)
        words = ["-A", "trust", "-U", USER, "-E", "UTF8", "-D", str(folder / "data"), "--locale=C", "--no-sync"]
        subprocess.run([bin_folder / "initdb", *words], check=True, capture_output=True, cwd=folder, **account)
        process = start(bin_folder, folder, account, settings)
        cluster = Cluster(folder, process, account)
        try:
            _wait(cluster)
            yield cluster
        finally:
            stop(cluster.process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def start(bin_folder: Path, folder: Path, account: Account, settings: dict[str, str]) -> subprocess.Popen[bytes]:
    """The server process over a folder that initdb made."""
    given = {"listen_addresses": "", "unix_socket_directories": str(folder), "max_connections": "60", **settings}
    words = [word for name, value in given.items() for word in ("-c", f"{name}={value}")]
    with (folder / "server.log").open("ab") as log:
        command = [str(bin_folder / "postgres"), "-D", str(folder / "data"), *words]
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, **account)


def stop(process: subprocess.Popen[bytes]) -> None:
    """A fast shutdown; at once if that takes too long."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGQUIT)
            process.wait(_SECONDS)


def _account(folder: Path) -> Account:
    """Who runs the server: it refuses to run as root, so root gives the folder to another user."""
    if os.getuid() != 0:
        return {}
    names = [entry.pw_name for entry in pwd.getpwall()]
    user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    os.chown(folder, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _wait(cluster: Cluster) -> None:
    until = time.monotonic() + _SECONDS
    while True:
        try:
            psycopg.connect(cluster.url("postgres"), connect_timeout=5).close()
            return
        except psycopg.OperationalError as error:
            if cluster.process.poll() is not None or time.monotonic() > until:
                log = (cluster.folder / "server.log").read_text(encoding="utf-8", errors="replace")
                raise RuntimeError(f"postgres did not start: {error}\n{log}") from error
            time.sleep(0.05)
