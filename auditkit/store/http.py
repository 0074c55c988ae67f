"""One request with what all need: no content coding, few redirects, guarded credentials, a bounded head."""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from auditkit.errors import Unavailable, UsageError
from auditkit.formats.canonical import words as said
from auditkit.store import proxies
from auditkit.store.disk import reason
from auditkit.store.headwatch import HeadWatch, Streams
from auditkit.store.inside import is_inside, may_be_outside
from auditkit.store.limits import StoreLimits
from auditkit.store.peers import Peers
from auditkit.store.source import redact

if TYPE_CHECKING:  # loaded with the first address: a tenth of a command's time, and a run on a disk needs none of it
    import httpx

REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HEADERS = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "auditkit"}


class Again(Exception):
    """A try failed in a way that another try may mend; `asked` is the wait that the server asked for, in seconds."""

    def __init__(self, message: str, *, answered: bool, asked: float | None = None) -> None:
        super().__init__(message)
        self.message, self.answered, self.asked = message, answered, asked


class Http:
    """Connections to any number of servers, for any number of threads; nothing is opened before the first `get`."""

    def __init__(self, limits: StoreLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._lines: dict[str, _Line] = {}  # by proxy address, "" for direct connections
        self._tls: ssl.SSLContext | None = None
        self._peers = Peers(lambda address: is_inside(address, resolve=False))
        # httpx logs whole addresses, whose query may be a secret.
        logging.getLogger("httpx").setLevel(logging.WARNING)

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            lines, self._lines = list(self._lines.values()), {}
        for line in lines:
            line.client.close()

    @contextmanager
    def get(
        self, url: str, *, authorization: str = "", named_by: str = "", span: tuple[int, int] | None = None
    ) -> Iterator[httpx.Response]:
        """The answer to GET `url`, redirects followed, its body not read yet; any status.

        `named_by`: the address that named `url`; from outside it may not name one inside (auditkit/store/inside.py).

        `span`: first and last byte to ask for. `authorization` goes to the origin of `url` only, and to no server after
        a redirect away from it. Again when no answer came, Unavailable when the address or a redirect is of no use.
        """
        address = _address(url)
        origin = _origin(address)
        outside = False  # whether it was led here from there
        if named_by:
            source = _address(named_by)
            outside = self._peers.was_outside(source.host) or _may_be_outside(source)
            message = f"{redact(named_by)}: names the mirror {redact(url)}, which lies in"
            _stay_outside(source, address, message, outside)
        for _ in range(self._limits.redirects + 1):
            headers = {"Range": f"bytes={span[0]}-{span[1]}"} if span else {}
            if authorization and _origin(address) == origin:
                headers["Authorization"] = authorization
            else:
                authorization = ""
            response = self._send(address, headers, stay=outside)
            try:
                if response.status_code not in REDIRECTS:
                    yield response
                    return
                outside = outside or self._peers.was_outside(address.host)
                address = _next(address, response, outside)
            finally:
                response.close()
        raise Unavailable(f"{redact(url)}: more than {self._limits.redirects} redirects")

    @contextmanager
    def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        """The answer to POST `body` to `url`, its body not read yet; any status, no redirect followed: what is sent is
        meant for this place. Errors as of `get`.
        """
        response = self._send(_address(url), dict(headers), body)
        try:
            yield response
        finally:
            response.close()

    def _send(
        self, address: httpx.URL, headers: dict[str, str], body: bytes | None = None, *, stay: bool = False
    ) -> httpx.Response:
        """`stay`: the connection must lead outside, as far as that can be seen from here: a proxy hides it."""
        import httpx

        shown = redact(str(address))
        proxy = proxies.choose(str(address))
        where = f"{shown} (through the proxy of {proxy.setting})" if proxy else shown
        line = self._line(proxy)
        watch = HeadWatch(line.streams, self._limits.answer_seconds)
        try:
            trace = line.streams.trace if proxy else self._peers.trace(address.host, shown, stay, line.streams.trace)
            extensions = {"trace": trace}
            method = "GET" if body is None else "POST"
            request = line.client.build_request(method, address, headers=headers, content=body, extensions=extensions)
            with watch:
                return line.client.send(request, stream=True, follow_redirects=False, auth=None)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            if watch.fired:
                message = f"{where}: no complete answer within {self._limits.answer_seconds:g} s"
                raise Again(message, answered=False) from None
            raise _failure(error, where) from None

    def _line(self, proxy: proxies.Proxy | None) -> _Line:
        key = proxy.url if proxy else ""
        with self._lock:
            if key not in self._lines:
                self._lines[key] = _Line(self._make(proxy), Streams())
            return self._lines[key]

    def _make(self, proxy: proxies.Proxy | None) -> httpx.Client:
        import httpx

        limits = self._limits
        if self._tls is None:
            try:
                self._tls = httpx.create_ssl_context()  # reads SSL_CERT_FILE and SSL_CERT_DIR
            except OSError as error:
                raise UsageError(f"SSL_CERT_FILE or SSL_CERT_DIR cannot be read: {reason(error)}") from error
        try:
            return httpx.Client(
                headers=_HEADERS,
                timeout=httpx.Timeout(limits.silence_seconds, connect=limits.connect_seconds),
                proxy=proxy.url if proxy else None,
                verify=self._tls,
                # Proxies are chosen in proxies.py; .netrc must not send a password that nobody asked to send.
                trust_env=False,
            )
        except (ValueError, ImportError, httpx.InvalidURL) as error:
            setting = proxy.setting if proxy else "the proxy"
            raise UsageError(f"{setting} names a proxy that cannot be used", hint=f"unset {setting}") from error


@dataclass(frozen=True)
class _Line:
    client: httpx.Client
    streams: Streams


def _failure(error: Exception, where: str) -> Again | Unavailable:
    import httpx

    text = str(error)
    # httpx builds the request that would follow a redirect even when it is told not to follow.
    if isinstance(error, (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError)) or "location" in text:
        return Unavailable(f"{where}: is, or redirects to, something that is not a http(s) address")
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return Unavailable(
            f"{where}: the server's certificate is not trusted",
            hint="set SSL_CERT_FILE if your network has its own certificate authority",
        )
    return Again(f"{where}: {words(error)}", answered=False)


def words(error: Exception) -> str:
    """What went wrong on the connection, in lower case and without addresses."""
    import httpx

    if isinstance(error, httpx.ConnectTimeout):
        return "no connection in time"
    if isinstance(error, httpx.TimeoutException):
        return "the server fell silent"
    if isinstance(error, httpx.ProxyError):
        return f"the proxy refused: {said(error)}".lower()
    if isinstance(error, httpx.RemoteProtocolError):
        return "the connection ended early or the server does not speak http"
    return said(str(error) or type(error).__name__).lower().rstrip(".")


def _address(url: str) -> httpx.URL:
    import httpx

    try:
        return httpx.URL(url)
    except httpx.InvalidURL as error:
        raise Unavailable(f"{redact(url)}: not an address that can be fetched") from error


def _origin(url: httpx.URL) -> tuple[str, str, int]:
    return url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80)


def _stay_outside(source: httpx.URL, target: httpx.URL, message: str, outside: bool) -> None:
    """Unavailable where a server outside leads to one inside; a proxy looks names up itself, so that none is here.

    outside: it is known that the source is, or was led to from there.
    """
    if source.host == target.host or not is_inside(target.host, resolve=proxies.choose(str(target)) is None):
        return
    if outside or _may_be_outside(source):
        raise Unavailable(
            f"{message} this machine or its own network and is not asked",
            hint="if it is meant, name it yourself: --artifacts",
        )


def _may_be_outside(url: httpx.URL) -> bool:
    return may_be_outside(url.host, resolve=proxies.choose(str(url)) is None)


def _next(address: httpx.URL, response: httpx.Response, outside: bool) -> httpx.URL:
    """Where a redirect leads: http or https, never from https back to http, and without credentials of its own."""
    import httpx

    shown = redact(str(address))
    location = response.headers.get("Location", "")
    try:
        target = address.join(location).copy_with(fragment=None, userinfo=b"")
    except (httpx.InvalidURL, ValueError):
        raise Unavailable(f"{shown}: redirects to something that is not a http(s) address") from None
    if not location or target.scheme not in ("http", "https") or not target.host:
        raise Unavailable(f"{shown}: redirects to {redact(location) or 'nowhere'}, which is not a http(s) address")
    if address.scheme == "https" and target.scheme == "http":
        raise Unavailable(f"{shown}: redirects from https to plain http, which is not followed")
    _stay_outside(address, target, f"{shown}: redirects into", outside)
    return target
