"""Network guard of the test suite: this process and every Python it starts may reach this machine only.

Python imports a `sitecustomize` that it finds on its path; tests/conftest.py puts this folder into PYTHONPATH, so that
a command under test is guarded as well. An audit hook cannot be removed and sees every socket, whoever opens it.
"""

from __future__ import annotations

import sys

_HERE = frozenset({"127.0.0.1", "::1", "localhost"})
_WITH_ADDRESS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg", "socket.bind"})


class NetworkBlocked(RuntimeError):
    """A test tried to leave this machine. Not an OSError: code that handles network failures must not swallow it."""


def allowed(event: str, args: tuple[object, ...]) -> bool:
    """Whether an audit event may happen: anything but a look-up or a socket address that leads off this machine."""
    if event in _WITH_ADDRESS:
        address = args[1]
        # A str or bytes address is a local (AF_UNIX) socket; None is a datagram on a connected socket.
        return not isinstance(address, tuple) or not address or _is_local(address[0])
    if event == "socket.getaddrinfo":
        return _is_local(args[0])
    if event == "socket.gethostbyname":
        return _is_local(args[0])
    return True


def _is_local(host: object) -> bool:
    if isinstance(host, (bytes, bytearray)):
        host = bytes(host).decode("ascii", "replace")
    return not isinstance(host, str) or host in _HERE


def _hook(event: str, args: tuple[object, ...]) -> None:
    if event.startswith("socket.") and not allowed(event, args):
        raise NetworkBlocked(f"tests may reach 127.0.0.1 only: {event}{args[1:] if event in _WITH_ADDRESS else args}")


if not getattr(sys, "_auditkit_network_guard", False):
    sys._auditkit_network_guard = True  # type: ignore[attr-defined]
    sys.addaudithook(_hook)
