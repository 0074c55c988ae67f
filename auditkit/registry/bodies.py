"""The body of a request: of the right type, no longer than the limit, and here in time."""

from __future__ import annotations

import asyncio
import base64
import binascii

from starlette.requests import ClientDisconnect, Request

from auditkit.errors import AuditkitError, BadArtifact, UsageError
from auditkit.registry.refusals import NotAllowed, TooSlow
from auditkit.trust.keys import PublicKey

ENVELOPE_TYPES = ("application/json", "application/vnd.dsse.envelope.v1+json")
LINES_TYPES = ("application/x-ndjson", "application/jsonl")
KEY_HEADER = "Auditkit-Key"  # public keys that come along: base64 of 32 bytes each, separated by commas


async def read_body(request: Request, types: tuple[str, ...], *, limit: int, seconds: float) -> bytes:
    """The whole body. NotAllowed: another content type, a content coding, too large; TooSlow: not here in time."""
    _check_head(request, types, limit)
    data = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                data += chunk
                if len(data) > limit:
                    raise _too_large(limit)
    except TimeoutError:
        raise TooSlow(f"the body did not come within {seconds:g} s") from None
    except ClientDisconnect:
        raise TooSlow("the connection ended within the body") from None
    return bytes(data)


def lines(data: bytes, most: int) -> list[bytes]:
    """The envelopes of a batch, one a line; UsageError for none or more than `most`."""
    found = data.split(b"\n")
    if found[-1] == b"":
        found.pop()
    if not 1 <= len(found) <= most:
        raise UsageError(f"{len(found)} envelopes in one request, 1 to {most} are allowed")
    return found


def brought_keys(request: Request, most: int) -> dict[str, PublicKey]:
    """The public keys that a request brings along, by keyid. UsageError: not base64 of a sound key, or too many."""
    texts = [text.strip() for value in request.headers.getlist(KEY_HEADER) for text in value.split(",")]
    if len(texts) > most:
        raise UsageError(f"{len(texts)} keys in one request, at most {most} are allowed")
    found = {}
    for text in texts:
        try:
            key = PublicKey(base64.b64decode(text, validate=True))
        except binascii.Error:
            raise UsageError(f"{KEY_HEADER}: not base64", hint="base64 of the 32 bytes of an Ed25519 key") from None
        except AuditkitError as error:
            raise UsageError(f"{KEY_HEADER}: {error.message}", hint=error.hint) from None
        found[key.keyid] = key
    return found


def _check_head(request: Request, types: tuple[str, ...], limit: int) -> None:
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    if kind.strip().lower() not in types or parameters.strip().lower() not in ("", "charset=utf-8"):
        raise NotAllowed(f"the content type is not {' or '.join(types)}", 415)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise NotAllowed("a compressed body is not taken", 415)
    length = request.headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise BadArtifact("the content length is not a number")
    if len(length) > 15 or int(length) > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> NotAllowed:
    return NotAllowed(f"a body of more than {limit} bytes", 413)
