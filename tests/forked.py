"""Programs of Python in processes forked from one that has imported all modules: they start in milliseconds.

    python -m tests.forked FD

answers the requests that come over a socket: a program and its arguments, with the files that are to be its streams.
Who must see that a command can be imported alone starts a Python of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
AUDITKIT = "from auditkit.cli.main import main\nmain()"
# Elsewhere a process that has loaded system libraries must not be forked, or cannot be.
FORKS = sys.platform == "linux"
_LARGEST = 1 << 17  # bytes of a request


class Forked:
    """A forked program: what tests use of subprocess.Popen."""

    def __init__(self, reply: socket.socket, streams: Mapping[str, IO[str]]) -> None:
        self._reply = reply
        self._lock = threading.Lock()
        self.pid = int(reply.recv(64))
        self.returncode: int | None = None
        self.stdout, self.stderr = streams["stdout"], streams["stderr"]

    def poll(self) -> int | None:
        """As Popen."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """As Popen."""
        with self._lock:
            if self.returncode is None:
                self._reply.settimeout(timeout)
                try:
                    self.returncode = int(self._reply.recv(64))
                except (BlockingIOError, TimeoutError):
                    raise subprocess.TimeoutExpired("a forked program", timeout or 0) from None
                self._reply.close()
            return self.returncode

    def send_signal(self, number: int) -> None:
        """As Popen."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """As Popen."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """As Popen."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """As Popen."""
        streams, said = (self.stdout, self.stderr), ["", ""]

        def read(number: int) -> None:
            if not streams[number].closed:
                said[number] = streams[number].read()

        readers = [threading.Thread(target=read, args=(number,), daemon=True) for number in range(2)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired("a forked program", timeout or 0)
        self.wait(timeout)
        self._close()
        return said[0], said[1]

    def _close(self) -> None:
        self.stdout.close()
        self.stderr.close()

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()
        self._close()


Process = Forked | subprocess.Popen[str]


def start(
    code: str, arguments: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Process:
    """A process that does what `python -c CODE ARGUMENTS` would, its output in pipes."""
    cwd, chosen = cwd or Path.cwd(), dict(os.environ if env is None else env)
    if not FORKS:
        command = [sys.executable, "-c", code, *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=cwd, env=chosen, stdout=pipe, stderr=pipe, encoding="utf-8")
    request = json.dumps({"code": code, "arguments": list(arguments), "cwd": str(cwd), "env": chosen}).encode()
    assert len(request) < _LARGEST
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    streams, given = {}, [theirs.fileno(), os.open(os.devnull, os.O_RDONLY)]
    for name in ("stdout", "stderr"):
        read, write = os.pipe()
        streams[name] = open(read, encoding="utf-8")
        given.append(write)
    socket.send_fds(_server(os.getpid()), [request], given)
    for number in given[1:]:
        os.close(number)
    theirs.close()
    return Forked(mine, streams)


@dataclass(frozen=True)
class Done:
    """How a program ended."""

    returncode: int
    stdout: str
    stderr: str


def run(
    code: str,
    arguments: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> Done:
    """What `python -c CODE ARGUMENTS` ends with."""
    process = start(code, arguments, cwd=cwd, env=env)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return Done(process.wait(), out, err)


@functools.cache
def _server(_process: int) -> socket.socket:
    """The socket to the process that forks, one for each process that asks."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.forked", str(theirs.fileno())],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "PYTHONUTF8": "1"},
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
    )
    theirs.close()

    def end() -> None:
        mine.close()
        process.wait(60)

    atexit.register(end)
    return mine


def _import_all() -> None:
    """All modules of both programs, and what they import only when it is needed; not torch, which starts threads."""
    import auditkit
    import trainer

    names = ["encodings.idna", "httpx", "matplotlib.backends.backend_svg", "pydantic.type_adapter", "uvicorn"]
    names += ["pydantic.json_schema", "starlette.applications", "tokenizers", "typer._adapters"]
    for package in (auditkit, trainer):
        found = [module.name for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
        names += [name for name in found if not name.rpartition(".")[2].startswith(("torch_", "launch", "__"))]
    for name in names:
        with contextlib.suppress(ImportError):  # of what is not installed
            importlib.import_module(name)


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """Fork for each request; returns the request in each forked process, None where no more come."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        packet, given, _, _ = socket.recv_fds(requests, _LARGEST, 4)
        if not packet:
            return None
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            if _fork_program(*given):
                request: dict[str, Any] = json.loads(packet)
                return request
        for number in given:
            os.close(number)


def _fork_program(reply: int, *streams: int) -> bool:
    """Fork the program itself, where this is True; the process here waits for it and tells how it ended."""
    process = os.fork()
    if process == 0:
        os.close(reply)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        return True
    for stream in (*streams, 0, 1, 2):
        os.close(stream)
    with contextlib.suppress(OSError):  # whoever asked may be gone
        os.write(reply, str(process).encode())
        os.write(reply, str(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])).encode())
    os._exit(0)


def main() -> None:
    """Answer requests; in a forked process, be the program."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    _import_all()
    gc.collect()
    gc.freeze()
    request = _serve(requests)
    if request is None:
        return
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stderr = sys.__stderr__ = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = ["-c", *request["arguments"]]
    _leave(_run(request["code"]))


def _run(code: str) -> int:
    """Run the program as the main module; its exit code."""
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        exec(compile(code, "<string>", "exec"), module.__dict__)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:  # noqa: BLE001 - as an interpreter ends
        traceback.print_exc()
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
        return 1
    return 0


def _leave(code: int) -> NoReturn:
    """What an interpreter does at its end, but to take all modules apart: that would take a quarter of a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError as error:
        code = 120
        print(f"Exception ignored in: {sys.stdout!r}\n{type(error).__name__}: {error}", file=sys.stderr)
    os._exit(code & 255)


if __name__ == "__main__":
    main()
