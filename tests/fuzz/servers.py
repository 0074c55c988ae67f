"""Servers of a hostile publisher: runs over HTTP whose every answer may be a lie, and who was asked for what."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.fuzz.runs import COMMANDS, Fault, Place, hurt, others, try_command, without_waiting
from tests.store import servers
from tests.store.servers import Behaviour, Handler, Server

BEYOND = 64 * 1024 * 1024  # bytes of an endless body that no reader may take


def endless(handler: Handler, data: bytes | None) -> None:
    """A body in chunks that never ends."""
    handler.head(200, {"Transfer-Encoding": "chunked"})
    part = b"10000\r\n" + bytes(0x10000) + b"\r\n"
    while handler.asked.sent < BEYOND:
        handler.body(part)
    handler.cut()


def claiming(length: str) -> Behaviour:
    """A Content-Length of its own, and then no more than the file."""

    def behave(handler: Handler, data: bytes | None) -> None:
        handler.head(200, {"Content-Length": length})
        handler.body(data or b"x")
        handler.cut()

    return behave


def many_headers(handler: Handler, data: bytes | None) -> None:
    """A head without end."""
    handler.send_response(200)
    for number in range(100_000):
        handler.send_header(f"X-{number}", "x" * 100)
    handler.end_headers()
    handler.cut()


def to_nowhere(target: str) -> Behaviour:
    """A redirect to what is no address of a server."""
    return servers.redirecting(lambda handler: target)


PLAIN: tuple[Behaviour, ...] = (
    servers.honest,
    servers.forgetful,
    servers.web_page,
    servers.coded,
    servers.labelled("zstd"),
    servers.garbage,
    servers.until_close,
    servers.instead(servers.flip),
    servers.instead(lambda data: data[:-1]),
    servers.instead(lambda data: data + b"x"),
    servers.ranged(lambda first, last, total: f"bytes {first}-{last}/{total}", shift=1),
    servers.ranged(lambda first, last, total: f"bytes {last}-{first}/*"),
    servers.ranged(lambda first, last, total: f"bytes \u0663-\u0664/{10**17}".encode().decode("latin-1")),
    endless,
    many_headers,
    claiming("0"),
    claiming(str(10**18)),
    claiming("9" * 5000),
    claiming("-1"),
    claiming("\xb2"),
    to_nowhere("file:///etc/passwd"),
    to_nowhere("ftp://127.0.0.1/x"),
    to_nowhere("//"),
    to_nowhere("http://[::1"),
    to_nowhere("\x00"),
    servers.redirecting(lambda handler: handler.path),  # a loop
    servers.Busy([503] * 20, retry_after="999999999"),
    servers.Busy([429, 500, 503], retry_after="-1"),
)


def trial(seed: int, honest: Sequence[Path], work: Path) -> str:
    """One hostile run over HTTP and some commands on it. Raises `Fault` naming the seed."""
    rng = random.Random(seed)
    root = work / f"remote-{seed}"
    run = shutil.copytree(rng.choice(honest), root / "run")
    try:
        what = hurt(rng, run, others(run)) if rng.random() < 0.5 else "as published"
        with ExitStack() as stack:
            stack.enter_context(without_waiting())
            return f"{what}: {_commands(rng, run, Place(root), stack)}"
    except Fault as error:
        raise Fault(f"seed {seed}: {error}") from error
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _commands(rng: random.Random, run: Path, place: Place, stack: ExitStack) -> str:
    files = {
        path.relative_to(run).as_posix(): path.read_bytes()
        for path in run.rglob("*")
        if path.is_file() and path.stat().st_size < 1 << 24
    }
    elsewhere = stack.enter_context(servers.serve(servers.honest, files))
    leading = servers.redirecting(lambda handler: f"{elsewhere.url}{handler.path.lstrip('/')}")
    chosen = {name: rng.choice((*PLAIN, leading)) for name in files if rng.random() < 0.4}
    chosen.setdefault("run.json", servers.honest)

    def behave(handler: Handler, data: bytes | None) -> None:
        chosen.get(handler.asked.path, servers.honest)(handler, data)

    server = stack.enter_context(servers.serve(behave, files))
    tried = []
    for command in rng.sample(COMMANDS, 2):
        code, seen, _ = try_command(command, server.url, place)
        allowed = {address(server)} | ({address(elsewhere)} if leading in chosen.values() else set())
        strange = seen.reached - allowed
        if strange:
            raise Fault(f"{' '.join(command)}: reached {sorted(strange)}, allowed {sorted(allowed)}")
        if any(asked.sent > BEYOND // 2 for asked in server.asked):
            raise Fault(f"{' '.join(command)}: took {max(asked.sent for asked in server.asked):,} bytes of a body")
        tried.append(f"{' '.join(command)} {code}")
    return ", ".join(tried)


def address(server: Server) -> str:
    """As a watch notes it."""
    return f"127.0.0.1:{server.server_address[1]}"
